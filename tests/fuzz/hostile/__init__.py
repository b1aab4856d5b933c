"""Hostile input: damaged files, requests that are not HTTP, and wrong arguments.

Whatever the input, lox returns a result or raises one of its own errors: it never
crashes, hangs, executes code from the input, or writes elsewhere.
"""
