"""A cache of transformed functions."""

import collections
import functools
import threading
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any

# A callback that is redefined for each call creates a new entry each time.
_MAX_ENTRIES = 64


class PerFunction:
    """One value per function, kept as long as the function lives.

    Functions are compared by identity, because objects that are equal now may differ
    later. As in `jax.jit`, this includes bound methods: each `trainer.step` is a new
    object, because `trainer` may have changed.

    Attributes:
        entries: by the `id` of a function, a weak reference to it, and its value.
    """

    def __init__(self) -> None:
        self.entries: dict[int, tuple[Any, Any]] = {}
        self._lock = threading.RLock()

    def find(self, fun: Any) -> Any:
        """The value, or None. This is the fast path, without the lock."""
        entry = self.entries.get(id(fun))
        return None if entry is None or entry[0]() is not fun else entry[1]

    def get(self, fun: Any, value: Any) -> Any:
        """The value, which is set if there is none.

        Args:
            fun: the function.
            value: the value to set. It must not hold a strong reference to `fun`.

        Raises:
            TypeError: if there are no weak references to `fun`.
        """
        reference = weakref.ref(fun, functools.partial(self._drop, id(fun)))
        with self._lock:
            found = self.find(fun)
            if found is None:
                self.entries[id(fun)] = reference, value
            return value if found is None else found

    def _drop(self, number: int, reference: Any) -> None:
        with self._lock:
            entry = self.entries.get(number)
            if entry is not None and entry[0] is reference:
                del self.entries[number]


class Identity:
    """A callback as a part of a key: equal callbacks may deliver to different places.

    Bound methods are new objects at each access; those of one object are the same.
    """

    __slots__ = ("_callback",)

    def __init__(self, callback: Any) -> None:
        self._callback = callback

    def __hash__(self) -> int:
        return hash(self._parts())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._parts() == other._parts()

    def _parts(self) -> tuple[int, ...]:
        callback = self._callback
        if isinstance(callback, types.MethodType):
            return id(callback.__self__), id(callback.__func__)
        return (id(callback),)


class FunctionCache:
    """Values by function and key, kept as long as the functions live."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._values = PerFunction()  # by key

    def find(self, fun: Any, key: Any) -> Any:
        """The cached value, or None. This is the fast path, without the lock."""
        values = self._values.find(fun)
        if values is None:
            return None
        try:
            return values.get(key)
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
            values = self._values.get(fun, collections.OrderedDict())
        except TypeError:  # not hashable, or no weak references: cannot be cached
            return make(lambda: fun)
        with self._lock:
            if key not in values:
                values[key] = make(weakref.ref(fun))
                if len(values) > _MAX_ENTRIES:
                    values.popitem(last=False)
            return values[key]
