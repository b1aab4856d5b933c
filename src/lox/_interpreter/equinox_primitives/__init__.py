"""Filtered primitives of Equinox and lineax, whose rules run Python code.

A filtered primitive (`eqxi.filter_primitive_bind`) takes pytrees with static leaves,
which are among its parameters. It is not a single operation: when JAX lowers it, it
traces functions in its parameters. Lineax's `linear_solve` runs a solver and has custom
derivatives; `eqxi.noinline` calls a function. To find the events inside, lox traces
such a primitive in the same way.

The parameters cannot be changed, since each is stored in several places, including the
structures of pytrees. To remove the events of a filtered primitive, lox replaces it
with another primitive, whose rules are those of the original with the events removed.
"""
