"""`lox.spool`: shapes, selection, nesting, options and caching."""

import functools
import gc
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox


def train(xs):
    lox.log({"start": xs.sum()}, tags=["setup"])

    def step(c, x):
        c = c + x
        lox.log({"loss": c, "aux": {"x": x}}, step=x, tags="metric")
        lox.log({"grad": c * 2}, tags=["debug", "slow"], explicit=True)
        return c, None

    return lax.scan(step, 0.0, xs)[0]


XS = jnp.arange(4.0)


def keys(**options):
    return set(lox.spool(train, **options)(XS)[1])


# --- shapes ------------------------------------------------------------------


def test_a_key_logged_once_keeps_its_shape_and_others_get_a_time_axis():
    def f(xs):
        lox.log({"once": 1.0, "v": jnp.ones(2)})
        lox.log({"twice": 1.0})
        lox.log({"twice": 2.0})
        lax.scan(lambda c, x: (c, lox.log({"loop": x})["loop"]), 0, xs)
        lox.log({"loop": 9})
        lax.scan(lambda c, x: (c, lox.log({"one": x})["one"]), 0, xs[:1])
        return xs

    _, logs = lox.spool(f)(jnp.arange(3))
    assert {key: logs[key].shape for key in logs} == {
        "once": (),
        "v": (2,),
        "twice": (2,),
        "loop": (4,),
        "one": (1,),
    }
    assert logs["loop"].tolist() == [0, 1, 2, 9]
    assert list(logs) == ["once", "v", "twice", "loop", "one"]


def test_steps_have_the_time_axis_of_their_key():
    _, logs = lox.spool(train)(XS)
    assert logs.step["loss"].tolist() == [0, 1, 2, 3]
    assert logs.step["loss"].shape == logs["loss"].shape
    assert "start" not in logs.step
    with pytest.raises(AttributeError, match=r"no step 'epoch'; it has the steps step"):
        _ = logs.epoch


def test_the_result_and_any_pytree_pass_through():
    def f(a, *, b, name, fun=None):
        lox.log({"a": a["x"]})
        return {"y": a["x"] * b, "name": name, "none": None, "fun": fun}

    out, logs = lox.spool(f)({"x": 2}, b=3, name="run", fun=len)
    assert out == {"y": 6, "name": "run", "none": None, "fun": len}
    assert logs == {"a": 2}
    assert lox.tap(f, lambda logs: None)({"x": 2}, b=3, name="r")["y"] == 6
    assert lox.nolog(f)({"x": 2}, b=3, name="r")["name"] == "r"


# --- selection ---------------------------------------------------------------


def test_argnames_are_names_or_patterns():
    assert keys() == {"start", "loss", "aux"}
    assert keys(argnames="loss") == {"loss"}
    assert keys(argnames=["loss", "start"]) == {"loss", "start"}
    assert keys(argnames="*a*") == {"start", "aux", "grad"}
    assert keys(argnames="grad") == {"grad"}
    with pytest.warns(lox.LoxWarning):
        assert keys(argnames="los") == set()


def test_tags_are_strict_and_explicit_events_must_be_asked_for():
    assert keys(tags="metric") == {"loss", "aux"}
    assert keys(tags=["slow", "setup"]) == {"grad", "start"}
    assert keys(tags="debug", argnames="loss") == set()
    with pytest.warns(lox.LoxWarning, match="`tags` .*'metrc'.*there are 'setup'"):
        assert keys(tags=["metrc"]) == set()


def test_names_that_match_nothing_are_reported_at_the_users_line():
    with pytest.warns(
        lox.LoxWarning, match=r"'lss'.*there are 'start', 'loss'"
    ) as seen:
        lox.spool(train, argnames=["lss", "loss"])(XS)
    assert seen[0].filename == __file__
    with pytest.warns(lox.LoxWarning, match="`reduce` of `lox.spool` has 'lss'"):
        lox.spool(train, reduce={"lss": "mean"})(XS)


def test_prefixes_are_kept_inside_a_scan():
    def f(xs):
        def step(c, x):
            lox.log({"x": x}, prefix="in/")
            return c, None

        return lax.scan(step, 0, xs)[0]

    _, logs = lox.spool(f, prefix="out/")(XS)
    assert list(logs) == ["out/in/x"]
    calls = []
    lox.tap(f, calls.append, prefix="t/")(XS)
    assert [list(c) for c in calls] == [["t/in/x"]] * 4
    assert list(lox.spool(f, argnames="in/x")(XS)[1]) == ["in/x"]


# --- nesting -----------------------------------------------------------------


def test_a_transformation_consumes_what_it_selects():
    def outer(xs):
        return lox.spool(train, tags="metric")(xs)[0]

    assert set(lox.spool(outer)(XS)[1]) == {"start"}
    assert set(lox.spool(outer, argnames="grad")(XS)[1]) == {"grad"}

    def keeping(xs):
        return lox.spool(train, tags="metric", keep_logs=True)(xs)[0]

    assert set(lox.spool(keeping)(XS)[1]) == {"start", "loss", "aux"}


def test_spooling_twice_gives_nothing_the_second_time():
    def f(x):
        lox.log({"x": x})
        return x + 1.0

    def j(x):
        return lox.spool(f)(x)[0]

    assert lox.spool(j)(1.0) == (2.0, {})


def test_what_has_passed_through_a_transformation_does_not_print(capsys):
    lox.spool(train, tags="metric")(XS)
    jax.jit(lox.spool(train, tags="metric"))(XS)
    lox.spool(train, tags="metric", keep_logs=True)(XS)
    jax.jit(lox.spool(train, keep_logs=True))(XS)
    lox.tap(train, lambda logs: None, tags="metric")(XS)
    jax.jit(lox.tap(train, lambda logs: None, argnames="start"))(XS)
    jax.effects_barrier()
    assert capsys.readouterr().out == ""


def test_tap_and_spool_nest_either_way():
    calls = []

    def tapped(xs):
        return lox.tap(train, calls.append, argnames="loss")(xs)

    _, logs = lox.spool(tapped)(XS)
    assert set(logs) == {"start", "aux"}
    jax.effects_barrier()
    assert [c["loss"] for c in calls] == [0, 1, 3, 6]
    calls.clear()
    lox.tap(lambda xs: lox.spool(train, argnames="loss")(xs)[0], calls.append)(XS)
    assert [set(c) for c in calls] == [{"start"}] + [{"aux"}] * 4


# --- options -----------------------------------------------------------------


def test_reduce_for_all_keys_for_some_and_at_the_call():
    _, logs = lox.spool(train, reduce="mean")(XS)
    assert logs["loss"] == 2.5 and logs["aux"]["x"] == 1.5 and logs["start"] == 6
    assert logs.step["loss"] == 3
    _, logs = lox.spool(train, reduce={"loss": "max"})(XS)
    assert logs["loss"] == 6 and logs["aux"]["x"].shape == (4,)

    def f(xs):
        def step(c, x):
            lox.log({"a": x, "b": x}, reduce={"a": "sum"})
            lox.log({"c": x}, reduce="first")
            return c, None

        return lax.scan(step, 0, xs)[0]

    _, logs = lox.spool(f)(XS)
    assert (logs["a"], logs["b"].shape, logs["c"]) == (6, (4,), 0)
    assert lox.spool(f, reduce="last")(XS)[1]["a"] == 3


def test_interval_keeps_every_kth_event_of_a_key():
    def f(n):
        lox.log({"x": -1})
        return lax.fori_loop(0, 5, lambda i, x: lox.log({"x": i}, step=i)["x"], n)

    def g(n):
        lox.log({"x": -1}, step=-1)
        return lax.fori_loop(0, 5, lambda i, x: lox.log({"x": i}, step=i)["x"], n)

    _, logs = lox.spool(g, interval=2)(0)
    assert logs["x"].tolist() == [-1, 1, 3] and logs.step["x"].tolist() == [-1, 1, 3]
    with pytest.raises(lox.StepError):
        lox.spool(f, interval=2)(0)


def test_interval_counts_only_rows_that_happened():
    def f(xs):
        def step(c, x):
            def log(x):
                lox.log({"x": x})
                return x

            return c, lax.cond(x % 2 == 0, log, lambda x: x, x)

        return lax.scan(step, 0, xs)[0]

    assert lox.spool(f, interval=2)(jnp.arange(10))[1]["x"].tolist() == [0, 4, 8]
    calls = []
    lox.tap(f, calls.append, interval=2)(jnp.arange(10))
    assert [int(c["x"]) for c in calls] == [0, 4, 8]


@pytest.mark.parametrize("transform", [lox.spool, lox.tap])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"interval": 0}, ValueError, "`interval` .*at least 1, not 0"),
        ({"interval": -3}, ValueError, "`interval` .*at least 1, not -3"),
        ({"interval": 1.5}, TypeError, "`interval` .*whole number, not 1.5"),
        ({"argnames": 3}, TypeError, "`argnames` must be a string"),
        ({"tags": [3]}, TypeError, "`tags` must be a string"),
        ({"prefix": 3}, TypeError, "`prefix` .*must be a string"),
    ],
)
def test_bad_options_are_refused_at_once(transform, options, error, message):
    with pytest.raises(lox.LoxError, match=message) as caught:
        transform(train, **options)
    assert isinstance(caught.value, error)


def test_an_unknown_reduction_lists_the_known_ones():
    with pytest.raises(lox.LoxValueError, match="'median'; there are mean"):
        lox.spool(train, reduce="median")
    with pytest.raises(lox.LoxValueError, match="'median'"):
        lox.spool(train, reduce={"loss": "median"})


@pytest.mark.parametrize("transform", [lox.spool, lox.tap, lox.nolog])
def test_what_is_not_callable_is_refused(transform):
    with pytest.raises(lox.LoxTypeError, match=r"got 3\.0 .*not the result of calling"):
        transform(3.0)


def test_decorators_with_and_without_options():
    @lox.spool
    def f(x):
        lox.log({"x": x})
        return x

    @lox.spool(prefix="p/")
    def g(x):
        lox.log({"x": x})
        return x

    @lox.tap(callback=lambda logs: None)
    def h(x):
        """The docstring."""
        lox.log({"x": x})
        return x

    @lox.nolog(static_argnames="n")
    def quiet(x, n=1):
        for _ in range(n):
            lox.log({"x": x})
        return x

    assert quiet(1, n=2) == 1
    assert repr(f).startswith("<lox.spool of <function ")
    assert f(1)[1] == {"x": 1} and g(1)[1] == {"p/x": 1} and h(1) == 1
    assert (f.__name__, h.__name__, h.__doc__) == ("f", "h", "The docstring.")


def test_errors_name_the_users_own_function_and_argument():
    def f(x, steps):
        return x + sum(range(steps))

    with pytest.raises(TypeError, match=r"steps") as caught:
        lox.spool(f)(1.0, 3)
    assert "test_spool.py" in str(caught.value)
    inner = jax.jit(f, static_argnums=1)
    # JAX 0.9 lets a traced value be static, and fails where it is used
    with pytest.raises(TypeError, match="f has static arguments.*_argnums|steps"):
        lox.spool(inner)(1.0, 3)
    assert lox.spool(inner, static_argnums=1)(1.0, 3)[0] == 4


# --- caching -----------------------------------------------------------------


class Counter:
    """A function that counts how often it is traced."""

    def __init__(self):
        self.traces = 0

        def f(x):
            self.traces += 1
            lox.log({"x": x})
            return x * 2

        self.f = f


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: lox.spool(f)(x),
        lambda f, x: lox.tap(f, lambda logs: None)(x),
        lambda f, x: lox.tap(f, print)(x),
        lambda f, x: lox.nolog(f)(x),
        lambda f, x: jax.vmap(lox.spool(f))(jnp.ones(2) * x),
        lambda f, x: jax.vmap(lox.tap(f, print))(jnp.ones(2) * x),
    ],
)
def test_the_second_call_neither_traces_nor_compiles(call):
    counter = Counter()
    call(counter.f, 1.0)
    with jax.log_compiles(False), count_compilations() as compiled:
        for i in range(5):
            call(counter.f, float(i))
    assert counter.traces == 1
    assert not compiled


class count_compilations:
    def __enter__(self):
        self.names = []
        jax.monitoring.register_event_duration_secs_listener(self.listen)
        self.on = True
        return self.names

    def listen(self, name, seconds, **kwargs):
        if self.on and "backend_compile" in name:
            self.names.append(name)

    def __exit__(self, *exc):
        self.on = False


def test_kept_methods_partials_and_callable_objects_are_remembered():
    class Model:
        traces = 0

        def step(self, x):
            self.traces += 1
            lox.log({"x": x})
            return x

        __call__ = step

    model = Model()
    step = model.step
    for _ in range(3):
        assert lox.spool(step)(1.0)[1] == {"x": 1.0}
    assert model.traces == 1
    for _ in range(3):
        assert lox.spool(model)(1.0)[1] == {"x": 1.0}
    assert model.traces == 2
    part = functools.partial(Model.step, model)
    for _ in range(3):
        lox.spool(part)(1.0)
    assert model.traces == 3


def test_functions_are_not_kept_alive():
    counter = Counter()
    lox.spool(counter.f)(1.0)
    lox.tap(counter.f, lambda logs: None)(1.0)
    gone = weakref.ref(counter.f)
    del counter
    jax.clear_caches()
    gc.collect()
    assert gone() is None


def test_the_users_own_jit_cache_stays_intact():
    lox.set_default(lambda logs: printed.append(dict(logs)))
    printed = []
    traces = []

    @jax.jit
    def f(x):
        traces.append(x)
        lox.log({"x": x})
        return x * 2

    def plain():
        printed.clear()
        assert f(3.0) == 6
        jax.effects_barrier()
        assert printed == [{"x": 3.0}]

    plain()
    assert lox.spool(f)(3.0) == (6, {"x": 3.0})
    plain()
    calls = []
    assert lox.tap(f, calls.append)(3.0) == 6 and calls == [{"x": 3.0}]
    plain()
    assert lox.nolog(f)(3.0) == 6
    plain()
    assert jax.grad(f)(3.0) == 2
    plain()
    assert len(traces) == 1


def test_a_new_shape_or_static_value_is_traced_anew_and_a_new_float_is_not():
    counter = Counter()
    spooled = lox.spool(counter.f)
    spooled(1.0), spooled(2.0), spooled(3)
    assert counter.traces == 2
    spooled(jnp.ones(3))
    assert counter.traces == 3


def test_threads_can_share_a_transformed_function():
    from concurrent.futures import ThreadPoolExecutor

    def f(x):
        return lax.scan(lambda c, i: (lox.log({"c": c})["c"] + 1, None), x, XS)[0]

    def work(i):
        calls = []
        lox.tap(f, calls.append)(float(i))
        assert lox.spool(f)(float(i))[1]["c"].tolist() == [i, i + 1, i + 2, i + 3]
        return [float(c["c"]) for c in calls]

    with ThreadPoolExecutor(8) as pool:
        for i, found in enumerate(pool.map(work, range(24))):
            assert found == [i, i + 1, i + 2, i + 3]


def test_a_spooled_program_has_no_effects_and_is_the_hand_written_one():
    def by_hand(xs):
        def step(c, x):
            c = c + x
            return c, (c, x)

        y, (loss, x) = lax.scan(step, 0.0, xs)
        return y, loss, x

    def logged(xs):
        def step(c, x):
            c = c + x
            lox.log({"loss": c, "x": x})
            return c, None

        return lax.scan(step, 0.0, xs)[0]

    def count(f):
        text = jax.jit(f).lower(XS).compile().as_text()
        return sum(" = " in line for line in text.splitlines())

    assert not jax.make_jaxpr(lox.spool(logged))(XS).effects
    assert count(lambda xs: lox.spool(logged)(xs)) == count(by_hand)


def test_warnings_are_not_raised_on_the_way():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lox.spool(train)(np.arange(4.0, dtype=np.float32))


# --- one line, with and without lanes ----------------------------------------


def simplex(x):
    """Evaluates a function under `vmap` and without, as Nelder-Mead does."""

    def f(x):
        lox.log({"x": x, "tree": {"twice": jnp.stack([x, 2 * x])}}, step=x.astype(int))
        return x**2

    return jax.vmap(f)(jnp.stack([x, x + 1, x + 2])).sum() + f(x)


def simplex_in_scan(x):
    return lax.scan(lambda c, _: (c + 1 + 0 * simplex(c), None), x, None, length=2)[0]


def simplex_in_cond(x):
    def f(x):
        lox.log({"x": x, "tree": {"twice": jnp.stack([x, 2 * x])}}, step=x.astype(int))
        return x**2

    def many(x):
        return jax.vmap(f)(jnp.stack([x, x + 1, x + 2])).sum()

    return lax.cond(x > 0, many, f, x) + lax.cond(x < 0, many, f, x)


def simplex_in_while(x):
    return lax.while_loop(lambda c: c < 3, lambda c: c + 1 + 0 * simplex(c), x)


def simplex_deeper(x):
    def f(x):
        lox.log({"x": x, "tree": {"twice": jnp.stack([x, 2 * x])}}, step=x.astype(int))
        return x

    grid = jnp.stack([x, x + 1, x + 2, x + 3]).reshape(2, 2)
    return jax.vmap(jax.vmap(f))(grid).sum() + f(x) + jax.vmap(f)(grid[0]).sum()


PROGRAMS = [simplex, simplex_in_scan, simplex_in_cond, simplex_in_while, simplex_deeper]


def tapped_rows(fun, x, **options):
    calls = []
    lox.tap(fun, calls.append, **options)(x)
    return [row for call in calls for row in call.rows()]


def assert_same_rows(rows, wanted):
    assert len(rows) == len(wanted)
    for row, other in zip(rows, wanted, strict=True):
        assert row.keys() == other.keys() and row.steps == other.steps
        assert jax.tree.all(jax.tree.map(np.array_equal, dict(row), dict(other)))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_line_with_and_without_vmap_gives_its_lanes_as_rows(program):
    x = jnp.float32(1)
    wanted = tapped_rows(program, x)
    assert len(wanted) > 3
    kept = {"capacity": 20}
    for rows in (
        list(lox.spool(program, **kept)(x)[1].rows()),
        list(jax.jit(lox.spool(program, **kept))(x)[1].rows()),
        list(jax.vmap(lox.spool(program, **kept))(x[None])[1].lanes()[0].rows()),
        list(lox.spool(jax.vmap(program), **kept)(x[None])[1].lanes()[0].rows()),
        list(lox.spool(program, interval=1, **kept)(x)[1].rows()),
        tapped_rows(program, x, buffer=3),
    ):
        assert_same_rows(rows, wanted)
    if program is not simplex_in_while:
        assert_same_rows(list(lox.spool(program)(x)[1].rows()), wanted)
        rows = list(lox.spool(jax.grad(program))(x)[1].rows())
        assert_same_rows(rows, wanted)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_line_with_and_without_vmap_is_reduced_over_all_its_lanes(program):
    x = jnp.float32(1)
    values = [float(row["x"]) for row in tapped_rows(program, x)]
    for name in ("mean", "min", "first", "last"):
        _, logs = lox.spool(program, "x", reduce=name)(x)
        wanted = lox.logdict({"x": np.array(values)}, stacked=True).reduce(name)["x"]
        assert logs["x"] == pytest.approx(wanted)
        (row,) = tapped_rows(program, x, argnames="x", reduce=name)
        assert row["x"] == pytest.approx(wanted)
    two = [values[i : i + 2] for i in range(0, len(values), 2)]
    _, logs = lox.spool(program, "x", reduce="max", window=2, capacity=20)(x)
    assert logs["x"].tolist() == list(map(max, two))


def test_lanes_of_a_vmap_around_all_rows_remain():
    xs = jnp.array([1.0, 5.0])
    _, logs = lox.spool(jax.vmap(simplex))(xs)
    assert logs["x"].shape == (4, 2) and logs["tree"]["twice"].shape == (4, 2, 2)
    for lane, x in zip(logs.lanes(), xs, strict=True):
        assert lane == lox.spool(simplex)(x)[1]
    _, reduced = lox.spool(jax.vmap(simplex), "x", reduce="sum")(xs)
    assert reduced["x"].tolist() == [7.0, 23.0]


def test_lax_map_with_a_remainder_under_vmap_is_joined_along_time():
    def f(x):
        def each(v):
            lox.log({"v": v * x}, step=v.astype(int))
            return v

        return lax.map(each, jnp.arange(5.0), batch_size=2).sum()

    xs = jnp.array([1.0, 3.0])
    _, logs = lox.spool(jax.vmap(f))(xs)
    assert logs["v"].tolist() == [[i * 1.0, i * 3.0] for i in range(5)]
    assert logs.step["v"].tolist() == [[i, i] for i in range(5)]
    _, logs = lox.spool(jax.vmap(f), reduce="sum")(xs)
    assert logs["v"].tolist() == [10.0, 30.0]

    def twice(x):
        def each(v):
            lox.log({"v": v})
            lax.scan(lambda c, i: (lox.log({"v": v + i}), None)[::-1], None, xs)
            return v

        ends = [lax.map(each, jnp.arange(5.0), batch_size=2) for _ in range(2)]
        return sum(end.sum() for end in ends) + x

    calls = []
    lox.tap(twice, calls.append)(1.0)
    _, logs = lox.spool(twice)(1.0)
    assert logs["v"].tolist() == [float(call["v"]) for call in calls]


def test_lanes_of_different_lines_are_told_what_to_do():
    def f(x):
        lox.log({"x": x})
        jax.vmap(lambda x: lox.log({"x": x}) and None)(jnp.ones(2))
        return x

    with pytest.raises(lox.ShapeError, match="another name.*`argnames`.*`lox.tap`"):
        lox.spool(f)(1.0)

    def g(x):
        def log(x):
            lox.log({"x": x})
            return x

        return (
            jax.vmap(log)(jnp.arange(3.0) + x).sum()
            + jax.vmap(log)(jnp.arange(2.0)).sum()
        )

    with pytest.raises(lox.ShapeError, match="the same line.*reduce.*`lox.tap`"):
        lox.spool(g)(1.0)
    assert lox.spool(g, reduce="sum")(1.0)[1]["x"] == 7
    assert len(tapped_rows(g, 1.0)) == 5


# --- options of others, and guards -------------------------------------------


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda f: lox.spool(f, buffer=3), "`buffer`: `capacity=`"),
        (lambda f: lox.spool(buffer=3)(f), "`buffer`: `capacity=`"),
        (lambda f: lox.spool(f, callback=print), "`lox.tap`"),
        (lambda f: lox.spool(f, reduction="mean"), "no option `reduction`.*`reduce`"),
        (lambda f: lox.tap(f, capacity=3), "`capacity`: .*`buffer=`"),
        (lambda f: lox.tap(f, every=3), "no option `every`.*`interval`"),
    ],
)
def test_options_of_another_transformation_point_to_their_own(transform, message):
    with pytest.raises(lox.LoxTypeError, match=message):
        transform(lambda x: x)


def test_eager_rows_that_may_not_happen_are_allowed_by_a_transfer_guard():
    def f(x):
        def step(c, i):
            def log(c):
                lox.log({"t": c}, step=i)
                return c

            return lax.cond(c > 2, log, lambda c: c + 1, c), None

        return lax.scan(step, x, jnp.arange(4))[0]

    def g(x):
        def body(c):
            lox.log({"t": c})
            return c + 1

        return lax.while_loop(lambda c: c < 3, body, x)

    x, xs = jnp.float32(0.5), jnp.array([0.5, 1.5])
    with jax.transfer_guard("disallow"):
        _, logs = lox.spool(f)(x)
        _, lanes = lox.spool(jax.vmap(f))(xs)
        _, loop = lox.spool(g, capacity=5)(x)
        batch = jax.vmap(lox.spool(g, capacity=5))(xs)[1].lanes()
        last = loop.slice[-1]
        calls = []
        lox.tap(f, calls.append, ordered=False)(x)
        text = str(logs)
    assert text == "{'t': [2.5, 2.5]}" and logs.step["t"].tolist() == [2, 3]
    assert [lane["t"].tolist() for lane in lanes.lanes()] == [[2.5] * 2, [2.5] * 3]
    assert loop["t"].tolist() == [0.5, 1.5, 2.5] and last["t"] == 2.5
    assert [lane["t"].tolist() for lane in batch] == [[0.5, 1.5, 2.5], [1.5, 2.5]]
    assert [float(call["t"]) for call in calls] == [2.5, 2.5]
