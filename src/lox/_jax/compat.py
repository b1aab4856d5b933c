"""Private names of JAX.

Nothing else in lox imports `jax._src`. Each name is requested with the reason that lox
needs it. If a version of JAX does not have the name, there is either a default, or
using it raises an error with that reason. `tests/jax/test_canaries.py` checks that the
installed version of JAX has all of them.
"""

import contextlib
import importlib
import os
from collections.abc import Callable
from typing import Any

import jax

from lox._errors import UnsupportedJaxError
from lox._imports import when_imported as _when_imported

# the versions of JAX that lox is tested with
OLDEST, NEWEST = "0.9", "0.12"

REMEDY = f"Install a version of JAX that lox supports ({OLDEST} to {NEWEST})"

_NEEDED: Any = object()


def private(path: str, reason: str, default: Any = _NEEDED) -> Any:
    """A private name of JAX.

    Args:
        path: the module in `jax._src` and the name, such as `core.Trace`.
        reason: what lox needs it for; for a name with a default, what happens without
            it.
        default: the value if JAX has no such name; without a default, using it raises
            an error.
    """
    of, _, name = path.rpartition(".")
    try:
        return getattr(_module(of), name)
    except (ImportError, AttributeError):
        return _Missing(path, reason) if default is _NEEDED else default


def _module(name: str) -> Any:
    return importlib.import_module(f"jax._src.{name}")


def replace(path: str, reason: str, wrap: Callable[[Any], Any]) -> None:
    """Replaces a private function with `wrap(function)`.

    Args:
        path: the module in `jax._src` and the name.
        reason: what lox needs this for.
        wrap: creates the new function from the old one.
    """
    old = private(path, reason)
    if is_missing(old):
        raise old.error()
    of, _, name = path.rpartition(".")
    setattr(_module(of), name, wrap(old))


def private_files(*paths: str) -> tuple[str, ...]:
    """Files and directories of `jax._src`, as they are called in frames."""
    source = os.path.join(os.path.dirname(os.path.abspath(jax.__file__)), "_src")
    return tuple(os.path.join(source, *path.split("/")) for path in paths)


def when_imported(module: str, hook: Callable[[], Any]) -> None:
    """Calls `hook` once a private module is imported, which JAX does on first use."""
    _when_imported(f"jax._src.{module}", lambda _: hook())


class _Missing:
    """A placeholder for a name that this version of JAX does not have."""

    def __init__(self, path: str, reason: str) -> None:
        self._path = path
        self._reason = reason

    def error(self) -> UnsupportedJaxError:
        return UnsupportedJaxError(
            f"JAX {jax.__version__} has no `jax._src.{self._path}`, which lox needs to "
            f"{self._reason}. {REMEDY}."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise self.error()

    def __getattr__(self, name: str) -> Any:
        raise self.error()

    def __getitem__(self, key: Any) -> Any:
        raise self.error()

    def __contains__(self, key: Any) -> bool:
        raise self.error()

    def __instancecheck__(self, instance: Any) -> bool:
        raise self.error()


def is_missing(name: Any) -> bool:
    """Whether the result of `private` is a placeholder."""
    return type(name) is _Missing


_folding = private(
    "config.eager_constant_folding",
    "events under `jax.ensure_compile_time_eval` are not traced",
    default=None,
)


def folds_constants() -> bool:
    """Whether `jax.ensure_compile_time_eval` is active."""
    return _folding is not None and _folding.value


def without_folding() -> contextlib.AbstractContextManager[Any]:
    """A context in which `jax.ensure_compile_time_eval` is not active."""
    return contextlib.nullcontext() if _folding is None else _folding(False)


def example(fun: Callable[..., Any], *args: Any) -> Any:
    """The jaxpr of a small function, as an example of JAX's own equations."""
    # lox is loaded on first use, which may be inside a function that is being traced
    with jax.disable_jit(False), without_folding():
        return jax.make_jaxpr(fun)(*args)
