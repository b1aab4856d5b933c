"""Imports on first use, and hooks for modules that the user imports."""

import contextlib
import importlib
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from ._garbage import collector_paused

# --- modules of lox that are imported on first use ---------------------------

_loading = threading.RLock()
if hasattr(os, "register_at_fork"):
    # a module that another thread is importing would stay incomplete in the child
    os.register_at_fork(
        before=_loading.acquire,
        after_in_parent=_loading.release,
        after_in_child=_loading.release,
    )


def load(name: str) -> ModuleType:
    """Imports a module; no other thread sees it partially imported."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return module
    # modules are not garbage, but the collector would search all objects of JAX
    with _loading, _signals_deferred(), collector_paused():
        return importlib.import_module(name)


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Delays signal handlers: one that logs would find lox partially imported."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    delayed: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Any] = {}

    def delay(signum: int, frame: FrameType | None) -> None:
        delayed.append((signum, frame))

    for number in map(int, signal.valid_signals()):
        handler = signal.getsignal(number)
        if callable(handler):
            handlers[number] = handler
            signal.signal(number, delay)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in delayed:
            handlers[number](number, frame)


# --- modules that lox itself never imports -----------------------------------

Hook = Callable[[ModuleType], None]


def when_imported(name: str, hook: Hook) -> None:
    """Calls `hook` with a module: now if it is already imported, else on its import."""
    module = sys.modules.get(name)
    if module is not None:
        hook(module)
        return
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)
    _watcher.hooks.setdefault(name, []).append(hook)


class _Watcher:
    """A meta path finder that wraps the loaders of watched modules."""

    def __init__(self) -> None:
        self.hooks: dict[str, list[Hook]] = {}

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        del path, target
        # popped, so that `find_spec` below asks only the other finders
        hooks = self.hooks.pop(name, None)
        if hooks is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            self.hooks[name] = hooks
        else:
            spec.loader = _Loader(spec.loader, hooks)  # type: ignore[assignment]
        return spec


_watcher = _Watcher()


class _Loader:
    """Loads a module with its own loader, and then calls hooks."""

    def __init__(self, loader: Any, hooks: list[Hook]) -> None:
        self._loader = loader
        self._hooks = hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for hook in self._hooks:
            hook(module)
