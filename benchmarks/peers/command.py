"""`python -m benchmarks peers`: measures, prints a table, and writes a file in JSON.

Each group is measured in a separate process, so that a peer that ends the process, or
does not return, does not affect the others.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time

from . import table
from .plan import NAMES, QUICK_NAMES, Plan
from .results import Measurement, Result, read, with_ratios, write

_ROOT = pathlib.Path(__file__).parents[2]
_PACKAGES = (
    *("jax", "jaxlib", "numpy", "jax-lox", "jax-tap", "flax", "oryx", "jax-tqdm"),
    *("tensorboard", "tensorboardX", "wandb", "trackio", "mlflow"),
)
_BYTES_PER_ROW = 40  # bytes of all formats together that write 1e8 rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks peers", description=__doc__)
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(NAMES)}; or all")
    parser.add_argument("--quick", action="store_true", help="less, in two minutes")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="a file, in JSON")
    parser.add_argument(
        "--append",
        action="store_true",
        help="keep what the file has of other versions of JAX, and of other groups",
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        help="compare only peers with this in their name; may be repeated",
    )
    parser.add_argument(
        "--many-rows", action="store_true", help="also 1e8 rows, which takes minutes"
    )
    parser.add_argument(
        "--limit", type=float, default=300, help="seconds that a group may take"
    )
    parser.add_argument("--child", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--skip", action="append", default=[], help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.groups) - set(NAMES))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; groups are {', '.join(NAMES)}")
    plan = Plan(given.quick, given.many_rows, tuple(given.peer))
    names = given.groups or (QUICK_NAMES if given.quick else NAMES)
    if given.child is not None:
        return _child(plan, names[0], given.skip, given.child)
    if given.many_rows and not _has_room():
        return 1
    today = str(datetime.date.today())
    measurement = Measurement(
        today, machine(), os.getloadavg()[0], versions(), given.quick, []
    )
    before = read(given.output) if given.append and given.output.exists() else []
    for name in names:
        start = time.monotonic()
        found = with_ratios(_measure(plan, name, given.limit))
        print("\n".join(table.lines(found)), flush=True)
        took = time.monotonic() - start
        print(f"{name} took {took:.0f} s", file=sys.stderr, flush=True)
        measurement.results += found
        if given.output is not None:  # after each group, in case of an interrupt
            write(given.output, merged(before, measurement))
    return 0


def _has_room() -> bool:
    needed = 100_000_000 * _BYTES_PER_ROW
    status = os.statvfs(tempfile.gettempdir())
    free = status.f_bavail * status.f_frsize
    print(f"1e8 rows need about {needed / 1e9:.0f} GB of {free / 1e9:.0f} GB free")
    return free > 2 * needed


def _measure(plan: Plan, name: str, limit: float) -> list[Result]:
    """Runs a process; if it ends early, repeats without the peer that ended it."""
    failed: list[Result] = []
    while True:
        options = [f"--peer={peer}" for peer in plan.peers]
        options += [f"--skip={result.peer}" for result in failed]
        options += ["--quick"] * plan.quick + ["--many-rows"] * plan.many_rows
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            found, under_way, ending = _run_child(name, options, directory, limit)
        if found:
            failed = [dataclasses.replace(x, work=found[0].work) for x in failed]
        if ending is None:
            return [*found, *failed]
        print(f"{name}: {under_way or 'timing'} {ending}", file=sys.stderr)
        result = Result(name, name, under_way or "all", status="crashed", note=ending)
        failed.append(result)
        if not under_way or len(failed) > 5:
            return [*found, *failed]


def _run_child(
    name: str, options: list[str], directory: str, limit: float
) -> tuple[list[Result], str, str | None]:
    """The results of a group, the peer tried last, and how the process failed."""
    output = pathlib.Path(directory) / "results"
    output.touch()
    path = os.pathsep.join(
        [str(_ROOT / "src"), str(_ROOT), os.environ.get("PYTHONPATH", "")]
    )
    environment = {
        **os.environ,
        "PYTHONPATH": path.rstrip(os.pathsep),
        "TMPDIR": directory,
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": directory,
    }
    command = [sys.executable, "-m", __package__, name, f"--child={output}", *options]
    ending = None
    with open(pathlib.Path(directory) / "log", "w+") as log:
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=log, stderr=log
        )
        try:
            status = process.wait(limit)
            if status != 0:
                log.seek(0)
                print(log.read()[-2000:], file=sys.stderr)
                ending = f"ended the process with status {status}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ending = f"did not return in {limit:.0f} s"
    found, under_way = [], ""
    for line in output.read_text().splitlines():
        entry = json.loads(line)
        if "trying" in entry:
            under_way = entry["trying"]
        else:
            found.append(Result(**entry))
    return found, under_way, ending


def _child(plan: Plan, name: str, skipped: list[str], output: pathlib.Path) -> int:
    with open(output, "a", buffering=1) as file:

        def trying(peer: str) -> None:
            file.write(json.dumps({"trying": peer}) + "\n")

        for result in plan.run(name, skipped, trying):
            file.write(json.dumps(dataclasses.asdict(result)) + "\n")
    return 0


def merged(before: list[Measurement], new: Measurement) -> list[Measurement]:
    """Measurements with a new one, which replaces groups of the same version of JAX."""
    measured = {result.group for result in new.results}
    found = []
    for old in before:
        if old.versions["jax"] != new.versions["jax"]:
            found.append(old)
            continue
        rest = [result for result in old.results if result.group not in measured]
        new = dataclasses.replace(new, results=[*rest, *new.results])
    return [new, *found] if not found else [*found, new]


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> str:
    name = platform.machine()
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    model = re.search(r"^model name\s*: (.*)$", text, re.M)
    return f"{model.group(1) if model else name}, {os.cpu_count()} cores"
