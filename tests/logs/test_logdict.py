"""`lox.logdict`: a dict with steps and a time axis."""

import copy
import importlib
import json
import pickle

import jax
import jax.custom_batching
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox


def run(x, n=3):
    lox.log({"once": x})

    def step(c, i):
        lox.log({"a": c + i, "t": {"v": jnp.ones(2) * i}}, step=i)
        return c, None

    lax.scan(step, x, jnp.arange(n))
    return x


def logs_of(x=1, **options):
    return lox.spool(run, **options)(x)[1]


def batched(xs=(1, 10)):
    return jax.vmap(lox.spool(run))(jnp.array(xs))[1]


def test_logdict_is_a_dict():
    logs = logs_of()
    assert isinstance(logs, dict) and {**logs} == logs.data
    assert logs == logs_of() and logs != logs_of(2) and logs == dict(logs)
    assert logs != {} and logs != 3
    assert list(logs) == ["once", "a", "t"] and "a" in logs


@pytest.mark.parametrize(
    "clone",
    [
        copy.copy,
        copy.deepcopy,
        lambda logs: logs.copy(),
        lambda logs: pickle.loads(pickle.dumps(logs)),
        lambda logs: jax.tree.map(lambda x: x, logs),
        lox.logdict,
    ],
    ids=["copy", "deepcopy", "method", "pickle", "tree", "constructor"],
)
def test_copies_keep_steps_and_axes(clone):
    for logs in (logs_of(), batched(), jax.tree.map(np.asarray, logs_of())):
        new = clone(logs)
        assert type(new) is lox.logdict and new == logs and new is not logs
        assert new.step["a"].tolist() == logs.step["a"].tolist()
        assert new.reduce("sum") == logs.reduce("sum")
        new["new"] = 1
        assert "new" not in logs


def test_logdict_is_a_pytree_with_key_names():
    logs = logs_of()
    paths = [
        jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(logs)
    ]
    assert "['a']" in paths and ".step['a']" in paths
    doubled = jax.jit(lambda logs: jax.tree.map(lambda x: x * 2, logs))(logs)
    assert doubled["a"].tolist() == [2, 4, 6] and doubled.step["a"].tolist() == [
        0,
        2,
        4,
    ]


def test_str_shows_values_and_shortens_long_arrays():
    assert str(logs_of()) == (
        "{'once': 1, 'a': [1, 2, 3], 't': {'v': [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]}}"
    )
    long = lox.logdict({"x": jnp.arange(100), "f": np.float32(0.1), "b": True})
    assert repr(long) == "{'x': [0, 1, 2, ..., 97, 98, 99], 'f': 0.1, 'b': True}"
    shown = []
    jax.jit(lambda x: shown.append(str(lox.logdict({"x": x}))))(jnp.ones(3))
    assert shown == ["{'x': float32[3]}"]


def test_steps_are_attributes():
    logs = logs_of()
    assert logs.step == {"a": logs.step["a"], "t": logs.step["t"]}
    assert set(logs.steps) == {"step"} and "step" in dir(logs)
    del logs["a"]
    assert set(logs.step) == {"t"}
    with pytest.raises(AttributeError, match="no step 'epoch'; its steps are 'step'"):
        _ = logs.epoch
    with pytest.raises(AttributeError, match="it has no steps"):
        _ = lox.logdict({"x": 1}).step
    with pytest.raises(lox.StepError, match="'rows'"):
        lox.logdict({"x": 1}, steps={"rows": {"x": 1}})


def test_assignment_keeps_steps_if_axes_match():
    logs = logs_of()
    logs["a"] = logs["a"] * 2
    assert logs.slice[-1]["a"] == 6 and logs.step["a"].tolist() == [0, 1, 2]
    logs["a"] = 5
    assert "a" not in logs.step and logs.slice[-1]["a"] == 5
    logs.update(z=jnp.ones(2))
    logs.setdefault("y", 1)
    assert logs.slice[0]["z"].shape == (2,) and len(jax.tree.leaves(logs)) == 6


# --- joining ---------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True])
def test_add_joins_logs_along_time(batch):
    def both(x):
        run(x)
        lox.log({"new": x})
        return run(x + 1, 2)

    def first(x):
        run(x)
        lox.log({"new": x})
        return x

    def parts(x):
        _, logs = lox.spool(first)(x)
        return logs + lox.spool(lambda x: run(x, 2))(x + 1)[1]

    def whole(x):
        return lox.spool(both)(x)[1]

    if batch:
        parts, whole = jax.vmap(parts), jax.vmap(whole)
    x = jnp.array([1, 10]) if batch else 1
    added, expected = parts(x), whole(x)
    assert added == expected and list(added) == list(expected)
    assert added.step["a"].tolist() == expected.step["a"].tolist()
    assert jax.tree.structure(added) == jax.tree.structure(expected)


def test_add_of_batched_logs_joins_along_time():
    logs = batched()
    twice = logs + logs
    assert twice["a"].shape == (2, 6) and twice["once"].shape == (2, 2)
    assert twice["t"]["v"].shape == (2, 6, 2)
    assert sum([logs, logs]) == twice
    assert ({"x": 1} + lox.logdict({"y": 2})) == {"x": 1, "y": 2}


def test_add_of_mismatched_logs_names_the_key():
    one = lox.logdict({"k": np.ones(2)}, stacked=True)
    with pytest.raises(lox.ShapeError, match="'k'"):
        _ = one + lox.logdict({"k": np.ones((2, 3))}, stacked=True)
    with pytest.raises(lox.DtypeError, match="'k': float64 and int64"):
        _ = one + lox.logdict({"k": np.ones(2, np.int64)}, stacked=True)
    with pytest.raises(lox.StepError, match="'k'"):
        _ = one + lox.logdict({"k": np.ones(1)}, {"step": {"k": np.ones(1)}}, True)
    with pytest.raises(TypeError):
        _ = one + 3


def test_or_prefers_keys_of_the_right_operand():
    logs = logs_of() | {"a": 5, "z": 1}
    assert logs["a"] == 5 and logs["z"] == 1 and set(logs.step) == {"t"}
    logs = {"a": 5} | logs_of()
    assert logs["a"].tolist() == [1, 2, 3] and logs.step["a"].tolist() == [0, 1, 2]
    logs |= {"a": 7}
    assert isinstance(logs, lox.logdict) and logs["a"] == 7 and "a" not in logs.step


# --- selecting -------------------------------------------------------------


def test_filter_and_prefix_select_and_rename_keys():
    logs = logs_of()
    assert set(logs.filter(lambda key: len(key) == 1)) == {"a", "t"}
    assert set(logs.filter("o*")) == {"once"} and set(logs.filter(["a", "t"])) == {
        "a",
        "t",
    }
    named = logs.prefix("run/")
    assert set(named) == {"run/once", "run/a", "run/t"}
    assert named.step["run/a"].tolist() == [0, 1, 2]


# --- over time -------------------------------------------------------------


@pytest.mark.parametrize("name", "mean sum min max std var first last count".split())
@pytest.mark.parametrize("host", [False, True])
def test_reduce_is_over_time_only(name, host):
    logs = logs_of()
    if host:
        logs = jax.tree.map(np.asarray, logs)
    got = logs.reduce(name)
    pick = {"first": lambda x, axis: x[0], "last": lambda x, axis: x[-1]}
    pick["count"] = lambda x, axis: np.int32(len(x))
    wanted = pick.get(name) or getattr(np, name)
    np.testing.assert_allclose(got["a"], wanted(np.asarray(logs["a"]), axis=0))
    if name != "count":
        values = np.asarray(logs["t"]["v"])
        np.testing.assert_allclose(got["t"]["v"], wanted(values, axis=0), rtol=1e-6)
    assert got.step["a"] == (0 if name == "first" else 2)
    if name in ("mean", "std", "var"):
        assert jnp.issubdtype(got["a"].dtype, jnp.floating)
    lanes = batched().reduce(name)
    assert lanes["a"].shape == (2,)
    for lane, x in zip(lanes.lanes(), (1, 10), strict=True):
        assert lane == lox.spool(run)(x)[1].reduce(name)


def test_reduce_by_key_can_append():
    logs = logs_of().reduce({"a": "sum", "o*": "append"})
    assert logs["a"] == 6 and logs["t"]["v"].shape == (3, 2)
    assert logs["once"].tolist() == [1]
    assert logs_of().reduce("replace")["a"] == 3
    with pytest.warns(lox.LoxWarning, match="'los', but these logs have 'once', 'a'"):
        logs_of().reduce({"los": "max"})
    with pytest.raises(lox.LoxValueError, match="'avg'; it must be mean"):
        logs_of().reduce("avg")


def test_slice_selects_rows_by_position():
    logs = logs_of()
    assert logs.slice[1:]["a"].tolist() == [2, 3]
    assert logs.slice[::2].step["a"].tolist() == [0, 2]
    assert logs.slice[-1]["a"] == 3 and logs.slice[-1]["t"]["v"].shape == (2,)
    assert logs.slice[1:]["once"] == 1
    assert batched().slice[1:]["a"].tolist() == [[2, 3], [11, 12]]
    assert batched().slice[1]["a"].tolist() == [2, 11]
    with pytest.raises(lox.LoxTypeError, match="an integer or a slice"):
        logs.slice[1, 2]


def test_rows_yields_logdicts_of_one_row():
    rows = list(logs_of().rows())
    assert [dict(r) for r in rows[:1]] == [{"once": 1}]
    assert [int(r["a"]) for r in rows[1:]] == [1, 2, 3]
    assert [int(r.step["a"]) for r in rows[1:]] == [0, 1, 2]
    assert [r["t"]["v"].shape for r in rows[1:]] == [(2,)] * 3
    assert len(rows) == 4


def test_lanes_returns_logs_of_each_lane():
    alone = [lox.spool(run)(x)[1] for x in (1, 10)]
    assert batched().lanes() == alone
    inside = lox.spool(jax.vmap(run))(jnp.array([1, 10]))[1]
    assert inside.lanes() == alone
    assert logs_of().lanes() == [logs_of()]
    deep = jax.vmap(jax.vmap(lox.spool(run)))(jnp.array([[1], [10]]))[1]
    assert [lane.lanes()[0] for lane in deep.lanes()] == alone
    mixed = jax.vmap(lox.spool(jax.vmap(run)))(jnp.array([[1, 2, 3], [10, 20, 30]]))[1]
    assert mixed["a"].shape == (2, 3, 3)
    assert [lane.lanes()[0] for lane in mixed.lanes()] == alone
    assert mixed.reduce("sum")["a"].shape == (2, 3)


def test_ragged_lanes_keep_mask_until_split():
    def f(n):
        def step(c, i):
            def log(i):
                lox.log({"i": i}, step=i)
                return i

            lax.cond(i < n, log, lambda i: i, i)
            return c, None

        return lax.scan(step, 0, jnp.arange(4))[0]

    _, logs = jax.vmap(lox.spool(f))(jnp.array([1, 3]))
    assert logs.mask["i"].tolist() == [[1, 0, 0, 0], [1, 1, 1, 0]]
    short = logs.compact()
    assert short["i"].shape == (2, 3) and short.step["i"].shape == (2, 3)
    assert str(short) == "{'i': [[0, -, -], [0, 1, 2]]}"
    assert [lane["i"].tolist() for lane in logs.lanes()] == [[0], [0, 1, 2]]
    assert logs.reduce("sum")["i"].tolist() == [0, 3]
    assert logs.reduce("count")["i"].tolist() == [1, 3]
    assert logs.reduce("max")["i"].tolist() == [0, 2]
    assert logs.reduce("last").step["i"].tolist() == [0, 2]
    assert logs.reduce("mean")["i"].tolist() == [0, 1]
    with pytest.raises(lox.LoxTypeError, match="outside `jax.jit`"):
        jax.jit(lambda logs: logs.compact())(logs)


# --- pandas, xarray, plots, HTML -------------------------------------------


def test_to_pandas_has_one_row_per_step():
    frame = logs_of().filter(["a"]).to_pandas()
    assert list(frame.columns) == ["step", "a"] and frame["a"].tolist() == [1, 2, 3]
    frame = batched().filter(["a", "once"]).to_pandas()
    assert len(frame) == 6 and frame["a"].tolist() == [1, 2, 3, 10, 11, 12]
    assert lox.logdict().to_pandas().empty
    whole = logs_of().to_pandas()
    assert len(whole) == 3 and whole["t['v']"][1].tolist() == [1, 1]
    assert whole["once"].tolist() == [1, 1, 1]


def test_to_pandas_joins_by_step_and_keeps_other_steps_separate():
    def f(x):
        def step(c, i):
            lox.log({"loss": i * 10.0}, step=i)
            lax.cond(i % 2 == 1, lambda: lox.log({"eval": i}, step=i) and None, nothing)
            lox.log({"other": i}, epoch=i)
            lox.log({"bare": i})
            return c, None

        return lax.scan(step, x, jnp.arange(4))[0]

    frame = lox.spool(f)(1)[1].to_pandas()
    steps = frame[frame["step"].notna()]
    assert steps["loss"].tolist() == [0, 10, 20, 30]
    assert steps["eval"].tolist()[1::2] == [1, 3] and steps["eval"].isna().sum() == 2
    assert steps[["other", "bare"]].isna().all().all()
    assert frame["epoch"].dropna().tolist() == [0, 1, 2, 3] and len(frame) == 12
    named = lox.logdict({"step": np.ones(2)}, {"step": {"step": np.arange(2)}}, True)
    assert list(named.to_pandas().columns) == ["step", "step.value"]


def nothing():
    return None


def test_to_xarray_has_dimensions_and_steps():
    data = batched().to_xarray()
    assert data["a"].dims == ("lane_0", "time") and data["a.step"].shape == (2, 3)
    assert data["t['v']"].shape == (2, 3, 2) and data["once"].dims == ("lane_0",)


def test_plot_draws_one_line_per_lane(tmp_path):
    figure = batched().plot("a")
    (axes,) = figure.axes
    assert len(axes.lines) == 2 and axes.get_xlabel() == "step"
    assert axes.lines[1].get_ydata().tolist() == [10, 11, 12]
    figure.savefig(tmp_path / "figure.png")
    with pytest.raises(lox.LoxValueError, match="cannot draw 'los'.*'once', 'a'"):
        logs_of().plot("los")
    with pytest.raises(lox.LoxValueError, match="'a' has no step 'stp'.*'step'"):
        logs_of().plot("a", x="stp")
    with pytest.raises(lox.LoxValueError, match="cannot draw these logs"):
        lox.logdict({"x": 1}).plot()


def test_missing_library_error_says_what_to_install(monkeypatch):
    import sys

    for module, extra, use in (
        ("pandas", "pandas", lox.logdict.to_pandas),
        ("xarray", "xarray", lox.logdict.to_xarray),
        ("matplotlib.figure", "plot", lox.logdict.plot),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=rf"pip install 'jax-lox\[{extra}\]'"):
            use(logs_of())


def test_html_has_one_row_per_key_and_escapes():
    html = lox.logdict({"<b>": np.arange(5.0)}, stacked=True)._repr_html_()
    assert "&lt;b&gt;" in html and "<polyline" in html and "<b>" not in html
    nan = lox.logdict({"n": np.array([np.nan, np.inf])}, stacked=True)._repr_html_()
    assert "polyline" not in nan
    values = np.zeros(1000)
    values[501] = 9
    spike = lox.logdict({"s": np.append(values, np.nan)}, stacked=True)._repr_html_()
    assert "0 to 9 (1 not finite)" in spike and ",2.0" in spike


# --- tags ------------------------------------------------------------------


def tagged(x):
    def body(carry, i):
        lox.log({"a": carry, "b": carry}, tags=("metric", "train"), step=i)
        return carry, None

    lox.log({"d": x})
    jax.lax.cond(x > 0, lambda: lox.log({"d": x}, tags="debug") and None, lambda: None)
    return jax.lax.scan(body, x, jnp.arange(3))[0]


TAGS = {"d": ("debug",), "a": ("metric", "train"), "b": ("metric", "train")}


@pytest.mark.parametrize("reduce", [None, "mean"])
def test_tags_survive_all_operations(reduce):
    spooled = lox.spool(tagged, reduce=reduce)
    for logs in (
        spooled(1.0)[1],
        jax.jit(spooled)(1.0)[1],
        jax.vmap(spooled)(jnp.ones(2))[1],
        jax.vmap(spooled)(jnp.ones(2))[1].lanes()[0],
    ):
        assert logs.tags == TAGS
        for other in (
            pickle.loads(pickle.dumps(logs)),
            jax.tree.map(lambda x: x, logs),
            logs.compact(),
            logs.reduce("last"),
            logs | {},
            logs + logs,
        ):
            assert other.tags == TAGS
    joined = lox.log({"a": 1}, tags="one") + lox.log({"a": 2}, tags=("two", "one"))
    assert joined.tags == {"a": ("one", "two")}
    assert joined == lox.logdict({"a": jnp.array([1, 2])}, stacked=True)


@pytest.mark.parametrize("options", [{}, {"buffer": 2}, {"reduce": "sum"}], ids=str)
def test_callback_gets_tags(options):
    seen = []
    lox.tap(tagged, seen.append, **options)(1.0)
    found = {}
    for logs in seen:
        found |= logs.tags
    assert found == TAGS


# --- missing keys and attributes -------------------------------------------


def test_filter_accepts_function_of_key_and_value():
    logs = lox.logdict({"a": 1.0, "b": 0.5}, {"step": {"a": 3, "b": 4}})
    small = logs.filter(lambda key, value: value < 1)
    assert small == {"b": 0.5} and small.step == {"b": 4}
    assert logs.filter(lambda key: key == "a") == {"a": 1.0}
    assert logs.filter(lambda key, value=None: value is None) == logs
    assert logs.filter(lambda *names: len(names) == 1) == logs
    assert logs.filter(str.isalpha) == logs

    class Chosen:
        def holds(self, key, value):
            return key == "b" and value == 0.5

    assert logs.filter(Chosen().holds) == {"b": 0.5}


def test_missing_key_error_lists_keys():
    logs = lox.logdict({"loss": 1.0, "acc": 0.5}, {"step": {"loss": 3}})
    with pytest.raises(KeyError, match="no 'x'; they have 'loss', 'acc'") as caught:
        logs["x"]
    assert isinstance(caught.value, lox.LoxError)
    with pytest.raises(lox.LoxKeyError, match=r"`logs.step`"):
        logs["step"]
    with pytest.raises(KeyError, match="nothing"):
        lox.logdict()["x"]
    many = lox.logdict({f"k{i}": i for i in range(100)})
    with pytest.raises(KeyError, match="'k19', and 80 more"):
        many["x"]
    assert logs.get("x") is None and "x" not in logs and logs.pop("x", 7) == 7


def test_missing_attribute_error_lists_attributes():
    logs = lox.logdict({"loss": 1.0}, {"episode": {"loss": 3}})
    with pytest.raises(AttributeError, match="'to_polars'.*episode.*to_pandas"):
        logs.to_polars()
    with pytest.raises(AttributeError, match=r"logs\['loss'\]"):
        _ = logs.loss
    assert not hasattr(logs, "__array__") and not hasattr(logs, "step")


# --- export ----------------------------------------------------------------


def exported(fun, *args):
    first = jax.export.export(jax.jit(fun))(*args)
    return jax.export.deserialize(first.serialize()).call(*args)


def test_exported_program_returns_same_logs_after_serialization():
    def f(x):
        lox.log({"x": x, "tree": {"a": x, "b": (x, [x])}}, step=3, tags="metric")

        def body(c, i):
            jax.lax.cond(
                c > 1, lambda: lox.log({"c": c}, episode=i) and None, lambda: None
            )
            return c + i, None

        return jax.lax.scan(body, x, jnp.arange(3.0))[0]

    x, xs = jnp.float32(1), jnp.array([0.0, 1.0])
    for fun, arg in (
        (lox.spool(f), x),
        (lox.spool(f, reduce={"c": "mean"}), x),
        (jax.vmap(lox.spool(f)), xs),
        (lox.spool(jax.vmap(f)), xs),
    ):
        (_, logs), (_, wanted) = exported(fun, arg), jax.jit(fun)(arg)
        assert type(logs) is lox.logdict
        assert jax.tree.structure(logs) == jax.tree.structure(wanted)
        assert logs == wanted and logs.tags == wanted.tags
        assert logs.compact() == wanted.compact()


def test_exported_program_returns_rows_of_loops_without_static_length():
    def f(n):
        def body(i):
            lox.log({"i": i, "double": 2 * i}, step=i)
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    fun = lox.spool(f, capacity=3)
    (_, logs), (_, wanted) = exported(fun, 2), jax.jit(fun)(2)
    assert jax.tree.structure(logs) == jax.tree.structure(wanted)
    assert logs.compact() == wanted.compact()
    assert logs.compact()["double"].tolist() == [0, 2]


def test_layouts_that_older_versions_exported_are_read():
    pytree = importlib.import_module("lox._logs.pytree")
    infos = [[True, 0, [0], [], None], [True, 0, [0], [], None]]
    parts = [["a", "b"], [], ["a", "b"], infos, ["b"]]
    values = [jnp.arange(3), jnp.arange(3)]
    mask, count, dropped = jnp.array([True, False, True]), jnp.int32(2), jnp.int32(1)
    for counted, second in ((None, mask), (["b"], count)):
        data = parts if counted is None else [*parts, counted]
        layout = pytree._deserialize_layout(json.dumps(data).encode())
        logs = pytree._unflatten(layout, [*values, mask, second, dropped])
        assert jax.tree.map(lambda x: x, logs) == logs
        assert jax.tree.structure(logs) == jax.tree.structure(
            jax.tree.map(jnp.copy, logs)
        )
        assert logs.dropped == {"b": 1}
        with pytest.warns(lox.LoxWarning, match="1 row of 'b'"):
            compact = logs.compact()
        assert compact["a"].tolist() == [0, 2]
        assert compact["b"].tolist() == ([0, 2] if counted is None else [0, 1])


def test_to_pandas_keeps_integers_where_rows_are_missing():
    large = 2**60 + 1
    logs = lox.logdict(
        {"a": np.array([large, 5]), "b": np.array([1.5])},
        {"step": {"a": np.array([large, 1])}, "episode": {"b": np.array([7])}},
        stacked=True,
    )
    table = logs.to_pandas()
    assert table["a"].tolist()[:2] == [large, 5] and table["a"].isna()[2]
    assert table["step"].tolist()[:2] == [large, 1] and table["b"][2] == 1.5


@pytest.mark.parametrize(
    "dtype",
    "bfloat16 float16 float8_e4m3fn float8_e5m2 float8_e8m0fnu int4 uint4 int2".split(),
)
def test_to_pandas_converts_dtypes_that_pandas_lacks(dtype):
    def program(n):
        def body(carry, i):
            x = jnp.ones((), dtype)
            lox.log({"x": x, "y": x, "v": jnp.ones(2, dtype)}, step=i, when=i < n)
            lox.log({"other": i}, epoch=i)
            return carry, None

        return lax.scan(body, 0, jnp.arange(3))[0]

    frame = jax.vmap(lox.spool(program))(jnp.array([3, 1]))[1].to_pandas()
    rows = frame[frame["x"].notna()]
    assert rows["step"].tolist() == [0, 1, 2, 0] and len(frame) == 4 + 2 * 3
    assert rows["x"].tolist() == rows["y"].tolist() == [1, 1, 1, 1]
    assert [x.tolist() for x in rows["v"]] == [[1, 1]] * 4
    assert all(x.dtype.isbuiltin == 1 for x in rows["v"])
    kind = frame.filter(["x"]).dropna().convert_dtypes()["x"].dtype.kind
    assert kind in "iuf"


# --- rows that did not happen ----------------------------------------------


def steps(x):
    def body(c, t):
        lox.log({"x": c + t}, step=t)
        return c, None

    return lax.scan(body, x, jnp.arange(4.0))[0]


def test_reduce_count_keeps_lanes():
    _, logs = lox.spool(jax.vmap(steps), reduce="count")(jnp.arange(3.0))
    assert logs["x"].tolist() == [4, 4, 4]
    assert [lane["x"].item() for lane in logs.lanes()] == [4, 4, 4]


def test_log_of_logdict_leaves_out_masked_rows():
    def f(x):
        lax.cond(x > 5, lambda: lox.log({"k": x + 100}) and None, lambda: None)
        lox.log({"s": x}, step=x)
        return x

    def g(x):
        y, logs = lox.spool(f)(x)
        lox.log(logs)
        return y

    logs = lox.spool(g)(1.0)[1]
    assert logs == {"s": 1.0} and logs.step["s"] == 1
    assert lox.spool(g)(6.0)[1] == {"k": 106.0, "s": 6.0}

    def stacked(xs):
        def body(c, x):
            return c, f(x)

        _, logs = lox.spool(lambda xs: lax.scan(body, 0, xs))(xs)
        lox.log(logs)

    with pytest.raises(lox.LoxTypeError, match="'k'.*reduce"):
        lox.spool(stacked)(jnp.arange(3.0))


def test_log_of_logdict_never_loses_steps():
    def rows(xs):
        lax.map(lambda x: lox.log({"x": x}, step=x) and None, xs)

    def again(xs, of=lambda logs: logs, **steps):
        logs = lox.spool(rows)(xs)[1]
        lox.log(of(logs), **steps)

    xs = jnp.arange(3)
    with pytest.raises(lox.LoxTypeError, match="'x' again.* own 'step'.*reduce"):
        lox.spool(again)(xs)
    with pytest.raises(lox.LoxTypeError, match="own 'step'"):
        lox.spool(lambda xs: again(xs, epoch=1))(xs)
    last = lox.spool(lambda xs: again(xs, lambda logs: logs.reduce("last")))(xs)[1]
    assert last == {"x": 2} and last.step["x"] == 2
    values = lox.spool(lambda xs: again(xs, lambda logs: logs.data))(xs)[1]
    assert values["x"].tolist() == [0, 1, 2] and not values.steps
    given = lox.spool(lambda xs: again(xs, step=9))(xs)[1]
    assert given["x"].tolist() == [0, 1, 2] and given.step["x"] == 9


def even_steps(x):
    def body(c, t):
        lax.cond(t % 2 == 0, lambda: lox.log({"e": t}) and None, lambda: None)
        return c, None

    return lax.scan(body, x, jnp.arange(4.0))[0]


def test_slice_counts_rows_that_happened():
    _, logs = jax.jit(lox.spool(even_steps))(1.0)
    assert logs.slice[-1] == {"e": 2.0} and logs.slice[:2]["e"].tolist() == [0, 2]
    with pytest.raises(lox.LoxTypeError, match="outside `jax.jit`"):
        jax.jit(lambda logs: logs.slice[-1])(logs)

    def ragged(n):
        lax.fori_loop(
            0,
            3,
            lambda i, c: (
                lax.cond(i < n, lambda: lox.log({"i": i}) and None, lambda: None) or c
            ),
            0,
        )

    _, logs = jax.vmap(lox.spool(ragged))(jnp.array([1, 3]))
    with pytest.raises(lox.LoxValueError, match="'i'.*`logs.lanes"):
        _ = logs.slice[-1]


def test_removed_axis_is_reported():
    _, logs = lox.spool(steps)(1.0)
    last = jax.tree.map(lambda a: a[-1], logs)
    with pytest.raises(lox.LoxValueError, match=r"`logs.slice\[-1\]`"):
        last.reduce("mean")
    logs.update(x=5.0)
    assert "x" not in logs.steps.get("step", {})
    _, logs = lox.spool(steps)(1.0)
    assert logs.pop("x").shape == (4,)
    logs.setdefault("x", 1.0)
    assert logs.reduce("mean") == {"x": 1.0} and not logs.steps.get("step")
    _, logs = lox.spool(steps)(1.0)
    logs.popitem()
    logs["x"] = jnp.ones(4)
    assert logs.slice[0]["x"].shape == (4,)
    logs.clear()
    assert logs == {} and jax.tree.leaves(logs) == []


def test_reduce_of_loop_that_never_ran_has_no_keys():
    def f(x):
        def body(c, t):
            lox.log({"x": t}, step=t)
            return c, None

        return lax.scan(body, x, jnp.arange(0.0))[0]

    for name in ("sum", "last", "min"):
        logs = lox.spool(f, reduce=name)(1.0)[1]
        assert logs == {}  # as for a `while_loop` that never ran


def test_mean_of_no_rows_does_not_divide_by_zero():
    def f(x):
        lax.cond(x > 5, lambda: lox.log({"k": x}) and None, lambda: None)
        return x

    with jax.debug_nans(True):
        for name in ("mean", "std", "var"):
            assert lox.spool(f, reduce=name)(1.0)[1] == {}
            assert set(lox.spool(f, reduce=name)(6.0)[1]) == {"k"}


def test_explicit_events_are_not_printed(capsys):
    lox.log({"x": 1}, explicit=True)
    jax.jit(lambda x: lox.log({"x": x}, explicit=True))(1)
    jax.effects_barrier()
    assert capsys.readouterr().out == ""


def set_existing(logs):
    logs["a"] = logs["a"] + 1


def set_other_shape(logs):
    logs["a"] = np.float32(0)


def set_again_at_the_end(logs):
    logs["a"] = logs.pop("a")


def join_another_key(logs):
    logs |= {"c": np.float32(0)}


def log_two_keys(xs):
    def step(carry, x):
        lox.log({"a": x, "b": carry})
        return carry + x, None

    return lax.scan(step, 0, xs)[0]


def log_two_keys_with_a_step(xs):
    def step(carry, x):
        lox.log({"a": x, "b": carry}, step=x)
        return carry + x, None

    return lax.scan(step, 0, xs)[0]


@pytest.mark.parametrize("fun", [log_two_keys, log_two_keys_with_a_step])
@pytest.mark.parametrize(
    "change",
    [
        set_existing,
        set_other_shape,
        set_again_at_the_end,
        join_another_key,
        lambda logs: logs.update(c=np.arange(3)),
        lambda logs: logs.pop("b"),
        lambda logs: logs.clear(),
    ],
)
def test_structure_is_that_of_the_changed_logs(change, fun):
    logs = lox.spool(fun)(jnp.arange(3))[1]
    change(logs)
    unrelated = pickle.loads(pickle.dumps(logs))  # it keeps nothing of the structure
    leaves, structure = jax.tree.flatten(logs)
    expected, expected_structure = jax.tree.flatten(unrelated)
    assert structure == expected_structure
    jax.tree.map(np.testing.assert_array_equal, leaves, expected)
    assert jax.tree.unflatten(structure, leaves) == logs


@pytest.mark.parametrize("steps", [b"step", [1], {"step": 3}, {"step": [3]}])
def test_steps_that_are_not_dicts_are_refused(steps):
    with pytest.raises(lox.LoxTypeError, match="of a `logdict` (are|is) a dict"):
        lox.logdict({"x": 1.0}, steps)


def test_assigned_rows_of_another_length_have_no_steps():
    def f(x):
        def body(c, i):
            lox.log({"c": c, "other": c}, step=i)
            return c + 1, None

        return lax.scan(body, x, jnp.arange(3))[0]

    logs = lox.spool(f)(0)[1]
    logs["c"] = logs["c"] * 2  # the same rows with other values
    assert logs.step["c"].tolist() == [0, 1, 2]
    logs["c"] = jnp.arange(5)
    assert "c" not in logs.step and "other" in logs.step
    assert [row["c"].item() for row in logs.filter("c").rows()] == [0, 1, 2, 3, 4]
    assert (logs + logs)["c"].shape == (10,) and logs.reduce("last")["c"] == 4
    assert logs.slice[1:3]["c"].tolist() == [1, 2]
