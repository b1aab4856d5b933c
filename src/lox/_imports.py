"""Import hooks: support for modules that lox does not import itself."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]


def when_imported(name: str, hook: Hook) -> None:
    """Calls `hook` with a module: now if it is already imported, else on its import."""
    module = sys.modules.get(name)
    if module is not None:
        hook(module)
        return
    if not _watcher.hooks:
        sys.meta_path.insert(0, _watcher)
    _watcher.hooks[name] = hook


class _Watcher:
    """A meta path finder that wraps the loaders of watched modules."""

    def __init__(self) -> None:
        self.hooks: dict[str, Hook] = {}

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        del path, target
        # popped, so that `find_spec` below asks only the other finders
        hook = self.hooks.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            self.hooks[name] = hook
        else:
            spec.loader = _Loader(spec.loader, hook)  # type: ignore[assignment]
        return spec


_watcher = _Watcher()


class _Loader:
    """Loads a module with its own loader, and then calls a hook."""

    def __init__(self, loader: Any, hook: Hook) -> None:
        self._loader = loader
        self._hook = hook

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
        self._hook(module)
