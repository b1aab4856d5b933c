"""Logs of global arrays, which each process of a job saves in part."""

import json

import numpy as np
import pytest

import lox
from tests import jobs

PROGRAM = """
    path, = arguments
    connect()
    mesh = global_mesh()
    x = global_array(mesh, np.arange(4.0, dtype=np.float32) + 10 * process)

    def per_device(x):
        def step(c, i):
            lox.log({"device": c}, step=i)
            lox.log({"mean": c.mean()}, over="data", step=i)
            lox.log({"some": c.sum()}, when=c.sum() > 20, step=i)
            lox.log({"first": c.sum()}, when=jax.lax.axis_index("data") == 0)
            return c + 1, None

        return jax.lax.scan(step, x, jnp.arange(2))[0]

    def train(x):
        lox.log({"whole": x.sum(), "split": x})
        return jax.shard_map(
            per_device, mesh=mesh, in_specs=P("data"), out_specs=P("data")
        )(x)

    _, logs = lox.spool(train)(x)
    logs["local"] = np.float32(process)
    lox.save(logs, f"{path}/saved")
    lox.save(logs.filter(["whole", "device"]), f"{path}/keyed", key=3)
    lox.save(logs.filter(["device"]), f"{path}/again", mode="w")
    lox.save(logs.filter(["device"]), f"{path}/again", mode="w")
    calls = []
    jax.block_until_ready(lox.tap(train, lambda logs: calls.append(list(logs)))(x))

    class Tracker(lox.loggers.Logger):
        def __init__(self):
            super().__init__()
            self.rows = []
        def open(self, run): ...
        def write(self, run, logs):
            self.rows += [[key, logs.lanes() == [logs]] for key in logs]

    tracker = Tracker()
    logger = lox.loggers.MultiLogger(lox.loggers.SaveLogger(f"{path}/spooled"), tracker)
    state = logger.init(0)
    logger.spool(train, state)(x)
    logger.finish(state)

    tapped = lox.loggers.SaveLogger(f"{path}/tapped")
    state = tapped.init(0)
    tapped.tap(train, state)(x)
    tapped.finish(state)

    reversed_mesh = jax.make_mesh((4,), ("data",), devices=[
        jax.devices()[i] for i in (0, 2, 1, 3)
    ], axis_types=(AxisType.Auto,))
    y = jax.device_put(np.arange(4.0), NamedSharding(reversed_mesh, P("data")))
    lox.save({"y": y}, f"{path}/reordered")
    print(json.dumps({
        "calls": sorted(map(str, calls)),
        "tracked": sorted({key for key, _ in tracker.rows}),
        "shown": str(logs.filter(["mean", "some"])),
    }))
    jax.effects_barrier()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    path = tmp_path_factory.mktemp("job")
    printed = jobs.run(PROGRAM, 2, path)
    return path, [json.loads(text.splitlines()[-1]) for text in printed]


SHARDS = np.array([[0.0, 1.0], [2.0, 3.0], [10.0, 11.0], [12.0, 13.0]])


def rows_of(logs, key, *names):
    """The rows of a key with some of its steps, sorted."""
    columns = [np.ravel(getattr(logs, name)[key]).tolist() for name in names]
    values = logs[key].tolist() if logs[key].ndim else [logs[key].tolist()]
    return sorted(zip(*columns, values, strict=True))


def check_rows_of_devices(logs):
    expected = [
        (lane // 2, lane, i, (SHARDS[lane] + i).tolist())
        for lane in range(4)
        for i in range(2)
    ]
    assert rows_of(logs, "device", "process", "lane", "step") == expected
    some = [
        (lane // 2, lane, i, (SHARDS[lane] + i).sum())
        for lane in range(4)
        for i in range(2)
        if (SHARDS[lane] + i).sum() > 20
    ]
    found = rows_of(logs, "some", "lane", "step")
    assert found == [row[1:] for row in some]
    assert rows_of(logs, "first", "lane") == [(0, 1.0), (0, 3.0)]


def test_save_writes_shards_of_each_process(job):
    path, _ = job
    logs = lox.load(path / "saved")
    check_rows_of_devices(logs)
    assert logs["whole"] == SHARDS.sum()
    assert rows_of(logs, "split", "process", "lane") == [
        (lane // 2, lane, SHARDS[lane].tolist()) for lane in range(4)
    ]
    # an event of all devices is there once
    means = [SHARDS.mean(), SHARDS.mean() + 1]
    assert rows_of(logs, "mean", "step") == list(enumerate(means))
    assert "mean" not in logs.process
    # what only one process has is saved by each
    assert sorted(logs["local"].tolist()) == [0.0, 1.0]


def test_save_with_key_and_mode_writes_shards_once(job):
    path, _ = job
    (run,) = lox.runs(path / "keyed")
    logs = run.load()
    assert logs["whole"] == SHARDS.sum() and len(logs["device"]) == 8
    assert len(lox.load(path / "again")["device"]) == 8


def test_logger_writes_shards_of_each_process(job):
    path, printed = job
    logs = lox.load(path / "spooled")
    check_rows_of_devices(logs)
    assert logs["whole"] == SHARDS.sum() and logs["mean"].shape == (2,)
    keys = ["device", "first", "mean", "split", "whole"]  # "some" is of the other one
    assert [one["tracked"] for one in printed] == [keys, []]
    tapped = lox.load(path / "tapped")
    check_rows_of_devices(tapped)
    assert rows_of(tapped, "mean", "step") == rows_of(logs, "mean", "step")


def test_tap_delivers_mean_of_devices_in_first_process(job):
    _, printed = job
    means = [one["calls"].count("['mean']") for one in printed]
    assert means == [2, 0]


def test_logs_of_other_processes_are_shown_as_types(job):
    _, printed = job
    for one in printed:
        assert one["shown"] == "{'mean': [6.5, 7.5], 'some': float32[2,4]}"


def test_shards_of_reordered_devices_are_numbered_by_their_position(job):
    path, _ = job
    logs = lox.load(path / "reordered")
    # the second and the third device of the mesh are of the other process
    assert rows_of(logs, "y", "process", "lane") == [
        (0, 0, [0.0]),
        (0, 2, [2.0]),
        (1, 1, [1.0]),
        (1, 3, [3.0]),
    ]
