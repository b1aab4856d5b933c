"""The imperative API (see `lox` for the functional one)."""
