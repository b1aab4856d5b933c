"""Loggers for experiment trackers."""
