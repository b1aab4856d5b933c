"""The rules: how each higher-order primitive is evaluated with its logs.

The contract is written once, on `Rule`. The primitives with derivative rules of the
user's are in `_custom_rules`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._errors import UnboundedLoopError, UnsupportedPrimitiveError
from lox._jax import array_types, hijax, jaxprs, primitives, tracing

from .handlers import NO_STATE, State
from .rotation import condition_inputs, rotated
from .rows import Record, Rows, join, of_any, outline, unify
from .rule_table import Result, rule
from .walk import Walk, as_array


@rule("jit", "pjit")
def _jit_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    old = eqn.params["jaxpr"]
    new, tree = walk.rebuilt(old, state)
    leaves = jax.tree.leaves(state)
    more = len(new.out_avals) - len(old.out_avals)
    params = primitives.jit_params(eqn.params, len(leaves), more)
    return tree.unflatten(tracing.bind(eqn, [*leaves, *args], jaxpr=new, **params))


@rule("closed_call", "core_call", "eval_jaxpr")
def _call_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    return walk(jaxprs.close(primitives.called_jaxpr(eqn.params)), args, state)


@rule("remat2", "checkpoint", hijax.CHECKPOINT)
def _checkpoint_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    old = hijax.checkpoint_jaxpr(eqn)
    if not eqn.outvars:  # JAX drops a checkpoint of nothing, effects and all
        return walk(jaxprs.close(old), args, state)
    new, tree = walk.rebuilt(old, state)
    jaxpr, consts = jaxprs.constants_to_inputs(new)
    front = [*consts, *jax.tree.leaves(state)]
    params = hijax.checkpoint_params(eqn, jaxpr, len(front))
    return tree.unflatten(tracing.bind(eqn, [*front, *args], **params))


@rule("scan")
def _scan_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    old = eqn.params["jaxpr"]
    consts, carry, xs = primitives.scan_sizes(eqn.params, len(args))

    def body(state: State, *args: Any) -> Any:
        outs, record, state = walk(old, args, state)
        # Rows come before what is stacked already, as they would by hand: a derivative
        # puts its residuals last, and XLA's schedule depends on the order.
        return state, outs[:carry], record, outs[carry:]

    new, tree = walk.rebuilt(old, state, body, at=consts)
    leaves = jax.tree.leaves(state)
    carried = len(leaves) + carry
    # as JAX does: a scanned input that is logged as it is needs no loop
    new, forwarded = jaxprs.without_forwarded(new, consts + carried, carried)
    ys = len(new.out_avals) - carried
    params = primitives.scan_params(eqn.params, consts, carried, xs, ys)
    args = [*args[:consts], *leaves, *args[consts:]]
    results = iter(tracing.bind(eqn, args, jaxpr=new, **params))
    outs = [
        args[forwarded[i]] if i in forwarded else next(results)
        for i in range(tree.num_leaves)
    ]
    state, last, record, stacked = tree.unflatten(outs)
    if eqn.params["reverse"]:  # rows come in the order of execution
        record = _map(record, lambda rows: rows.arrays(lambda x: jnp.flip(x, 0)))
    record = _map(record, Rows.merge_time)
    return [*last, *stacked], record, state


def _map(record: Record, change: Callable[[Rows], Rows]) -> Record:
    return Record((key, change(rows)) for key, rows in record.items())


@rule("while")
def _while_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """The state is a carry; rows cannot leave a loop of unknown length."""
    if walk.types_only:
        return tracing.bind(eqn, args), _rows_of_while(walk, eqn), state
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    if walk.wants_in(cond):
        return _rotated_while(walk, eqn, args, state)
    cond_consts, body_consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    consts, carry = args[: cond_consts + body_consts], args[cond_consts + body_consts :]
    leaves, state_tree = jax.tree.flatten(state)
    front = len(leaves)
    # After a `vmap`, a predicate may have lanes. JAX then selects between the old and
    # the new value of every carry, which would copy a whole buffer at each iteration.
    # The state does not need this: events of lanes that have ended are masked. So the
    # selection is written out here, for the other carries.
    batched = bool(leaves) and bool(cond.out_avals[0].shape)

    def new_body(*args: Any) -> Any:
        inner, args = args[: len(consts)], args[len(consts) :]
        state, old = state_tree.unflatten(args[:front]), args[front:]
        outs, record, state = walk(body, [*inner[cond_consts:], *old], state)
        if record:
            raise UnboundedLoopError(_unbounded(record))
        if batched:
            (running,) = jaxprs.evaluate(cond, [*inner[:cond_consts], *old])
            outs = [_where(running, *pair) for pair in zip(outs, old, strict=True)]
        return [*jax.tree.leaves(state), *outs]

    def new_cond(*args: Any) -> Any:
        inputs = [*args[:cond_consts], *args[cond_consts + front :]]
        (go,) = jaxprs.evaluate(cond, inputs)
        return jnp.any(go) if batched else go

    const_avals = [*cond.in_avals[:cond_consts], *body.in_avals[:body_consts]]
    avals = [*map(jax.typeof, leaves), *body.in_avals[body_consts:]]
    body_jaxpr, _, _ = jaxprs.trace(new_body, [*const_avals, *avals], body)
    cond_avals = [*const_avals[:cond_consts], *avals]
    cond_jaxpr, _, _ = jaxprs.trace(new_cond, cond_avals, cond)
    outs = tracing.bind(
        eqn,
        [*consts[:cond_consts], *consts, *leaves, *carry],
        cond_jaxpr=cond_jaxpr,
        body_jaxpr=body_jaxpr,
        body_nconsts=len(consts),
    )
    return outs[front:], Record(), state_tree.unflatten(outs[:front])


def _rotated_while(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """The same for a condition that logs, which a rotated loop has in its body."""
    params = eqn.params
    inputs = condition_inputs(args, params)
    (go,), record, state = walk(params["cond_jaxpr"], inputs, state)
    consts = params["cond_nconsts"] + params["body_nconsts"]
    args = [*args[:consts], as_array(go), *args[consts:]]
    loop = eqn.replace(params=rotated(params))
    outs, _, state = _while_rule(walk, loop, args, state)
    return outs[1:], record, state


def _where(condition: Any, x: Any, y: Any) -> Any:
    """`x` in the lanes in which the condition holds, which are its first axes."""
    inner = (1,) * (jnp.ndim(x) - jnp.ndim(condition))
    return jnp.where(jnp.reshape(condition, condition.shape + inner), x, y)


def _unbounded(record: Record) -> str:
    keys = ", ".join(
        f"{key!r} (logged at {rows.source})" for key, rows in record.items()
    )
    return (
        f"cannot stack {keys}: the `while_loop` around it has no static length. Give "
        "`lox.spool` (or `logify.logify`) a `capacity=`, the most rows to keep; reduce "
        'the key (`reduce="mean"`); or stream it with `lox.tap`.'
    )


def _rows_of_while(walk: Walk, eqn: Any) -> Record:
    """The types of the rows, of which there may be any number."""
    records = []
    lanes = eqn.params["cond_jaxpr"].out_avals[0].shape
    for name in ("cond_jaxpr", "body_jaxpr"):
        new, tree = walk.rebuilt(eqn.params[name], NO_STATE)
        record = _map(tree.unflatten(new.out_avals)[1], _stand_in)
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
    return join(records)


@rule("cond")
def _cond_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    branches = eqn.params["branches"]
    traced = [walk.rebuilt(branch, state) for branch in branches]
    records = [tree.unflatten(new.out_avals)[1] for new, tree in traced]
    alike = _alike(records)
    if not alike:
        traced = [
            walk.rebuilt(
                branch, state, _padded(walk, branch, i, records), key=(i, branches)
            )
            for i, branch in enumerate(branches)
        ]
    index, *operands = args
    outs = tracing.bind(
        eqn,
        [index, *jax.tree.leaves(state), *operands],
        branches=tuple(new for new, _ in traced),
    )
    outs, record, state = traced[0][1].unflatten(outs)
    return outs, of_any(record, records) if alike else record, state


def _padded(walk: Walk, branch: Any, i: int, records: Sequence[Record]) -> Any:
    def fun(state: State, *args: Any) -> Any:
        outs, record, state = walk(branch, args, state)
        others = [
            record if j == i else _map(other, _stand_in)
            for j, other in enumerate(records)
        ]
        return outs, unify(others)[i], state

    return fun


def _stand_in(rows: Rows) -> Rows:
    """Rows of another branch, of which only the types matter."""
    return rows.arrays(array_types.zeros_of_aval)


def _alike(records: Sequence[Record]) -> bool:
    """Whether branches give the very same outputs, so that nothing needs a mask."""
    first, *others = (outline(record, numbers=False) for record in records)
    return all(other == first for other in others)


@rule("shard_map")
def _shard_map_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """Rows, and what belongs to keys, have a lane axis over the devices of the mesh."""
    params = eqn.params
    old = jaxprs.close(params["jaxpr"])
    mesh, axes = params["mesh"], primitives.manual_axes(params)
    order = tuple(name for name in mesh.axis_names if name in axes)
    spec = jax.sharding.PartitionSpec
    leaves, state_tree = jax.tree.flatten(state)
    per_lane = state.per_lane_leaves()
    state_specs = [spec(order) if own else spec() for own in per_lane]

    def body(leaves: list[Any], args: list[Any]) -> Any:
        pairs = zip(leaves, per_lane, strict=True)
        leaves = [jnp.squeeze(x, 0) if own else x for x, own in pairs]
        outs, record, new = walk(old, args, state_tree.unflatten(leaves))
        record = _map(
            record,
            lambda rows: dataclasses.replace(
                rows.arrays(lambda x: jnp.expand_dims(x, 0)),
                lanes=rows.lanes + 1,
                devices=True,
            ),
        )
        pairs = zip(jax.tree.leaves(new), per_lane, strict=True)
        after = [jnp.expand_dims(x, 0) if own else x for x, own in pairs]
        return outs, record, after

    outs, record, leaves = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(state_specs, list(params["in_specs"])),
        out_specs=(
            list(params["out_specs"]),
            spec(order),
            state_specs,
        ),
        axis_names=set(axes),
        check_vma=params["check_vma"],
    )(leaves, args)
    # the device axis came out in front; rows have their time first
    record = _map(
        record,
        lambda rows: (
            rows.arrays(lambda x: jnp.moveaxis(x, 0, 1)) if rows.stacked else rows
        ),
    )
    return outs, record, state_tree.unflatten(leaves)
