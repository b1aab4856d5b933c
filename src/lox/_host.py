"""The host side of an event: from NumPy operands to a callback with a logdict.

Nothing here calls `jax.numpy`: a callback that touches the device can wait forever for
the very computation that it is part of.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from . import _compat
from ._events import Event
from ._key import KeyInfo
from ._logdict import logdict
from ._settings import default_handler

Callback = Callable[[logdict], Any]
_SCALAR = jax.tree.structure(0)


class CallbackErrors:
    """Exceptions of callbacks, kept until the user's own thread can raise them.

    Raised inside a callback, they would reach the user as a runtime error of XLA's and
    fail every later barrier too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[tuple[CallbackSink, BaseException]] = []

    def keep(self, sink: "CallbackSink", error: BaseException) -> None:
        with self._lock:
            sink.failed = True
            self._kept.append((sink, error))

    def raise_any(self) -> None:
        """Raises what was kept, whoever's it is: at a barrier."""
        self._raise(lambda sink: True)

    def raise_of(self, sink: "CallbackSink") -> None:
        """Raises what the callback of one sink raised."""
        self._raise(lambda other: other is sink)

    def _raise(self, wanted: Callable[["CallbackSink"], bool]) -> None:
        if not self._kept:  # without the lock: this is on the way of every call
            return
        with self._lock:
            chosen = [(sink, error) for sink, error in self._kept if wanted(sink)]
            self._kept = [pair for pair in self._kept if pair not in chosen]
            for sink, _ in chosen:
                sink.failed = False
        if chosen:
            first = chosen[0][1]
            for _, error in chosen[1:]:
                first.add_note(f"Another callback failed too: {error!r}")
            raise first


callback_errors = CallbackErrors()
_compat.at_effects_barrier(callback_errors.raise_any)


class CallbackSink:
    """Delivers events to a callback, one lane at a time, or all lanes at once."""

    def __init__(self, callback: Callback, batched: bool = False) -> None:
        self.callback = callback
        self.batched = batched
        # set by an exception, until it is raised: a callback that failed gets no more
        self.failed = False
        self._lock = threading.RLock()
        self._openers: dict[Event, Callable[[Sequence[Any]], logdict]] = {}

    def __call__(self, event: Event, operands: Sequence[Any]) -> None:
        # Callbacks may come from several threads; a user's callback sees one at a time.
        with self._lock:
            if self.failed:
                return
            try:
                self.deliver(event, operands)
            except BaseException as error:
                callback_errors.keep(self, error)

    def deliver(self, event: Event, operands: Sequence[Any]) -> None:
        callback = self.callback
        if event.lanes == 0 and not event.masked:
            opener = self._openers.get(event)
            if opener is None:
                opener = self._openers[event] = _opener(event)
            callback(opener(operands))
            return
        logs = open_event(event, operands)
        if self.batched:
            logs = logs.compact()
            if logs:
                callback(logs)
        else:
            for lane in _lanes(logs, event.lanes):
                if lane:
                    callback(lane)


class _DefaultSink(CallbackSink):
    """Delivers to whatever `lox.set_default` says at that moment."""

    def __init__(self) -> None:
        super().__init__(lambda logs: default_handler()(logs))


default_sink = _DefaultSink()


def _lanes(logs: logdict, depth: int) -> list[logdict]:
    if depth == 0:
        return [logs.compact()]
    return [inner for lane in logs.lanes() for inner in _lanes(lane, depth - 1)]


def open_event(event: Event, operands: Sequence[Any]) -> logdict:
    """The logdict of one event, with the event's lanes as leading axes."""
    parts = event.split(operands)
    data: dict[str, Any] = {}
    info: dict[str, KeyInfo] = {}
    for key, tree, leaves in zip(event.keys, event.trees, parts.values, strict=True):
        data[key] = tree.unflatten(leaves)
        ndims = tuple(np.ndim(leaf) - event.lanes for leaf in leaves)
        info[key] = KeyInfo(False, event.lanes, ndims)
    steps = {
        name: dict.fromkeys(event.keys, value)
        for name, value in zip(event.steps, parts.steps, strict=True)
    }
    mask = {} if parts.mask is None else dict.fromkeys(event.keys, parts.mask)
    return logdict._of(data, steps, mask, info)


def _opener(event: Event) -> Callable[[Sequence[Any]], logdict]:
    """`open_event` for an event without lanes or mask, prepared once.

    It runs once an event, so it does as little as it can.
    """
    keys, names = event.keys, event.steps
    make = logdict._of
    known: dict[tuple[int, ...], dict[str, KeyInfo]] = {}
    if not names and all(tree == _SCALAR for tree in event.trees):

        def open_arrays(operands: Sequence[Any]) -> logdict:
            ndims = tuple([x.ndim for x in operands])
            info = known.get(ndims)
            if info is None:
                pairs = zip(keys, ndims, strict=True)
                info = {key: KeyInfo(False, 0, (ndim,)) for key, ndim in pairs}
                known[ndims] = info
            return make(dict(zip(keys, operands, strict=True)), {}, {}, info.copy())

        return open_arrays
    return lambda operands: open_event(event, operands)
