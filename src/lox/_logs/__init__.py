"""`logdict`, and its keys, metadata and exports."""
