"""Sends runs to experiment trackers: for loggers and for `lox sync`, without JAX."""
