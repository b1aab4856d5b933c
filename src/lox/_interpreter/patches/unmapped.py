"""`vmap` of primitives whose inputs have no lanes.

JAX batches most higher-order primitives even then, and their events get lanes. But JAX
binds `custom_vmap` functions unchanged, Equinox binds its filtered primitives
unchanged, and the batching rules of high-level primitives may do the same.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from lox._events.event import Event
from lox._events.primitive import batch, log_p
from lox._interpreter.contents import cotangents_of, events_of, may_log
from lox._interpreter.handlers import NO_STATE, Handler
from lox._interpreter.walk import Walk
from lox._jax import batching_kinds, hijax, primitives, rule_tables, tracing
from lox._jax.patches import Patch

from .missing import reject
from .rewriter import AllEventsRewriter


class LaneAdder(AllEventsRewriter):
    """Gives events the lanes of a `vmap` that their program does not depend on.

    Args:
        axis_data: the axis of the `vmap`.
        name: the public name of the primitive that contains the events.
        at: the number of axes in front of it, those of later `vmap`s.
    """

    def __init__(self, axis_data: Any, name: str, at: int = 0) -> None:
        self._axis_data = axis_data
        self._name = name
        self._at = at
        self.memo_key = ("add lanes", axis_data, name, at)

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        at = min(self._at, event.layout.lanes)  # a `def_vmap` rule may add no lanes
        batch(self._axis_data, operands, [None] * len(operands), event=event, at=at)

    def inside_vmap(self) -> Handler:
        return LaneAdder(self._axis_data, self._name, self._at + 1)

    def for_cotangents(self) -> Handler:
        return _CotangentRefuser(self._name)


class _CotangentRefuser(AllEventsRewriter):
    """Refuses the cotangents of values without lanes: they are summed over lanes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.memo_key = ("refuse cotangents", name)

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        if event.layout.once:  # the `vmap` of `jacfwd`, which adds no lanes
            event = event.with_layout(once="")
        elif not event.layout.problem:
            event = event.with_layout(
                problem=f"{event.call.description}, is under a `vmap`, in "
                f"`{self._name}`, whose inputs are the same in all lanes: only the sum "
                "of the cotangents of all lanes is known there. Use `log_grad` outside "
                "it, or pass it an input that depends on the lane."
            )
        log_p.bind(*operands, event=event)


def patch_of_unmapped(
    primitive: Any, applies: rule_tables.Applies | None = None
) -> Patch:
    """The patch of the batching rule of a primitive.

    Args:
        primitive: the primitive.
        applies: whether to change the rule for an equation; by default, always.
    """
    name = primitives.public_name(primitive)

    def install() -> None:
        wrapper = with_lanes_for_all(primitive)
        rule_tables.wrap_rule(
            "batching", primitive, wrapper, applies or (lambda params: True)
        )
        if applies is None:
            batching_kinds.keep_kind(primitive)

    return Patch(
        f"the batching rule of `{name}`, for inputs without lanes",
        without="under `vmap`, events inside that do not depend on the lane are logged "
        "once, not in every lane",
        instead=f"log outside `{name}`",
        install=install,
        refuse=lambda patch: reject(patch, primitive),
    )


def with_lanes_for_all(primitive: Any) -> Callable[..., Any]:
    """A wrapper of the batching rule of a primitive."""
    return functools.partial(_batch, primitive)


def batches_itself(params: dict[str, Any]) -> bool:
    """Whether a high-level primitive has a batching rule that is not one of JAX's."""
    return hijax.has_own_batching(params.get("_prim", params.get("prim")))


def _batch(
    primitive: Any,
    rule: Callable[..., Any],
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    /,  # one of the parameters of `custom_vmap` is `rule`
    **params: Any,
) -> Any:
    if any(dim is not None for dim in dims):
        return rule(axis_data, args, dims, **params)
    closed, inputs = tracing.traced_equation(primitive, args, params)
    # a `custom_vmap` function also has derivative and batching rules, which may log
    has_rules = primitive is primitives.custom_vmap_p and may_log(closed)
    if not (has_rules or events_of(closed) or cotangents_of(closed)):
        return rule(axis_data, args, dims, **params)
    adder = LaneAdder(axis_data, primitives.public_name(primitive))
    outs, _, _ = Walk(adder)(closed, inputs, NO_STATE)
    return outs, [None] * len(outs)
