"""`lox.save` and `lox.load`: values, dtypes, names, modes and keys."""

import collections
import itertools
import time

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import lox
import lox.loggers
from lox._logs.access import metadata_of
from lox._logs.logdict import make_logdict
from lox._serialized import SerializedCalls
from lox._store import segments
from lox._store.creating import create_run

DTYPES = """bool int8 int16 int32 uint8 uint16 uint32 float16 float32 bfloat16 complex64
float8_e4m3fn float8_e5m2 int4 uint4""".split()


def scanned(xs):
    def body(carry, x):
        lox.log({"x": x, "tree": {"a": x, "b": (x * 2,)}}, step=carry)
        return carry + 1, None

    lox.log({"once": 3})
    return lax.scan(body, 0, xs)[0]


def logs_of(n=4):
    return lox.spool(scanned)(jnp.arange(1.0 * n))[1]


# --- values ----------------------------------------------------------------


def test_load_returns_values_steps_and_shapes(tmp_path):
    lox.save(logs_of(), tmp_path / "run")
    found = lox.load(tmp_path / "run")
    assert found == logs_of()
    assert isinstance(found["x"], np.ndarray) and found["once"].shape == ()
    assert found.step["x"].tolist() == [0, 1, 2, 3]
    assert isinstance(found["tree"]["b"], tuple)


@pytest.mark.parametrize("dtype", DTYPES)
def test_load_returns_every_dtype(tmp_path, dtype):
    rows = jnp.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    logs = lox.logdict({"x": rows, "once": rows[0]}, stacked=["x"])
    lox.save(logs, tmp_path / "run")
    found = lox.load(tmp_path / "run")
    assert found["x"].dtype == rows.dtype and found["once"].dtype == rows.dtype
    assert found["x"].tobytes() == np.asarray(rows).tobytes()


@pytest.mark.parametrize("lanes", [0, 3])
def test_rows_of_program_are_stored_like_rows_saved_by_hand(tmp_path, lanes):
    def program(scale):
        def body(carry, i):
            # one call per dtype, so that each has its own files; one program for all
            # of them, because compilation takes most of the time
            for dtype in DTYPES:
                x = (carry * scale > 2).astype(dtype)
                values = {"x": x, "many": jnp.array([[x, x * 0], [x * 0, x]]), "i": i}
                values |= {"tree": {"a": i, "b": (x,)}}
                lox.log({dtype: values}, step=i, half=i / 2)
                lox.log({f"empty {dtype}": jnp.zeros((0, 2), dtype)})
            return carry + 1, None

        return lax.scan(body, 0, jnp.arange(5))[0]

    tapped = lox.loggers.SaveLogger(tmp_path / "tapped")
    by_hand = lox.loggers.SaveLogger(tmp_path / "by hand")

    def run(key, scale):
        tapped.tap(program, tapped.init(key))(scale)
        return lox.tap(program, lambda logs: rows.append(logs))(scale)

    rows = []
    keys, scales = jnp.arange(lanes or 1), jnp.arange(1, (lanes or 1) + 1)
    jax.vmap(run)(keys, scales) if lanes else run(0, scales[0])
    jax.effects_barrier()
    for key in keys:
        state = by_hand.init(int(key))
        # the lanes of each event follow each other
        for i in range(5 * 2 * len(DTYPES)):
            (row,) = rows[i * len(keys) + int(key)].lanes()  # without the step `lane`
            by_hand.log(state, row)
        by_hand.finish(state)
    for logger in (tapped, by_hand):
        logger._runs.close_all()
    for path in sorted((tmp_path / "by hand").glob("*/writer-0000/*")):
        same = tmp_path / "tapped" / path.relative_to(tmp_path / "by hand")
        assert same.read_bytes() == path.read_bytes(), path


def test_save_accepts_rows_that_are_not_contiguous(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    writer = logger.open(logger._run_info((0, 0)))

    def to_logs(arrays):
        return lox.logdict({"x": arrays[0]})

    table = np.arange(12).reshape(2, 2, 3)
    for x in (table[0], table[1], table[0].T.copy().T, table[:, :, ::-1][1]):
        writer.write_row(to_logs, [x])
    writer.close()
    expected = [table[0], table[1], table[0], table[1, :, ::-1]]
    assert (lox.load(tmp_path)["x"] == np.array(expected)).all()


def test_load_returns_prng_keys(tmp_path):
    for impl in ("threefry2x32", "rbg"):
        keys = jax.random.split(jax.random.key(0, impl=impl), 3)
        run = tmp_path / impl
        lox.save(lox.logdict({"k": keys, "one": keys[0]}, stacked=["k"]), run)
        found = lox.load(run)
        assert found["k"].dtype == keys.dtype and found["one"].shape == ()
        assert (jax.random.key_data(found["k"]) == jax.random.key_data(keys)).all()


def test_prng_keys_of_eager_calls_and_programs_are_loaded_together(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    log_in_jit = jax.jit(lambda k: logger.log(state, {"k": k, "pair": (k, 1.0)}))
    keys = jax.random.split(jax.random.key(1), 4)
    for i, key in enumerate(keys):
        log = log_in_jit if i % 2 else log_in_jit.__wrapped__
        log(key)
    logger.finish(state)
    found, data = lox.load(tmp_path), np.asarray(jax.random.key_data(keys))
    for rows in (found["k"], found["pair"][0]):
        assert rows.dtype == np.uint32 and rows.tolist() == data.tolist()


def test_prng_keys_are_loaded_as_data_only_in_columns_that_need_it(tmp_path):
    key = jax.random.key(1)
    lox.save({"k": (key, key)}, tmp_path / "run")
    lox.save({"k": (key, jax.random.key_data(key))}, tmp_path / "run")
    typed, data = lox.load(tmp_path / "run")["k"]
    assert typed.dtype == key.dtype and typed.shape == (2,)
    assert data.tolist() == [[0, 1], [0, 1]]


def test_runs_with_prng_keys_and_with_their_data_are_lanes_of_one_logdict(tmp_path):
    keys = jax.random.split(jax.random.key(1), 2)
    lox.save({"k": keys[0]}, tmp_path, key=0)
    jax.jit(lambda k: lox.save({"k": k}, tmp_path, key=1))(keys[1])
    jax.effects_barrier()
    found = lox.runs(tmp_path).load()["k"]
    assert found.tolist() == jax.random.key_data(keys).tolist()
    assert lox.load(tmp_path, key=0)["k"].dtype == keys.dtype


def test_prng_keys_of_two_implementations_are_refused_by_name(tmp_path):
    rbg, unsafe = (jax.random.key(0, impl=impl) for impl in ("rbg", "unsafe_rbg"))
    lox.save({"k": rbg}, tmp_path / "run")
    names = "PRNG keys: rbg;.*PRNG keys: unsafe_rbg;"
    with pytest.raises(lox.ShapeError, match=names):
        lox.save({"k": unsafe}, tmp_path / "run")
    with pytest.raises(lox.ShapeError, match="PRNG keys: rbg;"):
        lox.save({"k": jnp.ones(4)}, tmp_path / "run")
    # another process cannot know
    lox.save({"k": unsafe}, tmp_path / "run" / "process-1")
    lox.save({"k": jax.random.key_data(rbg)}, tmp_path / "run" / "process-2")
    with pytest.raises(lox.StoreError, match=names):
        lox.load(tmp_path / "run")


NAMES = [
    "../../escape",
    "/etc/passwd",
    "a/b",
    "..",
    "",
    "x" * 10_000,
    "Verlust ß λ 損失",
    "nul\0byte",
    "line\nbreak",
    "c0",
    "run.json",
]


def test_load_refuses_names_that_are_not_strings(tmp_path):
    lox.save({"x": 1}, tmp_path / "run")
    with pytest.raises(lox.LoxTypeError, match="`argnames` must be a string.* not 3"):
        lox.load(tmp_path / "run", argnames=3)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_run_name_is_kept_and_stays_in_its_directory(tmp_path, name):
    run = tmp_path / "store" / "run"
    lox.save({name: 1.5, "other": 2}, run)
    assert lox.load(run) == {name: 1.5, "other": 2}
    assert lox.load(run, argnames=["other"]) == {"other": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["store"]
    assert [p.name for p in (tmp_path / "store").iterdir()] == ["run"]


def test_load_returns_lanes_and_masks(tmp_path):
    batch = jnp.arange(12.0).reshape(3, 4)
    inside = lox.spool(jax.vmap(scanned))(batch)[1]
    outside = jax.vmap(lox.spool(scanned))(batch)[1]
    for name, logs in (("inside", inside), ("outside", outside)):
        lox.save(logs, tmp_path / name)
        found = lox.load(tmp_path / name)
        assert found == logs
        assert found.lanes() == logs.lanes()

    def ragged(n):
        def body(i):
            lox.log({"i": i}, step=i)
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    ns = jnp.array([2, 0, 4])
    for name, spooled in (
        ("a", lox.spool(jax.vmap(ragged), capacity=5)),
        ("b", jax.vmap(lox.spool(ragged, capacity=5))),
    ):
        logs = spooled(ns)[1]
        lox.save(logs, tmp_path / name)
        assert lox.load(tmp_path / name).lanes() == logs.lanes()


def test_save_repeatedly_appends_rows(tmp_path):
    for _ in range(3):
        lox.save(logs_of(2), tmp_path / "run")
    found = lox.load(tmp_path / "run")
    assert found == logs_of(2) + logs_of(2) + logs_of(2)
    assert len(list((tmp_path / "run").glob("writer-*"))) == 1


def test_key_that_is_saved_beside_various_keys_keeps_row_order(tmp_path):
    run = tmp_path / "run"
    for i in range(6):
        lox.save({"x": i} if i % 2 else {"x": i, "even": i}, run)
    assert lox.load(run)["x"].tolist() == list(range(6))
    assert lox.load(run)["even"].tolist() == [0, 2, 4]


def test_load_returns_pytrees_as_dicts(tmp_path):
    pair = collections.namedtuple("pair", "left right")
    lox.save({"p": pair(1.0, {"a": [2.0, None]})}, tmp_path / "run")
    assert lox.load(tmp_path / "run")["p"] == {"left": 1.0, "right": {"a": [2.0, None]}}


def test_load_keeps_axes_and_leaves_of_pytrees(tmp_path):
    pair = collections.namedtuple("pair", "b a")
    rows = pair(np.arange(3.0), np.arange(6.0).reshape(3, 2))
    names = collections.OrderedDict({"x.": np.arange(3), "x": np.arange(3) + 1})
    lox.save(lox.logdict({"p": rows, "q": names}, stacked=True), tmp_path / "run")
    found = lox.load(tmp_path / "run").slice[-1]
    assert found["p"]["b"] == 2 and found["p"]["a"].tolist() == [4, 5]
    assert found["q"] == {"x.": 2, "x": 3}


def test_load_returns_rows_of_size_zero(tmp_path):
    for _ in range(2):
        lox.save({"x": np.zeros((2, 0))}, tmp_path / "run")
    assert lox.load(tmp_path / "run")["x"].shape == (2, 2, 0)
    # keys without rows are left out
    none = lox.logdict({"y": np.zeros((0, 3))}, stacked=True)
    for _ in range(3):
        lox.save(none, tmp_path / "run")
    assert list(lox.load(tmp_path / "run")) == ["x"]


def test_masked_and_unmasked_lanes_are_joined(tmp_path):
    def ragged(n):
        def body(i):
            lox.log({"i": i})
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    batched = jax.vmap(lox.spool(ragged, capacity=5))
    for turn, (first, second) in enumerate([([2, 2], [1, 3]), ([1, 3], [2, 2])]):
        run = tmp_path / str(turn)
        for counts in (first, second):
            lox.save(batched(jnp.array(counts))[1], run)
        for lane, a, b in zip(lox.load(run).lanes(), first, second, strict=True):
            assert lane["i"].tolist() == [*range(a), *range(b)]


# --- modes, stores and keys ------------------------------------------------


def test_save_modes_append_replace_or_refuse(tmp_path):
    run = tmp_path / "run"
    lox.save({"x": 1}, run, mode="x")
    with pytest.raises(lox.StoreError, match=r"a run already exists.*`mode=\"a\"`"):
        lox.save({"x": 2}, run, mode="x")
    lox.save({"x": 2}, run)
    assert lox.load(run)["x"].tolist() == [1, 2]
    lox.save({"x": 3}, run, mode="w")
    assert lox.load(run) == {"x": 3}
    lox.save({"x": 4}, run)
    assert lox.load(run)["x"].tolist() == [3, 4]


def test_directory_that_is_not_a_run_is_never_touched(tmp_path):
    (tmp_path / "mine").write_text("precious")
    for mode in "awx":
        with pytest.raises(lox.StoreError, match=r"is not a run of lox"):
            lox.save({"x": 1}, tmp_path, mode=mode)
    assert (tmp_path / "mine").read_text() == "precious"


def test_runs_and_load_find_runs_by_key(tmp_path, monkeypatch):
    seconds = itertools.count(1000.5)
    monkeypatch.setattr(time, "time", lambda: next(seconds))
    for seed in (3, 1):
        lox.save({"seed": seed}, tmp_path, key=jax.random.key(seed))
    first, second = lox.runs(tmp_path)
    assert [int(run.load()["seed"]) for run in (first, second)] == [3, 1]
    assert first.key.tolist() == jax.random.key_data(jax.random.key(3)).tolist()
    assert first.versions["jax"] == jax.__version__
    assert 1000 < first.started < second.started < 9999
    assert "run" in repr(first)
    assert lox.load(tmp_path, key=1) == {"seed": 1}
    assert lox.load(tmp_path, key=jax.random.PRNGKey(3)) == {"seed": 3}
    with pytest.raises(lox.StoreError, match=r"store of 2 runs.*Pass the path"):
        lox.load(tmp_path)
    with pytest.raises(
        lox.StoreError, match="no run with the key 7.*00000000-00000007"
    ):
        lox.load(tmp_path, key=7)
    with pytest.raises(lox.StoreError, match="there is no store at"):
        lox.runs(tmp_path / "elsewhere")


def test_load_of_store_with_one_run_returns_it(tmp_path):
    lox.save({"x": 1}, tmp_path / "store", key=0)
    assert lox.load(tmp_path / "store") == {"x": 1}


# --- inside JAX ------------------------------------------------------------


def test_save_works_in_jit_and_scan(tmp_path):
    @jax.jit
    def f(xs):
        _, logs = lox.spool(scanned)(xs)
        lox.save(logs, tmp_path / "run")
        return lax.scan(
            lambda c, x: (lox.save({"y": x}, tmp_path / "other"), (c, x))[1], 0, xs
        )

    f(jnp.arange(4.0))
    jax.effects_barrier()
    assert lox.load(tmp_path / "run") == logs_of()
    assert lox.load(tmp_path / "other")["y"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("jit", [False, True])
def test_save_under_vmap_writes_one_run_per_key(tmp_path, jit):
    def f(key, x):
        y, logs = lox.spool(scanned)(x + jnp.arange(3.0))
        lox.save(logs, tmp_path, key=key)
        return y

    keys = jax.random.split(jax.random.key(0), 5)
    mapped = jax.vmap(f)
    (jax.jit(mapped) if jit else mapped)(keys, jnp.arange(5.0))
    jax.effects_barrier()
    assert len(lox.runs(tmp_path)) == 5
    for i in range(5):
        found = lox.load(tmp_path, key=keys[i])
        assert found["x"].tolist() == [i, i + 1.0, i + 2.0]


def test_save_of_batched_logs_writes_one_run_per_lane(tmp_path):
    keys = jax.random.split(jax.random.key(0), 3)
    _, logs = jax.vmap(lox.spool(scanned))(jnp.arange(12.0).reshape(3, 4))
    lox.save(logs, tmp_path, key=keys)
    for key, lane in zip(keys, logs.lanes(), strict=True):
        assert lox.load(tmp_path, key=key) == lane
    with pytest.raises(lox.LoxValueError, match=r"3 keys for logs of 1 lane"):
        lox.save({"x": 1}, tmp_path, key=keys)


def test_failed_save_in_jit_is_raised_at_the_barrier(tmp_path):
    (tmp_path / "file").write_text("no directory")
    jax.jit(lambda x: lox.save({"x": x}, tmp_path / "file" / "run"))(1.0)
    with pytest.raises(lox.StoreError, match="cannot create a run at"):
        jax.effects_barrier()


# --- what cannot be saved --------------------------------------------------


def test_key_saved_in_two_shapes_raises_error_with_remedy(tmp_path):
    lox.save({"x": 1.0}, tmp_path / "run")
    with pytest.raises(
        lox.ShapeError, match=r"'x' was saved with the shape \(\).*\(3,\)"
    ):
        lox.save({"x": jnp.ones(3)}, tmp_path / "run")
    with pytest.raises(lox.ShapeError, match=r"steps: none\).*steps: step\)"):
        lox.save(lox.logdict({"x": 1.0}, {"step": {"x": 1}}), tmp_path / "run")
    assert lox.load(tmp_path / "run") == {"x": 1.0}
    # if another process wrote it, `load` reports it
    lox._store.open_writers.open_writers.close()
    lox.save({"x": jnp.ones(3), "y": 2.0}, tmp_path / "run")
    with pytest.raises(lox.StoreError, match=r"'x' was written in two incompat"):
        lox.load(tmp_path / "run")
    assert lox.load(tmp_path / "run", "y") == {"y": 2.0}


def test_load_returns_numbers_of_several_dtypes_exactly(tmp_path):
    for i, x in enumerate((jnp.float32(0.1), np.float64(0.1), 3, 2**40, np.nan)):
        lox.save(lox.logdict({"x": x}, {"step": {"x": i}}), tmp_path / "run")
    found = lox.load(tmp_path / "run")["x"]
    expected = [float(np.float32(0.1)), 0.1, 3.0, 2.0**40, np.nan]
    np.testing.assert_array_equal(found, expected, strict=True)
    lox.save(lox.logdict({"x": 2**60 + 1}, {"step": {"x": 9}}), tmp_path / "run")
    with pytest.raises(lox.StoreError, match="int32, int64, but no dtype"):
        lox.load(tmp_path / "run")


def test_load_joins_8_and_16_bit_floats_with_other_dtypes(tmp_path):
    for i, dtype in enumerate((ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)):
        for x in (np.array(np.nan, dtype), np.array(0.5, dtype), np.int32(3)):
            lox.save({"x": x}, tmp_path / str(i))
        found = lox.load(tmp_path / str(i))["x"]
        np.testing.assert_array_equal(found.astype(float), [np.nan, 0.5, 3.0])


def test_load_returns_numbers_of_other_byte_order(tmp_path):
    """The byte order of their machine may differ."""
    x, step = np.array(1.5, ">f4"), np.array(3, ">i8")
    for logs in (lox.logdict({"x": x}, {"step": {"x": step}}),) * 2:
        lox.save(logs, tmp_path / "run")
    found = lox.load(tmp_path / "run")
    assert found["x"].tolist() == [1.5, 1.5] and found.step["x"].tolist() == [3, 3]


def test_load_returns_steps_of_any_dtype(tmp_path):
    for i in range(3):
        step = np.array(i + 0.5, ml_dtypes.bfloat16)
        lox.save(lox.logdict({"x": np.int32(i)}, {"t": {"x": step}}), tmp_path / "run")
    found = lox.load(tmp_path / "run").steps["t"]["x"]
    assert found.astype(float).tolist() == [0.5, 1.5, 2.5]


def test_save_that_fails_during_another_does_not_affect_later_ones():
    """As in a signal handler, whose call runs when the other one has ended."""
    done = []

    def call(i):
        if i == 1:
            calls.call(call, 2)
            calls.call(call, 3)
        if i == 2:
            raise ValueError("no")
        done.append(i)

    calls = SerializedCalls()
    with pytest.raises(ValueError, match="no"):
        calls.call(call, 1)
    calls.call(call, 4)
    assert done == [1, 3, 4]


def test_large_seed_identifies_its_own_run(tmp_path):
    for key in (2**40, np.uint64(2**41), np.array(2**42)):
        lox.save({"x": 1}, tmp_path, key=key)
    assert [run.key[0] for run in lox.runs(tmp_path)] == [2**8, 2**9, 2**10]


def test_load_during_writing_ends_at_one_event_for_all_keys(tmp_path, monkeypatch):
    """Every segment has all rows before that event."""
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    numbers = itertools.count()

    def write(count):
        for i in itertools.islice(numbers, count):
            logger.log(state, {"x": i, "y": i} if i % 3 else {"x": i})

    class Slow(segments.Segment):
        def __init__(self, *args):
            super().__init__(*args)
            write(5)

    write(20)
    monkeypatch.setattr(segments, "Segment", Slow)
    found = lox.load(tmp_path)
    # of the numbers from 20 on, 21 is the first in the segment that was read before
    assert found["x"].tolist() == list(range(21))
    assert found["y"].tolist() == [i for i in range(21) if i % 3]
    monkeypatch.undo()
    assert lox.load(tmp_path)["x"].tolist() == list(range(30))


def test_rows_of_one_key_can_change_dtype_and_length(tmp_path):
    spooled = lox.spool(scanned)
    parts = []
    for xs in (jnp.arange(2.0), jnp.arange(3.0), jnp.arange(3), jnp.arange(4)):
        parts.append(jax.tree.map(np.asarray, spooled(xs)[1].filter("x")))
        lox.save(parts[-1], tmp_path / str(xs.dtype))
    assert lox.load(tmp_path / "float32") == parts[0] + parts[1]
    assert lox.load(tmp_path / "int32") == parts[2] + parts[3]


def test_steps_can_belong_to_some_keys_only(tmp_path):
    rows = np.arange(2.0)
    logs = lox.logdict({"x": rows, "y": rows}, {"s": {"y": rows}}, stacked=True)
    only = lox.logdict({"x": rows}, {"s": {}}, stacked=True)
    for name, one in (("some", logs), ("none", only)):
        for _ in range(3):
            lox.save(one, tmp_path / name)
        found = lox.load(tmp_path / name)
        assert found == sum([one] * 3) and set(found.steps) <= {"s"}


def test_bad_input_raises_error_with_remedy(tmp_path):
    with pytest.raises(lox.LoxTypeError, match="`lox.save` takes"):
        lox.save([1], tmp_path)
    with pytest.raises(lox.LoxValueError, match=r"`mode` of `lox.save` is 'r'; it"):
        lox.save({"x": 1}, tmp_path, mode="r")
    with pytest.raises(lox.LoxTypeError, match="a run's `key` must be"):
        lox.save({"x": 1}, tmp_path, key="name")
    with pytest.raises(lox.StoreError, match="there is no store"):
        lox.load(tmp_path / "nothing")
    with pytest.raises(lox.LoxTypeError, match="`lox.save` got None .* for 'x'"):
        lox.save({"x": None}, tmp_path / "run")
    huge = np.broadcast_to(np.float32(0), (2**29,))
    with pytest.raises(lox.StoreError, match="a record of x has 2147483648 bytes"):
        lox.save({"x": huge}, tmp_path / "run")


def test_config_can_have_numbers_as_keys(tmp_path):
    config = {"lr": {10: 0.1, 9: 0.2}}
    create_run(tmp_path / "run", "x", config=config)
    (run,) = lox.runs(tmp_path)
    assert run.config == {"lr": {"10": 0.1, "9": 0.2}}


def test_load_returns_tags(tmp_path):
    def f(x):
        def body(carry, i):
            lox.log({"a": carry, "b": carry}, tags=("metric", "train"), step=i)
            lox.log({"c": carry}, step=i)
            return carry + x, None

        lox.log({"d": x}, tags="debug")
        return jax.lax.scan(body, x, jnp.arange(3))[0]

    _, logs = lox.spool(f)(1.0)
    lox.save(logs, tmp_path / "run")
    lox.save(logs.slice[:1], tmp_path / "run")
    found = lox.load(tmp_path / "run")
    assert found.tags == logs.tags
    assert found.tags == {
        "a": ("metric", "train"),
        "b": ("metric", "train"),
        "d": ("debug",),
    }
    # a key whose calls have different tags has them all
    lox.save(lox.log({"c": 9.0}, tags="late", step=9), tmp_path / "run")
    found = lox.load(tmp_path / "run")
    assert found.tags["c"] == ("late",) and found["c"].tolist() == [1, 2, 3, 1, 9]


def test_similar_layouts_are_distinguished(tmp_path):
    """Logs with equal axes take a fast path in the writer."""
    logs = lox.logdict({"a": np.arange(2)}, {"s": {"a": np.array([1, 2])}}, [*"a"])
    lox.save(logs, tmp_path / "run")
    lox.save(logs, tmp_path / "run")
    steps = {"t": {"a": np.array([5, 6])}, "s": logs.s}
    other = make_logdict(logs, metadata_of(logs)._replace(steps=steps))
    with pytest.raises(lox.LoxError):
        lox.save(other, tmp_path / "run")
        lox.load(tmp_path / "run")
    two = lox.logdict({"a": np.arange(2)}, {"s": logs.s, "t": logs.s}, [*"a"])
    lox.save(two, tmp_path / "two")
    steps = {"t": {"a": np.array([7, 8])}, "s": {"a": np.array([5, 6])}}
    turned = make_logdict(two, metadata_of(two)._replace(steps=steps))
    lox.save(turned, tmp_path / "two")
    found = lox.load(tmp_path / "two")
    assert found.s["a"].tolist() == [1, 2, 5, 6]
    assert found.t["a"].tolist() == [1, 2, 7, 8]


def test_load_of_unknown_names_warns(tmp_path):
    lox.save({"loss": 1.0, "acc": 2.0}, tmp_path / "run")
    with pytest.warns(lox.LoxWarning, match="'los'; available: 'loss', 'acc'"):
        assert lox.load(tmp_path / "run", ["los", "acc"]) == {"acc": 2.0}


@pytest.mark.parametrize("path", [3, None, {"": {}}, b"run", np.float16(1)])
def test_store_that_is_not_a_path_is_refused(path):
    for function in (lox.load, lox.runs):
        with pytest.raises(lox.LoxTypeError, match="is a path or a URL, not"):
            function(path)


@pytest.mark.parametrize("value", ["text", None, {"a": "text"}])
def test_saving_what_is_not_an_array_is_refused_and_creates_no_run(value, tmp_path):
    with pytest.raises(lox.LoxTypeError, match="`lox.save` got .* for 'x'.*config"):
        lox.save({"x": value}, tmp_path / "store", key=0)
    assert not (tmp_path / "store").exists()
