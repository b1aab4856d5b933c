"""The traversal of programs that log."""
