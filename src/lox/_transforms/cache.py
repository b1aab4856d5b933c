"""A cache of transformed functions."""

import collections
import functools
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

# A callback that is redefined at each call creates a new entry each time.
_MAX_ENTRIES = 64


class FunctionCache:
    """Values by function and key, kept as long as the functions live.

    Functions are compared by identity, because objects that are equal now may differ
    later. As in `jax.jit`, this includes bound methods: each `trainer.step` is a new
    object, because `trainer` may have changed.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # by the `id` of the function: a weak reference to it, and the values by key
        self._entries: dict[int, tuple[Any, collections.OrderedDict[Any, Any]]] = {}

    def find(self, fun: Any, key: Any) -> Any:
        """The cached value, or None. This is the fast path, without the lock."""
        entry = self._entries.get(id(fun))
        if entry is None or entry[0]() is not fun:
            return None
        try:
            return entry[1].get(key)
        except TypeError:  # the key is not hashable
            return None

    def get(self, fun: Any, key: Hashable, make: Callable[[Any], Any]) -> Any:
        """The cached value, made by `make` if there is none.

        Args:
            fun: the function.
            key: distinguishes values of the same function.
            make: receives a function that returns `fun`. The value must not hold a
                strong reference to `fun`.
        """
        found = self.find(fun, key)
        if found is not None:
            return found
        try:
            hash(key)
            reference = weakref.ref(fun, functools.partial(self._drop, id(fun)))
        except TypeError:  # not hashable, or no weak references: cannot be cached
            return make(lambda: fun)
        with self._lock:
            _, values = self._entries.setdefault(
                id(fun), (reference, collections.OrderedDict())
            )
            if key not in values:
                values[key] = make(weakref.ref(fun))
                if len(values) > _MAX_ENTRIES:
                    values.popitem(last=False)
            return values[key]

    def _drop(self, number: int, reference: Any) -> None:
        with self._lock:
            entry = self._entries.get(number)
            if entry is not None and entry[0] is reference:
                del self._entries[number]
