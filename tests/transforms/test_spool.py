"""`lox.spool`: shapes, selection, nesting and options."""

import warnings

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


def test_spool_adds_time_axis_to_keys_logged_repeatedly():
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


def test_spool_steps_have_time_axis_of_their_key():
    _, logs = lox.spool(train)(XS)
    assert logs.step["loss"].tolist() == [0, 1, 2, 3]
    assert logs.step["loss"].shape == logs["loss"].shape
    assert "start" not in logs.step
    with pytest.raises(AttributeError, match=r"no step 'epoch'; its steps are 'step'"):
        _ = logs.epoch


def test_spool_returns_any_pytree_result_unchanged():
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


def test_tags_select_strictly_and_explicit_events_need_selection():
    assert keys(tags="metric") == {"loss", "aux"}
    assert keys(tags=["slow", "setup"]) == {"grad", "start"}
    assert keys(tags="debug", argnames="loss") == set()
    with pytest.warns(lox.LoxWarning, match="`tags` .*'metrc'.*available: 'setup'"):
        assert keys(tags=["metrc"]) == set()


def test_argnames_that_match_nothing_warn_at_line_of_user():
    with pytest.warns(
        lox.LoxWarning, match=r"'lss'.*available: 'start', 'loss'"
    ) as seen:
        lox.spool(train, argnames=["lss", "loss"])(XS)
    assert seen[0].filename == __file__
    with pytest.warns(lox.LoxWarning, match="`reduce` of `lox.spool` has 'lss'"):
        lox.spool(train, reduce={"lss": "mean"})(XS)


def test_prefixes_are_kept_in_scan():
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


def test_transformation_consumes_events_it_selects():
    def outer(xs):
        return lox.spool(train, tags="metric")(xs)[0]

    assert set(lox.spool(outer)(XS)[1]) == {"start"}
    assert set(lox.spool(outer, argnames="grad")(XS)[1]) == {"grad"}

    def keeping(xs):
        return lox.spool(train, tags="metric", keep_logs=True)(xs)[0]

    assert set(lox.spool(keeping)(XS)[1]) == {"start", "loss", "aux"}


def test_spool_of_spool_collects_nothing_twice():
    def f(x):
        lox.log({"x": x})
        return x + 1.0

    def j(x):
        return lox.spool(f)(x)[0]

    assert lox.spool(j)(1.0) == (2.0, {})


def test_spooled_and_kept_events_do_not_print(capsys):
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


def test_reduce_applies_to_all_keys_to_some_or_per_call():
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
def test_bad_option_raises_before_the_call(transform, options, error, message):
    with pytest.raises(lox.LoxError, match=message) as caught:
        transform(train, **options)
    assert isinstance(caught.value, error)


def test_unknown_reduction_error_lists_known_ones():
    with pytest.raises(lox.LoxValueError, match="'median'; it must be mean"):
        lox.spool(train, reduce="median")
    with pytest.raises(lox.LoxValueError, match="'median'"):
        lox.spool(train, reduce={"loss": "median"})


@pytest.mark.parametrize("transform", [lox.spool, lox.tap, lox.nolog])
def test_transformation_of_non_callable_raises(transform):
    with pytest.raises(lox.LoxTypeError, match=r"got 3\.0 .*not the result of calling"):
        transform(3.0)


def test_decorators_work_with_and_without_options():
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


def test_tracing_errors_name_function_and_argument_of_user():
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


# --- the program that it compiles --------------------------------------------


def test_spooled_program_has_no_effects_and_equals_handwritten_one():
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


def test_spool_raises_no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lox.spool(train)(np.arange(4.0, dtype=np.float32))


# --- options of other transformations, and transfer guards -------------------


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
def test_option_of_other_transformation_raises_error_that_names_it(transform, message):
    with pytest.raises(lox.LoxTypeError, match=message):
        transform(lambda x: x)


def test_eager_masked_rows_pass_transfer_guard():
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


@pytest.mark.parametrize("number", [-2, -5, -(10**30)])
def test_static_argnums_before_the_first_argument_are_refused(number):
    with pytest.raises(lox.LoxValueError, match="`static_argnums` has the position -"):
        lox.spool(lambda x: x, static_argnums=number)(1.0)


def test_spooled_constants_in_derivatives_are_arrays():
    """JAX's derivative of `checkpoint` makes Python numbers of constants."""

    @jax.checkpoint
    def f(x, i):
        lox.log({"i": i}, step=i)
        return x

    def loss(x):
        y, logs = lox.spool(lambda x: f(x, 3))(x)
        assert isinstance(logs["i"], jax.Array)
        return y + logs["i"].reshape(1)[0], logs

    logs = jax.jit(jax.grad(loss, has_aux=True))(1.0)[1]
    assert (logs["i"], logs.step["i"]) == (3, 3)


def test_constants_of_derivatives_can_be_logged_and_printed():
    """JAX's derivatives pass on constants as objects of its own types."""

    @jax.checkpoint
    def with_constant(x):
        return x, jnp.float32(3)

    def f(x):
        y, constant = with_constant(x)
        lox.log({"y": y, "constant": constant}, step=constant)
        return y * constant

    for logs in (
        lox.spool(jax.grad(f))(1.0)[1],
        jax.grad(lox.spool(f), has_aux=True)(1.0)[1],
    ):
        assert str(logs) == "{'y': 1.0, 'constant': 3.0}"
        assert logs.step["y"] == 3
