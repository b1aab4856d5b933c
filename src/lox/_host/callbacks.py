"""The host side of an event: from NumPy operands to a callback with a logdict.

Nothing here calls `jax.numpy`: a callback that touches the device can wait forever for
the very computation that it is part of.
"""

import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from lox._events.event import Event, Operands, default
from lox._jax import host, patches
from lox._logs.access import metadata_of, with_info
from lox._logs.key import KeyInfo
from lox._logs.logdict import OpenRow, logdict, make_logdict
from lox._logs.metadata import Metadata
from lox._settings import default_handler
from lox._source import delivery

from . import interrupts, signals

Callback = Callable[[logdict], Any]
_ARRAY = jax.tree.structure(0)  # a value that is one array, and no tree of them


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
        if patches.is_missing(host.BARRIER):
            raise patches.error(host.BARRIER, f"A callback raised {error!r}") from error

    def keep_one(self, sink: "CallbackSink", error: BaseException) -> bool:
        """Keeps an error that stops nothing; of those that follow it, none."""
        with self._lock:
            first = not any(other is sink for other, _ in self._kept)
            if first:
                self._kept.append((sink, error))
            return first

    def raise_any(self) -> None:
        """Raises what was kept, whoever's it is: at a barrier."""
        self._raise(lambda sink: True)

    def raise_of(self, sink: object) -> None:
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
interrupts.at_stopped(callback_errors.raise_any)
host.at_effects_barrier(callback_errors.raise_any)


class CallbackSink:
    """Delivers events to a callback, one lane at a time, or all lanes at once."""

    def __init__(self, callback: Callback, batched: bool = False) -> None:
        self.callback = callback
        self.batched = batched
        # set by an exception, until it is raised: a callback that failed gets no more
        self.failed = False
        # set by an interrupt of a call, until its program has ended
        self.stopping = False
        # whether some program of it runs on several devices, and cannot be ended
        self.unstoppable = False
        self._lock = threading.RLock()

    def receiver(self, event: Event) -> Callable[..., tuple[()]]:
        """What a program calls with the operands of an event, each time it comes by."""
        deliver = self._deliverer(event)
        stoppable = event.devices == 1
        self.unstoppable |= not stoppable
        waiting = signals.waiting
        interrupts.used = True

        def receive(*operands: Any) -> tuple[()]:
            if stoppable and (self.stopping or interrupts.ending):
                interrupts.stop()
            interrupt = deliver(operands)
            if signals.in_main_thread():
                if waiting:
                    interrupt = signals.run_waiting() or interrupt
            elif stoppable and signals.run_unhandled():
                interrupts.stop()
            if interrupt is not None:
                ended(interrupt)
            return ()

        def ended(interrupt: BaseException) -> None:
            if stoppable and interrupts.in_thread_of_call():
                interrupts.stop_by(interrupt)
            callback_errors.keep_one(self, interrupt)
            if stoppable:
                interrupts.stop()

        return receive

    def deliver(self, event: Event, operands: Sequence[Any]) -> None:
        """Delivers an eager event, and raises what its callback raised."""
        deliver = self._deliverer(event)
        interrupt = signals.uninterrupted(lambda: deliver(operands))
        if interrupt is not None:
            raise interrupt
        callback_errors.raise_of(self)

    def _deliverer(
        self, event: Event
    ) -> Callable[[Sequence[Any]], BaseException | None]:
        """Delivers the operands of an event, and gives an interrupt that came with it.

        It may run a million times, so all that can be done once is done here.
        """
        lock, take, source = self._lock, self._taker(event), event.source

        def deliver(operands: Sequence[Any]) -> BaseException | None:
            try:
                # Calls may come from several threads; a callback sees one at a time.
                with lock:
                    if not self.failed:
                        delivery.source = source  # which warnings name
                        take(operands)
            except Exception as error:
                callback_errors.keep(self, error)
            except BaseException as error:
                return error
            return None

        return deliver

    def _taker(self, event: Event) -> Callable[[Sequence[Any]], None]:
        """Calls the callback with what the operands of an event are."""
        if event.buffered:
            open_lanes = _buffer_opener(event, self.batched)
        elif event.lanes or event.masked:
            open_lanes = _lanes_opener(event, self.batched)
        else:
            open_row = row_opener(event)

            def take_row(operands: Sequence[Any]) -> None:
                self.callback(open_row(operands))

            return take_row

        def take(operands: Sequence[Any]) -> None:
            for logs in open_lanes(operands):
                self.callback(logs)

        return take


class _DefaultSink(CallbackSink):
    """Delivers to whatever `lox.set_default` says at that moment."""

    def __init__(self) -> None:
        super().__init__(lambda logs: default_handler()(logs))


default.sink = _DefaultSink()


def _lanes_opener(
    event: Event, batched: bool
) -> Callable[[Sequence[Any]], Iterable[logdict]]:
    """From the operands of an event to what the callback gets, in turn."""
    if event.masked or batched:

        def open_whole(operands: Sequence[Any]) -> list[logdict]:
            logs = _open(event, operands)
            opened = [logs.compact()] if batched else _lanes(logs, event.lanes)
            return [lane for lane in opened if lane]

        return open_whole
    open_row = row_opener(dataclasses.replace(event, lanes=0))

    def open_lanes(operands: Sequence[Any]) -> Iterable[logdict]:
        return map(open_row, each_lane(operands, event.lanes))

    return open_lanes


def each_lane(operands: Sequence[Any], lanes: int) -> Iterable[Sequence[Any]]:
    """The operands of each lane, where no mask says that there are fewer."""
    count = math.prod(operands[0].shape[:lanes])
    return zip(*(x.reshape(count, *x.shape[lanes:]) for x in operands), strict=True)


def _buffer_opener(
    event: Event, batched: bool
) -> Callable[[Sequence[Any]], Iterable[logdict]]:
    """The same for a buffer, whose rows are an axis after the lanes."""
    lanes = event.lanes
    plain = dataclasses.replace(event, masked=False, buffered=False)
    # one description for all: who gets them can tell by it that nothing has changed
    info: dict[str, KeyInfo] = {}

    def open_lanes(operands: Sequence[Any]) -> Iterable[logdict]:
        parts = event.split(operands)
        filled = _filled(parts)
        for lane in np.ndindex(filled.shape):
            count = filled[lane]
            if count:
                one = [x[lane][:count] for x in (*_leaves(parts), *parts.steps)]
                logs = _stacked(plain, one, 0, None)
                if not info:
                    info.update(metadata_of(logs).info)
                yield with_info(logs, info)

    def open_whole(operands: Sequence[Any]) -> Iterable[logdict]:
        parts = event.split(operands)
        filled = _filled(parts)
        most = filled.max()
        if most:
            arrays = (*_leaves(parts), *parts.steps)
            moved = [np.moveaxis(x, lanes, 0)[:most] for x in arrays]
            mask = np.arange(most).reshape(-1, *[1] * lanes) < filled
            yield _stacked(plain, moved, lanes, None if mask.all() else mask)

    return open_whole if batched else open_lanes


def _leaves(parts: Operands) -> list[Any]:
    return [leaf for value in parts.values for leaf in value]


def _filled(parts: Operands) -> Any:
    """How many rows count, in each lane."""
    if parts.mask is None:
        return np.asarray(parts.filled)
    return np.where(parts.mask, parts.filled, 0)


def _stacked(event: Event, arrays: list[Any], lanes: int, mask: Any) -> logdict:
    return _logdict(event, event.split(arrays), True, lanes, mask)


def _lanes(logs: logdict, depth: int) -> list[logdict]:
    if depth == 0:
        return [logs.compact()]
    return [inner for lane in logs.lanes() for inner in _lanes(lane, depth - 1)]


def _open(event: Event, operands: Sequence[Any]) -> logdict:
    """The logdict of one event, with the event's lanes as leading axes."""
    parts = event.split(operands)
    return _logdict(event, parts, False, event.lanes, parts.mask)


def _logdict(
    event: Event, parts: Operands, stacked: bool, lanes: int, mask: Any
) -> logdict:
    data: dict[str, Any] = {}
    info: dict[str, KeyInfo] = {}
    several = dict(zip(event.keys, event.several, strict=False))
    for key, tree, leaves in zip(event.keys, event.trees, parts.values, strict=True):
        data[key] = tree.unflatten(leaves)
        ndims = tuple(np.ndim(leaf) - stacked - lanes for leaf in leaves)
        info[key] = KeyInfo(stacked, lanes, ndims, event.tags, several.get(key))
    steps = {
        name: dict.fromkeys(event.keys, value)
        for name, value in zip(event.steps, parts.steps, strict=True)
    }
    masks = {} if mask is None else dict.fromkeys(event.keys, mask)
    return make_logdict(data, Metadata(steps, masks, info))


def row_opener(event: Event) -> OpenRow:
    """`_open` for an event without lanes or mask, whose shapes do not change.

    There may be more operands after its own.
    """
    if not all(tree == _ARRAY for tree in event.trees):
        return lambda operands: _open(event, operands)
    keys, names, count = event.keys, event.steps, len(event.keys)
    info: dict[str, KeyInfo] = {}
    nothing: dict[str, Any] = {}
    one_step = names[0] if len(names) == 1 else None
    fromkeys = dict.fromkeys

    def open_row(operands: Sequence[Any]) -> logdict:
        if one_step is not None:  # most events
            steps = {one_step: fromkeys(keys, operands[count])}
        else:
            pairs = zip(names, operands[count:])  # noqa: B905
            steps = {name: fromkeys(keys, step) for name, step in pairs}
        metadata = Metadata(steps, nothing, info or describe(operands), nothing)
        return make_logdict(zip(keys, operands), metadata)  # noqa: B905

    def describe(operands: Sequence[Any]) -> dict[str, KeyInfo]:
        several = event.several or (None,) * count
        for key, x, many in zip(keys, operands[:count], several, strict=True):
            info[key] = KeyInfo(False, 0, (np.ndim(x),), event.tags, many)
        return info

    return open_row
