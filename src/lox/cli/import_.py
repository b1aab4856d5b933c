"""Imports runs from W&B and TensorBoard into a store.

PATH is a `.wandb` file of an offline run, an event file of TensorBoard, or a directory
that is searched for them. Each W&B run, and each directory with event files, becomes a
run; the files of a W&B run that was resumed are joined. Numbers are imported, with
their steps: for W&B, the step metric of `define_metric`, or W&B's own step. Images,
histograms and text are not imported.
"""

import argparse
import contextlib
import filecmp
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from lox._errors import LoxError, LoxValueError
from lox._event_files.reader import Events, is_event_file
from lox._event_files.wandb_file import Row, WandbRun, run_identity
from lox._logs.logdict import RESERVED
from lox._store.imported import Curve, ImportedRun, write_imported
from lox._text_curves import printable

from ._output import print_json, say

HELP = "import runs from W&B or TensorBoard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="files, or directories to search"
    )
    parser.add_argument(
        "-o",
        "--to",
        dest="store",
        required=True,
        metavar="STORE",
        help="the store; it is created if necessary",
    )
    parser.add_argument(
        "--force", action="store_true", help="replace runs of the same names"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Any) -> int:
    store = pathlib.Path(arguments.store)
    sources = _joined(list(_sources(arguments.paths)))
    imported: list[dict[str, Any]] = []
    failed = False
    for name, files in sources:
        try:
            found = _read_wandb(files) if _is_wandb(files[0]) else _read(name, files)
            if any(found.name == other["name"] for other in imported):
                raise LoxValueError(
                    f"{files[0]} is another run of the name {found.name!r}. Import it "
                    "to another store."
                )
            store.mkdir(parents=True, exist_ok=True)
            write_imported(found, store, arguments.force)
        except (LoxError, OSError) as error:  # the others are imported
            say(f"error: {error}")
            failed = True
            continue
        rows = max((len(curve.steps) for curve in found.curves.values()), default=0)
        path = str(store / found.name)
        imported.append(
            {"name": found.name, "path": path, "keys": len(found.curves), "rows": rows}
        )
        if not arguments.json:
            keys = "1 key" if len(found.curves) == 1 else f"{len(found.curves)} keys"
            counts = f"{keys}, up to {rows} rows"
            print(f"{printable(path)}  {counts}", flush=True)
    if arguments.json:
        print_json({"runs": imported})
    return 1 if failed else 0


def _sources(paths: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The name and the files of each run."""
    for path in paths:
        found = list(_sources_in(path))
        if not found:
            raise LoxValueError(
                f"{path} has no `.wandb` files, and no event files of TensorBoard."
            )
        yield from found


def _sources_in(path: str) -> Iterator[tuple[str, list[str]]]:
    if not os.path.exists(path):
        raise LoxValueError(f"there is nothing at {path}.")
    if not os.path.isdir(path):
        if is_event_file(path):
            yield _basename(os.path.dirname(os.path.abspath(path))), [path]
        else:  # a `.wandb` file, whatever its name is
            yield "", [path]
        return
    for directory, inner, names in os.walk(path):
        inner.sort()
        for name in sorted(names):
            if _is_wandb(name):
                yield "", [os.path.join(directory, name)]
        events = sorted(filter(is_event_file, names))
        if events:
            relative = os.path.relpath(directory, path)
            name = _basename(os.path.abspath(path)) if relative == "." else relative
            yield name, [os.path.join(directory, event) for event in events]


def _is_wandb(path: str) -> bool:
    return not is_event_file(path) if os.path.isfile(path) else path.endswith(".wandb")


def _basename(path: str) -> str:
    return os.path.basename(path) or "run"


def _run_name(name: str) -> str:
    """A name that is one part of a path, and is not hidden."""
    name = re.sub(r"[^\w.@+=, -]+", "-", name).strip(".~ -")
    return name[:120] or "run"


# --- W&B -----------------------------------------------------------------------


def _joined(sources: list[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    """The sources, with all files of a W&B run in one of them.

    W&B writes a file per process, so a run that was resumed has several.
    """
    joined: dict[Any, tuple[str, list[str]]] = {}
    for name, files in sources:
        run: Any = object()  # event files are not joined
        if _is_wandb(files[0]):
            with contextlib.suppress(LoxError, OSError):  # raised again when it is read
                run = run_identity(files[0]) or run
        _, known = joined.setdefault(run, (name, []))
        known += [path for path in files if not _is_copy(path, known)]
    return list(joined.values())


def _is_copy(path: str, known: list[str]) -> bool:
    """Whether a file has the content of another one, or is a link to it."""
    return any(filecmp.cmp(path, other, shallow=False) for other in known)


def _read_wandb(files: list[str]) -> ImportedRun:
    parts = []
    for path in files:
        part = WandbRun(path)
        started = part.started or os.path.getmtime(path)
        parts.append((started, path, part))
        _report(path, part.damage, {"values": part.skipped})
    parts.sort(key=lambda each: each[:2])
    config: dict[str, Any] = {}
    step_metrics: dict[str, str] = {}
    rows: list[Row] = []
    title = ""
    for _, _, part in parts:
        config |= part.config
        step_metrics |= part.step_metrics
        rows += part.rows
        title = part.name or title
    last = parts[-1][2]
    name = f"{title}-{last.run_id}" if title else last.run_id
    status = "killed"
    if last.exit_code is not None:
        status = "failed" if last.exit_code else "finished"
    started = parts[0][0]
    ended = max(max(part.ended or started, started) for started, _, part in parts)
    curves = _curves(rows, step_metrics)
    return ImportedRun(_run_name(name), config, started, ended, status, curves)


def _curves(rows: list[Row], step_metrics: dict[str, str]) -> dict[str, Curve]:
    """The curves of all keys, over their step metric if all of their rows have it.

    A metric that is only the step of others is not a curve.
    """
    rows_of: dict[str, list[Row]] = {}
    for row in rows:
        for key in row.numbers:
            rows_of.setdefault(key, []).append(row)
    metric_of = {key: _step_metric(key, step_metrics) for key in rows_of}
    users: dict[str, set[int]] = {}  # the rows in which a metric is the step of others
    curves: dict[str, Curve] = {}
    for key, own in rows_of.items():
        metric, values = metric_of[key], [row.numbers[key] for row in own]
        steps = [row.numbers[metric] for row in own if metric in row.numbers]
        if metric is None or len(steps) < len(own) or bool in map(type, steps):
            curves[key] = Curve([row.step for row in own], values)
            continue
        users.setdefault(metric, set()).update(map(id, own))
        curves[key] = Curve(steps, values, "step" if metric in RESERVED else metric)
    for metric, found in users.items():
        if metric_of[metric] is None and found.issuperset(map(id, rows_of[metric])):
            del curves[metric]
    return curves


def _step_metric(key: str, step_metrics: dict[str, str]) -> str | None:
    """The metric that `define_metric` has made the x-axis of a key."""
    found = step_metrics.get(key)
    if found is None:  # a pattern is the beginning of names, and a star
        patterns = (name for name in step_metrics if name.endswith("*"))
        match = next((name for name in patterns if key.startswith(name[:-1])), "")
        found = step_metrics.get(match)
    return None if found in (key, "_step") else found


# --- TensorBoard ---------------------------------------------------------------


def _read(name: str, files: list[str]) -> ImportedRun:
    curves: dict[str, Curve] = {}
    config: dict[str, Any] = {}
    times: list[float] = []
    for path in files:
        events = Events(path)
        for scalar in events.scalars:
            curve = curves.setdefault(scalar.tag, Curve([], []))
            curve.steps.append(scalar.step)
            curve.values.append(scalar.value)
        config |= events.config
        times += events.times
        _report(path, events.damage, events.skipped)
    started = min(times, default=os.path.getmtime(files[0]))
    ended = max(times, default=started)
    return ImportedRun(_run_name(name), config, started, ended, "finished", curves)


def _report(path: str, damage: str, skipped: dict[str, int]) -> None:
    if damage:
        say(f"warning: {path} was read only in part: {damage}")
    left = [f"{count} {kind}" for kind, count in skipped.items() if count]
    if left:
        say(f"{path}: not imported, since they are not numbers: {', '.join(left)}")
