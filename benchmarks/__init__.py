"""The cost of lox, compared with the same programs written without it."""
