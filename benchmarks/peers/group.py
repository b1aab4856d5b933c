"""A group: contenders with the same workload, checked and then timed in rounds."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .checking import problem
from .contender import MissingError, Peer, Workload, described
from .results import Result
from .rounds import Clock, time_in_rounds
from .spread import spread

_SLOWEST = 40.0  # seconds of a call; slower contenders are not timed
# A first call that took less may have compiled for most of it: another one is timed.
_MAY_COMPILE = 8.0
# A call that took less is noise: another one is timed.
_SHORT = 1.0


@dataclasses.dataclass(frozen=True)
class Made:
    """A contender that is ready.

    Attributes:
        run: does the work once.
        values: does the work, or a small part of it, and returns what was logged.
        tidy: removes what was written.
    """

    run: Callable[[], Any]
    values: Callable[[], Mapping[str, Any]]
    tidy: Callable[[], Any] = lambda: None


@dataclasses.dataclass(frozen=True)
class Contender:
    """A contender of a group.

    Attributes:
        name: as the table shows it.
        make: prepares it; raises `MissingError` if it cannot take part.
        package: the distribution whose version the results state.
        streams: whether values reach the host while a program runs.
        checked_by_run: whether the check does all of the work, so that its time says
            how long a call takes.
    """

    name: str
    make: Callable[[], Made]
    package: str = "jax"
    streams: bool = False
    checked_by_run: bool = False


@dataclasses.dataclass(frozen=True)
class Group:
    """What is compared.

    Attributes:
        name: its name on the command line.
        work: what is done.
        contenders: the contenders; the others are compared with the first one.
        size: the number of steps, lanes, keys or rows, if several are measured.
        ordered: whether the order of values is compared.
        clock: the clock that times the contenders.
    """

    name: str
    work: str
    contenders: Sequence[Contender]
    size: int | None = None
    ordered: bool = True
    clock: Clock = time.perf_counter


def of_workload(
    name: str, work: Workload, peers: Sequence[Peer], size: int | None
) -> Group:
    """The group of peers that run a workload; the first returns its values by hand."""
    arguments = work.arguments()

    def maker(peer: Peer) -> Callable[[], Made]:
        def make() -> Made:
            prepared = peer.prepare(work)
            run = prepared.run(arguments)
            return Made(run, lambda: prepared.values(run()))

        return make

    contenders = [
        Contender(peer.name, maker(peer), peer.package, peer.streams, True)
        for peer in peers
    ]
    ordered = work.ordered and not work.lanes
    return Group(name, work.name, contenders, size, ordered)


def measure(
    group: Group,
    seconds: float,
    skipped: Sequence[str] = (),
    trying: Callable[[str], None] = lambda name: None,
) -> list[Result]:
    """Checks all contenders of a group and times those that log the right values.

    Args:
        group: the group.
        seconds: how long the timing may take, about.
        skipped: contenders to leave out.
        trying: is called with the contender that is tried next, in case it does not
            return.
    """
    results: dict[str, Result] = {}
    ready: dict[str, Made] = {}
    estimates: dict[str, float] = {}
    expected: Mapping[str, Any] | None = None
    for contender in group.contenders:
        if contender.name in skipped:
            continue
        trying(contender.name)
        result = Result(
            group.name, group.work, contender.name, streams=contender.streams
        )
        result.package, result.size = contender.package, group.size
        results[contender.name] = result
        try:
            made = contender.make()
            start = group.clock()
            found = made.values()
            took = group.clock() - start
            if expected is None:
                expected = found
            wrong = problem(found, expected, group.ordered)
            if took < _MAY_COMPILE or not contender.checked_by_run:
                took = _time(made, group.clock)
            if took < _SHORT:
                took = _time(made, group.clock)
        except MissingError as error:
            result.status, result.note = "missing", str(error)
        except Exception as error:
            result.status, result.note = "error", described(error)
        else:
            if wrong is not None:
                result.status, result.note = "wrong", wrong
            elif took > _SLOWEST:
                result.status = "slow"
                result.note = f"a call takes {took:,.0f} s"
            else:
                ready[contender.name] = made
                estimates[contender.name] = took
    trying("")
    timed = time_in_rounds(
        [made.run for made in ready.values()],
        list(estimates.values()),
        seconds,
        group.clock,
        [made.tidy for made in ready.values()],
    )
    for name, times in zip(ready, timed, strict=True):
        results[name].measured(spread(times))
    return list(results.values())


def measure_sizes(
    groups: Iterable[Group],
    seconds: float,
    longest: Callable[[int], float],
    skipped: Sequence[str] = (),
    trying: Callable[[str], None] = lambda name: None,
) -> Iterator[Result]:
    """Measures the same at several sizes, from the smallest.

    A contender that would take longer than `longest(size)` seconds is not tried at this
    and larger sizes, and has a row that says so.
    """
    points: dict[str, list[tuple[int, float]]] = {}
    done = set(skipped)
    for group in groups:
        assert group.size is not None
        slow = []
        for contender in group.contenders:
            before = points.get(contender.name, [])
            if contender.name in done or not before:
                continue
            expected = _extrapolated(before, group.size)
            # with only one size, a fixed part of the cost is unknown
            if expected > longest(group.size) * (1 if len(before) > 1 else 3):
                slow.append(_slow(group, contender, expected, before[-1][0]))
                done.add(contender.name)
        for result in measure(group, seconds, sorted(done), trying):
            if result.median is None:
                done.add(result.peer)
            else:
                points.setdefault(result.peer, []).append((group.size, result.median))
            yield result
        yield from slow


def _extrapolated(points: list[tuple[int, float]], size: int) -> float:
    """The expected time at a size, from those at the two largest sizes so far."""
    (n0, t0), (n1, t1) = ([(0, 0.0), *points])[-2:]
    return t1 + max(0.0, t1 - t0) / (n1 - n0) * (size - n1)


def _slow(group: Group, contender: Contender, expected: float, size: int) -> Result:
    result = Result(group.name, group.work, contender.name, streams=contender.streams)
    result.package, result.size = contender.package, group.size
    result.status = "slow"
    result.note = f"about {expected:,.0f} s, from the time of {size:,}"
    return result


def _time(made: Made, clock: Clock) -> float:
    start = clock()
    made.run()
    took = clock() - start
    made.tidy()
    return took
