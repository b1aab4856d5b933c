"""Where JAX evaluates a function again to differentiate it.

An event that comes by a line which the function itself has passed is recomputation
then, and no event. JAX's rules are wrapped here, so that this holds with and without a
transformation of ours:

- **A `custom_vjp` function**: the forward rule runs under a watch that records its
  lines, the backward rule under one that drops what comes by these lines.
- **A `custom_jvp` function**: of a rule that calls the function itself, the first call
  counts.
- **`custom_root` and `custom_linear_solve`**: the solution counts, and not the solves
  for tangents and cotangents.
- **`jacfwd`** runs the function once, with a tangent for each dimension of its input.
  Its events are marked, and pass the `vmap` over the tangents once.
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
from lox._jax.watches import Watch

from .contents import cotangents_of, events_of
from .derivative_rules import (
    Changer,
    DerivativeRule,
    ForwardPass,
    Line,
    Recomputation,
    Recorder,
    lines_of,
)
from .handlers import Handler, Rewriter
from .patches import missing


class _Watches:
    """Makes the watches for JAX's own rules (see `early_patches.Watches`)."""

    def of_custom_vjp(self) -> tuple[Watch, Watch]:
        lines: set[Line] = set()
        return Recorder(lines), Recomputation(lines)

    def of_custom_jvp(self, name: str) -> Watch:
        return DerivativeRule(name=name)

    def of_hijax(self, prim: Any) -> tuple[Watch | None, Watch]:
        """The linear function and the backward rule run later, under the same watch."""
        if hijax.is_custom_vjp(prim):
            return self.of_custom_vjp()
        if hijax.is_checkpoint(prim):
            # its forward pass logs; what comes again by these lines is recomputation
            inner = list(jaxprs.jaxprs_in(prim.params))
            lines = {x for jaxpr in inner for x in lines_of(events_of(jaxpr))}
            if any(map(cotangents_of, inner)):
                return ForwardPass(lines), Recomputation(lines)
            return Recorder(lines), Recomputation(lines)
        watch = DerivativeRule(_is_hijax(prim)).begin()
        return watch, watch

    def of_jacfwd(self) -> Watch:
        return Changer(_Mark())


def _is_hijax(prim: Any) -> Callable[[Any, Any], bool]:
    def is_own(primitive: Any, params: Any) -> bool:
        return type(jaxprs.hijax_of(primitive, params)) is type(prim)

    return is_own


def watched_solve(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """For the rule of `custom_linear_solve`."""

    def is_own(primitive: Any, params: Any) -> bool:
        del params
        return primitive is primitives.linear_solve_p

    functions = params["jaxprs"]
    # the equation that is solved belongs to the function too
    events = (*events_of(functions.solve), *events_of(functions.matvec))
    watch = DerivativeRule(is_own, lines=lines_of(events))
    return watches.watched(rule, watch)(*args, **params)


# --- jacfwd ------------------------------------------------------------------


class _Mark(Rewriter):
    """Marks events as such that pass the next `vmap` once."""

    def __init__(self, mark: str = "value") -> None:
        self._mark = mark
        self.memo_key = ("mark", mark)

    def wants(self, event: Event) -> bool:
        return bool(event.call.keys)

    def rewrite(self, event: Event, operands: Sequence[Any], context: Any) -> None:
        del context
        log_p.bind(*operands, event=event.with_layout(once=self._mark))

    def in_rules(self, lines: frozenset[Any] = frozenset()) -> Handler:
        del lines
        return _Mark("rule")


early_patches.source.watches = _Watches()


# --- where JAX cannot be patched ---------------------------------------------


def _refuse_in_custom_functions(patch: Patch) -> None:
    """Refuses whatever logs in a custom function or in one of its rules."""

    def check(args: Sequence[Any], params: dict[str, Any]) -> None:
        del args
        events = [params["event"]] if "event" in params else missing.events_in(params)
        if events and early_patches.in_custom_function():
            subject = (
                f"{events[0].call.description}, is in a custom function or its rules"
            )
            raise patches.error(patch, subject)

    for primitive in (log_p, *primitives.HIGHER_ORDER):
        rule_tables.check_before_bind(primitive, check)


def _refuse_in_hijax(patch: Patch) -> None:
    """Refuses high-level primitives that log, which their effects tell."""

    def check(args: Sequence[Any], params: dict[str, Any]) -> None:
        del args
        prim = params.get("_prim", params.get("prim"))
        if LOG_EFFECT in getattr(prim, "effects", ()) or missing.events_in(params):
            kind = type(prim).__name__
            raise patches.error(patch, f"The high-level primitive `{kind}` logs")

    rule_tables.check_before_bind(primitives.hijax_p, check)


patches.when_missing(early_patches.CUSTOM_FUNCTIONS, _refuse_in_custom_functions)
for _patch in early_patches.HIJAX:
    patches.when_missing(_patch, _refuse_in_hijax)
