"""Finds branches and loops of a `shard_map` that only some devices may run.

The collective of an event with `over` waits for all devices. If some of them take
another branch, or end a loop earlier, the others wait forever. The types of JAX say
which predicates may differ between devices. In a `shard_map` with `check_vma=False`,
this is inferred: values that are not known to be the same are assumed to differ.
"""

from collections.abc import Sequence
from typing import Any

from lox._errors import LoxValueError
from lox._events.event import Event
from lox._jax import array_types, callbacks, jaxprs, primitives

from .contents import equations_with_events, events_inside, events_of
from .rule_table import jaxprs_of

Axes = frozenset[Any]  # the mesh axes along which a value may differ
_SAME: Axes = frozenset()

# collectives with the same result on all devices along their axes
_AGREEING = (
    "psum",
    "psum2",
    "psum_invariant",
    "pmax",
    "pmin",
    "all_gather",
    "all_gather_invariant",
)
# other primitives whose result differs between devices along their axes
_DIFFERING = (
    "axis_index",
    "ppermute",
    "all_to_all",
    "ragged_all_to_all",
    "reduce_scatter",
    "psum_scatter",
    "pgather",
    "pbroadcast",
)


def check_devices_agree(params: dict[str, Any]) -> None:
    """Raises if an event with `over` may be reached by only some of its devices.

    Args:
        params: the parameters of a `shard_map`.
    """
    if not any(event.call.over for event in events_of(params["jaxpr"])):
        return
    if params["check_vma"]:
        _check_types(params["jaxpr"])
        return
    manual = primitives.manual_axes(params)
    _Flow(manual).results(params["jaxpr"], _axes_of_specs(params["in_specs"]))


def _check_types(jaxpr: Any) -> None:
    for eqn in equations_with_events(jaxprs.open_jaxpr(jaxpr)):
        if eqn.primitive is primitives.cond_p:
            predicate = eqn.invars[0].aval
            _check(eqn, array_types.varying_axes(predicate), "cond")
        elif eqn.primitive is primitives.while_p:
            predicate = eqn.params["cond_jaxpr"].out_avals[0]
            _check(eqn, array_types.varying_axes(predicate), "while_loop")
        for inner in jaxprs_of(eqn):
            _check_types(inner)


def _axes_of_specs(specs: Sequence[Any]) -> list[Axes]:
    return [
        frozenset(
            name
            for part in spec
            if part is not None
            for name in (part if isinstance(part, tuple) else (part,))
        )
        for spec in specs
    ]


class _Flow:
    """The propagation through one `shard_map`.

    Args:
        manual: all axes along which devices may differ.
    """

    def __init__(self, manual: Axes) -> None:
        self._manual = manual

    def results(self, jaxpr: Any, ins: Sequence[Axes]) -> list[Axes]:
        """Along which axes the results of a jaxpr may differ, given its inputs."""
        jaxpr = jaxprs.open_jaxpr(jaxpr)
        inputs = [*[_SAME] * len(jaxpr.constvars), *ins]
        return jaxprs.interpret(jaxpr, inputs, self._of_equation, lambda _: _SAME)

    def _of_equation(self, eqn: Any, ins: list[Axes]) -> list[Axes]:
        name, params = eqn.primitive.name, eqn.params
        if eqn.primitive is primitives.scan_p:
            return self._of_scan(params, ins)
        if eqn.primitive is primitives.while_p:
            return self._of_while(eqn, ins)
        if eqn.primitive is primitives.cond_p:
            return self._of_cond(eqn, ins)
        if name == "shard_map":
            return self._of_shard_map(params, ins)
        union = _SAME.union(*ins)
        if name in callbacks.PRIMITIVES:
            return [self._manual] * len(eqn.outvars)
        if name in _AGREEING and params.get("axis_index_groups") is None:
            axes = _named_axes(params)
            # each operand of `psum` has its own result
            each = ins if len(ins) == len(eqn.outvars) else [union] * len(eqn.outvars)
            return [one - axes for one in each]
        if name in _AGREEING or name in _DIFFERING:
            return [union | _named_axes(params)] * len(eqn.outvars)
        inner = jaxprs_of(eqn)
        if not inner:
            return [union] * len(eqn.outvars)
        if len(inner) == 1 and _fits(inner[0], eqn):
            return self.results(inner[0], ins)
        return [self._manual] * len(eqn.outvars)

    def _of_scan(self, params: dict[str, Any], ins: list[Axes]) -> list[Axes]:
        consts, carry, _ = primitives.scan_sizes(params, len(ins))
        while True:
            outs = self.results(params["jaxpr"], ins)
            before = ins[consts : consts + carry]
            after = [a | b for a, b in zip(before, outs, strict=False)]
            if after == before:
                return [*before, *outs[carry:]]
            ins = [*ins[:consts], *after, *ins[consts + carry :]]

    def _of_while(self, eqn: Any, ins: list[Axes]) -> list[Axes]:
        params = eqn.params
        first, second = params["cond_nconsts"], params["body_nconsts"]
        of_cond, of_body = ins[:first], ins[first : first + second]
        carry = ins[first + second :]
        while True:
            (predicate,) = self.results(params["cond_jaxpr"], [*of_cond, *carry])
            outs = self.results(params["body_jaxpr"], [*of_body, *carry])
            # devices whose loops end at different times have different results
            after = [a | b | predicate for a, b in zip(carry, outs, strict=True)]
            if after == carry:
                _check(eqn, predicate, "while_loop")
                return carry
            carry = after

    def _of_cond(self, eqn: Any, ins: list[Axes]) -> list[Axes]:
        predicate, *operands = ins
        _check(eqn, predicate, "cond")
        branches = [self.results(one, operands) for one in eqn.params["branches"]]
        return [predicate.union(*outs) for outs in zip(*branches, strict=True)]

    def _of_shard_map(self, params: dict[str, Any], ins: list[Axes]) -> list[Axes]:
        inside = _Flow(self._manual | primitives.manual_axes(params))
        specs = _axes_of_specs(params["in_specs"])
        ins = [a | b for a, b in zip(ins, specs, strict=True)]
        return [one & self._manual for one in inside.results(params["jaxpr"], ins)]


def _fits(jaxpr: Any, eqn: Any) -> bool:
    inner = jaxprs.open_jaxpr(jaxpr)
    counts = len(inner.invars), len(inner.outvars)
    return counts == (len(eqn.invars), len(eqn.outvars))


def _named_axes(params: dict[str, Any]) -> Axes:
    names = params.get("axes", params.get("axis_name", ()))
    return frozenset(names if isinstance(names, tuple | list) else (names,))


def _check(eqn: Any, predicate: Axes, name: str) -> None:
    for event in events_inside(eqn):
        if not predicate.isdisjoint(event.call.over):
            raise LoxValueError(differing(event, name))


def differing(event: Event, name: str) -> str:
    """The message about an event in a branch or loop that only some devices may run."""
    over = ", ".join(map(repr, event.call.over))
    return (
        f"{event.call.description}, has `over` ({over}) in a `{name}` whose predicate "
        "may differ between the devices along it: if some devices do not reach the "
        "call, the others wait forever. Log outside it with `when=`, which reduces the "
        "values of the devices where it is true; or make the predicate the same on all "
        "devices, by `jax.lax.pmax`, in a `shard_map` that is jitted."
    )
