"""`logify.Logs`: logged values by name and reduction."""

import json
from typing import Any

import jax

import lox
from lox._errors import LoxTypeError, LoxValueError
from lox._jax import export
from lox._logs.formatting import format_value, mark_masked

Names = tuple[tuple[str, str, Any], ...]


@jax.tree_util.register_pytree_node_class
class Logs:
    """The logs of a function: a pytree, which can pass through `jit` and `vmap`."""

    def __init__(self, logs: lox.logdict, names: Names) -> None:
        self._logs = logs
        # the key in the logs, the name, and the reduction of each value
        self._names = names

    def asdict(self) -> dict[str, dict[Any, Any]]:
        """The values by name, then by reduction, without names that were never logged.

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
        if self._logs.mask and _is_traced(self._logs):
            raise LoxTypeError(
                "`asdict` needs concrete values to find out which conditional logs "
                "happened. Call it outside `jax.jit`."
            )
        logs = self._logs.compact()
        if logs.mask:
            name = next(name for key, name, _ in self._names if key in logs.mask)
            raise LoxValueError(
                f"{name!r} was logged a different number of times in different lanes, "
                "so its values do not form one array. Use "
                "`[lane.asdict() for lane in logs.lanes()]`."
            )
        return self._by_name(dict(logs))

    def lanes(self) -> list["Logs"]:
        """Splits the logs into those of each lane of the outermost `vmap`."""
        return [Logs(lane, self._names) for lane in self._logs.lanes()]

    def _by_name(self, values: dict[str, Any]) -> dict[str, dict[Any, Any]]:
        by_name: dict[str, dict[Any, Any]] = {}
        for key, name, reduction in self._names:
            if key in values:
                by_name.setdefault(name, {})[reduction] = values[key]
        return by_name

    def __repr__(self) -> str:
        logs = self._logs if _is_traced(self._logs) else self._logs.compact()
        return format_value(self._by_name(mark_masked(logs, logs.mask)))

    def tree_flatten(self) -> tuple[tuple[lox.logdict], Names]:
        return (self._logs,), self._names

    @classmethod
    def tree_unflatten(cls, names: Names, children: tuple[lox.logdict]) -> "Logs":
        return cls(children[0], names)


def _serialize_names(names: Names) -> bytes:
    for _, name, reduction in names:
        if not isinstance(reduction, str):
            raise LoxTypeError(
                f"the logs of {name!r} have a `lox.Reduction`, which is a function and "
                "cannot be exported. Export `logs.asdict()`, or name a reduction."
            )
    return json.dumps(names).encode()


def _deserialize_names(data: bytes) -> Names:
    return tuple(tuple(name) for name in json.loads(data))


export.register_node(Logs, "logify.Logs", _serialize_names, _deserialize_names)


def _is_traced(logs: lox.logdict) -> bool:
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(logs))


Logs.__module__ = "logify"
