"""Events: the equations that `lox.log` adds to a program."""
