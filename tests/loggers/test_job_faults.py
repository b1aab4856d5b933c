"""Faults among the processes of a job: the rows of the others are complete.

Each process waits for the others only where JAX does.
"""

import json

import numpy as np
import pytest

import lox
import lox.loggers
from tests import jobs, programs
from tests.waiting import in_threads, wait_until

DEVICES, ROWS, CALLS, WIDTH = 2, 3, 3, 100

# Process 1 is killed, process 2 hangs in a callback, and the disk of process 3 is full.
# They have logged the first of three calls by then.
FAULTS = """
    import pathlib, resource, signal, warnings
    path, = arguments
    os.chdir(path)
    os.mkdir(f"directory-{process}")
    os.chdir(f"directory-{process}")  # for unsent logs
    logger = lox.loggers.SaveLogger("../store", config={"lr": 0.1})
    print("started", flush=True)
    # after a fault, JAX waits for the process that has failed before it exits
    connect(shutdown_timeout_seconds=1)

    def set_size_limit(size):
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        limit = most if size is None else size
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))

    def hang(logs):
        print("hangs", flush=True)
        sys.stdin.read()

    def of_device(call):
        def step(_, i):
            lox.log({"x": jnp.full(100, 3 * call + i, jnp.float32)}, step=3 * call + i)
            return _, None
        jax.lax.scan(step, 0, jnp.arange(3))
        return call

    mesh = global_mesh()
    mapped = jax.shard_map(
        of_device, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )
    state = logger.init(0, config={"seed": 0})
    train = logger.tap(mapped, state)
    seen = []
    for call in range(3):
        if call == 1 and process == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if call == 1 and process == 2:
            lox.tap(lambda x: lox.log({"x": x}), hang)(1.0)
        if call == 1:
            sys.stdin.readline()  # until the faults have happened
        if call == 1 and process == 3:
            set_size_limit(4_000)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(call)
        seen += [str(one.message) for one in caught]
        set_size_limit(None)
    logger.finish(state)
    print(json.dumps(seen), flush=True)
    pathlib.Path("finished").touch()
    sys.stdin.read()  # until all have finished: JAX ends them when the first one exits
"""


# Process 1 is killed, and process 0 then waits for it in a collective operation.
COLLECTIVE = """
    import signal
    path, = arguments
    connect(heartbeat_timeout_seconds=10)
    mesh = global_mesh()

    def of_device(x):
        def step(x, i):
            x = jax.lax.psum(x, "data")
            lox.log({"x": x}, step=i)
            return x, None
        return jax.lax.scan(step, x, jnp.arange(3))[0]

    mapped = jax.shard_map(
        of_device, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )
    logger = lox.loggers.SaveLogger(path)
    train = logger.tap(mapped, logger.init(0))
    train(1.0)
    if process == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    train(1.0)
"""


def rows(calls):
    """What the devices of one process log in some calls."""
    return sorted(np.tile(np.arange(ROWS * calls), DEVICES).tolist())


class Faults:
    """A job of four processes, three of which fail; the last one starts late."""

    def __init__(self, path):
        self.path = path
        # it waits for most of its time: for JAX to notice that a process is gone
        self.collective = jobs.start(COLLECTIVE, 2, path / "collective")
        *starters, start_late = jobs.starters(FAULTS, 4, path, stdin=programs.PIPE)
        self.processes = [start() for start in starters]
        for process in self.processes:
            assert process.stdout.readline() == "started\n"
        self.processes.append(start_late())
        first, killed, hanging, full = self.processes
        self.printed = {}
        self._wait(killed)
        assert "hangs\n" in hanging.stdout
        for process in (first, full):
            process.stdin.write("\n")
            process.stdin.flush()
        for name in ("directory-0", "directory-3"):
            wait_until((path / name / "finished").exists)
        in_threads(self._wait, [(first,), (full,)])  # closes their input
        hanging.kill()
        self._wait(hanging)
        (self.run,) = lox.runs(path / "store")

    def _wait(self, process):
        self.printed[process] = process.communicate()

    def warnings_of(self, index):
        lines = self.printed[self.processes[index]][0].splitlines()
        return json.loads(lines[-1])

    def values_of(self, index):
        with pytest.warns(lox.LoxWarning, match=r"may lack rows of .* 1, 2, 3,"):
            logs = self.run.load("x", process=index)
        assert set(logs.lane["x"]) == {DEVICES * index, DEVICES * index + 1}
        assert logs.step["x"].tolist() == logs["x"][:, 0].tolist()
        assert (logs["x"] == logs["x"][:, :1]).all()
        return sorted(logs.step["x"].tolist())


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    return Faults(tmp_path_factory.mktemp("faults"))


def test_rows_of_other_processes_are_complete(faults):
    assert faults.values_of(0) == rows(CALLS)
    assert faults.warnings_of(0) == []


def test_killed_process_keeps_its_rows_and_is_listed(faults):
    assert faults.processes[1].returncode == -9
    assert faults.values_of(1) == rows(1)
    assert faults.run.unfinished_processes == [1, 2, 3]


def test_hanging_callback_does_not_block_other_processes(faults):
    hanging = faults.processes[2]
    # killed by the test, or before by JAX, when the first process had ended
    assert hanging.returncode != 0 and faults.printed[hanging][0] == ""
    assert faults.values_of(2) == rows(1)


def test_full_disk_of_a_process_warns_once_and_loses_no_row(faults):
    (warning,) = faults.warnings_of(3)
    assert "SaveLogger: it failed with OSError(27, 'File too large')" in warning
    (run,) = lox.runs(faults.path / "directory-3" / ".lox" / "unsent")
    assert run.name.startswith("SaveLogger-00000000-00000000-process-3-")
    unsent = run.load()
    kept = faults.values_of(3)
    assert rows(1) < kept and len(kept) < len(rows(CALLS))
    assert sorted([*kept, *unsent.step["x"].tolist()]) == rows(CALLS)


def test_load_warns_of_incomplete_processes_and_loads_the_rest(faults):
    with pytest.warns(lox.LoxWarning, match=r"may lack rows of .* 1, 2, 3,") as seen:
        logs = lox.load(faults.path / "store")
    assert len(seen) == 1 and seen[0].filename == __file__
    counts = np.bincount(logs.process["x"])
    assert counts[:3].tolist() == [len(rows(CALLS)), len(rows(1)), len(rows(1))]
    assert faults.run.config == {"lr": 0.1, "seed": 0}


def test_process_that_exits_first_has_finished_its_rows(tmp_path):
    program = """
        path, = arguments
        logger = lox.loggers.SaveLogger(path, processes="all")
        connect()
        state = logger.init(0)
        logger.log(state, {"x": process})
        if process == 0:
            print("logs", flush=True)
            sys.stdin.read()  # until the other process has ended
            logger.log(state, {"x": 2})
        logger.finish(state)
        os._exit(0)  # JAX would wait for the other process
    """
    first, second = jobs.start(program, 2, tmp_path, stdin=programs.PIPE)
    assert first.stdout.readline() == "logs\n"
    second.communicate()
    (run,) = lox.runs(tmp_path)
    assert second.returncode == 0 and run.unfinished_processes == [0]
    first.communicate()
    assert first.returncode == 0 and run.unfinished_processes == []
    logs = lox.load(tmp_path)
    assert logs["x"].tolist() == [0, 2, 1]
    assert logs.process["x"].tolist() == [0, 0, 1]


def test_process_that_was_killed_before_its_first_row_is_listed(tmp_path):
    program = """
        path, = arguments
        logger = lox.loggers.SaveLogger(path)
        connect()
        state = logger.init(0)
        print("open", flush=True)
        sys.stdin.read()
        logger.log(state, {"x": process})
        logger.finish(state)
        os._exit(0)  # JAX would wait for the other process
    """
    first, second, third = jobs.start(program, 3, tmp_path, stdin=programs.PIPE)
    for process in (first, second, third):
        assert process.stdout.readline() == "open\n"
    (run,) = lox.runs(tmp_path)
    assert run.unfinished_processes == [0, 1, 2]
    assert run.load() == {}  # the job is running: no warning
    second.kill()
    for process in (second, third, first):
        process.communicate()
    # a process that has nothing to write leaves nothing
    assert run.unfinished_processes == [1] and run.processes == [0, 1]
    with pytest.warns(lox.LoxWarning, match="may lack rows of the process"):
        assert run.load() == {"x": 0}


# --- two jobs ----------------------------------------------------------------

JOB = """
    import warnings
    path, name = arguments
    connect()
    os.mkdir(f"{path}/{name}-{process}")
    os.chdir(f"{path}/{name}-{process}")  # for unsent logs
    mesh = global_mesh()

    def of_device(i):
        lox.log({name: i})
        return i

    mapped = jax.shard_map(
        of_device, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )
    number = 0
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        command, *options = line.split()
        try:
            if command == "open":
                logger = lox.loggers.SaveLogger("../store", exists=options[0])
                state = logger.init(0)
            elif command == "log":
                number += 1
                logger.tap(mapped, state)(number)
            elif command == "finish":
                logger.finish(state)
            print("done", flush=True)
        except lox.LoxError as error:
            print(error, flush=True)
    os._exit(0)
"""


class TwoJobs:
    def __init__(self, path):
        self.path = path
        self.jobs = {
            name: jobs.start(JOB, 2, path, name, stdin=programs.PIPE) for name in "ab"
        }

    def tell(self, name, command):
        """Tells the processes of a job what to do; returns what each answers."""
        answers = []
        for process in self.jobs[name]:
            process.stdin.write(f"{command}\n")
            process.stdin.flush()
            answers.append(process.stdout.readline().strip())
        return answers

    def end(self):
        for name in self.jobs:
            for process in self.jobs[name]:
                process.communicate()

    def load(self):
        return lox.load(self.path / "store")


@pytest.fixture
def two_jobs(tmp_path):
    found = TwoJobs(tmp_path)
    yield found
    found.end()


def test_second_job_is_refused_appends_or_replaces_the_run(two_jobs):
    done = ["done", "done"]
    assert two_jobs.tell("a", "open new") == done
    # no device of the second process of the first job has logged yet
    for answer in two_jobs.tell("b", "open new"):
        assert "a run already exists at" in answer and "resume" in answer
    assert two_jobs.tell("a", "log") == done
    assert two_jobs.tell("b", "open resume") == done
    assert two_jobs.tell("b", "log") == done
    assert two_jobs.tell("a", "log") == done
    assert two_jobs.tell("a", "finish") == two_jobs.tell("b", "finish") == done
    logs = two_jobs.load()
    assert sorted(zip(logs.process["a"], logs["a"], strict=True)) == [
        (process, i) for process in (0, 1) for i in (1, 1, 2, 2)
    ]
    assert logs["b"].tolist() == [1] * 4
    assert logs.process["b"].tolist() == [0, 0, 1, 1]

    # the second process of the first job opens its part after it was replaced
    assert two_jobs.tell("a", "open overwrite") == done
    assert two_jobs.tell("b", "open overwrite") == done
    first, second = two_jobs.tell("a", "log")
    assert first == "done" and "another job has replaced the run" in second
    assert two_jobs.tell("b", "log") == done
    assert two_jobs.tell("b", "finish") == done
    assert two_jobs.tell("a", "finish") == done
    logs = two_jobs.load()
    assert list(logs) == ["b"] and logs.process["b"].tolist() == [0, 0, 1, 1]
    for process in (0, 1):  # nothing is lost
        unsent = lox.load(two_jobs.path / f"a-{process}" / ".lox" / "unsent")
        assert unsent["a"].tolist() == [3, 3]


# --- processes that disagree -------------------------------------------------


def test_processes_with_different_schemas_are_named(tmp_path):
    run = tmp_path / "run"
    lox.save({"loss": 1.0, "w": np.ones(2, np.float32), "n": 2**60 + 1}, run)
    other = {"loss": 2.0, "w": np.ones(3, np.float32), "n": np.float64(0.5)}
    lox.save(other, run / "process-1")
    with pytest.raises(lox.StoreError) as error:
        lox.load(run)
    message = str(error.value)
    assert "'w' was written in two incompatible forms" in message
    assert "the shape (2,)" in message and "the shape (3,)" in message
    assert "by process 0 in" in message and "by process 1 in" in message
    assert message.endswith("or the rows of one process: `process=1`.")
    with pytest.raises(lox.StoreError, match="float64 by process 1, int64 by process"):
        lox.load(run, "n")
    assert lox.load(run, ["loss"])["loss"].tolist() == [1.0, 2.0]
    assert lox.load(run, process=0)["w"].shape == (2,)
    assert lox.load(run, process=1)["w"].shape == (3,)
    assert lox.load(run, "n", process=0)["n"] == 2**60 + 1


# --- last, since it waits for JAX to notice that a process is gone ------------


def test_process_that_waits_for_a_killed_one_ends_and_keeps_its_rows(faults):
    codes = [process.communicate() and process.wait() for process in faults.collective]
    assert codes[0] != 0 and codes[1] == -9
    (run,) = lox.runs(faults.path / "collective")
    assert run.unfinished_processes == [0, 1]
    for process in (0, 1):
        found = run.load(process=process)
        assert sorted(found["x"].tolist()) == sorted([4.0, 16.0, 64.0] * DEVICES)
