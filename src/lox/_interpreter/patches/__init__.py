"""JAX's rules that would lose or repeat events before lox can look: one file each.

`table` lists them, with what would go wrong without them. A wrapper is called as
`wrapper(rule, *args, **params)`, in place of JAX's rule and with its arguments, and
only for equations that log.
"""
