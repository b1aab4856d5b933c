"""The format on disk."""
