"""Invalid options of tracker loggers, and damaged logs that a logger could not send.

The clients of the trackers are real, and write to local files or nowhere.
"""

import functools
import os
import pathlib
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import jax

import lox
import lox.loggers
from lox._trackers.unsent import UNSENT, Origin
from tests.fuzz.hostile.arguments import ALLOWED, call_arguments
from tests.fuzz.hostile.mutations import damage_files
from tests.fuzz.hostile.sandbox import command
from tests.page.stores import logs, write_run

_LOGGERS = {
    "wandb": "WandbLogger",
    "mlflow": "MLflowLogger",
    "neptune": "NeptuneLogger",
    "trackio": "TrackioLogger",
}
# W&B's client asks git about the working directory
STARTED_PROGRAMS = ("git",)
# options of the clients themselves, which say where runs go, or start servers
_OF_CLIENTS = ("tracking_uri", "options")


def prepare() -> None:
    """Lets the clients write to the working directory only, and imports them."""
    here = os.getcwd()
    os.environ |= {
        "HOME": here,
        "MLFLOW_TRACKING_URI": f"file://{here}/mlflow",
        "NEPTUNE_MODE": "debug",
        "TRACKIO_DIR": f"{here}/trackio",
        "WANDB_DIR": here,
        "WANDB_DISABLE_GIT": "true",
        "WANDB_MODE": "disabled",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _LOGGERS.values():  # raises if a client is not installed
            logger = getattr(lox.loggers, name)("project")
            state = logger.init(0)
            logger.log(state, {"x": 1.0}, step=0)
            logger.finish(state)
    _unsent()


def _open(name: str) -> Callable[..., Any]:
    """A function with the options of a logger that creates it and logs a row."""
    kind = getattr(lox.loggers, name)

    @functools.wraps(kind)
    def log(*args: Any, **options: Any) -> None:
        logger = kind(*args, **options)
        state = logger.init(0)
        logger.log(state, {"x": 1.0, "y": [1, 2]}, step=0)
        logger.finish(state)

    return log


def _init(module: str) -> Callable[..., Any]:
    functions = getattr(lox, module)

    @functools.wraps(getattr(lox.loggers, _LOGGERS[module]))
    def log(*args: Any, **options: Any) -> None:
        state = functions.init(None, **options)
        functions.log(state, {"x": 1.0}, step=0)
        functions.finish(state)

    return log


def check(seed: int) -> None:
    """Creates a logger with invalid options; opens, writes and closes a run."""
    rng = random.Random(f"trackers {seed}")
    made = [_open(name) for name in _LOGGERS.values()]
    made += [_init(module) for module in ("wandb", "neptune")]
    function = rng.choice(made)
    positional, named = call_arguments(function, rng)
    named = {name: x for name, x in named.items() if name not in _OF_CLIENTS}
    # of packages that the clients use
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", FutureWarning)
    warnings.simplefilter("ignore", ResourceWarning)
    try:
        function(*positional, **named)
        jax.effects_barrier()
    except ALLOWED as error:
        assert str(error), "an error without a message"
    except BaseException as error:
        error.add_note(f"{function}(*{positional!r:.300}, **{named!r:.600})")
        raise


# --- logs that could not be sent -------------------------------------------------


@functools.cache
def _unsent() -> pathlib.Path:
    """Unsent logs of three runs; two of them are those of one run of a tracker."""
    root = pathlib.Path(tempfile.mkdtemp(dir=".", prefix="unsent-")).resolve()
    settings = {"project": "p", "group": None, "options": {}}
    shown: dict[str, Any] = {"step": None, "histograms": [], "images": []}
    for name, token, run in (
        ("trackio-a", "x", None),
        ("trackio-b", "y", None),
        ("trackio-c", "x", {"id": "id", "before": 0, "sent": 0, "counts": {}}),
    ):
        write_run(root, name, logs([0, 1], loss=[1.0, 2.0]))
        origin = Origin("trackio", name, {**settings, **shown}, token, run)
        origin.write(root / name)
    return root


def check_unsent(seed: int) -> None:
    """Damages some of the logs, and sends all; those that are not damaged arrive."""
    rng = random.Random(f"unsent {seed}")
    shutil.copytree(_unsent(), UNSENT)
    intact = UNSENT / ("trackio-b" if rng.random() < 0.5 else "trackio-a")
    others = [path for path in UNSENT.iterdir() if path != intact]
    if intact.name == "trackio-a":  # what belongs to the same run is not damaged
        others = [UNSENT / "trackio-b"]
    done = [damage_files(path, rng) for path in others]
    store = rng.choice((".lox", str(UNSENT)))
    options = rng.choice(((), ("--json",), ("--follow",)))
    try:
        command("sync", store, "--to", "trackio", "--dry-run")
        assert intact.exists()
        command("sync", store, "--to", "trackio", *options)
        assert not intact.exists(), f"{intact} was not sent"
        command("sync", store, "--to", "trackio")
        command("ls", str(UNSENT))
    except BaseException as error:
        error.add_note(f"{intact} is intact: {done}")
        raise
