"""What lox costs, against the same programs written without it."""
