"""Logged numbers are never wrapped, rounded or narrowed: they are kept or refused."""

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import logify
import lox
from lox._jax.numbers import Literal, first_not_held, holds, is_exact, merged
from lox._source import Source


def tapped(fun, *args, **options):
    """The values of 'n' that a callback gets, one by one."""
    calls = []
    lox.tap(fun, calls.append, **options)(*args)
    return [x for call in calls for x in np.ravel(np.asarray(call["n"])).tolist()]


def spooled(fun, *args, **options):
    return np.ravel(np.asarray(lox.spool(fun, **options)(*args)[1]["n"])).tolist()


def appended(fun, *args):
    return logify.logify(fun)(*args)[1].asdict()["n"]["append"].tolist()


# every transformation that joins rows
WAYS = {
    "spool": spooled,
    "jit": lambda f, x: jax.jit(lox.spool(f))(x)[1]["n"].tolist(),
    "grad": lambda f, x: lox.spool(jax.grad(f))(x)[1]["n"].tolist(),
    "checkpoint": lambda f, x: spooled(jax.grad(jax.checkpoint(f)), x),
    "spool of vmap": lambda f, x: lox.spool(jax.vmap(f))(x[None])[1]["n"][
        :, 0
    ].tolist(),
    "vmap of spool": lambda f, x: jax.vmap(lox.spool(f))(x[None])[1]["n"][0].tolist(),
    "interval": lambda f, x: spooled(f, x, interval=1),
    "capacity": lambda f, x: spooled(f, x, capacity=9),
    "window": lambda f, x: spooled(f, x, reduce="last", window=1),
    "buffer": lambda f, x: tapped(f, x, buffer=2),
    "windows of a tap": lambda f, x: tapped(f, x, reduce="last", window=1),
    "tap": tapped,
}


def two(first, second):
    def f(x):
        lox.log({"n": first})
        lox.log({"n": second()})
        return x

    return f


def in_branches(first, second):
    def f(x):
        lax.cond(
            x > 0,
            lambda: lox.log({"n": first}) and None,
            lambda: lox.log({"n": second()}) and None,
        )
        lax.cond(
            x < 0,
            lambda: lox.log({"n": first}) and None,
            lambda: lox.log({"n": second()}) and None,
        )
        return x

    return f


def alike_branches(first, second):
    def f(x):
        lax.cond(
            x > 0,
            lambda: lox.log({"n": first}) and None,
            lambda: lox.log({"n": 1}) and None,
        )
        lox.log({"n": second()})
        return x

    return f


def in_a_jit(first, second):
    def f(x):
        jax.jit(lambda: lox.log({"n": first}))()
        jax.jit(lambda: lox.log({"n": second()}))()
        return x

    return f


CASES = [
    *((two, way) for way in WAYS),
    *itertools.product((in_branches, alike_branches, in_a_jit), ("spool", "buffer")),
]
in_all_cases = pytest.mark.parametrize(
    ("nest", "way"), CASES, ids=lambda one: getattr(one, "__name__", one)
)


@in_all_cases
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (300, lambda: jnp.int8(1)),
        (16777217, lambda: 2.5),
        (301, lambda: jnp.bfloat16(1)),
        (1e6, lambda: jnp.float16(1)),
        (1e-12, lambda: jnp.float16(1)),
        (-1, lambda: jnp.uint8(1)),
    ],
)
def test_number_that_does_not_fit_dtype_of_other_row_is_kept_or_refused(
    way, first, second, nest
):
    f = nest(first, second)
    try:
        values = WAYS[way](f, jnp.float32(1))
    except lox.DtypeError as error:
        assert way != "tap"
        assert str(first) in str(error) and str(error).count("test_numbers.py:") == 2
    else:
        wanted = jnp.asarray(first).item()
        assert values == [wanted, pytest.approx(float(second()))]


@in_all_cases
@pytest.mark.parametrize(
    ("first", "dtype"),
    [
        (0, jnp.float32),
        (1, jnp.bfloat16),
        (100, jnp.int8),
        (0.1, jnp.float16),
        (0.0, jnp.float32),
        (float("inf"), jnp.bfloat16),
        (16777216, jnp.float32),
        (255, jnp.uint8),
    ],
)
def test_python_number_adopts_dtype_that_holds_it(way, first, dtype, nest):
    f = nest(first, lambda: dtype(1))
    values = WAYS[way](f, jnp.float32(1))
    # a plain tap delivers each event unchanged
    wanted = [first, 1] if way == "tap" else [jnp.asarray(first, dtype).item(), 1]
    assert np.allclose(values, wanted, rtol=1e-6)


def test_loop_counter_never_wraps_to_narrower_dtype():
    def f(x):
        lax.fori_loop(254, 258, lambda i, c: (lox.log({"n": i}), c)[1], x)
        lox.log({"n": jnp.uint8(7)})
        return x

    assert tapped(f, 1.0) == [254, 255, 256, 257, 7]
    for way in (spooled, lambda f, x: tapped(f, x, buffer=2)):
        with pytest.raises(
            lox.DtypeError, match="uint8 at .*int32 .*weakly typed.* at"
        ):
            way(f, 1.0)


def test_weakly_typed_argument_never_wraps_to_narrower_dtype():
    def f(x):
        lox.log({"n": x})
        lox.log({"n": jnp.int8(7)})
        return x

    with pytest.raises(lox.DtypeError, match="int8 at .*int32"):
        lox.spool(f)(300)
    assert tapped(f, 300) == [300, 7]


def test_weakly_typed_constant_array_counts_as_its_number():
    small, large = jnp.asarray(7), jnp.asarray(300)
    assert small.weak_type

    def f(number):
        def f(x):
            lox.log({"n": number})
            lox.log({"n": jnp.int8(1)})
            return x

        return f

    assert spooled(f(small), 1.0) == [7, 1]
    with pytest.raises(lox.DtypeError, match="the number 300"):
        spooled(f(large), 1.0)


def test_logify_refuses_number_that_does_not_fit_dtype_of_other_row():
    def f(x, first):
        logify.log("n", first, reduction="append")
        logify.log("n", jnp.int8(1), reduction="append")
        return x

    assert appended(lambda x: f(x, 100), 1.0) == [100, 1]
    with pytest.raises(lox.DtypeError, match="300"):
        appended(lambda x: f(x, 300), 1.0)


def test_numbers_of_many_lines_are_checked_against_dtype_of_later_row():
    @jax.jit
    def g():
        for number in (1, 300, 2):
            lox.log({"n": number})

    def f(x):
        g()
        lox.log({"n": jnp.int8(1)})
        return x

    with pytest.raises(lox.DtypeError, match="the number 300"):
        lox.spool(f)(1.0)


# --- steps -----------------------------------------------------------------


def with_steps(*steps):
    def f(x):
        for step in steps:
            lox.log({"n": x}, step=step() if callable(step) else step)
        return x

    return f


@pytest.mark.parametrize(
    "steps",
    [
        (0, lambda: jnp.uint32(4000000000)),
        (lambda: jnp.uint8(200), lambda: jnp.int32(-5), 7),
        (np.int64(3), lambda: jnp.uint32(4000000000)),
        (lambda: jnp.int16(5), 70000),
        (1, 0.5),
    ],
)
def test_steps_of_several_dtypes_keep_their_values(steps):
    f = with_steps(*steps)
    wanted = [float(step() if callable(step) else step) for step in steps]
    _, logs = lox.spool(f)(1.0)
    assert logs.step["n"].tolist() == wanted
    calls = []
    lox.tap(f, calls.append, buffer=9)(1.0)
    assert calls[0].step["n"].tolist() == wanted


@pytest.mark.parametrize(
    "steps",
    [
        (lambda: jnp.uint32(4000000000), lambda: jnp.int32(5)),
        (lambda: jnp.int32(16777217), 0.5),
        (16777217, 0.5),
    ],
)
def test_steps_without_common_dtype_are_refused(steps):
    f = with_steps(*steps)
    for run in (
        lambda: lox.spool(f)(1.0),
        lambda: lox.spool(f, reduce="mean")(1.0),
        lambda: lox.tap(f, lambda logs: None, buffer=2)(1.0),
    ):
        with pytest.raises(lox.StepError, match="'step'") as caught:
            run()
        assert str(caught.value).count("test_numbers.py:") == 2
    calls = []
    lox.tap(f, calls.append)(1.0)
    wanted = [float(step() if callable(step) else step) for step in steps]
    assert [call.step["n"].item() for call in calls] == wanted


def test_steps_in_another_order_keep_their_values_and_dtypes():
    first = {"step": np.int32(3), "time": np.float32(0.5)}
    second = {"time": np.float32(1.5), "step": np.int32(4)}

    def f(x):
        lox.log({"n": x}, **first)
        lox.log({"n": x}, **second)
        lax.cond(
            x > 0,
            lambda: lox.log({"n": x}, **first) and None,
            lambda: lox.log({"n": x}, **second) and None,
        )
        return x

    for options in ({}, {"capacity": 9}, {"interval": 1}):
        _, logs = lox.spool(f, **options)(-1.0)
        assert logs.step["n"].tolist() == [3, 4, 4]
        assert logs.time["n"].tolist() == [0.5, 1.5, 1.5]
        assert logs.step["n"].dtype == np.int32
    calls = []
    lox.tap(f, calls.append, buffer=9)(1.0)
    assert calls[0].step["n"].tolist() == [3, 4, 3]
    assert calls[0].time["n"].tolist() == [0.5, 1.5, 0.5]


# --- host numbers ----------------------------------------------------------


def test_host_number_is_printed_exactly(capsys):
    logs = lox.log({"n": np.int64(2**40), "x": np.float64(0.1)}, step=np.int64(2**33))
    lox.log({"n": 5_000_000_000, "m": np.array([1, 2**40]), "x": 1e300})
    assert capsys.readouterr().out == (
        "{'n': 1099511627776, 'x': 0.1}\n"
        "{'n': 5000000000, 'm': [1, 1099511627776], 'x': 1e+300}\n"
    )
    assert logs["n"] == 2**40 and logs.step["n"] == 2**33


def test_host_number_that_fits_jax_dtype_gets_that_dtype():
    logs = lox.log({"n": np.int64(3), "x": 0.5}, step=np.int64(4))
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(logs))


@pytest.mark.parametrize(
    "number", [2**31, -(2**31) - 1, np.int64(2**40), np.array([1, 2**40]), 1e300, 2**70]
)
@pytest.mark.parametrize("wrap", [jax.jit, lox.spool, lox.tap, jax.vmap, jax.grad])
def test_number_without_jax_dtype_is_refused_in_trace(wrap, number):
    def f(x):
        lox.log({"n": number})
        return x

    def g(x):
        lox.log({"n": x}, step=np.ravel(number).tolist()[-1])
        return x

    x = jnp.ones(1) if wrap is jax.vmap else 1.0
    message = r"test_numbers.py:\d+ got .*{}.*jax_enable_x64"
    with pytest.raises(lox.RangeError, match=message.format("'n'")) as caught:
        wrap(f)(x)
    assert isinstance(caught.value, OverflowError | ValueError)
    with pytest.raises(lox.StepError, match=message.format("'step'")):
        wrap(g)(x)


def test_numbers_of_64_bits_are_kept_with_x64():
    with jax.enable_x64(True):

        def f(x):
            lox.log({"n": 2**40}, step=np.int64(2**33))
            lox.log({"n": 1}, step=0)
            return x

        _, logs = lox.spool(f)(1.0)
        assert logs["n"].tolist() == [2**40, 1]
        assert logs.step["n"].tolist() == [2**33, 0]


def test_logger_and_save_refuse_numbers_that_jax_would_wrap(tmp_path):
    logger = lox.loggers.MultiLogger()
    state = logger.init(jax.random.key(0))
    with pytest.raises(lox.RangeError, match="test_numbers.py"):
        jax.jit(lambda: logger.log(state, {"n": np.int64(2**40)}))()
    with pytest.raises(lox.RangeError, match="test_numbers.py"):
        jax.jit(lambda: lox.save({"n": np.int64(2**40)}, tmp_path / "run"))()
    lox.save({"n": np.int64(2**40), "x": 1e300}, tmp_path / "run")
    assert lox.load(tmp_path / "run")["n"] == 2**40


def test_joined_logdicts_keep_python_numbers():
    logs = lox.logdict({"n": 1e300}) + lox.logdict({"n": 2e300})
    assert logs["n"].tolist() == [1e300, 2e300]
    with pytest.raises(lox.DtypeError):
        lox.logdict({"n": 300}) + lox.logdict({"n": jnp.int8(1)})


# --- exact casts -----------------------------------------------------------

_SMALL = [
    jnp.bool_,
    jnp.int4,
    jnp.uint4,
    jnp.int8,
    jnp.uint8,
    jnp.float8_e4m3fn,
    jnp.float8_e5m2,
    jnp.bfloat16,
    jnp.float16,
    jnp.int16,
]
_TARGETS = [*_SMALL, jnp.int32, jnp.uint32, jnp.float32]


def _all_values(dtype):
    dtype = jnp.dtype(dtype)
    if dtype == jnp.bool_:
        return np.array([False, True])
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return np.arange(int(info.min), int(info.max) + 1).astype(dtype)
    bits = np.uint8 if dtype.itemsize == 1 else np.uint16
    values = np.arange(np.iinfo(bits).max + 1).astype(bits).view(dtype)
    return values[np.isfinite(values.astype(np.float32))]


@pytest.mark.parametrize(
    ("source", "target"), list(itertools.product(_SMALL, _TARGETS))
)
def test_cast_is_exact_if_and_only_if_it_keeps_every_value(source, target):
    values = _all_values(source).astype(np.float64)
    target = jnp.dtype(target)
    with np.errstate(all="ignore"):
        if jnp.issubdtype(target, jnp.integer):
            info = jnp.iinfo(target)
            kept = (values >= int(info.min)) & (values <= int(info.max))
            kept &= values == np.trunc(values)
        else:
            kept = values.astype(target).astype(np.float64) == values
    if jnp.bool_ in (source, target):
        assert is_exact(jnp.dtype(source), target) == (source == jnp.bool_)
    elif jnp.issubdtype(source, jnp.floating) and jnp.issubdtype(target, jnp.integer):
        assert not is_exact(jnp.dtype(source), target)
    else:
        assert is_exact(jnp.dtype(source), target) == bool(kept.all())


def test_merged_numbers_fit_dtype_if_and_only_if_all_of_them_do():
    source = Source("here", 1)
    numbers = [3, -129, 2**24 + 1, 2**30, 0.1, 70000.0, 1e-30, 255, 16777216]
    dtypes = [
        *(np.int8, np.uint8, np.int16, np.int32, np.uint32, np.float16, np.float32),
        ml_dtypes.bfloat16,
    ]
    for some in itertools.combinations(numbers, 3):
        literals = [(Literal.of(number, source),) for number in some]
        for dtype in map(np.dtype, dtypes):
            one_by_one = all(holds(dtype, number) for number in some)
            together = (
                first_not_held(np.dtype(np.int64), dtype, merged(literals)) is None
            )
            assert one_by_one == together, (some, dtype)
    assert merged([literals[0], ()]) == ()
