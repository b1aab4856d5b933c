"""The changes that lox makes to JAX, in one table.

Some of JAX's own rules lose or repeat events before any transformation of lox can look.
The modules that know better add a `Patch` for each. They are installed when a process
binds its first event, so that programs that log nothing run on JAX as it is. The few
that must be there before, in `early_patches`, do nothing until then.

A patch that cannot be installed, since this version of JAX has no such rule, is
remembered: a program that needs it fails, with an error that names the version and the
remedy.
"""

import dataclasses
import threading
from collections.abc import Callable

import jax

from lox._errors import UnsupportedJaxError

from . import compat


class UnavailableError(Exception):
    """Raised by a patch that cannot be installed; says what JAX does not have."""


@dataclasses.dataclass(frozen=True, eq=False)
class Patch:
    """One change of JAX.

    Attributes:
        target: what is changed, such as "the batching rule of `cond`".
        without: what goes wrong without it, as a sentence.
        instead: what to do if it cannot be installed, beside changing JAX.
        install: makes the change, or raises.
        refuse: if it could not be made, makes all programs fail that need it. None if
            JAX itself fails then.
    """

    target: str
    without: str
    instead: str
    install: Callable[[], None]
    refuse: Callable[["Patch"], None] | None = None


_table: list[Patch] = []
_waiting: list[Patch] = []
_missing: dict[Patch, str] = {}
_lock = threading.RLock()

# Whether an event has been bound, and all patches installed before it.
installed = False


def table() -> tuple[Patch, ...]:
    """All patches, in the order in which they were added."""
    return tuple(_table)


def missing() -> dict[Patch, str]:
    """The patches that could not be installed, and why."""
    return dict(_missing)


def is_missing(patch: Patch) -> bool:
    """Whether a patch could not be installed."""
    return patch in _missing


def add(*patches: Patch) -> None:
    """Adds patches that are installed by the first event."""
    with _lock:
        _table.extend(patches)
        _waiting.extend(patches)
        if installed:
            _install_waiting()


def add_early(*patches: Patch) -> None:
    """Adds patches that are installed at once."""
    with _lock:
        _table.extend(patches)
        for patch in patches:
            _install(patch)


def install() -> None:
    """Installs all patches, once: whoever binds an event calls it before."""
    global installed
    if installed:
        return
    with _lock:
        _install_waiting()
        installed = True


def _install_waiting() -> None:
    while _waiting:
        _install(_waiting.pop(0))


def _install(patch: Patch) -> None:
    try:
        patch.install()
    except Exception as error:  # whatever has become of JAX
        _missing[patch] = str(error)
        if patch.refuse is not None:
            patch.refuse(patch)


def when_missing(patch: Patch, refuse: Callable[[Patch], None]) -> None:
    """Calls `refuse` if an early patch could not be installed."""
    if is_missing(patch):
        refuse(patch)


def error(patch: Patch, subject: str) -> UnsupportedJaxError:
    """What a program raises that needs a patch which could not be installed.

    Args:
        patch: the patch.
        subject: which event needs it.
    """
    return UnsupportedJaxError(
        f"{subject}: lox cannot patch {patch.target} in JAX {jax.__version__}, since "
        f"{_missing[patch]}. Without the patch, {patch.without}. {compat.REMEDY}, or "
        f"{patch.instead}."
    )
