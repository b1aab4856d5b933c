"""The open runs of loggers."""
