"""Removes the events of functions that JAX evaluates again to differentiate them.

An event of a line that the function has already logged is then not logged again. JAX's
rules are wrapped, so that this holds with and without a lox transformation:

- **A `custom_vjp` function**: the forward rule runs under a watch that records its
  lines, the backward rule under a watch that removes the events of these lines.
- **A `custom_jvp` function**: if its rule calls the function several times, the first
  call logs.
- **`custom_root` and `custom_linear_solve`**: the solution logs, but the solves for
  tangents and cotangents do not.
- **`jacfwd`** runs the function once, under a `vmap` over tangents. Its events are
  marked, so that this `vmap` does not add a lane.
"""

from collections.abc import Callable, Sequence
from typing import Any

from lox._events.event import Event
from lox._events.primitive import LOG_EFFECT, log_p
from lox._jax import (
    early_patches,
    hijax,
    jaxprs,
    patches,
    primitives,
    rule_tables,
    watches,
)
from lox._jax.patches import Patch
from lox._jax.rule_sources import CustomFunction
from lox._jax.watches import Watch

from .contents import cotangents_of, events_of
from .handlers import Handler, Rewriter
from .patches import missing
from .rule_watches import (
    DerivativeRuleWatch,
    ForwardPassWatch,
    HandlingWatch,
    Line,
    RecomputationWatch,
    RecordingWatch,
    lines_of,
)


class _Watches:
    """Makes the watches for JAX's own rules (see `early_patches.Watches`)."""

    def of_custom_vjp(self) -> tuple[Watch, Watch]:
        lines: set[Line] = set()
        return RecordingWatch(lines), RecomputationWatch(lines)

    def of_custom_jvp(self, function: CustomFunction) -> Watch:
        return DerivativeRuleWatch(function=function)

    def of_hijax(self, prim: Any) -> tuple[Watch | None, Watch]:
        if hijax.is_custom_vjp(prim):
            return self.of_custom_vjp()
        if hijax.is_checkpoint(prim):
            # the forward pass logs; later events of these lines are recomputation
            inner = list(jaxprs.jaxprs_in(prim.params))
            lines = {x for jaxpr in inner for x in lines_of(events_of(jaxpr))}
            if any(map(cotangents_of, inner)):
                return ForwardPassWatch(lines), RecomputationWatch(lines)
            return RecordingWatch(lines), RecomputationWatch(lines)
        # the linear function and the backward rule run later, under the same watch
        watch = DerivativeRuleWatch(_is_hijax(prim)).begin()
        return watch, watch

    def of_jacfwd(self) -> Watch:
        return HandlingWatch(_OnceMarker())


def _is_hijax(prim: Any) -> Callable[[Any, Any], bool]:
    def is_own(primitive: Any, params: Any) -> bool:
        return type(jaxprs.hijax_of(primitive, params)) is type(prim)

    return is_own


def jvp_of_linear_solve(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """Wraps the JVP rule of `custom_linear_solve`."""

    def is_own(primitive: Any, params: Any) -> bool:
        return primitive is primitives.linear_solve_p

    functions = params["jaxprs"]
    # `matvec`, the equation to solve, is part of the function as well
    events = (*events_of(functions.solve), *events_of(functions.matvec))
    watch = DerivativeRuleWatch(is_own, lines=lines_of(events))
    return watches.watched(rule, watch)(*args, **params)


# --- jacfwd ------------------------------------------------------------------


class _OnceMarker(Rewriter):
    """Marks events, so that the next `vmap` does not add a lane to them."""

    def __init__(self, mark: str = "value") -> None:
        self._mark = mark
        self.memo_key = ("mark", mark)

    def wants(self, event: Event) -> bool:
        return bool(event.call.keys)

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        log_p.bind(*operands, event=event.with_layout(once=self._mark))

    def for_derivative_rules(self, lines: frozenset[Any] = frozenset()) -> Handler:
        return _OnceMarker("rule")


early_patches.source.watches = _Watches()


# --- where JAX cannot be patched ---------------------------------------------


def _reject_in_custom_functions(patch: Patch) -> None:
    """Raises an error for events in a custom function or in its rules."""

    def check(args: Sequence[Any], params: dict[str, Any]) -> None:
        events = [params["event"]] if "event" in params else missing.events_in(params)
        if events and early_patches.in_custom_function():
            subject = (
                f"{events[0].call.description}, is in a custom function or its rules"
            )
            raise patches.error(patch, subject)

    for primitive in (log_p, *primitives.HIGHER_ORDER):
        rule_tables.check_before_bind(primitive, check)


def _reject_in_hijax(patch: Patch) -> None:
    """Raises an error for high-level primitives that log, found by their effects."""

    def check(args: Sequence[Any], params: dict[str, Any]) -> None:
        prim = params.get("_prim", params.get("prim"))
        if LOG_EFFECT in getattr(prim, "effects", ()) or missing.events_in(params):
            kind = type(prim).__name__
            raise patches.error(patch, f"The high-level primitive `{kind}` logs")

    rule_tables.check_before_bind(primitives.hijax_p, check)


patches.when_missing(early_patches.CUSTOM_FUNCTIONS, _reject_in_custom_functions)
for _patch in early_patches.HIJAX:
    patches.when_missing(_patch, _reject_in_hijax)
