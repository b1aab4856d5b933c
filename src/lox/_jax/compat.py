"""Names of JAX that it does not promise to keep.

Nothing else in lox imports `jax._src`. Each name is asked for with what lox needs it
for. Where a version of JAX does not have it, there is either a default, or whatever
uses the name raises an error that says so. `tests/test_canaries.py` looks for every one
of them in the version of JAX that it runs on.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from lox._errors import UnsupportedJaxError
from lox._imports import when_imported as _when_imported

# The versions of JAX that lox is tested on.
OLDEST, NEWEST = "0.9", "0.12"

REMEDY = f"Install a version of JAX that lox supports ({OLDEST} to {NEWEST})"

_NEEDED: Any = object()


def private(path: str, reason: str, default: Any = _NEEDED) -> Any:
    """A private name of JAX.

    Args:
        path: the module in `jax._src` and the name, such as `core.Trace`.
        reason: what lox needs it for; of a name with a default, what happens without.
        default: what to use where JAX has no such name; if there is none, using it is
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
    """Puts `wrap(function)` in the place of a private function.

    Args:
        path: the module in `jax._src` and the name.
        reason: what lox does so for.
        wrap: what makes the new function of the old one.
    """
    old = private(path, reason)
    if is_missing(old):
        raise old.error()
    of, _, name = path.rpartition(".")
    setattr(_module(of), name, wrap(old))


def when_imported(module: str, hook: Callable[[], Any]) -> None:
    """Calls `hook` once a private module is imported, which JAX itself does late."""
    _when_imported(f"jax._src.{module}", lambda _: hook())


class _Missing:
    """Stands for a name that this version of JAX does not have."""

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
    """Whether `private` found nothing."""
    return type(name) is _Missing


_folding = private(
    "config.eager_constant_folding",
    "events under `jax.ensure_compile_time_eval` are not traced",
    default=None,
)


def folds_constants() -> bool:
    """Whether `jax.ensure_compile_time_eval` is in force."""
    return _folding is not None and _folding.value


def without_folding() -> contextlib.AbstractContextManager[Any]:
    """Puts it out of force, for as long as this context lasts."""
    return contextlib.nullcontext() if _folding is None else _folding(False)


@contextlib.contextmanager
def _as_by_default() -> Iterator[None]:
    # lox may be loaded, by its first use, in a function that is being run or traced
    with jax.disable_jit(False), without_folding():
        yield


def example(fun: Callable[..., Any], *args: Any) -> Any:
    """The jaxpr of a function, to learn from it what JAX's own equations look like."""
    with _as_by_default():
        return jax.make_jaxpr(fun)(*args)
