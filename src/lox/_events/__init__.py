"""Events: what `lox.log` adds to a program."""
