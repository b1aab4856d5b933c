"""Rules for traversals that only infer the types of rows.

Without one, a primitive is traversed by its ordinary rule. These save time, or give
types where the ordinary rule would need a state.
"""

import dataclasses
from typing import Any

from lox._errors import UnsupportedPrimitiveError
from lox._jax import tracing

from .handlers import NO_STATE, State
from .rows import Record, alike, join, of_any, stand_in, unify
from .rule_table import Result, type_rule
from .walk import Walk


@type_rule("cond")
def _cond_types(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    records = [_types_in(walk, branch) for branch in eqn.params["branches"]]
    found = [stand_in(record) for record in records]
    # the ordinary rule would trace branches that differ once more
    record = of_any(found[0], records) if alike(records) else unify(found)[0]
    return tracing.unknown_results(eqn, args), record, state


@type_rule("while")
def _while_types(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """There may be any number of rows."""
    records = []
    lanes = eqn.params["cond_jaxpr"].out_avals[0].shape
    for name in ("cond_jaxpr", "body_jaxpr"):
        record = stand_in(_types_in(walk, eqn.params[name]))
        for key, rows in record.items():
            if rows.devices and lanes:
                raise UnsupportedPrimitiveError(
                    f"{key!r}, logged at {rows.source}, is in a `shard_map` in a "
                    "`while_loop` that ends at different times in the lanes of a "
                    "`vmap`, where it can be neither reduced nor kept. Use `lox.tap`."
                )
            rows = rows.with_mask().with_time()
            record[key] = dataclasses.replace(rows, unbounded=True)
        records.append(record)
    return tracing.unknown_results(eqn, args), join(records), state


def _types_in(walk: Walk, jaxpr: Any) -> Record:
    new, tree = walk.rebuilt(jaxpr, NO_STATE)
    record: Record = tree.unflatten(new.out_avals)[1]
    return record
