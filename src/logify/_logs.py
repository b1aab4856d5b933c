"""What was logged, by name and reduction."""

from typing import Any

import jax

import lox
from lox._format import format_value

Names = tuple[tuple[str, str, Any], ...]


@jax.tree_util.register_pytree_node_class
class Logs:
    """The logs of a function. A pytree, so that it passes through `jit` and `vmap`."""

    def __init__(self, logs: lox.logdict, names: Names) -> None:
        self._logs = logs
        # for each key of the logs, the name that was logged, and the reduction
        self._names = names

    def asdict(self) -> dict[str, dict[Any, Any]]:
        """The values by name, then by reduction; without those that never happened.

        Example:
            >>> import logify
            >>> @logify.logify
            ... def f(xs):
            ...     def body(total, x):
            ...         logify.log("x", x, reduction="mean")
            ...         logify.log("x", x, reduction="max")
            ...         return total + x, None
            ...     return jax.lax.scan(body, 0.0, xs)[0]
            >>> total, logs = f(jnp.arange(5.0))
            >>> logs.asdict()["x"]["mean"]
            Array(2., dtype=float32)
        """
        logs = self._logs.compact()
        values: dict[str, dict[Any, Any]] = {}
        for key, name, reduction in self._names:
            if key in logs:
                values.setdefault(name, {})[reduction] = logs[key]
        return values

    def __repr__(self) -> str:
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(self._logs)):
            return f"Logs({self._logs!r})"
        return format_value(self.asdict())

    def tree_flatten(self) -> tuple[tuple[lox.logdict], Names]:
        return (self._logs,), self._names

    @classmethod
    def tree_unflatten(cls, names: Names, children: tuple[lox.logdict]) -> "Logs":
        return cls(children[0], names)


Logs.__module__ = "logify"
