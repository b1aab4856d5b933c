"""The destinations of events on the host.

Nothing here calls `jax.numpy`: a callback that uses the device can wait forever for the
very computation that it is part of.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from lox._events.event import Event, default
from lox._jax import host
from lox._logs.logdict import logdict
from lox._settings import default_handler, is_named
from lox._source import delivery

from . import interrupts, signals
from .errors import callback_errors
from .logdicts import (
    batch_converter,
    lane_converter,
    row_converter,
    with_outer_lanes,
)

Callback = Callable[[logdict], Any]
Consume = Callable[[Sequence[Any]], None]


class HostSink:
    """Receives events from running programs, one at a time.

    Attributes:
        failed: set when consuming an event raises, until the exception is raised in the
            user's thread; a sink that has failed receives no more events.
        stopping: set when a call is interrupted, until its program has ended.
        unstoppable: whether one of its programs runs on multiple devices, and therefore
            cannot be ended.
    """

    def __init__(self) -> None:
        self.failed = False
        self.stopping = False
        self.unstoppable = False
        self._lock = threading.RLock()

    def consumer(self, event: Event) -> Consume:
        """Returns a function that consumes the operands of an event.

        A program may call it a million times, so everything that can be done once is
        done here.
        """
        raise NotImplementedError

    def receiver(self, event: Event) -> Callable[..., tuple[()]]:
        """Returns the function that a program calls with the operands of an event."""
        deliver = self._deliverer(event)
        stoppable = event.route.devices == 1
        self.unstoppable |= not stoppable
        deferred = signals.deferred
        interrupts.used = True

        def receive(*operands: Any) -> tuple[()]:
            if stoppable and (self.stopping or interrupts.ending):
                interrupts.stop()
            interrupt = deliver(operands)
            if signals.in_main_thread():
                if deferred:
                    interrupt = signals.run_deferred() or interrupt
            elif stoppable and signals.run_unhandled():
                interrupts.stop()
            if interrupt is not None:
                end_by(interrupt)
            return ()

        def end_by(interrupt: BaseException) -> None:
            if stoppable and not host.called_by_xla_thread():
                interrupts.stop(interrupt)
            callback_errors.keep_first(self, interrupt)
            if stoppable:
                interrupts.stop()

        return receive

    def deliver(self, event: Event, operands: Sequence[Any]) -> None:
        """Delivers an eager event; raises the exception of its callback, if any."""
        deliver = self._deliverer(event)
        interrupt = signals.uninterrupted(lambda: deliver(operands))
        if interrupt is not None:
            raise interrupt
        callback_errors.raise_errors_of(self)

    def _deliverer(
        self, event: Event
    ) -> Callable[[Sequence[Any]], BaseException | None]:
        """Returns a function that delivers the operands of an event.

        It stores exceptions for later, and returns interrupts (`KeyboardInterrupt`).
        """
        lock, consume, source = self._lock, self.consumer(event), event.call.source
        per_device = event.route.per_device

        def deliver(operands: Sequence[Any]) -> BaseException | None:
            try:
                # programs may call from multiple threads
                with lock:
                    if not self.failed:
                        delivery.source = source  # named by warnings
                        delivery.per_device = per_device
                        consume(operands)
            except Exception as error:
                callback_errors.keep(self, error)
            except BaseException as error:
                return error
            return None

        return deliver


class CallbackSink(HostSink):
    """Calls a callback with each event, one lane at a time or with all lanes."""

    def __init__(self, callback: Callback, batched: bool = False) -> None:
        super().__init__()
        self.callback = callback
        self.batched = batched

    def consumer(self, event: Event) -> Consume:
        if not (event.layout.lanes or event.layout.masked or event.layout.buffered):
            to_logs = row_converter(event)

            def consume_row(operands: Sequence[Any]) -> None:
                self.callback(to_logs(operands))

            return consume_row
        convert = batch_converter(event) if self.batched else lane_converter(event)

        each = event.layout.elements and not self.batched

        def consume(operands: Sequence[Any]) -> None:
            for logs in convert(with_outer_lanes(event, operands)):
                for one in logs.rows() if each else (logs,):
                    if one:
                        self.callback(one)

        return consume


class _DefaultSink(CallbackSink):
    """Calls the default handler, which `lox.set_default` may change at any time."""

    def __init__(self) -> None:
        super().__init__(handle_by_default)


def handle_by_default(logs: logdict) -> None:
    """Calls the default handler; if it prints, in the first process only."""
    handler = default_handler()
    if not is_named(handler) or host.known_process_index() == 0:
        handler(logs)


default.sink = _DefaultSink()
