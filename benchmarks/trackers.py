"""Trackers: rows sent by a logger, compared with the tracker's own API."""

import contextlib
import contextvars
import importlib
import io
import itertools
import logging
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lox
import lox.loggers

from .figure import Figure
from .interleaved import NOISE, best_times

_ROWS = 5_000
_FEW_ROWS = 100
_BUFFER_SIZE = 1_000

_numbers = itertools.count()


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        # trackio reads it when it is imported
        os.environ["TRACKIO_DIR"] = directory
        yield from _tensorboard(pathlib.Path(directory))
        yield from _trackio()
        yield from _mlflow()


def _sends(make: Callable[[], Any], buffer: int | None) -> Callable[[], None]:
    """A function that sends the rows of a program by a logger's `tap`."""
    logger = make()
    steps = jnp.arange(_ROWS)

    def train() -> None:
        def body(carry: Any, step: Any) -> Any:
            lox.log({"loss": step * 0.5}, step=step)
            return carry, None

        lax.scan(body, None, steps)

    @jax.jit
    def program(key: Any) -> None:
        state = logger.init(key)
        logger.tap(train, state, buffer=buffer)()
        logger.finish(state)

    def send() -> None:
        program(jax.random.key(next(_numbers)))
        jax.effects_barrier()

    return send


def _quietly(send: Callable[[], Any]) -> Callable[[], None]:
    def quiet() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            send()

    return quiet


def _tensorboard(directory: pathlib.Path) -> Iterator[Figure]:
    proto = "tensorboard.compat.proto"
    event = importlib.import_module(f"{proto}.event_pb2").Event
    summary = importlib.import_module(f"{proto}.summary_pb2").Summary
    module = "tensorboard.summary.writer.event_file_writer"
    event_file_writer = importlib.import_module(module).EventFileWriter

    def direct() -> None:
        writer = event_file_writer(str(directory / f"direct-{next(_numbers)}"))
        for step in range(_ROWS):
            value = summary.Value(tag="loss", simple_value=step * 0.5)
            shown = summary(value=[value])
            writer.add_event(event(wall_time=time.time(), step=step, summary=shown))
        writer.close()

    def logger() -> Any:
        return lox.loggers.TensorBoardLogger(directory / "lox")

    row, many, bare = best_times(
        _sends(logger, None), _sends(logger, _BUFFER_SIZE), direct, rounds=5
    )
    yield Figure(
        "TensorBoard, one row by the logger / by its own writer", row / bare, 1.0
    )
    yield Figure(f"  the same with buffers of {_BUFFER_SIZE:,}", many / bare, 1.0)


def _trackio() -> Iterator[Figure]:
    trackio = importlib.import_module("trackio")

    def run() -> None:
        name = f"direct-{next(_numbers)}"
        off = {"auto_log_cpu": False, "auto_log_gpu": False}
        trackio.init(project="direct", name=name, **off)
        for step in range(_ROWS):
            trackio.log({"loss": step * 0.5}, step=step)
        trackio.finish()

    def direct() -> None:
        contextvars.Context().run(run)

    sends = _sends(lambda: lox.loggers.TrackioLogger("lox"), _BUFFER_SIZE)
    time, bare = best_times(_quietly(sends), _quietly(direct), rounds=15)
    # trackio accepts one row at a time, with or without lox
    ratio = time / bare
    yield Figure(
        "trackio, one row by the logger / by `trackio.log`", ratio, 1.0 + NOISE
    )


def _mlflow() -> Iterator[Figure]:
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)
    mlflow = importlib.import_module("mlflow")
    uri = "sqlite:///mlflow.db"
    client = mlflow.MlflowClient(uri)
    experiment = client.create_experiment("direct")

    def direct() -> None:
        run = client.create_run(experiment).info.run_id
        for step in range(_FEW_ROWS):
            client.log_metric(run, "loss", step * 0.5, step=step)
        client.set_terminated(run)

    def batches() -> None:
        run = client.create_run(experiment).info.run_id
        for part in np.array_split(np.arange(_ROWS), _ROWS // _BUFFER_SIZE):
            now = int(time.time() * 1000)
            metrics = [
                mlflow.entities.Metric("loss", step * 0.5, now, step)
                for step in part.tolist()
            ]
            client.log_batch(run, metrics=metrics)
        client.set_terminated(run)

    sends = _sends(
        lambda: lox.loggers.MLflowLogger("lox", tracking_uri=uri), _BUFFER_SIZE
    )
    ours, few, many = best_times(sends, direct, batches, rounds=5)
    row = few * _ROWS / _FEW_ROWS
    yield Figure("MLflow, one row by the logger / by `log_metric`", ours / row, 1.0)
    yield Figure(f"  the same / by `log_batch` of {_BUFFER_SIZE:,}", ours / many)
