"""Finds branches and loops of a `shard_map` that only some devices may run.

The collective of an event with `over` waits for all devices. If some of them take
another branch, or end a loop earlier, the others wait forever. Which predicates may
differ between devices is inferred from JAX's types and from the predicates before
them: the type of a result of `cond` or `while_loop` (as of JAX 0.12) does not say that
it varies because the predicate does. In a `shard_map` with `check_vma=False` there are
no such types, and values that are not known to be the same are assumed to differ.
"""

from collections.abc import Sequence
from typing import Any

from lox._errors import LoxValueError
from lox._events.event import Event
from lox._events.primitive import log_p
from lox._jax import array_types, callbacks, jaxprs, primitives, vma

from .contents import events_inside, events_of
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
    flow = _Flow(primitives.manual_axes(params), has_types=params["check_vma"])
    flow.results(params["jaxpr"], _axes_of_specs(params["in_specs"]))


def check_part_of_devices(closed: Any) -> None:
    """`check_devices_agree` for a program in a `shard_map`, given only its input types.

    Without types, predicates are not checked, since they may depend on inputs that are
    the same on all devices.
    """
    manual = frozenset(array_types.manual_axes())
    if not manual or not any(event.call.over for event in events_of(closed)):
        return
    has_types = array_types.has_varying_types()
    flow = _Flow(manual, has_types, checks_predicates=has_types)
    avals = closed.in_avals
    flow.results(closed, [vma.varying_axes(x) if has_types else manual for x in avals])


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
        has_types: whether the types say which values vary.
        checks_predicates: whether to raise if a predicate may differ.
    """

    def __init__(
        self, manual: Axes, has_types: bool, checks_predicates: bool = True
    ) -> None:
        self._manual = manual
        self._has_types = has_types
        self._checks_predicates = checks_predicates

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
        if eqn.primitive is log_p:
            _check_condition(eqn.params["event"], ins, self._has_types)
            return []
        inner = jaxprs_of(eqn)
        if len(inner) == 1 and _fits(inner[0], eqn):
            return self.results(inner[0], ins)
        if self._has_types:
            return self._typed(eqn, ins)
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
        return [self._manual if inner else union] * len(eqn.outvars)

    def _typed(self, eqn: Any, ins: list[Axes]) -> list[Axes]:
        """The axes that the types of the results have, and those that types lack."""
        pairs = zip(eqn.invars, ins, strict=True)
        lacking = _SAME.union(*(own - _declared(var) for var, own in pairs))
        params = eqn.params
        if eqn.primitive.name in _AGREEING and params.get("axis_index_groups") is None:
            lacking -= _named_axes(params)
        for inner in jaxprs_of(eqn):
            invars = jaxprs.open_jaxpr(inner).invars
            self.results(inner, [_declared(var) | lacking for var in invars])
        return [_declared(var) | lacking for var in eqn.outvars]

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
                self._check(eqn, predicate, "while_loop")
                return carry
            carry = after

    def _of_cond(self, eqn: Any, ins: list[Axes]) -> list[Axes]:
        predicate, *operands = ins
        self._check(eqn, predicate, "cond")
        branches = [self.results(one, operands) for one in eqn.params["branches"]]
        return [predicate.union(*outs) for outs in zip(*branches, strict=True)]

    def _of_shard_map(self, params: dict[str, Any], ins: list[Axes]) -> list[Axes]:
        manual = self._manual | primitives.manual_axes(params)
        has_types = self._has_types and params["check_vma"]
        inside = _Flow(manual, has_types, self._checks_predicates)
        specs = _axes_of_specs(params["in_specs"])
        ins = [a | b for a, b in zip(ins, specs, strict=True)]
        return [one & self._manual for one in inside.results(params["jaxpr"], ins)]

    def _check(self, eqn: Any, predicate: Axes, name: str) -> None:
        for event in events_inside(eqn) if self._checks_predicates else ():
            if not predicate.isdisjoint(event.call.over):
                raise LoxValueError(differing(event, name))


def _declared(var: Any) -> Axes:
    return vma.varying_axes(var.aval)


def _fits(jaxpr: Any, eqn: Any) -> bool:
    inner = jaxprs.open_jaxpr(jaxpr)
    counts = len(inner.invars), len(inner.outvars)
    return counts == (len(eqn.invars), len(eqn.outvars))


def _named_axes(params: dict[str, Any]) -> Axes:
    names = params.get("axes", params.get("axis_name", ()))
    return frozenset(names if isinstance(names, tuple | list) else (names,))


def _check_condition(event: Event, ins: list[Axes], has_types: bool) -> None:
    """Raises if the condition of an event, or a step beside it, may differ.

    A condition that varies according to its type has been reduced over the devices.
    """
    parts = event.split(ins)
    if parts.mask is None or event.layout.problem:
        return  # without a mask, the steps are those of the first device
    over = set(event.call.over)
    steps = [
        name
        for name, axes in zip(event.call.steps, parts.steps, strict=True)
        if axes & over
    ]
    if not parts.mask & over and not steps:
        return
    if not has_types:  # a branch that `vmap` has turned into a mask
        raise LoxValueError(differing(event, "cond` or `while_loop"))
    axes = ", ".join(map(repr, event.call.over))
    what, name = ("condition", "when") if parts.mask & over else ("step", steps[0])
    raise LoxValueError(
        f"{event.call.description}, has `over` ({axes}), and its {what} may differ "
        "between the devices along it, because it is the result of a `cond` or "
        "`while_loop` whose predicate differs (or, under `vmap`, is inside one). "
        "JAX's type says that it is the same on all devices. Tell JAX that it varies: "
        f'`{name} = jax.lax.pcast({name}, ({axes},), to="varying")`.'
    )


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
