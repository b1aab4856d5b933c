"""Weights & Biases' own client, offline; its files are read back."""

import json
import os
import pathlib
import re
import struct
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
import lox.loggers
import lox.wandb

# how long it waits for its own process; read at import
os.environ |= {"WANDB_X_SERVICE_WAIT": "300", "WANDB_INIT_TIMEOUT": "300"}
wandb = pytest.importorskip("wandb")
pillow = pytest.importorskip("PIL.Image")
from wandb.proto import wandb_internal_pb2  # noqa: E402

from tests import programs  # noqa: E402
from tests.waiting import wait_until  # noqa: E402


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # a session of W&B stays in the directory where it started
    monkeypatch.setattr(wandb.setup().settings, "root_dir", str(tmp_path))


class Written:
    """The contents of W&B's file of a run."""

    def __init__(self, path):
        self.directory = path.parent
        self.rows, self.metrics, self.config = [], {}, {}
        self.ended = False
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.run = record.run
                self.name, self.group = record.run.display_name, record.run.run_group
                self.add_config(record.run.config)
            elif kind == "config":
                self.add_config(record.config)
            elif kind == "history":
                self.rows.append(row_of(record.history))
            elif kind == "metric":
                assert not record.metric.options.step_sync
                assert record.metric.name not in self.metrics
                self.metrics[record.metric.name] = record.metric.step_metric
            elif kind == "exit":
                self.ended = True
                self.exit_code = record.exit.exit_code

    def add_config(self, config):
        for update in config.update:
            if update.key != "_wandb":
                self.config[update.key] = json.loads(update.value_json)


def records(path):
    """The records of W&B's file: a header of seven bytes, then LevelDB's log format."""
    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if at + 7 + length > len(data):  # still being written
            return
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def row_of(history):
    row = {}
    for item in history.item:
        inner, *path = item.nested_key
        value = json.loads(item.value_json)
        if path:
            row.setdefault(inner, {})[".".join(path)] = value
        else:
            row[inner] = value
    assert row.pop("_timestamp") > 0 and row.pop("_runtime") >= 0
    return row


def written():
    """All the runs, by name; their rows are in the order of W&B's own step."""
    # W&B's own process writes the end of a file after `finish`
    paths = list(pathlib.Path().glob("wandb/offline-run-*/run-*.wandb"))
    runs = [wait_until(lambda path=path: ended(path)) for path in paths]
    for run in runs:
        assert [row.pop("_step") for row in run.rows] == list(range(len(run.rows)))
    found = {run.name: run for run in runs}
    assert len(found) == len(runs)
    return found


def ended(path):
    """The contents of a file, if it is complete."""
    run = Written(path)
    return run if run.ended else None


def written_rows():
    (run,) = written().values()
    return run.rows


def name_of(key):
    return "-".join(f"{int(word):08x}" for word in jax.random.key_data(key))


def rows_of(logs):
    """The rows of spooled logs of one run, as W&B should have them."""
    rows = []
    for i in range(len(next(iter(logs.values())))):
        row = {key: np.asarray(value)[i].item() for key, value in logs.items()}
        for name, of in logs.steps.items():
            row[name] = np.asarray(next(iter(of.values())))[i].item()
        rows.append(row)
    return rows


def offline(**options):
    return lox.wandb.WandbLogger("tests", mode="offline", **options)


def train(key, n=5):
    def step(w, i):
        lox.log({"w": w, "twice": 2 * w}, step=n - i, episode=i // 2)
        return w / 3, None

    return lax.scan(step, jax.random.uniform(key), jnp.arange(n))[0]


# --- the logger ------------------------------------------------------------


@pytest.mark.parametrize(
    "method, options", [("tap", {}), ("tap", {"buffer": 2}), ("spool", {})]
)
def test_wandb_run_equals_spooled_logs(method, options):
    logger = offline(config={"lr": 0.1, "net": {"width": 8}}, tags=["a"])
    key = jax.random.key(3)
    state = logger.init(key)
    getattr(logger, method)(train, state, **options)(key)
    logger.finish(state)
    ((name, run),) = written().items()
    assert name == name_of(key)
    assert run.rows == rows_of(lox.spool(train)(key)[1])
    assert run.config == {"lr": 0.1, "net": {"width": 8}}
    assert run.run.project == "tests" and list(run.run.tags) == ["a"]
    # decreasing steps are kept, because W&B's own step is not set
    assert [row["step"] for row in run.rows] == [5, 4, 3, 2, 1]
    assert run.metrics == {"w": "step", "twice": "step"}


def test_vmap_of_64_seeds_logs_64_runs_in_one_group():
    logger = offline()

    @jax.jit
    @jax.vmap
    def run(key):
        state = logger.init(key)
        w = logger.tap(train, state, buffer=5)(key)
        logger.finish(state)
        return w

    keys = jax.random.split(jax.random.key(0), 64)
    run(keys)
    jax.effects_barrier()
    runs = written()
    assert len(runs) == 64
    assert len({run.group for run in runs.values()}) == 1
    for key in keys:
        assert runs[name_of(key)].rows == rows_of(lox.spool(train)(key)[1])


def test_loggers_have_separate_groups_unless_given():
    for group in (None, None, "ours"):
        logger = offline(group=group)
        logger.finish(logger.init())
    groups = sorted(run.group for run in written().values())
    assert len(set(groups)) == 3 and groups[-1] == "ours"
    assert groups[0].startswith("lox-")


def test_numbers_are_exact_and_can_be_infinite_or_nan():
    logger = offline()
    state = logger.init(0)
    values = {
        "nan": np.float32(np.nan),
        "inf": np.inf,
        "less": -np.inf,
        "tiny": 5e-324,
        "float32": np.float32(0.1),
        "bfloat16": jnp.bfloat16(0.1),
        "large": 2**60 + 1,
        "bool": True,
        "one": np.ones((1, 1)),
    }
    logger.log(state, values)
    logger.finish(state)
    (row,) = written_rows()
    assert np.isnan(row.pop("nan"))
    assert row == {
        "inf": np.inf,
        "less": -np.inf,
        "tiny": 5e-324,
        "float32": float(np.float32(0.1)),
        "bfloat16": float(jnp.bfloat16(0.1)),
        "large": 2**60 + 1,
        "bool": True,
        "one": 1,
    }


def test_keys_of_one_event_share_a_row_and_steps_are_optional():
    logger = offline(step="epoch")
    state = logger.init(0)
    with pytest.warns(
        lox.LoxWarning, match="plots 'a' over the step 'step'.*no step 'epoch'"
    ):
        logger.tap(log_of_many_kinds, state)(2.0)
        logger.finish(state)
    (run,) = written().values()
    assert run.rows == [
        {"a": 2, "b/x": 4, "b/y": 6, "epoch": 7, "batch": 0},
        {"plain": 2},
        {"a": 3, "step": 1},
        {"a": 4},
    ]
    assert run.metrics == {"a": "epoch", "b/x": "epoch", "b/y": "epoch"}


def log_of_many_kinds(x):
    lox.log({"a": x, "b": {"x": 2 * x, "y": 3 * x}}, batch=0, epoch=7)
    lox.log({"plain": x})
    lox.log({"a": x + 1}, step=1)
    lox.log({"a": x + 2})


def test_reserved_names_are_changed():
    logger = offline()
    state = logger.init(0)
    names = [
        "_step",
        "_timestamp",
        "_runtime",
        "_wandb",
        "",
        "_own",
        "a.b",
        "c*",
        "ä/b",
    ]
    logger.log(state, {name: i for i, name in enumerate(names)})
    lox_log = logger.tap(
        lambda x: lox.log({"step": x, "step_value": -x, "x*": 0}, step=5, _step=6),
        state,
    )
    lox_log(1)
    logger.finish(state)
    (run,) = written().values()
    assert run.rows == [
        {
            "_step_value": 0,
            "_timestamp_value": 1,
            "_runtime_value": 2,
            "_wandb_value": 3,
            "_value": 4,
            "_own": 5,
            "a.b": 6,
            "c*": 7,
            "ä/b": 8,
        },
        {"step_value": 1, "step_value_value": -1, "x*": 0, "step": 5, "_step_value": 6},
    ]
    # one with a star would be a pattern
    assert set(run.metrics) == {"step_value", "step_value_value"}


def test_histograms_and_images_are_logged_if_selected():
    logger = offline(histograms="grads/*", images=["image", "gray", "alpha", "row"])
    state = logger.init(0)
    rng = np.random.default_rng(0)
    grads = rng.normal(size=(7, 3)).astype(np.float32)
    bad = np.array([np.nan, np.inf, -np.inf], np.float32)
    image = rng.integers(0, 256, (4, 5, 3), np.uint8)
    gray = np.array([[-0.5, 0.2], [1, 1.5]])
    alpha = rng.integers(0, 256, (4, 5, 4), np.uint8)
    logs = {
        "grads": {"w": grads, "bad": bad, "same": np.full(3, 1e30)},
        "image": image,
        "gray": gray[..., None],
        "alpha": alpha,
        "row": image[:1],
    }
    lox_logs = lox.logdict(logs, {"step": dict.fromkeys(logs, 3)})
    logger.log(state, lox_logs)
    logger.finish(state)
    (run,) = written().values()
    (row,) = run.rows
    counts, edges = np.histogram(grads.astype(float), 64)
    assert row["grads/w"]["_type"] == "histogram"
    assert row["grads/w"]["values"] == counts.tolist()
    assert row["grads/w"]["bins"] == edges.tolist()
    assert sum(row["grads/bad"]["values"]) == 0
    assert sum(row["grads/same"]["values"]) == 3
    assert row["step"] == 3 and set(run.metrics.values()) == {"step"}

    def pixels(name):
        path = run.directory / "files" / row[name]["path"]
        return np.asarray(pillow.open(path))

    assert np.array_equal(pixels("image"), image)
    assert np.array_equal(pixels("alpha"), alpha)
    assert np.array_equal(pixels("row"), image[:1])
    assert pixels("gray").tolist() == [[0, 51], [255, 255]]


def test_watched_histograms_are_histograms():
    logger = offline()
    state = logger.init(0)
    params = {"w": np.arange(10.0, dtype=np.float32)}
    logger.tap(lox.watch, state)("params", params, stats=["histogram", "max"], step=3)
    logger.finish(state)
    (row,) = written_rows()
    histogram = lox.stats(params, "histogram")["w/histogram"]
    assert row["params/w/histogram"]["_type"] == "histogram"
    assert row["params/w/histogram"]["values"] == histogram["counts"].tolist()
    assert row["params/w/histogram"]["bins"] == histogram["edges"].tolist()
    assert row["params/w/max"] == 9 and row["step"] == 3


def test_counts_and_edges_are_histograms_unless_selected():
    logger = offline(histograms="b/*")
    state = logger.init(0)
    counts, edges = np.array([1, 2]), np.array([0.0, 1.0, 3.0])
    histogram = {"counts": counts, "edges": edges}
    logger.log(state, {"a": histogram, "b": histogram})
    with pytest.warns(lox.LoxWarning, match="leaves out 'c/") as seen:
        logger.log(state, {"c": {"counts": counts, "edges": edges[1:]}, "x": 1.0})
        logger.finish(state)
    assert len(seen) == 2
    first, second = written_rows()
    assert set(first) == {"a", "b/counts", "b/edges"} and set(second) == {"x"}
    assert (first["a"]["values"], first["a"]["bins"]) == ([1, 2], [0, 1, 3])


def test_arrays_are_left_out_unless_selected():
    logger = offline(images="flat")
    state = logger.init(0)
    with pytest.warns(lox.LoxWarning) as seen:
        for _ in range(2):
            logger.log(state, {"x": 1.0, "array": np.ones(3), "flat": np.ones(3)})
        logger.finish(state)
    texts = sorted(str(warning.message) for warning in seen)
    assert len(texts) == 2 and all("leaves out" in text for text in texts)
    assert "'array'" in texts[0] and "histograms='array'" in texts[0]
    assert "'flat', which `images` selects" in texts[1]
    assert written_rows() == [{"x": 1.0}] * 2


def test_run_with_same_key_resumes():
    logger = offline(resume="allow")
    state = logger.init(7)
    logger.finish(state)
    (run,) = written().values()
    assert run.run.run_id == "00000000-00000007"


def test_options_are_passed_to_wandb_init(capfd):
    logger = offline(name="mine", notes="a note", settings={"silent": False})
    logger.finish(logger.init(0))
    (run,) = written().values()
    assert run.name == "mine" and run.run.notes == "a note"
    assert "wandb" in capfd.readouterr().err


def test_mode_can_come_from_settings_or_session(monkeypatch):
    logger = lox.wandb.WandbLogger(settings=wandb.Settings(mode="offline", silent=True))
    logger.finish(logger.init(0))
    monkeypatch.setattr(wandb.setup().settings, "mode", "offline")
    for i, settings in enumerate((wandb.Settings(silent=True), None)):
        logger = lox.wandb.WandbLogger(settings=settings)
        logger.finish(logger.init(i + 1))
    assert len(written()) == 3


def test_nothing_is_printed_by_default(capfd):
    logger = offline()
    logger.finish(logger.init(0))
    assert capfd.readouterr() == ("", "")


def test_disabled_mode_is_accepted():
    logger = lox.wandb.WandbLogger(mode="disabled")
    state = logger.init(0)
    logger.tap(train, state)(jax.random.key(0))
    logger.finish(state)
    assert not written()


# --- the functions ---------------------------------------------------------


def test_functions_work_outside_jit():
    state = lox.wandb.init(project="tests", mode="offline", config={"a": 1})
    for i in range(3):
        lox.wandb.log(state, {"loss": 1 / (i + 1)}, step=10 - i)
    lox.wandb.log(state, lox.spool(train)(jax.random.key(0))[1])
    lox.wandb.finish(state)
    (run,) = written().values()
    assert run.config == {"a": 1}
    expected = [{"loss": 1 / (i + 1), "step": 10 - i} for i in range(3)]
    expected += rows_of(lox.spool(train)(jax.random.key(0))[1])
    assert run.rows == expected


def test_functions_work_inside_jit_vmap_and_scan():
    @jax.jit
    @jax.vmap
    def run(key):
        state = lox.wandb.init(key, project="tests", mode="offline")

        def step(w, i):
            lox.wandb.log(state, {"w": w}, step=i)
            return w / 2, None

        w, _ = lax.scan(step, jax.random.uniform(key), jnp.arange(4))
        lox.wandb.finish(state)
        return w

    groups = set()
    for seed in (0, 1):  # traced once, called twice
        keys = jax.random.split(jax.random.key(seed), 3)
        run(keys)
        jax.effects_barrier()
        runs = written()
        for key in keys:
            w = float(jax.random.uniform(key))
            found = runs[name_of(key)]
            groups.add(found.group)
            assert found.rows == [{"w": w / 2**i, "step": i} for i in range(4)]
    assert len(written()) == 6 and len(groups) == 1


def test_init_under_vmap_sets_config_per_lane():
    @jax.jit
    @jax.vmap
    def run(seed, lr):
        config = {"lr": lr, "name": "adam"}
        state = lox.wandb.init(seed, config=config, project="tests", mode="offline")
        lox.wandb.log(state, {"x": lr})
        lox.wandb.finish(state)

    run(jnp.arange(2), jnp.array([0.1, 0.25]))
    jax.effects_barrier()
    found = [one.config for _, one in sorted(written().items())]
    assert found == [{"lr": lr, "name": "adam"} for lr in (0.1, 0.25)]


def test_state_can_be_passed_to_jit_compiled_for_another_state():
    traces = []

    @jax.jit
    def step(state, x):
        traces.append(1)
        lox.wandb.log(state, {"x": x}, step=0)
        return x

    states = []
    for i in range(3):
        state = lox.wandb.init(
            i, project=f"project{i}", mode="offline", config={"i": i}, name=f"run{i}"
        )
        step(state, float(i))
        states.append(state)
    for state in states:
        lox.wandb.finish(state)
    runs = written()
    assert len(traces) == 1 and len(runs) == 3
    for i in range(3):
        run = runs[f"run{i}"]
        assert run.rows == [{"x": i, "step": 0}]
        assert run.config == {"i": i} and run.run.project == f"project{i}"


def test_states_of_vmapped_init_accept_values_per_lane():
    for project in ("first", "second"):
        keys = jax.random.split(jax.random.key(len(project)), 3)
        states = jax.vmap(
            lambda key: lox.wandb.init(key, project=project, mode="offline")  # noqa: B023
        )(keys)
        jax.vmap(lambda state, x: lox.wandb.log(state, {"x": x}, step=1))(
            states, jnp.arange(3.0)
        )
        lox.wandb.finish(states)
        jax.effects_barrier()
        for i, key in enumerate(keys):
            run = written()[name_of(key)]
            assert run.rows == [{"x": i, "step": 1}] and run.run.project == project


def test_misuse_raises_error_with_remedy():
    state = lox.wandb.init(5, project="tests", mode="offline", histograms="x")
    with pytest.raises(lox.LoxValueError, match="WandbLogger already has an open run"):
        lox.wandb.init(5, project="other", mode="offline")
    with pytest.raises(lox.LoxTypeError, match="already has its steps.*'step'"):
        lox.wandb.log(state, lox.logdict({"x": 1}), step=2)
    with pytest.raises(lox.LoxTypeError, match="needs a `key` inside `jax.jit`"):
        jax.jit(lambda: lox.wandb.init(mode="offline"))()
    with pytest.raises(lox.LoxTypeError, match="'projct'. Did you mean 'project'"):
        lox.wandb.WandbLogger(projct="tests")
    with pytest.raises(lox.LoxValueError, match="'offlin'; it must be one of 'onl"):
        lox.wandb.init(6, project="tests", mode="offlin")
    lox.wandb.log(state, {"x": np.arange(3)}, step=2)
    lox.wandb.finish(state)
    (run,) = written().values()
    assert run.run.project == "tests"
    assert sum(run.rows[0]["x"]["values"]) == 3


def test_example_of_documentation_works():
    path = pathlib.Path(__file__).parents[3] / "docs" / "loggers.md"
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    (example,) = (block for block in blocks if "lox.wandb.init" in block)
    exec(example, {})
    runs = written()
    assert len(runs) == 4 and len({run.group for run in runs.values()}) == 1
    for key in jax.random.split(jax.random.key(0), 4):
        w, run = jax.random.uniform(key), runs[name_of(key)]
        assert run.config == {"lr": 0.5} and run.metrics == {"w": "step"}
        assert [row["step"] for row in run.rows] == list(range(100))
        assert [row["w"] for row in run.rows] == [float(w) / 2**i for i in range(100)]


# --- failures --------------------------------------------------------------


def python(program, **environment):
    """Runs a program without a W&B account."""
    return programs.run(program, env={**without_account(), **environment})


def without_account():
    names = ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL")
    inherited = {k: v for k, v in os.environ.items() if k not in names}
    return {**inherited, "HOME": os.getcwd(), "NETRC": os.path.join(os.getcwd(), "n")}


def test_program_without_finish_loses_no_row():
    run = python(
        """
        import sys
        import lox.wandb
        assert "wandb" not in sys.modules
        logger = lox.wandb.WandbLogger("tests", mode="offline")
        state = logger.init(1)
        other = lox.wandb.init(2, project="tests", mode="offline")
        for i in range(300):
            logger.log(state, {"x": i})
            lox.wandb.log(other, {"x": -i}, step=i)
        raise SystemExit(3)
        """
    )
    assert (run.returncode, run.stdout, run.stderr) == (3, "", "")
    first, second = (written()[f"00000000-0000000{i}"] for i in (1, 2))
    assert first.rows == [{"x": i} for i in range(300)]
    assert second.rows == [{"x": -i, "step": i} for i in range(300)]


# The programs are forks that share the import of W&B.
ENDINGS = """
import os, sys
import lox.wandb, wandb

for last in sys.argv[1:]:
    if os.fork() == 0:
        break
    os.wait()
else:
    raise SystemExit
os.mkdir(last)
os.chdir(last)
logger = lox.wandb.WandbLogger("tests", mode="offline")
logger.finish(logger.init(1))
logger.log(logger.init(2), {"x": 1.0})
try:
    {}["caught"]
except KeyError:
    pass
exec(last)
"""


def test_run_ended_by_exception_has_failed(tmp_path, monkeypatch):
    codes = {"raise KeyError": 1, "raise KeyboardInterrupt": 255, "pass": 0}
    run = programs.run(ENDINGS, *codes, env=without_account())
    assert run.returncode == 0
    assert run.stderr.count("Traceback") == 2
    assert "KeyError" in run.stderr and "KeyboardInterrupt" in run.stderr
    for last, code in codes.items():
        monkeypatch.chdir(tmp_path / last)
        first, second = (written()[f"00000000-0000000{i}"] for i in (1, 2))
        assert second.rows == [{"x": 1.0}]
        assert (first.exit_code, second.exit_code) == (0, code)


NO_KEY = """
import lox.wandb
state = lox.wandb.init(7, project="tests")
for i in range(3):
    lox.wandb.log(state, {"x": i}, step=i)
lox.wandb.finish(state)
print("done")
"""


def test_logger_never_prompts_for_api_key():
    pty = pytest.importorskip("pty")
    # W&B prompts only if stdin and stderr are terminals
    leader, follower = pty.openpty()
    environment = {**without_account(), "TERM": "xterm"}
    run = programs.run(NO_KEY, env=environment, stdin=follower, stderr=follower)
    said = os.read(leader, 100_000).decode()
    os.close(follower)
    os.close(leader)
    assert run.stdout == "done\n" and run.returncode == 0
    assert said.count("LoxWarning: WandbLogger: it failed") == 1
    assert "no API key" in said and "Enter your choice" not in said
    logs = lox.load(".lox/unsent")
    assert logs["x"].tolist() == logs.step["x"].tolist() == [0, 1, 2]


def test_logger_waits_once_for_unreachable_server():
    run = python(
        """
        import jax, wandb, lox.wandb
        import lox._trackers.wandb
        backend = lox._trackers.wandb
        backend._LONG_WAIT, backend._RETRY_AFTER = 1.0, 1e9
        init, calls = wandb.init, []
        wandb.init = lambda **options: calls.append(options) or init(**options)
        settings = {"silent": True, "console": "off", "init_timeout": 2}
        logger = lox.wandb.WandbLogger("tests", settings=settings)
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 8))
        jax.vmap(lambda s, x: logger.log(s, {"x": x}))(states, jax.numpy.arange(8))
        logger.finish(states)
        print(len(calls))
        """,
        WANDB_API_KEY="0" * 40,
        WANDB_BASE_URL="http://127.0.0.1:9",
    )
    assert run.stdout == "1\n" and run.returncode == 0
    assert run.stderr.count("LoxWarning: WandbLogger: it failed") == 1
    found = lox.runs(".lox/unsent")
    assert sorted(run.load()["x"].item() for run in found) == list(range(8))


def test_url_of_runs_is_printed_once(monkeypatch, capsys):
    class Online:
        offline = False
        project_url = "https://example.com/me/tests"

        def __init__(self, **options):
            assert options["reinit"] == "create_new"

        def finish(self, exit_code=None):
            assert exit_code == 0

    monkeypatch.setattr(wandb, "init", Online)
    logger = offline(group="a group")
    for seed in range(3):
        logger.finish(logger.init(seed))
    printed = capsys.readouterr()
    assert printed.err == "wandb: https://example.com/me/tests/groups/a%20group\n"
    assert printed.out == ""


def test_missing_package_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    for begin in (lox.wandb.WandbLogger, lox.wandb.init):
        with pytest.raises(ImportError, match=r"needs wandb.*jax-lox\[wandb\]"):
            begin()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match="`images` of `WandbLogger` needs PIL"):
        lox.wandb.WandbLogger(images="x")
