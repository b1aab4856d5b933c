"""Random programs and random input, in numbers that are too large for the tests."""
