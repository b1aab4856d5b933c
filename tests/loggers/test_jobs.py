"""Loggers in jobs of several processes."""

import json

import numpy as np
import pytest

import lox
from tests import jobs

PROCESSES = 2

PROGRAM = """
    path, = arguments
    # before `connect`: the index of the process is read later
    class Tracker(lox.loggers.Logger):
        def __init__(self, processes="first"):
            super().__init__(processes=processes)
            self.names, self.rows = [], []
        def open(self, run):
            self.names.append(run.name)
        def write(self, run, logs):
            self.rows += [float(row["loss"]) for row in logs.filter("loss").rows()]

    store = lox.loggers.SaveLogger(f"{path}/store")
    everywhere = lox.loggers.SaveLogger(f"{path}/everywhere", processes="all")
    first, each = Tracker(), Tracker("all")
    text = lox.loggers.CSVLogger(f"{path}/text")
    board = lox.loggers.TensorBoardLogger(f"{path}/board")
    console = lox.loggers.ConsoleLogger()
    logger = lox.loggers.MultiLogger(
        store, everywhere, first, each, text, board, console
    )
    connect()
    mesh = global_mesh()
    x = global_array(mesh, np.arange(4.0, dtype=np.float32) + 10 * process)

    def per_device(x):
        lox.log({"local": x.sum()}, step=jax.lax.axis_index("data"))
        return x

    def train(w, x):
        def step(w, i):
            loss = jnp.mean((w - x) ** 2)
            lox.log({"loss": loss}, step=i)
            return w - 0.1 * jnp.mean(w - x), None

        w, _ = jax.lax.scan(step, w, jnp.arange(3))
        jax.shard_map(per_device, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)
        return w

    state = logger.init(0, config={"lr": 0.1})
    w = logger.tap(train, state)(jnp.float32(0), x)
    logger.log(state, {"w": w}, step=3)
    logger.finish(state)
    _, logs = lox.spool(train)(jnp.float32(0), x)
    print(json.dumps({
        "first": [first.names, first.rows],
        "each": [each.names, each.rows],
        "spooled": np.asarray(logs["loss"]).tolist(),
        "shown": str(logs.filter("loss")),
    }))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    path = tmp_path_factory.mktemp("job")
    printed = jobs.run(PROGRAM, PROCESSES, path)
    # the console of the first process prints, too
    return path, [json.loads(text.splitlines()[-1]) for text in printed]


def data():
    return np.concatenate([np.arange(4.0) + 10 * i for i in range(PROCESSES)])


def losses():
    w, found = 0.0, []
    for _ in range(3):
        found.append(np.mean((w - data()) ** 2))
        w -= 0.1 * np.mean(w - data())
    return pytest.approx(found)


def test_store_has_rows_of_the_program_once_and_rows_of_all_devices(job):
    path, _ = job
    (run,) = lox.runs(path / "store")
    assert run.config == {"lr": 0.1} and run.unfinished_processes == []
    logs = run.load()
    assert logs["loss"].tolist() == losses()
    assert logs.step["loss"].tolist() == [0, 1, 2]
    assert logs["w"].shape == ()
    local = logs.sort("step")
    assert local.step["local"].tolist() == list(range(2 * PROCESSES))
    assert local.process["local"].tolist() == np.repeat(range(PROCESSES), 2).tolist()
    assert local["local"].tolist() == data().reshape(-1, 2).sum(1).tolist()
    assert "loss" not in logs.process


def test_processes_all_writes_rows_of_every_process(job):
    path, _ = job
    logs = lox.load(path / "everywhere")
    # JAX delivers events of a sharded program to the first process only
    assert logs["loss"].tolist() == losses()
    assert logs.process["w"].tolist() == list(range(PROCESSES))


def test_tracker_has_one_run_unless_all_processes_log(job):
    _, printed = job
    name = "00000000-00000000"
    assert printed[0]["first"][0] == [name]
    assert printed[0]["first"][1] == losses()
    for other in printed[1:]:
        assert other["first"] == [[], []]
    names = [one["each"][0] for one in printed]
    others = [[f"{name}-process-{i}"] for i in range(1, PROCESSES)]
    assert names == [[name], *others]


def test_files_of_other_loggers_are_written_by_the_first_process(job):
    path, _ = job
    assert len(list((path / "text").glob("*.csv"))) == 1
    assert len(list((path / "board").rglob("*tfevents*"))) == 1


def test_spooled_logs_are_the_same_in_all_processes(job):
    _, printed = job
    for one in printed:
        assert one["spooled"] == losses()
        assert "68.5" in one["shown"]


def test_unknown_processes_are_refused(tmp_path):
    with pytest.raises(lox.LoxError, match="'first'"):
        lox.loggers.SaveLogger(tmp_path, processes="some")


def test_killed_process_damages_no_rows_and_is_listed(tmp_path):
    program = """
        import signal
        path, = arguments
        connect()
        mesh = global_mesh()
        x = global_array(mesh, np.arange(2.0, dtype=np.float32) + 10 * process)

        def per_device(x):
            lox.log({"x": x.sum()})
            return x

        mapped = jax.shard_map(
            per_device, mesh=mesh, in_specs=P("data"), out_specs=P("data")
        )
        logger = lox.loggers.SaveLogger(path)
        state = logger.init(0)
        logger.tap(mapped, state)(x)
        if process == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        logger.log(state, {"last": 1.0})
        logger.finish(state)
        os._exit(0)  # JAX would wait for the other process
    """
    processes = jobs.start(program, 2, tmp_path)
    codes = [process.communicate() and process.wait() for process in processes]
    assert codes == [0, -9]
    (run,) = lox.runs(tmp_path)
    assert run.unfinished_processes == [1]
    logs = run.load()
    assert logs["last"] == 1.0
    assert sorted(logs["x"].tolist()) == [0.0, 1.0, 10.0, 11.0]
    assert logs.process["x"].tolist() == [0, 0, 1, 1]


def test_overwriting_removes_rows_of_processes_that_are_gone(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    logger.log(state, {"x": 1.0})
    logger.finish(state)
    (run,) = lox.runs(tmp_path)
    lox.save({"x": 2.0}, run.path / "process-1")
    assert run.load()["x"].tolist() == [1.0, 2.0]
    assert run.load().process["x"].tolist() == [0, 1]
    logger = lox.loggers.SaveLogger(tmp_path, exists="overwrite")
    state = logger.init(0)
    logger.log(state, {"x": 3.0})
    logger.finish(state)
    assert lox.load(tmp_path) == {"x": 3.0}
    assert not list(run.path.glob("process-*"))


def test_part_of_another_process_may_come_first(tmp_path):
    run = tmp_path / "00000000-00000000"
    lox.save({"x": 1.0}, run / "process-2")
    (found,) = lox.runs(tmp_path)
    assert found.name == run.name and found.load() == {"x": 1.0}
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    logger.log(state, {"x": 2.0})
    logger.finish(state)
    assert lox.load(tmp_path)["x"].tolist() == [2.0, 1.0]


def test_part_that_is_a_symbolic_link_is_not_read(tmp_path):
    lox.save({"x": 1.0}, tmp_path / "run")
    lox.save({"x": 2.0}, tmp_path / "elsewhere")
    (tmp_path / "run" / "process-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(lox.StoreError, match="symbolic link"):
        lox.load(tmp_path / "run")
