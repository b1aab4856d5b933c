"""Rows on disk: stores, event files and trackers, written and read.

A row is one number and its step. Writing begins with a new run and ends when the run
is closed. What was written is read back and compared before it is timed.
"""

import contextlib
import contextvars
import importlib
import io
import itertools
import logging
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .contender import imported
from .group import Contender, Group, Made

_BUFFER_SIZE = 1_000
_FEW = 100  # rows that are read back
_numbers = itertools.count()

# Writes that many rows into a new directory.
Write = Callable[[int, pathlib.Path], Any]
# Reads them back.
Read = Callable[[pathlib.Path], Any]


def write_groups(sizes: list[int]) -> Iterator[Group]:
    for size in sizes:
        contenders = [
            Contender(name, _writer(size, make), package)
            for name, (package, make) in _FORMATS.items()
        ]
        yield Group("write-rows", f"write {size:,} rows", contenders, size)


def read_groups(sizes: list[int]) -> Iterator[Group]:
    for size in sizes:
        contenders = [
            Contender(name, _reader(size, _FORMATS[name][1]), _FORMATS[name][0])
            for name in _READ
        ]
        yield Group("read-rows", f"read {size:,} rows", contenders, size)


def _directory() -> pathlib.Path:
    return pathlib.Path(tempfile.gettempdir()) / f"rows-{os.getpid()}"


def _new(size: int) -> pathlib.Path:
    path = _directory() / f"{size}-{next(_numbers)}"
    path.mkdir(parents=True)
    return path


def _tidy() -> None:
    shutil.rmtree(_directory(), ignore_errors=True)


def _values(few: int, make: Callable[[int], tuple[Write, Read]]) -> Any:
    write, read = make(few)
    path = _new(few)
    with contextlib.redirect_stdout(io.StringIO()):
        write(few, path)
        return {"loss": read(path)}


def _writer(size: int, make: Callable[[int], tuple[Write, Read]]) -> Any:
    def made() -> Made:
        write, _ = make(size)

        def run() -> None:
            with contextlib.redirect_stdout(io.StringIO()):
                write(size, _new(size))

        return Made(run, lambda: _values(_FEW, make), _tidy)

    return made


def _reader(size: int, make: Callable[[int], tuple[Write, Read]]) -> Any:
    def made() -> Made:
        write, read = make(size)
        path = _new(size)
        write(size, path)
        # the sum reads files that are only mapped into memory
        return Made(lambda: np.sum(read(path)), lambda: {"loss": read(path)})

    return made


def _row(step: int) -> float:
    return step * 0.5


def _columns(rows: int) -> tuple[Any, Any]:
    steps = np.arange(rows)
    return steps, (steps * 0.5).astype(np.float32)


# --- NumPy ---------------------------------------------------------------------------


def _numpy(_: int) -> tuple[Write, Read]:
    def write(rows: int, path: pathlib.Path) -> None:
        steps, loss = _columns(rows)
        np.save(path / "steps.npy", steps)
        np.save(path / "loss.npy", loss)

    def read(path: pathlib.Path) -> Any:
        np.load(path / "steps.npy")
        return np.load(path / "loss.npy")

    return write, read


# --- lox -----------------------------------------------------------------------------


def _lox_read(path: pathlib.Path) -> Any:
    return imported("lox", "jax-lox").load(path)["loss"]


def _lox_save(_: int) -> tuple[Write, Read]:
    lox = imported("lox", "jax-lox")

    def write(rows: int, path: pathlib.Path) -> None:
        steps, loss = _columns(rows)
        logs = lox.logdict({"loss": loss}, {"step": {"loss": steps}}, stacked=True)
        lox.save(logs, path / "run")

    return write, _lox_read


def _lox_rows(_: int) -> tuple[Write, Read]:
    loggers = imported("lox.loggers", "jax-lox")

    def write(rows: int, path: pathlib.Path) -> None:
        logger = loggers.SaveLogger(path)
        state = logger.init(jax.random.key(next(_numbers)))
        for step in range(rows):
            logger.log(state, {"loss": np.float32(_row(step))}, step=step)
        logger.finish(state)

    return write, _lox_read


def _sends(size: int, make: Callable[[Any, Any], Any]) -> Write:
    """Writes rows by a logger's `tap`; the program is compiled once."""
    lox = imported("lox", "jax-lox")
    loggers = imported("lox.loggers", "jax-lox")
    path = _directory() / "here"
    logger = make(loggers, path)
    steps = jnp.arange(size)

    def train() -> None:
        def body(carry: Any, step: Any) -> Any:
            lox.log({"loss": step * 0.5}, step=step)
            return carry, None

        lax.scan(body, None, steps)

    @jax.jit
    def program(key: Any) -> Any:
        state = logger.init(key)
        logger.tap(train, state, buffer=_BUFFER_SIZE)()
        return state

    def write(_: int, new: pathlib.Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        # outside the program, it waits until the tracker has received everything
        logger.finish(program(jax.random.key(next(_numbers))))
        for file in path.iterdir():
            file.rename(new / file.name)

    return write


def _lox_tap(size: int) -> tuple[Write, Read]:
    return _sends(size, lambda loggers, path: loggers.SaveLogger(path)), _lox_read


# --- TensorBoard ---------------------------------------------------------------------


def _tensorboard_read(path: pathlib.Path) -> Any:
    module = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = imported(module, "tensorboard").EventAccumulator
    (file,) = path.rglob("*tfevents*")
    events = accumulator(str(file), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    if tags["scalars"]:
        return [event.value for event in events.Scalars("loss")]
    (tag,) = tags["tensors"]
    return [event.tensor_proto.float_val[0] for event in events.Tensors(tag)]


def _tensorboard(_: int) -> tuple[Write, Read]:
    proto = "tensorboard.compat.proto"
    event = imported(f"{proto}.event_pb2", "tensorboard").Event
    summary = imported(f"{proto}.summary_pb2", "tensorboard").Summary
    module = "tensorboard.summary.writer.event_file_writer"
    event_file_writer = imported(module, "tensorboard").EventFileWriter

    def write(rows: int, path: pathlib.Path) -> None:
        writer = event_file_writer(str(path))
        for step in range(rows):
            value = summary.Value(tag="loss", simple_value=_row(step))
            shown = summary(value=[value])
            writer.add_event(event(wall_time=time.time(), step=step, summary=shown))
        writer.close()

    return write, _tensorboard_read


def _tensorboard_x(_: int) -> tuple[Write, Read]:
    writer_class = imported("tensorboardX", "tensorboardX").SummaryWriter

    def write(rows: int, path: pathlib.Path) -> None:
        writer = writer_class(str(path))
        for step in range(rows):
            writer.add_scalar("loss", _row(step), step)
        writer.close()

    return write, _tensorboard_read


def _lox_tensorboard(size: int) -> tuple[Write, Read]:
    write = _sends(size, lambda loggers, path: loggers.TensorBoardLogger(path))
    return write, _tensorboard_read


# --- Weights & Biases ----------------------------------------------------------------


def _wandb_read(path: pathlib.Path) -> Any:
    from lox.cli import main

    # a process of W&B's may still write the file when `finish` has returned
    time.sleep(1)
    # W&B does not read offline runs
    (file,) = path.rglob("*.wandb")
    target = path / "imported"
    with contextlib.redirect_stdout(io.StringIO()):
        main(["import", str(file.parent), "-o", str(target)])
    return imported("lox", "jax-lox").load(target)["loss"]


def _wandb(_: int) -> tuple[Write, Read]:
    wandb = imported("wandb", "wandb")

    def write(rows: int, path: pathlib.Path) -> None:
        run = wandb.init(project="rows", dir=str(path), mode="offline")
        for step in range(rows):
            run.log({"loss": _row(step)}, step=step)
        run.finish()

    return write, _wandb_read


def _lox_wandb(size: int) -> tuple[Write, Read]:
    imported("wandb", "wandb")

    def make(loggers: Any, path: pathlib.Path) -> Any:
        return loggers.WandbLogger("rows", mode="offline", dir=str(path))

    return _sends(size, make), _wandb_read


# --- trackio -------------------------------------------------------------------------


def _trackio_module() -> Any:
    os.environ["TRACKIO_DIR"] = str(_directory().with_name(f"trackio-{os.getpid()}"))
    return imported("trackio", "trackio")


def _trackio_read(path: pathlib.Path) -> Any:
    del path
    _trackio_module()
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    name = storage.get_runs("rows")[-1]
    logs = storage.get_logs("rows", name)
    return [row["loss"] for row in logs]


def _trackio(_: int) -> tuple[Write, Read]:
    trackio = _trackio_module()

    def write(rows: int, path: pathlib.Path) -> None:
        del path
        contextvars.Context().run(_trackio_run, trackio, rows)

    return write, _trackio_read


def _trackio_run(trackio: Any, rows: int) -> None:
    off = {"auto_log_cpu": False, "auto_log_gpu": False}
    trackio.init(project="rows", name=f"run-{next(_numbers):09}", **off)
    for step in range(rows):
        trackio.log({"loss": _row(step)}, step=step)
    trackio.finish()


def _lox_trackio(size: int) -> tuple[Write, Read]:
    _trackio_module()
    return _sends(
        size, lambda loggers, path: loggers.TrackioLogger("rows")
    ), _trackio_read


# --- MLflow --------------------------------------------------------------------------


def _mlflow_client() -> tuple[Any, str]:
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    mlflow = imported("mlflow", "mlflow")
    uri = f"sqlite:///{tempfile.gettempdir()}/mlflow-{os.getpid()}.db"
    client = mlflow.MlflowClient(uri)
    if client.get_experiment_by_name("rows") is None:
        client.create_experiment("rows")
    return client, uri


def _mlflow_read(path: pathlib.Path) -> Any:
    del path
    client, _ = _mlflow_client()
    experiment = client.get_experiment_by_name("rows").experiment_id
    (run,) = client.search_runs(
        [experiment], order_by=["attributes.start_time DESC"], max_results=1
    )
    history = client.get_metric_history(run.info.run_id, "loss")
    return [metric.value for metric in sorted(history, key=lambda metric: metric.step)]


def _mlflow(_: int) -> tuple[Write, Read]:
    client, _uri = _mlflow_client()
    experiment = client.get_experiment_by_name("rows").experiment_id

    def write(rows: int, path: pathlib.Path) -> None:
        del path
        run = client.create_run(experiment).info.run_id
        for step in range(rows):
            client.log_metric(run, "loss", _row(step), step=step)
        client.set_terminated(run)

    return write, _mlflow_read


def _mlflow_batches(_: int) -> tuple[Write, Read]:
    client, _uri = _mlflow_client()
    experiment = client.get_experiment_by_name("rows").experiment_id
    metric = imported("mlflow.entities", "mlflow").Metric

    def write(rows: int, path: pathlib.Path) -> None:
        del path
        run = client.create_run(experiment).info.run_id
        for start in range(0, rows, _BUFFER_SIZE):
            now = int(time.time() * 1000)
            steps = range(start, min(start + _BUFFER_SIZE, rows))
            metrics = [metric("loss", _row(step), now, step) for step in steps]
            client.log_batch(run, metrics=metrics)
        client.set_terminated(run)

    return write, _mlflow_read


def _lox_mlflow(size: int) -> tuple[Write, Read]:
    _, uri = _mlflow_client()

    def make(loggers: Any, path: pathlib.Path) -> Any:
        del path
        return loggers.MLflowLogger("rows", tracking_uri=uri)

    return _sends(size, make), _mlflow_read


# the name of a contender: its package, and what makes its functions from the rows
_FORMATS: dict[str, tuple[str, Callable[[int], tuple[Write, Read]]]] = {
    "numpy.save": ("numpy", _numpy),
    "lox.save": ("jax-lox", _lox_save),
    "lox SaveLogger.tap": ("jax-lox", _lox_tap),
    "lox SaveLogger.log": ("jax-lox", _lox_rows),
    "TensorBoard's writer": ("tensorboard", _tensorboard),
    "tensorboardX": ("tensorboardX", _tensorboard_x),
    "lox TensorBoardLogger": ("jax-lox", _lox_tensorboard),
    "wandb (offline)": ("wandb", _wandb),
    "lox WandbLogger": ("jax-lox", _lox_wandb),
    "trackio": ("trackio", _trackio),
    "lox TrackioLogger": ("jax-lox", _lox_trackio),
    "MLflow log_metric": ("mlflow", _mlflow),
    "MLflow log_batch": ("mlflow", _mlflow_batches),
    "lox MLflowLogger": ("jax-lox", _lox_mlflow),
}
_READ = ["numpy.save", "lox.save", "lox SaveLogger.tap", "TensorBoard's writer"]
