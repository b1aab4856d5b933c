"""Repeats faults and says what was lost: `python -m tests.faults [--scale 0.1]`.

Every experiment raises an error if a row is lost that a completed call had written, or
if damage goes unnoticed.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA

import jax

from tests.faults import long_programs, slow_disks
from tests.store import test_damaged_files, test_disks, test_killed_processes
from tests.store.child_processes import in_a_process

RECORD = pathlib.Path(__file__).parents[2] / "docs" / "faults.jsonl"
SEED = 1
_KILLS_OF_A_PROCESS = 50  # few enough for a slow machine


def killed_at_random(directory: pathlib.Path, count: int) -> str:
    kill = test_killed_processes.kill_at_random_moments
    for first in range(0, count, _KILLS_OF_A_PROCESS):
        kills = min(_KILLS_OF_A_PROCESS, count - first)
        in_a_process(kill, directory / str(first), kills, SEED + first)
    return "no row that was written"


def killed_at_operations(directory: pathlib.Path, count: int) -> str:
    kill = test_killed_processes.kill_at_each_operation
    lines = in_a_process(kill, directory).split("\n")[:-1]
    total = sum(int(line.split()[1]) for line in lines)
    return f"no row that was written, in {total} places"


def damaged(directory: pathlib.Path, count: int) -> str:
    test_damaged_files.check_random_damage(directory, SEED, count)
    return "only what the damage destroyed; each loss is an error or a warning"


def full_disks(directory: pathlib.Path, count: int) -> str:
    skipped = []
    for i in range(count):
        way = ("limit", "small disk")[i % 2]
        disk = directory / str(i)
        disk.mkdir()
        printed = in_a_process(test_disks.fill_the_disk, disk, way)
        if printed != "done\n":
            skipped.append(way)
    return "no row that was written" + (
        f" ({len(skipped)} could not be tried here)" if skipped else ""
    )


def slow_disk(directory: pathlib.Path, count: int) -> str:
    operations = 0
    for i in range(count):
        operations += int(in_a_process(slow_disks.train, directory / str(i), 50))
    return f"nothing; {operations} file operations took 50 ms longer"


def repeated(*paths: str) -> Callable[[pathlib.Path, int], str]:
    """Runs tests several times, in new processes."""

    def run(directory: pathlib.Path, count: int) -> str:
        passed = 0
        for _ in range(count):
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", *paths],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout[-5000:]
            passed += int(done.stdout.rsplit(" passed", 1)[0].rsplit(None, 1)[-1])
        return f"nothing, in {passed} experiments"

    return run


def devices(directory: pathlib.Path, count: int) -> str:
    subprocess.run(
        [sys.executable, "-m", "tests.faults.large_operands", str(count)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return "nothing; no program hung"


def many_events(directory: pathlib.Path, count: int) -> str:
    added = int(in_a_process(long_programs.many_events, directory, count))
    assert added < 20e6, added
    return f"nothing; the last 80 % added {added / 1e6:.1f} MB of memory"


def many_runs(directory: pathlib.Path, count: int) -> str:
    printed = in_a_process(long_programs.many_runs, directory, count)
    files, threads = map(int, printed.split())
    assert files <= 0 and threads <= 0, printed
    return "nothing; open files and threads stayed the same"


class Experiment(NamedTuple):
    done: str
    most: int
    run: Callable[[pathlib.Path, int], str]


EXPERIMENTS = {
    "kills": Experiment(
        "a process that writes is killed at a random moment", 1000, killed_at_random
    ),
    "operations": Experiment(
        "it is killed before each of its file operations", 1, killed_at_operations
    ),
    "damage": Experiment(
        "a file is truncated, changed, renamed or removed", 1000, damaged
    ),
    "full-disks": Experiment("the disk becomes full, and is freed", 10, full_disks),
    "slow-disks": Experiment(
        "every flush and every opened file takes 50 ms longer", 10, slow_disk
    ),
    "backends": Experiment(
        "backends raise, hang, call `exit`, or fail when the program ends",
        10,
        repeated(
            "tests/loggers/test_failing_backends.py", "tests/loggers/test_queue.py"
        ),
    ),
    "processes": Experiment(
        "forks, signals and exits",
        10,
        repeated("tests/host/test_processes.py", "tests/host/test_interrupts.py"),
    ),
    "devices": Experiment("steps in which eight devices log 4 MB", 200, devices),
    "events": Experiment("events that one program logs", 10_000_000, many_events),
    "runs": Experiment("runs that one program writes", 500, many_runs),
}


def results(names: Iterable[str], scale: float) -> Iterator[dict[str, object]]:
    for name in names:
        done, most, run = EXPERIMENTS[name]
        count = max(1, round(most * scale))
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            lost = run(pathlib.Path(directory), count)
        seconds = round(time.monotonic() - start)
        yield {"done": done, "times": count, "lost": lost, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="1.0: as in the docs")
    parser.add_argument("--record", action="store_true", help=f"append to {RECORD}")
    parser.add_argument(
        "--only", choices=EXPERIMENTS, nargs="+", default=[*EXPERIMENTS]
    )
    options = parser.parse_args()
    for result in results(options.only, options.scale):
        print("{done}: {times}; lost: {lost} ({seconds} s)".format(**result))
        sys.stdout.flush()
        if options.record:
            date = datetime.date.today().isoformat()
            with RECORD.open("a") as file:
                line = {**result, "jax": jax.__version__, "date": date}
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
