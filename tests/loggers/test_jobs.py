"""Loggers and transformations in multi-process jobs."""

import json

import numpy as np
import pytest

import lox
import lox.loggers
from tests import jobs

STEPS = 3
NAME = "00000000-00000000"

# A model that is trained on data that all devices share: once in a program on global
# arrays, and once in a `shard_map`, which averages the gradients itself.
PROGRAM = """
    path, = arguments
    # before `connect`, which fails if JAX's backend was started
    lox.save({"early": process}, f"{path}/early-{process}")
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
    seeds = lox.loggers.SaveLogger(f"{path}/seeds")
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

    def loss_of(w, x):
        return jnp.mean((w - x) ** 2)

    def train(w, x):
        def step(w, i):
            loss, gradient = jax.value_and_grad(loss_of)(w, x)
            lox.log({"loss": loss}, step=i)
            return w - 0.1 * gradient, None

        return jax.lax.scan(step, w, jnp.arange(3))[0]

    def of_device(w, x):
        def step(w, i):
            loss, gradient = jax.value_and_grad(loss_of)(w, x)
            lox.log({"local": loss}, step=i)
            lox.log({"some": loss}, when=(jax.lax.axis_index("data") == i), step=i)
            return w - 0.1 * jax.lax.pmean(gradient, "data"), None

        return jax.lax.scan(step, w, jnp.arange(3))[0]

    mapped = jax.shard_map(
        of_device, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False
    )

    def both(w, x):
        return train(w, x), mapped(w, x)

    found = {}
    w = jnp.float32(0)
    state = logger.init(0, config={"lr": 0.1})
    result, _ = logger.tap(both, state)(w, x)
    logger.log(state, {"w": result}, step=3)

    # an event of the whole program, and one per device
    found["tapped"] = tapped = []
    def callback(logs):
        lanes = [int(lane) for lane in logs.steps.get("lane", {}).values()]
        tapped.append([*logs, int(next(iter(logs.step.values()))), *lanes])
    lox.tap(both, callback)(w, x)

    _, logs = lox.spool(both)(w, x)
    found["spooled"] = np.asarray(logs["loss"]).tolist()
    found["shape"] = logs["local"].shape
    found["shown"] = str(logs)
    spooled = store.init(1)
    store.log(spooled, logs)
    store.finish(spooled)
    lox.save(logs, f"{path}/saved")
    lox.save({"own": process}, f"{path}/saved")
    lox.save({"x": x}, f"{path}/sharded")
    # one shard per process, and one per device of each process
    grid = jax.make_mesh((processes, 2), ("p", "d"), axis_types=(AxisType.Auto,) * 2)
    def put(*spec):
        out = NamedSharding(grid, P(*spec))
        return jax.jit(lambda: jnp.arange(8.0), out_shardings=out)()
    lox.save({"x": put("p"), "whole": put()}, f"{path}/replicas")
    try:
        lox.save({"x": (put("p"), put("d"))}, f"{path}/refused")
    except lox.LoxValueError as error:
        found["refused"] = str(error)

    states = jax.vmap(seeds.init)(jnp.arange(2))
    jax.jit(
        jax.vmap(lambda state, w, x: seeds.tap(train, state)(w, x), (0, 0, None))
    )(states, jnp.arange(2.0), x)
    seeds.finish(states)
    logger.finish(state)

    # untransformed: printed by the first process
    print("printed:")
    jax.jit(both)(w, x)
    lox.log({"host": process})
    jax.effects_barrier()
    lox.progress(lox.nolog(mapped), file=sys.stdout, label="bar")(w, x)
    print("end")
    found["first"] = [first.names, first.rows]
    found["each"] = [each.names, each.rows]
    print(json.dumps(found))
"""


class Job:
    """A job that has ended: its number of processes, files and what it printed."""

    def __init__(self, count, path):
        self.count, self.path = count, path
        self.printed = jobs.run(PROGRAM, count, path)
        self.found = [json.loads(text.splitlines()[-1]) for text in self.printed]
        self.devices = 2 * count
        self.data = np.concatenate([np.arange(4.0) + 10 * i for i in range(count)])

    def weights(self, w=0.0):
        for _ in range(STEPS):
            yield w
            w -= 0.2 * np.mean(w - self.data)

    def losses(self, w=0.0):
        means = [np.mean((w - self.data) ** 2) for w in self.weights(w)]
        return pytest.approx(means, rel=1e-5)

    def local_losses(self):
        """The losses on the data of each device, by device and step."""
        shards = self.data.reshape(self.devices, -1)
        return [[np.mean((w - shard) ** 2) for w in self.weights()] for shard in shards]


@pytest.fixture(scope="module", params=[2, 4])
def job(request, tmp_path_factory):
    return Job(request.param, tmp_path_factory.mktemp("job"))


def assert_has_rows_of_all_devices(job, logs):
    order = np.lexsort([logs.step["local"], logs.lane["local"]])
    devices = np.repeat(np.arange(job.devices), STEPS)
    assert logs.lane["local"][order].tolist() == devices.tolist()
    assert logs.process["local"][order].tolist() == (devices // 2).tolist()
    assert logs.step["local"][order].tolist() == [*range(STEPS)] * job.devices
    expected = np.ravel(job.local_losses())
    assert logs["local"][order] == pytest.approx(expected, rel=1e-5)
    # logged where the number of the device is that of the step
    some = logs.filter("some").sort("step")
    assert some.step["some"].tolist() == some.lane["some"].tolist() == [*range(STEPS)]
    assert some.process["some"].tolist() == [0, 0, 1]


def test_store_has_rows_of_the_program_once_and_rows_of_all_devices(job):
    run = lox.runs(job.path / "store")[0]
    assert run.config == {"lr": 0.1}
    assert run.unfinished_processes == [] and run.processes == [*range(job.count)]
    logs = run.load()
    assert logs["loss"].tolist() == job.losses()
    assert logs.step["loss"].tolist() == [0, 1, 2]
    assert "loss" not in logs.process and "loss" not in logs.lane
    assert logs["w"].shape == ()
    assert_has_rows_of_all_devices(job, logs)


def test_load_selects_rows_of_a_process(job):
    last = job.count - 1
    logs = lox.load(job.path / "store", "local", key=0, process=last)
    assert sorted(set(logs.lane["local"])) == [2 * last, 2 * last + 1]
    with pytest.raises(lox.StoreError, match="no rows of process 7; its processes are"):
        lox.load(job.path / "store", key=0, process=7)


def test_spooled_logs_are_saved_once_and_by_each_device(job):
    logs = lox.load(job.path / "store", key=1)
    assert logs["loss"].tolist() == job.losses()
    assert_has_rows_of_all_devices(job, logs)


def test_save_writes_shared_values_once_and_others_in_each_process(job):
    logs = lox.load(job.path / "saved")
    assert logs["loss"].tolist() == job.losses()
    assert "loss" not in logs.process
    assert_has_rows_of_all_devices(job, logs)
    assert logs["own"].tolist() == logs.process["own"].tolist() == [*range(job.count)]
    sharded = lox.load(job.path / "sharded").sort("lane")
    assert sharded["x"].ravel().tolist() == job.data.tolist()
    assert sharded.lane["x"].tolist() == [*range(job.devices)]


def test_replicas_of_a_shard_are_saved_once(job):
    logs = lox.load(job.path / "replicas")
    assert logs["whole"].tolist() == [*range(8)]
    assert logs.process["x"].tolist() == logs.lane["x"].tolist() == [*range(job.count)]
    assert logs["x"].ravel().tolist() == [*range(8)]


def test_value_with_differently_spread_arrays_is_refused(job):
    for one in job.found:
        assert "the arrays of 'x' are spread over the processes" in one["refused"]
        assert "process_allgather" in one["refused"]
    assert not (job.path / "refused").exists()


def test_vmapped_seeds_have_a_run_each(job):
    runs = lox.runs(job.path / "seeds")
    assert len(runs) == 2
    for seed, run in enumerate(runs):
        assert run.unfinished_processes == [] and run.processes == [0]
        logs = run.load()
        assert logs["loss"].tolist() == job.losses(float(seed))
        assert logs.step["loss"].tolist() == [0, 1, 2]


def test_processes_all_writes_rows_of_every_process(job):
    logs = lox.load(job.path / "everywhere")
    # JAX delivers events of a sharded program to the first process only
    assert logs["loss"].tolist() == job.losses()
    assert logs.process["w"].tolist() == [*range(job.count)]
    assert_has_rows_of_all_devices(job, logs)


def test_tracker_has_one_run_unless_all_processes_log(job):
    assert job.found[0]["first"] == [[NAME], job.losses()]
    for other in job.found[1:]:
        assert other["first"] == [[], []]
    names = [one["each"][0] for one in job.found]
    others = [[f"{NAME}-process-{i}"] for i in range(1, job.count)]
    assert names == [[NAME], *others]


def test_files_of_other_loggers_are_written_by_the_first_process(job):
    assert len(list((job.path / "text").glob("*.csv"))) == 1
    assert len(list((job.path / "board").rglob("*tfevents*"))) == 1


def test_console_logger_writes_in_the_first_process(job):
    for process, printed in enumerate(job.printed):
        lines = printed.splitlines()
        lines = lines[: lines.index("printed:")]
        # Gloo prints too, from several threads, whose lines are mixed up
        assert any("loss" in line for line in lines) == (process == 0)


def test_callback_gets_events_of_the_program_in_the_first_process(job):
    for process, one in enumerate(job.found):
        of_program = [row for row in one["tapped"] if row[0] == "loss"]
        of_devices = [row for row in one["tapped"] if row[0] == "local"]
        steps = [["loss", i] for i in range(STEPS)]
        assert of_program == (steps if process == 0 else [])
        lanes = 2 * process, 2 * process + 1
        expected = [["local", i, lane] for i in range(STEPS) for lane in lanes]
        assert sorted(of_devices) == sorted(expected)


def test_spooled_logs_are_global_arrays(job):
    for one in job.found:
        assert one["spooled"] == job.losses()
        assert one["shape"] == [STEPS, job.devices]
        assert f"'local': float32[{STEPS},{job.devices}]" in one["shown"]
        first = float(np.mean(job.data**2))
        assert f"'loss': [{first:g}" in one["shown"]


def test_first_process_prints_events_and_progress(job):
    for process, printed in enumerate(job.printed):
        lines = printed.splitlines()
        lines = lines[lines.index("printed:") + 1 : lines.index("end")]
        if process:
            assert lines == []
            continue
        assert sum("'loss'" in line for line in lines) == STEPS
        assert sum("'local'" in line for line in lines) == STEPS * 2
        assert "{'host': 0}" in lines
        assert sum(line.startswith("bar: 100% (3/3)") for line in lines) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: lox.loggers.SaveLogger("store", **options),
        lambda **options: lox.loggers.CSVLogger("text", **options),
        lambda **options: lox.loggers.TensorBoardLogger("board", **options),
        lox.loggers.ConsoleLogger,
        lox.loggers.WandbLogger,
        lox.loggers.MLflowLogger,
    ],
)
@pytest.mark.parametrize("processes", ["frist", "", None, 1, ["all"]])
def test_unknown_processes_are_refused(make, processes):
    with pytest.raises(lox.LoxValueError, match="it must be 'first' .* or 'all'"):
        make(processes=processes)


def test_unknown_processes_of_a_custom_logger_are_refused():
    class Custom(lox.loggers.Logger):
        processes = "each"

        def __init__(self):  # does not call that of the base class
            pass

        def open(self, run): ...

        def write(self, run, logs): ...

    with pytest.raises(lox.LoxValueError, match="`processes` of `Custom` is 'each'"):
        Custom().init(0)


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
