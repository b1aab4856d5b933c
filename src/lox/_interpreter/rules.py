"""The rules of JAX's calls, loops, branches and `shard_map`.

The contract of a rule is the docstring of `Rule`. Functions with custom derivative or
batching rules are in `custom_functions`, `kept_derivatives` and `custom_vmap`.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._errors import UnboundedLoopError
from lox._jax import array_types, hijax, jaxprs, primitives, tracing, vma
from lox._jax.array_types import as_array

from .contents import events_inside
from .device_flow import check_devices_agree
from .handlers import Collector, State
from .joining import have_same_types, placeholder_rows, unify, with_all_lines
from .rotation import rotated
from .rows import Record, Rows, map_rows
from .rule_table import Result, rule
from .walk import Walk


@rule("jit", "pjit")
def _jit_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    old = eqn.params["jaxpr"]
    new, tree = walk.rebuilt(old, state)
    leaves = jax.tree.leaves(state)
    extra = len(new.out_avals) - len(old.out_avals)
    params = primitives.jit_params(eqn.params, len(leaves), extra)
    return tree.unflatten(tracing.bind(eqn, [*leaves, *args], jaxpr=new, **params))


@rule("closed_call", "core_call", "eval_jaxpr")
def _call_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    return walk(jaxprs.close(primitives.called_jaxpr(eqn.params)), args, state)


@rule("remat2", "checkpoint", hijax.CHECKPOINT)
def _checkpoint_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    old = hijax.checkpoint_jaxpr(eqn)
    if not eqn.outvars:  # JAX would remove it, despite its effects
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
        # Rows come before the stacked outputs, as in hand-written code: a derivative
        # puts its residuals last, and XLA's schedule depends on the order.
        return state, outs[:carry], record, outs[carry:]

    new, tree = walk.rebuilt(old, state, body, at=consts)
    leaves = jax.tree.leaves(state)
    carried = len(leaves) + carry
    # as in JAX, a scanned input that is logged unchanged is not an output of the loop
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
    if eqn.params["reverse"]:  # rows are in the order of execution
        record = jax.tree.map(lambda x: jnp.flip(x, 0), record)
    record = map_rows(record, Rows.merge_time)
    return [*last, *stacked], record, state


@rule("while")
def _while_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """The state becomes a carry; a loop of unknown length cannot return rows."""
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    if walk.wants_in_jaxpr(cond):
        return _rotated_while(walk, eqn, args, state)
    cond_consts, body_consts, carry = primitives.split_while(eqn.params, args)
    leaves, state_tree = jax.tree.flatten(state)
    front = len(leaves)
    # After a `vmap`, the predicate may have lanes. JAX then selects between the old and
    # the new value of every carry, which would copy a whole buffer at each iteration.
    # The state does not need this, since events of finished lanes are masked. So the
    # selection is done here, for the other carries only.
    batched = bool(leaves) and bool(cond.out_avals[0].shape)

    def new_body(*args: Any) -> Any:
        of_cond, of_body, rest = primitives.split_while(eqn.params, args)
        state, old = state_tree.unflatten(rest[:front]), rest[front:]
        outs, record, state = walk(body, [*of_body, *old], state)
        if record:
            raise UnboundedLoopError(_unbounded(record))
        if batched:
            (running,) = jaxprs.evaluate(cond, [*of_cond, *old])
            outs = [_selected(running, *pair) for pair in zip(outs, old, strict=True)]
        return [*jax.tree.leaves(state), *outs]

    def new_cond(*args: Any) -> Any:
        count = len(cond_consts)
        inputs = [*args[:count], *args[count + front :]]
        (running,) = jaxprs.evaluate(cond, inputs)
        return jnp.any(running) if batched else running

    cond_avals = cond.in_avals[: len(cond_consts)]
    body_avals = body.in_avals[: len(body_consts)]
    avals = [*map(jax.typeof, leaves), *body.in_avals[len(body_consts) :]]
    outs = tracing.bind(
        eqn,
        [*cond_consts, *cond_consts, *body_consts, *leaves, *carry],
        cond_jaxpr=jaxprs.trace(new_cond, [*cond_avals, *avals], cond)[0],
        body_jaxpr=jaxprs.trace(new_body, [*cond_avals, *body_avals, *avals], body)[0],
        body_nconsts=len(cond_consts) + len(body_consts),
    )
    return outs[front:], Record(), state_tree.unflatten(outs[:front])


def _rotated_while(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """The rule for a loop whose condition logs: rotation moves it into the body."""
    cond_consts, body_consts, carry = primitives.split_while(eqn.params, args)
    cond = eqn.params["cond_jaxpr"]
    (running,), record, state = walk(cond, [*cond_consts, *carry], state)
    args = [*cond_consts, *body_consts, as_array(running), *carry]
    loop = eqn.replace(params=rotated(eqn.params))
    outs, _, state = _while_rule(walk, loop, args, state)
    return outs[1:], record, state


def _where(condition: Any, x: Any, y: Any) -> Any:
    """Selects `x` in the lanes where the condition holds; lanes are the first axes."""
    inner = (1,) * (jnp.ndim(x) - jnp.ndim(condition))
    return jnp.where(jnp.reshape(condition, condition.shape + inner), x, y)


def _selected(running: Any, new: Any, old: Any) -> Any:
    """The value of a carry after an iteration, with the type that JAX gives to it."""
    return vma.unvary_like(_where(running, new, old), vma.varying_axes(jax.typeof(old)))


def _unbounded(record: Record) -> str:
    keys = ", ".join(
        f"{key!r} (logged at {rows.source})" for key, rows in record.items()
    )
    it, key = ("it", "key") if len(record) == 1 else ("them", "keys")
    return (
        f"cannot stack {keys}: the `while_loop` around {it} has no static length. Give "
        "`lox.spool` (or `logify.logify`) a `capacity=`, the number of rows to keep; "
        f'reduce the {key} (`reduce="mean"`); or stream {it} with `lox.tap`.'
    )


@rule("cond")
def _cond_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    branches = eqn.params["branches"]
    index, *operands = args
    # JAX does not add the devices over which the index varies to the types of the
    # results, but under `vmap` it does
    varying = vma.varying_axes(jax.typeof(index))
    casts_all = not varying or not any(map(vma.may_have_derivative, operands))

    def traced(records: Sequence[Record] = ()) -> list[tuple[Any, Any]]:
        return [
            walk.rebuilt(
                branch,
                state,
                _branch(walk, branch, varying, casts_all, i, records),
                key=(varying, casts_all, *((i, branches) if records else ())),
            )
            for i, branch in enumerate(branches)
        ]

    results = traced()
    records = [tree.unflatten(new.out_avals)[1] for new, tree in results]
    same = have_same_types(records)
    if not same:
        results = traced(records)
    outs = tracing.bind(
        eqn,
        [index, *jax.tree.leaves(state), *operands],
        branches=tuple(new for new, _ in results),
    )
    outs, record, state = results[0][1].unflatten(outs)
    return outs, with_all_lines(record, records) if same else record, state


def _branch(
    walk: Walk,
    branch: Any,
    varying: frozenset[Any],
    casts_all: bool,
    i: int,
    records: Sequence[Record],
) -> Any:
    """A branch whose rows vary over devices; with the rows of all branches, if given.

    Args:
        walk: the traversal.
        branch: the jaxpr of the branch.
        varying: the axes over which the rows vary.
        casts_all: whether all rows are cast to types that say so. Otherwise only those
            without derivatives are: the transpose of a cast is a sum over devices, and
            those that take this branch would wait for the others forever.
        i: the number of the branch.
        records: the types of the rows of all branches, if they differ.
    """

    def fun(state: State, *args: Any) -> Any:
        outs, record, state = walk(branch, args, state)
        if records:
            others = [
                record if j == i else placeholder_rows(other)
                for j, other in enumerate(records)
            ]
            record = unify(others)[i]

        def cast(x: Any) -> Any:
            x = as_array(x)
            casts = casts_all or not jnp.issubdtype(x.dtype, jnp.inexact)
            return vma.vary_like(x, varying) if casts else x

        return outs, jax.tree.map(cast, record) if varying else record, state

    return fun


@rule("shard_map")
def _shard_map_rule(walk: Walk, eqn: Any, args: list[Any], state: State) -> Result:
    """Rows and streams get a lane axis over the devices of the mesh.

    Devices along the axes of an event's `over` have the same rows, and no such axis.
    """
    params = eqn.params
    if isinstance(walk.handler, Collector):
        check_devices_agree(params)
    old = jaxprs.close(params["jaxpr"])
    mesh, axes = params["mesh"], primitives.manual_axes(params)
    order = tuple(name for name in mesh.axis_names if name in axes)
    spec = jax.sharding.PartitionSpec
    leaves, state_tree = jax.tree.flatten(state)
    state_axes = state.device_axes(order, walk.handler.over(eqn))
    state_specs = [spec(own) if own else spec() for own in state_axes]
    # rows by the axes along which each device has its own, and whether they have time
    overs = {(), *(event.call.over for event in events_inside(eqn))}
    axes_of_rows = dict.fromkeys(_without(order, over) for over in sorted(overs))
    groups = [(own, stacked) for own in axes_of_rows for stacked in (False, True)]
    names: list[str] = []

    def body(leaves: list[Any], args: list[Any]) -> Any:
        pairs = zip(leaves, state_axes, strict=True)
        leaves = [jnp.squeeze(x, 0) if own else x for x, own in pairs]
        with array_types.inside_shard_map(axes, mesh.axis_names):
            outs, record, new = walk(old, args, state_tree.unflatten(leaves))
        names[:] = record
        grouped = [Record() for _ in groups]
        for key, rows in record.items():
            own = _without(order, rows.over)
            group = grouped[groups.index((own, rows.stacked))]
            if params["check_vma"]:
                # under `vmap`, JAX's own cast would fail for results of branches
                cast = functools.partial(vma.vary_like, axes=frozenset(own))
                rows = rows.arrays(as_array).arrays(cast)
            group[key] = _of_devices(rows, order, own)
        pairs = zip(jax.tree.leaves(new), state_axes, strict=True)
        after = [jnp.expand_dims(x, 0) if own else x for x, own in pairs]
        return outs, grouped, after

    outs, grouped, leaves = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(state_specs, list(params["in_specs"])),
        out_specs=(
            list(params["out_specs"]),
            [
                spec(*[None] * stacked, own) if own else spec()
                for own, stacked in groups
            ],
            state_specs,
        ),
        axis_names=set(axes),
        check_vma=params["check_vma"],
    )(leaves, args)
    found = {key: rows for group in grouped for key, rows in group.items()}
    record = Record((key, found[key]) for key in names)
    return outs, record, state_tree.unflatten(leaves)


def _without(axes: tuple[Any, ...], over: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(axis for axis in axes if axis not in over)


def _of_devices(rows: Rows, axes: tuple[Any, ...], own: tuple[Any, ...]) -> Rows:
    """Rows with an axis of devices after time, if each device has its own.

    Args:
        rows: the rows of a device.
        axes: the axes of the `shard_map`.
        own: those of them along which each device has its own rows.
    """
    rows = dataclasses.replace(rows, over=_without(rows.over, axes))
    if not own:
        return rows
    rows = rows.arrays(lambda x: jnp.expand_dims(x, int(rows.stacked)))
    return dataclasses.replace(rows, lanes=rows.lanes + 1, devices=True)
