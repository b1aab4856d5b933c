"""Rules of traversals that only infer the types of rows.

A primitive without such a rule uses its ordinary rule. These rules save time, or return
types where the ordinary rule would need a state.
"""

import dataclasses
import functools
from typing import Any

from lox._errors import UnsupportedPrimitiveError
from lox._jax import tracing, vma
from lox._jax.array_types import as_array
from lox._jax.vma import may_have_derivative

from .handlers import State
from .joining import have_same_types, join, placeholder_rows, unify, with_all_lines
from .rule_table import Result, type_rule
from .walk import Walk


@type_rule("cond")
def _cond_types(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    types = list(map(walk.row_types, eqn.params["branches"]))
    records = [placeholder_rows(record) for record in types]
    # the ordinary rule would trace branches with different rows a second time
    if have_same_types(types):
        record = with_all_lines(records[0], types)
    else:
        record = unify(records)[0]
    # see `_branch` in `rules` for why values with derivatives are not cast
    if varying := vma.varying_axes(eqn.invars[0].aval):
        for key, rows in record.items():
            if not any(map(may_have_derivative, rows.leaves)):
                record[key] = rows.arrays(as_array).arrays(
                    functools.partial(vma.vary_like, axes=varying)
                )
    return tracing.unknown_results(eqn, args), record, state


@type_rule("while")
def _while_types(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """Marks the rows as unbounded, where the ordinary rule would raise an error."""
    records = []
    lanes = eqn.params["cond_jaxpr"].out_avals[0].shape
    for name in ("cond_jaxpr", "body_jaxpr"):
        record = placeholder_rows(walk.row_types(eqn.params[name]))
        for key, rows in record.items():
            if rows.devices and lanes:
                raise UnsupportedPrimitiveError(
                    f"{key!r}, logged at {rows.source}, is in a `shard_map` in a "
                    "`while_loop` that ends at different times in different lanes of a "
                    "`vmap`, where it cannot be reduced or stored. Use `lox.tap`."
                )
            rows = rows.with_mask().with_time()
            record[key] = dataclasses.replace(rows, unbounded=True)
        records.append(record)
    return tracing.unknown_results(eqn, args), join(records), state
