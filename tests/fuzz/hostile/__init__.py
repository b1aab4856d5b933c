"""Hostile input: damaged files, requests that are not HTTP, and wrong arguments.

Whatever a user, another program or a broken disk hands over, lox returns a result, or
raises an error of its own: it never crashes, hangs, runs code of the input, or writes
elsewhere.
"""
