"""Events that a transformation inside a derivative does not collect."""

from collections.abc import Iterable
from typing import Any

from lox._source import Source, warn

_warned: dict[Any, Any] = {}  # the registry of `warnings`: one warning per line


def warn_of_derivative(keys: Iterable[str], source: Source) -> None:
    """Warns about keys that only a derivative rule or a backward pass logs."""
    warn(
        f"{', '.join(map(repr, keys))}, logged at {source}, is logged only by a "
        "derivative, and is not collected. A transformation inside a derivative, as in "
        "`jax.grad(lox.tap(f))`, collects what the function itself logs. To collect "
        "this as well, transform the derivative: `lox.tap(jax.grad(f))`. To remove it "
        "without this warning, use `lox.nolog(jax.grad(f))`, or `lox.nolog` in the "
        "derivative rule.",
        source,
        _warned,
    )
