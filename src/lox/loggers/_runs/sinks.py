"""Sinks that open, write and close the runs of a logger for a program."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from lox._errors import LoxError, LoxWarning
from lox._events.event import Event
from lox._events.payload import PAYLOAD
from lox._host.callbacks import CallbackSink, Consume, HostSink
from lox._host.errors import callback_errors
from lox._host.logdicts import (
    each_lane,
    lane_converter,
    lane_row_converter,
    per_lane_converter,
    row_converter,
)
from lox._logs.access import with_lane
from lox._logs.logdict import RowToLogs, logdict
from lox._serialized import call_all
from lox._source import delivery, warn
from lox._transforms.run_keys import split_run
from lox._transforms.run_lanes import (
    LanesInRuns,
    run_logs_converter,
    split_by_run,
    with_lanes_of_runs,
)

from .backend import Words
from .config import fill_config
from .open_runs import OpenRuns, numbered


class RunSink(CallbackSink):
    """Receives a payload from a program, once per lane.

    Args:
        runs: the open runs of the logger.
        shared: the number of devices that send the payload, in no order; 0 if the
            program sends it once.

    Attributes:
        names_devices: whether it needs to know which device sends the payload.
    """

    names_devices = False

    def __init__(self, runs: OpenRuns, shared: int = 0) -> None:
        super().__init__(lambda logs: self.handle(logs[PAYLOAD], late=True))
        self.runs = runs
        self.shared = shared

    def handle(self, payload: Any, late: bool) -> None:
        """Handles a payload; `late` if the program is not waiting for it."""
        raise NotImplementedError

    def _identity(self) -> tuple[Any, ...]:
        """What equal sinks have in common.

        A program that is traced again with an equal sink need not be compiled again.
        """
        return type(self), id(self.runs), self.shared

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSink) and other._identity() == self._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def each(self, calls: Iterable[Callable[[], None]]) -> None:
        """Makes a call per lane; an error in one does not stop the others."""
        for call in calls:
            try:
                call()
            except (LoxError, LoxWarning) as error:
                _keep_error(self, error)


def _keep_error(sink: HostSink, error: Exception) -> None:
    """Keeps an error for the next barrier; warns, since that may be hours away."""
    if callback_errors.keep_first(sink, error) and isinstance(error, LoxError):
        with contextlib.suppress(Exception):  # the user's filters make warnings errors
            warn(str(error))


class TapSink(HostSink):
    """Receives events with the words of their run; an error does not stop others."""

    def __init__(self, runs: OpenRuns | None) -> None:
        super().__init__()
        self._runs = runs
        # whether events have no order, and whether that is because of several devices
        self._unordered = self._devices = False

    def receiver(self, event: Event) -> Callable[..., tuple[()]]:
        # called on compilation: the program is about to run
        self._unordered |= not event.route.ordered or event.route.per_device
        self._devices |= event.route.per_device
        if self._runs is not None:
            self._update(self._runs)
        return super().receiver(event)

    def _update(self, runs: OpenRuns) -> None:
        runs.logger._unordered |= self._unordered
        runs.logger._devices |= self._devices

    def consumer(self, event: Event) -> Consume:
        lanes_in_runs = LanesInRuns(event)
        if event.layout.masked or event.layout.buffered:
            convert = per_lane_converter(event)

            def consume(operands: Sequence[Any]) -> None:
                own, run = split_run(with_lanes_of_runs(event, operands))
                lanes = lanes_in_runs(run)
                runs = run.reshape(-1, run.shape[-1]).tolist()
                for i, logs in enumerate(convert(own)):
                    if logs:
                        named = logs if lanes is None else with_lane(logs, lanes[i])
                        self._write(OpenRuns.write, runs[i], named)

            return consume
        to_logs = row_converter(event.with_layout(lanes=0))
        lane_to_logs = lane_row_converter(event)

        def write_row(to_logs: RowToLogs, own: Sequence[Any], run: Any) -> None:
            self._write(OpenRuns.write_row, run.tolist(), to_logs, own)

        def consume_row(operands: Sequence[Any]) -> None:
            write_row(to_logs, *split_run(operands))

        def consume_lanes(operands: Sequence[Any]) -> None:
            operands = with_lanes_of_runs(event, operands)
            rows = each_lane(operands, event.layout.lanes)
            lanes = lanes_in_runs(operands[-1])
            if lanes is None:
                for row in rows:
                    consume_row(row)
                return
            for row, number in zip(rows, lanes, strict=True):
                own, run = split_run(row)
                write_row(lane_to_logs, (*own, number), run)

        return consume_lanes if event.layout.lanes else consume_row

    def _write(self, method: Callable[..., None], words: list[int], *args: Any) -> None:
        """Calls a method of the open runs, with the words of one of them."""
        runs = self._runs_of(words)
        try:
            if runs is not None:
                method(runs, tuple(words), *args)
        except (LoxError, LoxWarning) as error:
            _keep_error(self, error)

    def _runs_of(self, words: list[int]) -> OpenRuns | None:
        """The runs of the logger that an event belongs to; None if there are none.

        Removes the number of the logger from `words`, if it is there.
        """
        del words
        return self._runs


class SharedTapSink(TapSink):
    """The sink of a program that several loggers share, one after the other.

    The last word of each event is the number of its logger's runs.
    """

    def __init__(self) -> None:
        super().__init__(None)

    def _runs_of(self, words: list[int]) -> OpenRuns | None:
        # None if the logger is gone, after an interrupted call
        runs = numbered.get(words.pop())
        if self._unordered and runs is not None:
            self._update(runs)
        return runs


def with_number(words: Any, runs: OpenRuns) -> Any:
    """Appends the number of a logger's runs to the words of some of them."""
    on_host = jax.device_get(words)
    number = np.full((*on_host.shape[:-1], 1), runs.number, on_host.dtype)
    return jax.device_put(np.concatenate([on_host, number], -1))


class OpenSink(RunSink):
    """Opens runs.

    Args:
        runs: the open runs of the logger.
        shared: as in `RunSink`.
        config: the config of the runs, with placeholders for traced values.
    """

    def __init__(self, runs: OpenRuns, shared: int = 0, config: str = "{}") -> None:
        super().__init__(runs, shared)
        self._config = config

    def receiver(self, event: Event) -> Callable[..., tuple[()]]:
        self.runs.logger._opens_inside = True
        return super().receiver(event)

    def handle(self, payload: Any, late: bool) -> None:
        words, values = payload
        config = fill_config(self._config, values)
        runs = words_of_runs(words)
        if late:
            self.each(partial(self.open, one, late, config) for one in runs)
            return
        for one in runs:
            self.runs.check(one)
        for one in runs:
            self.open(one, late, config)

    def open(self, words: Words, late: bool, config: dict[str, Any]) -> None:
        self.runs.open(words, self.shared, late, config)

    def _identity(self) -> tuple[Any, ...]:
        return *super()._identity(), self._config


class CloseSink(RunSink):
    """Closes runs: those of all lanes, and then waits for them once."""

    def consumer(self, event: Event) -> Consume:
        if not (event.layout.lanes or event.layout.masked):
            return super().consumer(event)
        convert = lane_converter(event)

        def consume(operands: Sequence[Any]) -> None:
            payloads = [logs[PAYLOAD] for logs in convert(operands) if logs]
            if payloads:
                self.handle(np.stack(payloads), late=True)

        return consume

    def handle(self, payload: Any, late: bool) -> None:
        later = late and (self.shared or self.runs.logger._unordered)
        close = self.runs.close_late if later else self.runs.close
        closes = [partial(close, words) for words in words_of_runs(payload)]
        call_all([*closes, self.runs.logger._wait])


class WriteSink(RunSink):
    """Writes logs to runs."""

    names_devices = True

    def consumer(self, event: Event) -> Consume:
        convert = run_logs_converter(event)

        def consume(operands: Sequence[Any]) -> None:
            for payload in convert(operands):
                self.handle(payload, late=True)

        return consume

    def handle(self, payload: Any, late: bool) -> None:
        words, logs = payload
        if not late:
            self._write(words, logs, late)
            return
        self.each([partial(self._write, words, logs, late)])

    def _write(self, words: Any, logs: logdict, late: bool) -> None:
        happened = logs.compact()
        if not happened:
            return
        runs = list(split_by_run(words, happened, _mismatch))
        call_all(partial(self._write_run, one, lane, late) for one, lane in runs)

    def _write_run(self, words: Any, logs: logdict, late: bool) -> None:
        happened = logs.compact()
        if happened:
            self.runs.write(tuple(map(int, words)), happened, late)


def _mismatch(runs: int, lanes: int) -> str:
    return (
        f"a logger got logs of {lanes} lane(s) for {runs} runs. Call it under "
        "`jax.vmap`, so that each lane has its own state."
    )


class DeviceWriteSink(WriteSink):
    """Writes logs of a device from the host; each process has those of its devices."""

    def handle(self, payload: Any, late: bool) -> None:
        delivery.per_device = True
        try:
            super().handle(payload, late)
        finally:
            delivery.per_device = False


def words_of_runs(words: Any) -> list[Words]:
    """The words of each run."""
    flat = np.reshape(words, (-1, np.shape(words)[-1]))
    return [tuple(map(int, one)) for one in flat]
