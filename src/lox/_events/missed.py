"""Events that a transformation inside a derivative does not collect."""

from collections.abc import Container, Sequence
from typing import Any

from lox._source import Source, warn

from .event import Event

_warned: dict[Any, Any] = {}  # the registry of `warnings`: one warning per line


def warn_if_missed(event: Event, among: Container[str] | None = None) -> None:
    """Warns about keys of an event that a transformation should have collected.

    Args:
        event: the event.
        among: the keys that no other transformation has collected; by default, all.
    """
    selected = {key for missed in event.route.missed for key in missed.keys_of(event)}
    keys = [
        key
        for key in event.call.keys
        if key in selected and (among is None or key in among)
    ]
    if keys:
        warn_of_derivative(keys, event.call.source)


def warn_of_derivative(keys: Sequence[str], source: Source) -> None:
    """Warns about keys that only a derivative rule or a backward pass logs."""
    verb = "is" if len(keys) == 1 else "are"
    warn(
        f"{', '.join(map(repr, keys))}, logged at {source}, {verb} logged only by a "
        "derivative, and not collected. A transformation inside a derivative, as in "
        "`jax.grad(lox.tap(f))`, collects what the function itself logs. To collect "
        "this as well, transform the derivative: `lox.tap(jax.grad(f))`. To remove it "
        "without this warning, use `lox.nolog(jax.grad(f))`, or `lox.nolog` in the "
        "derivative rule.",
        source,
        _warned,
    )
