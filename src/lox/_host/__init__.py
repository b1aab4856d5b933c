"""The host side of events."""
