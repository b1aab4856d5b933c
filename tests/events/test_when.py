"""`when`: events that happen only where a condition is true."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import logify
import lox
from lox._interpreter.contents import events_of

STEPS = 7


def scalar(x):
    def body(carry, i):
        carry = carry * 1.5 + i
        lox.log({"return": carry, "tree": {"a": i}}, when=carry > 4, step=i)
        lox.log({"all": carry})
        return carry, None

    return lax.scan(body, x, jnp.arange(STEPS))[0]


def scalar_rows(x):
    rows, carry = [], np.float32(x)
    for i in range(STEPS):
        carry = np.float32(carry * np.float32(1.5) + np.float32(i))
        if carry > 4:
            rows.append((i, float(carry)))
    return rows


def episodes(x):
    """Vectorized environments, some of which have finished an episode."""

    def body(carry, i):
        returns = carry + jnp.arange(6.0).reshape(2, 3) * i
        done = (jnp.arange(6).reshape(2, 3) + i) % 4 == 0
        lox.log({"return": returns}, when=done, step=i, env=jnp.arange(6).reshape(2, 3))
        return carry + 1, None

    return lax.scan(body, x, jnp.arange(STEPS))[0]


def episode_rows(x):
    return [
        (i, env, float(x) + i + env * i)
        for i in range(STEPS)
        for env in range(6)
        if (env + i) % 4 == 0
    ]


def read(logs):
    if not logs:
        return []
    names = [name for name in ("step", "env") if name in logs.steps]
    steps = [np.atleast_1d(logs.steps[name]["return"]).tolist() for name in names]
    return list(zip(*steps, np.atleast_1d(logs["return"]).tolist(), strict=True))


PROGRAMS = [(scalar, scalar_rows), (episodes, episode_rows)]


@pytest.mark.parametrize(("program", "expected"), PROGRAMS)
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("capacity", [None, 5, 100])
def test_spool_keeps_rows_where_when_is_true(program, expected, jitted, capacity):
    spooled = lox.spool(program, "return", capacity=capacity)
    rows = expected(1.0)
    if capacity == 5 and len(rows) > 5:
        with pytest.warns(lox.LoxWarning, match=f"{len(rows) - 5} rows"):
            logs = (jax.jit(spooled) if jitted else spooled)(1.0)[1].compact()
        rows = rows[:5]
    else:
        logs = (jax.jit(spooled) if jitted else spooled)(1.0)[1].compact()
    assert read(logs) == rows


def test_capacity_limits_rows_of_conditional_events():
    shapes = jax.eval_shape(lox.spool(episodes, capacity=5), 1.0)[1]
    assert shapes["return"].shape == (5,)
    assert jax.eval_shape(lox.spool(episodes), 1.0)[1]["return"].shape == (6 * STEPS,)


@pytest.mark.parametrize(("program", "expected"), PROGRAMS)
@pytest.mark.parametrize("order", ["vmap(spool)", "spool(vmap)"])
@pytest.mark.parametrize("capacity", [None, 100])
def test_when_decides_per_lane(program, expected, order, capacity):
    xs = jnp.array([1.0, -3.0, 0.5])
    spooled = {
        "vmap(spool)": lambda: jax.vmap(lox.spool(program, capacity=capacity)),
        "spool(vmap)": lambda: lox.spool(jax.vmap(program), capacity=capacity),
    }[order]()
    logs = spooled(xs)[1].filter("return")
    for x, lane in zip(xs, logs.lanes(), strict=True):
        assert read(lane) == expected(x)


@pytest.mark.parametrize(("program", "expected"), PROGRAMS)
@pytest.mark.parametrize(
    "options", [{}, {"buffer": 4}, {"interval": 2}, {"ordered": False}], ids=str
)
@pytest.mark.parametrize("mapped", [False, True])
def test_tap_delivers_events_that_happen(program, expected, options, mapped):
    found = []
    tapped = lox.tap(program, found.append, "return", **options)
    xs = jnp.array([1.0, -3.0])
    jax.vmap(tapped)(xs) if mapped else tapped(1.0)
    jax.effects_barrier()
    rows = [row for logs in found for row in read(logs)]
    wanted = [
        expected(x)[:: options.get("interval", 1)] for x in (xs if mapped else [1.0])
    ]
    assert sorted(rows) == sorted(row for rows in wanted for row in rows)
    if options.get("ordered", True) and not mapped:
        assert rows == wanted[0]


@pytest.mark.parametrize(("program", "expected"), PROGRAMS)
@pytest.mark.parametrize("reduce", ["mean", "sum", "count", "last", "max"])
def test_reductions_count_events_that_happen(program, expected, reduce):
    values = [row[-1] for row in expected(1.0)]
    wanted = {
        "mean": np.mean,
        "sum": np.sum,
        "count": len,
        "last": lambda x: x[-1],
        "max": max,
    }[reduce](values)
    logs = lox.spool(program, "return", reduce=reduce)(1.0)[1]
    np.testing.assert_allclose(next(iter(logs.values())), [wanted], rtol=1e-6)


def test_windows_count_events_that_happen():
    values = [row[-1] for row in episode_rows(1.0)]
    logs = lox.spool(episodes, reduce="sum", window=4)(1.0)[1].compact()
    sums = [sum(values[i : i + 4]) for i in range(0, len(values), 4)]
    assert logs["return"].tolist() == sums


def test_tap_makes_no_host_call_if_nothing_happens(monkeypatch):
    calls = []
    receiver = lox._host.callbacks.HostSink.receiver

    def counting(self, event):
        receive = receiver(self, event)

        def call(*operands):
            calls.append(event)
            return receive(*operands)

        return call

    monkeypatch.setattr(lox._host.callbacks.HostSink, "receiver", counting)

    def program(x):
        lax.fori_loop(
            0, 100, lambda i, c: (lox.log({"x": c}, when=c > 98), c + 1)[1], x
        )
        lox.log({"xs": jnp.arange(3.0)}, when=jnp.zeros(3, bool))

    found = []
    lox.tap(program, found.append)(0.0)
    assert [float(logs["x"]) for logs in found] == [99.0] and len(calls) == 1
    calls.clear()
    jax.vmap(lox.tap(program, found.append))(jnp.array([0.0, 1.0]))
    assert len(found) == 4 and len(calls) == 2  # of 100, lanes happen at 98 and 99


def test_tap_passes_the_mask_of_lanes_but_not_a_single_when_to_the_host():
    def program(x):
        lox.log({"x": x}, when=x > 0)

    for fun, x, masked in (
        (lox.tap(program, print), jnp.zeros(()), False),
        (lox.tap(jax.vmap(program), print), jnp.zeros(2), True),
        (jax.vmap(lox.tap(program, print)), jnp.zeros(2), True),
    ):
        (event,) = events_of(jax.make_jaxpr(fun)(x))
        assert event.layout.masked == masked


@pytest.mark.parametrize("transform", [jax.grad, jax.jacfwd, jax.value_and_grad])
@pytest.mark.parametrize("inner", [lambda f: f, jax.checkpoint, jax.jit])
def test_when_works_in_derivatives(transform, inner):
    def program(x):
        lox.log(
            {"return": jnp.stack([x, x * 2])}, when=jnp.stack([x > 0, x > 5]), step=1
        )
        return inner(lambda y: (lox.log({"y": y}, when=y > 3), y * y)[1])(x)

    logs = lox.spool(transform(program))(4.0)[1]
    assert logs["return"].tolist() == [4.0] and logs["y"].tolist() == 4.0
    assert "y" not in lox.spool(transform(program))(2.0)[1]


def test_when_works_in_branches_of_vmapped_cond():
    def program(x, flag):
        def yes():
            lox.log({"x": jnp.stack([x, x + 1])}, when=jnp.stack([x > 1, x > 2]))

        lax.cond(flag, yes, lambda: None)

    xs, flags = jnp.array([0.0, 2.0, 3.0, 3.0]), jnp.array([True, True, False, True])
    found = [
        lane.get("x") for lane in lox.spool(jax.vmap(program))(xs, flags)[1].lanes()
    ]
    assert [None if x is None else x.tolist() for x in found] == [
        None,
        [2.0],
        None,
        [3.0, 4.0],
    ]


def test_when_works_in_while_loop():
    def program(x):
        def body(c):
            lox.log({"c": c}, when=c % 2 == 0)
            return c + 1

        return lax.while_loop(lambda c: c < 6, body, x)

    assert lox.spool(program, capacity=10)(1)[1]["c"].tolist() == [2, 4]
    lanes = lox.spool(jax.vmap(program), capacity=10)(jnp.array([0, 3]))[1].lanes()
    assert [lane["c"].tolist() for lane in lanes] == [[0, 2, 4], [4]]


def test_eager_events_are_printed_where_when_is_true(capsys):
    lox.log({"x": jnp.arange(3)}, when=jnp.array([True, False, True]))
    lox.log({"y": 1}, when=False)
    lox.log({"z": 1}, when=True)
    assert capsys.readouterr().out == "{'x': 0}\n{'x': 2}\n{'z': 1}\n"


@pytest.mark.parametrize("way", ["tap", "spool", "log"])
@pytest.mark.parametrize("mapped", [False, True])
def test_loggers_store_rows_where_when_is_true(tmp_path, way, mapped):
    logger = lox.loggers.SaveLogger(tmp_path)

    def run(key, x):
        state = logger.init(key)
        if way == "log":
            values = x + jnp.arange(6.0).reshape(2, 3)
            index = jnp.arange(6).reshape(2, 3)
            logger.log(state, {"return": values}, when=values > 3, step=1, env=index)
            logger.log(state, {"never": x}, when=x > 100)
        else:
            getattr(logger, way)(episodes, state)(x)
        logger.finish(state)

    keys, xs = jnp.arange(2), jnp.array([1.0, 2.0])
    jax.vmap(run)(keys, xs) if mapped else run(0, xs[0])
    jax.effects_barrier()
    for key, x in list(zip(keys, xs, strict=True))[: 2 if mapped else 1]:
        rows = episode_rows(x)
        if way == "log":
            rows = [(1, i, float(x) + i) for i in range(6) if float(x) + i > 3]
        logs = lox.load(tmp_path, key=int(key))
        assert list(logs) == ["return"] and read(logs) == rows


def test_logger_logs_a_spooled_logdict_only_if_when_is_true(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(0)
    logs = lox.spool(scalar, "all")(1.0)[1]
    logger.log(state, logs, when=False)
    logger.log(state, logs, when=True)
    logger.finish(state)
    assert len(lox.load(tmp_path)["all"]) == STEPS


def test_logify_logs_where_when_is_true():
    def program(xs):
        logify.log("all", xs, "append", when=xs > 1)
        for x in xs:
            logify.log("x", x, "sum", when=x > 1)

    logs = logify.logify(program)(jnp.arange(4))[1].asdict()
    assert logs["all"]["append"].tolist() == [2, 3]
    assert np.asarray(logs["x"]["sum"]).tolist() == 5


def test_log_returns_masked_logs_that_can_be_logged_again():
    def program(x):
        logs = lox.log({"x": x}, when=x > 1, step=3)
        lox.log(logs, prefix="again/")
        return x

    assert lox.spool(program)(2.0)[1] == {"x": 2.0, "again/x": 2.0}
    assert lox.spool(program)(0.0)[1] == {}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lox.log({"x": 1.0}, when=2), "must be a boolean.*when=x > 0"),
        (lambda: lox.log({"x": 1.0}, when="yes"), "must be a boolean"),
        (
            lambda: lox.log({"x": jnp.ones(3)}, when=jnp.ones(2, bool)),
            r"`when` has the shape \(2,\), but 'x' has the shape \(3,\)",
        ),
        (
            lambda: lox.log(
                {"x": jnp.ones(2)}, when=jnp.ones(2, bool), step=jnp.ones(3)
            ),
            r"step 'step' must be a scalar or have the shape \(2,\)",
        ),
    ],
)
def test_invalid_when_raises_error_with_line_and_remedy(call, message):
    with pytest.raises(lox.LoxError, match=message) as error:
        call()
    assert "test_when.py" in str(error.value)
