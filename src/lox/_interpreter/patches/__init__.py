"""Wrappers of JAX's own rules that would lose or repeat events.

These rules run before a lox transformation sees the program. `table` lists all
wrappers, with what goes wrong without each. A wrapper is called as
`wrapper(rule, *args, **params)`, with JAX's rule and its arguments, and only for
equations that log.
"""
