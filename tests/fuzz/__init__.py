"""Random programs and random input, too many to run with the other tests."""
