"""`lox.log`: what it accepts, prints and refuses."""

import os

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import lox
from tests import programs


def spooled(fun, *args):
    return lox.spool(fun)(*args)[1]


def test_log_prints_eagerly_and_under_jit(capsys):
    def f(x):
        lox.log({"x": x, "y": {"a": x + 1}}, step=0)
        return x * x

    f(3)
    jax.block_until_ready(jax.jit(f)(3))
    jax.effects_barrier()
    assert capsys.readouterr().out == "{'x': 3, 'y': {'a': 4}}\n" * 2


def test_log_in_scan_prints_every_iteration(capsys):
    @jax.jit
    def f(n):
        def step(c, x):
            lox.log({"x": x})
            return c, None

        return jax.lax.scan(step, n, jnp.arange(3))[0]

    f(0)
    jax.effects_barrier()
    assert capsys.readouterr().out == "{'x': 0}\n{'x': 1}\n{'x': 2}\n"


def test_log_returns_its_values():
    lox.set_default("silent")
    logs = lox.log({"x": 1.5}, prefix="train/", step=3)
    assert isinstance(logs, lox.logdict)
    assert logs == {"train/x": 1.5} and logs.step["train/x"] == 3


def test_log_of_empty_dict_is_not_an_event(capsys):
    assert lox.log({}) == {}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "value",
    [
        True,
        3,
        2.5,
        1 + 2j,
        np.float64(1.0),
        np.arange(3),
        np.array([True, False]),
        ml_dtypes.bfloat16(1.5),
        np.ones(2, ml_dtypes.float8_e4m3fn),
        np.ones(2, np.int8),
        {"a": 1, "b": [2.0, (3,)]},
        np.zeros((0, 3)),
    ],
    ids=repr,
)
def test_log_accepts_any_array_or_pytree(value):
    def f(x):
        lox.log({"v": value})
        return x

    wanted = jax.tree.map(jnp.asarray, value)
    for logs in (spooled(f, 1), jax.jit(lox.spool(f))(1)[1]):
        assert logs == {"v": wanted}
        same = jax.tree.map(lambda a, b: a.dtype == b.dtype, logs["v"], wanted)
        assert all(jax.tree.leaves(same))
    calls = []
    lox.tap(f, calls.append)(1)
    np.testing.assert_equal(
        jax.tree.map(np.asarray, calls[0]["v"]), jax.tree.map(np.asarray, wanted)
    )


def test_log_accepts_prng_keys(capsys):
    def f(key):
        def step(key, _):
            key, new = jax.random.split(key)
            lox.log({"key": new})
            return key, None

        return jax.lax.scan(step, key, None, length=2)[0]

    key = jax.random.key(0)
    logs = spooled(f, key)
    assert logs["key"].dtype == key.dtype and logs["key"].shape == (2,)
    calls = []
    lox.tap(f, calls.append)(key)
    data = jax.random.key_data(logs["key"])
    assert [c["key"].tolist() for c in calls] == data.tolist()
    lox.log({"key": key})
    jax.jit(lambda key: lox.log({"key": key}))(key)
    jax.effects_barrier()
    assert capsys.readouterr().out == "{'key': [0, 0]}\n" * 2


def test_log_keeps_int4_dtype():
    def f(x):
        lox.log({"q": x.astype(jnp.int4)})
        return x

    assert spooled(f, jnp.arange(3))["q"].dtype == jnp.int4


def test_set_default_silences_or_redirects_events(capsys):
    f = jax.jit(lambda x: (lox.log({"x": x}), x)[1])
    seen = []
    for handler in ("silent", None, seen.append, "stderr", "print"):
        lox.set_default(handler)
        f(1).block_until_ready()
        jax.effects_barrier()
    out, err = capsys.readouterr()
    assert out == err == "{'x': 1}\n" and seen == [{"x": 1}]
    with pytest.raises(lox.LoxValueError, match=r"'quiet'.*'silent'"):
        lox.set_default("quiet")
    with pytest.raises(lox.LoxTypeError, match="not 3"):
        lox.set_default(3)


def test_environment_variable_silences_whole_program():
    code = "import lox; lox.log({'x': 1})"
    for value, out in (("silent", ""), ("print", "{'x': 1}\n")):
        done = programs.run(code, env={**os.environ, "LOX_DEFAULT": value})
        assert (done.returncode, done.stdout) == (0, out), done.stderr


def test_default_handler_raises_its_own_error():
    def fail(logs):
        raise ZeroDivisionError("mine")

    lox.set_default(fail)
    with pytest.raises(ZeroDivisionError, match="mine"):
        lox.log({"x": 1})
    jax.jit(lambda x: (lox.log({"x": x}), x)[1])(1)
    with pytest.raises(ZeroDivisionError, match="mine"):
        jax.effects_barrier()
    jax.effects_barrier()


# --- errors name the line, the mistake and the remedy ----------------------

HERE = r"test_log\.py:\d+"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: lox.log(3.0), TypeError, r"3\.0 of type float instead of a mapping"),
        (lambda: lox.log([("x", 1)]), TypeError, 'values: `lox.log\\({"loss": loss}'),
        (lambda: lox.log({3: 1.0}), TypeError, "the key 3; keys are strings"),
        (lambda: lox.log({"s": "text"}), TypeError, "'text' of type str for 's'.*tags"),
        (lambda: lox.log({"o": object()}), TypeError, "type object for 'o'"),
        (lambda: lox.log({"n": None}), TypeError, "for 'n', which contains no array"),
        (
            lambda: lox.log({"n": np.array(["a"])}),
            TypeError,
            "cannot convert 'n' to an array",
        ),
        (
            lambda: lox.log({"x": 1}, step=jnp.arange(2)),
            ValueError,
            r"the step 'step' must be a scalar.*shape \(2,\)",
        ),
        (lambda: lox.log({"x": 1}, step="one"), ValueError, "'step' must be a scalar"),
        (lambda: lox.log({"x": 1}, tag="a"), ValueError, "Did you mean `tags`"),
        (
            lambda: lox.log({"x": 1}, reduction="mean"),
            ValueError,
            "no option `reduction`.*Did you mean `reduce`",
        ),
        (
            lambda: lox.log({"x": 1}, keys=1),
            ValueError,
            "cannot be called 'keys'.*'keys_step'",
        ),
        (lambda: lox.log({"x": 1}, rows=1), ValueError, "cannot be called 'rows'"),
        (lambda: lox.log({"x": 1}, window=1), None, ""),
        (lambda: lox.log({"x": 1}, tags=3), TypeError, "`tags` must be strings.*step"),
        (lambda: lox.log({"x": 1}, prefix=3), TypeError, "`prefix` must be a string"),
        (lambda: lox.log({"x": 1}, explicit=3), TypeError, "`explicit` must be a bool"),
        (
            lambda: lox.log({"x": 1}, reduce="median"),
            ValueError,
            "unknown reduction 'median'.*mean, sum",
        ),
        (
            lambda: lox.log({"x": 1}, reduce={1: "mean"}),
            TypeError,
            "has the key 1; its keys are names",
        ),
    ],
)
def test_log_error_names_line_and_remedy(call, error, message):
    lox.set_default("silent")
    if error is None:
        call()
        return
    with pytest.raises(lox.LoxError, match=f"{HERE}.*{message}") as caught:
        call()
    assert isinstance(caught.value, error)


def two_logs(first, second, first_steps=None, second_steps=None, **options):
    def f(x):
        lox.log({"k": first}, **(first_steps or {}), **options)
        lox.log({"k": second}, **(second_steps or {}))
        return x

    return f


@pytest.mark.parametrize(
    ("f", "error", "message"),
    [
        (two_logs(jnp.ones(2), jnp.ones(3)), ValueError, r"shape \(2,\).*\(3,\)"),
        (two_logs(jnp.ones(2), [1, 2]), ValueError, "structure .*and with .*another"),
        (
            two_logs(jnp.float32(1), jnp.int32(1)),
            TypeError,
            "as float32 .*as int32 .*never cast.*astype",
        ),
        (two_logs(jnp.int32(1), 1.5), TypeError, "as int32 .*as float32"),
        (
            two_logs(1.0, 2.0, {"step": 1}),
            ValueError,
            "the steps 'step' at .* no steps at .*the same steps",
        ),
        (
            lambda x: (
                lox.log({"k": x}, reduce="mean"),
                lox.log({"k": x}, reduce="sum"),
            ),
            ValueError,
            "`reduce='mean'` at .*`reduce='sum'` at",
        ),
    ],
)
def test_error_about_key_logged_in_two_ways_names_both_lines(f, error, message):
    with pytest.raises(lox.LoxError, match=f"'k' .*{message}") as caught:
        lox.spool(f)(1.0)
    assert isinstance(caught.value, error)
    assert str(caught.value).count("test_log.py:") == 2


def test_error_about_key_that_differs_between_branches_names_both_lines():
    def f(x):
        return jax.lax.cond(
            x > 0,
            lambda x: (lox.log({"k": jnp.int32(1)}), x)[1],
            lambda x: (lox.log({"k": jnp.float32(1)}), x)[1],
            x,
        )

    with pytest.raises(lox.DtypeError, match="'k' .*test_log.*test_log"):
        lox.spool(f)(1.0)


def test_python_number_adopts_dtype_of_other_rows():
    def f(x):
        lox.log({"k": 1})
        lox.log({"k": x})
        lox.log({"k": 2.5})
        return x

    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        logs = spooled(f, jnp.asarray(3, dtype))
        assert logs["k"].dtype == dtype and logs["k"].tolist() == [1, 3, 2.5]


def test_value_logged_inside_and_outside_vmap_is_refused():
    def f(xs):
        lox.log({"k": 1.0})
        return jax.vmap(lambda x: (lox.log({"k": x}), x)[1])(xs)

    with pytest.raises(lox.ShapeError, match=r"shape \(\) at .*`vmap` of \(2,\) lanes"):
        lox.spool(f)(jnp.ones(2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lox.log(loss=1.0), r'test_log.py:\d+ .*`lox.log\({"loss": loss}\)`'),
        (lambda: lox.log(), r"`lox.log\({.loss.: loss}\)`"),
        (lambda: lox.log("loss", 1.0), r'test_log.py:\d+ .*`lox.log\({"loss": ...}\)`'),
        (lambda: lox.log({"a": 1}, 3), "by keyword.*step=i"),
    ],
)
def test_value_without_dict_raises_error_with_example(call, message):
    with pytest.raises(lox.LoxTypeError, match=message):
        call()


def test_eager_log_of_numbers_passes_transfer_guard(capsys):
    x = jnp.float32(0.5)
    with jax.transfer_guard("disallow"):
        lox.log({"x": x, "n": 1.5}, step=3)
    assert capsys.readouterr().out == "{'x': 0.5, 'n': 1.5}\n"
