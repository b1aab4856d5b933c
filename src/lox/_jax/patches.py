"""The table of the changes that lox makes to JAX.

Some of JAX's own rules lose or repeat events before a lox transformation runs. Other
modules add a `Patch` for each of them. Patches are installed when a process binds its
first event, so programs that log nothing run on unpatched JAX. The few that must be
installed before (see `early_patches`) do nothing until then.

If a patch cannot be installed, because this version of JAX has no such rule, programs
that need it raise an error that names the version and the remedy.
"""

import dataclasses
import threading
from collections.abc import Callable

import jax

from lox._errors import UnsupportedJaxError

from . import compat


class UnavailableError(Exception):
    """Raised by a patch that cannot be installed; says what JAX lacks."""


@dataclasses.dataclass(frozen=True, eq=False)
class Patch:
    """One change to JAX.

    Attributes:
        target: what is changed, such as "the batching rule of `cond`".
        without: what goes wrong without the patch, as a sentence.
        instead: what users can do without the patch, other than changing JAX.
        install: makes the change, or raises.
        refuse: called if `install` raises, to make all programs fail that need the
            patch. None if JAX itself fails then.
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

# whether all patches are installed, which the first event does
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
    """Adds patches that the first event installs."""
    with _lock:
        _table.extend(patches)
        _waiting.extend(patches)
        if installed:
            _install_waiting()


def add_early(*patches: Patch) -> None:
    """Adds patches that are installed immediately."""
    with _lock:
        _table.extend(patches)
        for patch in patches:
            _install(patch)


def install() -> None:
    """Installs all patches once; called before an event is bound."""
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
    except Exception as error:  # JAX may have changed in any way
        _missing[patch] = str(error)
        if patch.refuse is not None:
            patch.refuse(patch)


def when_missing(patch: Patch, refuse: Callable[[Patch], None]) -> None:
    """Calls `refuse` if an early patch could not be installed."""
    if is_missing(patch):
        refuse(patch)


def error(patch: Patch, subject: str) -> UnsupportedJaxError:
    """The error of a program that needs a patch that could not be installed.

    Args:
        patch: the patch.
        subject: what needs it, such as an event.
    """
    return UnsupportedJaxError(
        f"{subject}: lox cannot patch {patch.target} in JAX {jax.__version__}, since "
        f"{_missing[patch]}. Without the patch, {patch.without}. {compat.REMEDY}, or "
        f"{patch.instead}."
    )
