"""`logdict`, and what it is made of."""
