"""Damaged stores and files of other programs, read in all ways."""

import functools
import pathlib
import random
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import lox
from lox._page.chart_requests import ROW, TIME, Request
from lox._page.charts import chart
from lox._page.index import index_of
from lox._page.media import media
from lox._page.packing import pack
from lox._page.signals import CLOCK
from lox._page.source import StoreSource
from lox._page.summary import summary_table
from lox._store.creating import create_run
from lox._store.processes import part_path
from lox._store.writer import Writer
from lox._trackers.unsent import UNSENT, Origin
from tests.fuzz.hostile.mutations import damage_files
from tests.fuzz.hostile.sandbox import command
from tests.page.stores import logs, write_run, write_timed

_DATA = pathlib.Path(__file__).parents[2] / "data"


# --- what is damaged -----------------------------------------------------------


@functools.cache
def _original() -> pathlib.Path:
    """A directory with files of all kinds; it lives as long as the process."""
    root = pathlib.Path(tempfile.mkdtemp(dir=".", prefix="original-")).resolve()
    _write_store(root / "store")
    shutil.copytree(_DATA / "store-v1" / "trees", root / "store" / "old")
    for name in ("a", "b"):
        directory = root / UNSENT / f"wandb-{name}"
        write_run(root / UNSENT, directory.name, logs([0, 1], loss=[1.0, 2.0]))
        run = {"id": "x", "asks": False} if name == "a" else None
        Origin("trackio", name, {"project": "p"}, "token", run).write(directory)
    (root / "wandb").mkdir()
    shutil.copyfile(_DATA / "offline.wandb", root / "wandb" / "run.wandb")
    events = root / "events"
    events.mkdir()
    _write_events(events)
    return root


def original_store() -> pathlib.Path:
    """A store with runs of all kinds; see `RUNS`."""
    return _original() / "store"


def _write_store(store: pathlib.Path) -> None:
    steps, rng = np.arange(5), np.random.default_rng(0)
    config = {"lr": 0.1, "net": {"width": 64, "names": ["a", None, True]}}
    scalars = logs(steps, loss=1 / (1 + steps), count=steps)
    write_run(store, "scalars", scalars, config)
    trees = lox.logdict(
        {
            "tree": {"a": np.ones(2, ml_dtypes.bfloat16), "b": (np.int64(2**60),)},
            "flag": np.bool_(True),
            "int4": np.ones(3, ml_dtypes.int4),
        }
    )
    images = logs(steps, image=rng.integers(0, 255, (5, 4, 4, 3), np.uint8))
    histogram = {"counts": np.ones((5, 3)), "edges": np.ones((5, 4)).cumsum(1)}
    histograms = lox.logdict({"h": histogram}, {"step": {"h": steps}}, stacked=True)
    write_run(store, "kinds", [trees, images, histograms, scalars], {"lr": 0.3}, False)
    lanes = lox.logdict(
        {"loss": np.ones(6)},
        {"step": {"loss": steps[[0, 0, 1, 1, 2, 2]]}, "lane": {"loss": [0, 1] * 3}},
        stacked=True,
    )
    write_run(store, "lanes", lanes)
    write_timed(store, "timed", [0.0, 2.0, 3.5, 60.0], loss=np.arange(4.0))
    for process in range(2):
        run = part_path(store / "processes", process)
        writer = Writer(create_run(run, "x"))
        writer.write(scalars)
        writer.finish()
        writer.close()


def _write_events(directory: pathlib.Path) -> None:
    run = directory.parent / "store" / "scalars"
    command("export", str(run), "--to", "tensorboard", "-o", str(directory))


# --- ways to read it -------------------------------------------------------------


def read_runs(store: str, rng: random.Random) -> None:
    for run in lox.runs(store):
        for name in _ATTRIBUTES:
            _tried(lambda run=run, name=name: getattr(run, name))
        _tried(lambda run=run: run.load(rng.choice((None, "loss", "*"))))
        _tried(repr, run)
    _tried(lambda: lox.load(f"{store}/{rng.choice(RUNS)}"))


_ATTRIBUTES = (
    "name",
    "path",
    "key",
    "config",
    "status",
    "error",
    "started",
    "duration",
    "rows",
    "keys",
    "last",
    "processes",
    "unfinished_processes",
)
RUNS = ("scalars", "kinds", "lanes", "timed", "processes", "old")


def _tried(function: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function, which may raise only errors of lox."""
    try:
        function(*arguments)
    except lox.LoxError as error:
        assert str(error), "an error without a message"


def read_sets(store: str, rng: random.Random) -> None:
    runs = lox.runs(store)
    _tried(repr, runs)
    _tried(runs._repr_html_)
    _tried(runs.to_pandas)
    _tried(runs.load, rng.choice((None, "loss", ["loss", "h"])))
    _tried(lambda: runs.where(lr=0.1))
    _tried(lambda: runs.group_by("lr"))


def show_page(store: str, rng: random.Random) -> None:
    source = StoreSource(store)
    try:
        source.refresh()
        index_of(source)
        summary_table(source)
        keys = {key for run in source.runs.values() for key in run.signals}
        for key in sorted(keys):
            for x in ("", "step", ROW, TIME, CLOCK):
                _tried(lambda key=key, x=x: pack(chart(source, Request(key, x))))
            _tried(lambda key=key: pack(media(source, key)))
        source.refresh()
    finally:
        source.close()


def _commands(*lines: str) -> Callable[[random.Random], None]:
    def run(rng: random.Random) -> None:
        for line in lines:
            command(*line.format(run=rng.choice(RUNS)).split())

    return run


def _sync(rng: random.Random) -> None:
    """To a copy that is damaged as well."""
    if rng.random() < 0.5:
        command("sync", str(original_store()), "--to", "copy")
        damage_files(pathlib.Path("copy"), rng)
    command("sync", "store", "--to", "copy", *rng.choice(((), ("--overwrite",))))
    command("ls", "copy", "--json")


# by the directory that is damaged
WAYS: dict[str, tuple[Callable[[random.Random], None], ...]] = {
    "store": (
        functools.partial(read_runs, "store"),
        functools.partial(read_sets, "store"),
        functools.partial(show_page, "store"),
        _sync,
        _commands("ls store", "ls store/{run} --json", "ls store --sort loss"),
        _commands("show store/{run}", "show store/{run} --json"),
        _commands("plot store", "plot store -k loss --by lr", "plot store/{run}"),
        _commands("plot store --band std --logy", "plot store -x time --json"),
        _commands("tail store", "tail store/{run} -n 3 --json"),
        _commands("export store --to csv -o out.csv"),
        _commands("export store --to jsonl -o out.jsonl"),
        _commands("export store --to parquet -o out.parquet"),
        _commands("export store/{run} --to parquet -o out.parquet"),
        _commands("export store --to tensorboard -o events"),
        _commands("report store -o report.html"),
        _commands("diff store", "diff store/{run} store/scalars --json"),
        _commands("mv -y store/{run} other", "ls other", "rm -y store/{run}"),
        _commands("sync store --to mlflow --dry-run"),
    ),
    ".lox": (
        _commands("ls .lox/unsent", "show .lox/unsent/wandb-a"),
        _commands("sync .lox/unsent --to trackio --dry-run --json"),
    ),
    "wandb": (
        _commands("import wandb -o new", "ls new", "show new"),
        _commands("import wandb/run.wandb -o new --json", "plot new"),
    ),
    "events": (_commands("import events -o new", "ls new --json", "plot new"),),
}


def prepare() -> None:
    _original()


def check(seed: int) -> None:
    """Damages files, and reads them in one of the ways."""
    rng = random.Random(f"files {seed}")
    original = _original()
    what = rng.choice(("store", "store", "store", *WAYS))
    shutil.copytree(original / what, what)
    done = damage_files(pathlib.Path(what), rng)
    way = rng.choice(WAYS[what])
    try:
        way(rng)
    except lox.LoxError as error:
        assert str(error), "an error without a message"
    except BaseException as error:
        error.add_note(f"{what}: {done}")
        raise
