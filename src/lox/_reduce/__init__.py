"""Reductions over time."""
