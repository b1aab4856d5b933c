"""`lox.tap`: order, lanes, exceptions and options."""

import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from tests.waiting import in_threads, wait_until


def loop(xs):
    lox.log({"start": xs[0]})

    def step(c, x):
        c = c + x
        lox.log({"a": c}, step=x)
        lox.log({"b": c, "x": x}, step=x)
        return c, None

    c, _ = lax.scan(step, 0, xs)
    lox.log({"end": c})
    return c


ORDER = ["start"] + ["a", "b"] * 3 + ["end"]


def first_keys(calls):
    return [next(iter(c)) for c in calls]


def test_eager_tap_returns_after_callbacks_ran_in_program_order():
    calls = []
    y = lox.tap(loop, calls.append)(jnp.arange(3))
    assert y == 3 and first_keys(calls) == ORDER
    assert calls[2] == {"b": 0, "x": 0} and calls[2].step == {"b": 0, "x": 0}


def test_tap_callback_gets_numpy_values_that_are_safe_to_keep():
    calls = []

    def f(x):
        def step(c, _):
            lox.log({"c": c, "s": c[0]}, step=c[0])
            return c + 1, None

        return lax.scan(step, x, None, length=50)[0]

    lox.tap(f, calls.append)(jnp.zeros(1000))
    assert all(type(c["c"]) is np.ndarray for c in calls)
    assert [float(c["c"].sum()) for c in calls] == [1000.0 * i for i in range(50)]
    assert not any(isinstance(x, jax.Array) for x in jax.tree.leaves(calls))


@pytest.mark.parametrize("dtype", ["int2", "uint2", "int4", "uint4"])
@pytest.mark.parametrize("inside", ["nothing", "vmap"])
def test_tap_delivers_integers_of_fewer_than_eight_bits(dtype, inside):
    def program(x):
        values = {"x": (x % 2).astype(dtype), "xs": jnp.full((2, 3), x % 2, dtype)}
        lox.log(values)

    rows = []
    mapped = jax.vmap(program) if inside == "vmap" else lambda xs: [*map(program, xs)]
    jax.jit(lox.tap(mapped, rows.append))(jnp.arange(4))
    jax.effects_barrier()
    assert [int(row["x"]) for row in rows] == [0, 1, 0, 1]
    assert [row["xs"].astype(int).sum() for row in rows] == [0, 6, 0, 6]
    assert {(row["x"].dtype.name, row["xs"].dtype.name) for row in rows} == {
        (dtype, dtype)
    }


def test_tap_under_jit_has_called_back_by_the_barrier():
    calls = []
    f = jax.jit(lox.tap(loop, calls.append))
    f(jnp.arange(3))
    jax.effects_barrier()
    assert first_keys(calls) == ORDER
    f(jnp.arange(3))
    jax.effects_barrier()
    assert first_keys(calls) == ORDER * 2


@pytest.mark.parametrize("ordered", [True, False])
def test_unordered_tap_delivers_all_events(ordered):
    calls = []
    lox.tap(loop, calls.append, ordered=ordered)(jnp.arange(3))
    assert sorted(first_keys(calls)) == sorted(ORDER)


def test_tap_without_callback_prints(capsys):
    lox.tap(loop, argnames="end")(jnp.arange(3))
    assert capsys.readouterr().out == "{'end': 3}\n"


def test_new_callback_per_call_gets_only_its_own_events():
    for i in range(3):
        calls = []
        lox.tap(loop, lambda logs, calls=calls: calls.append(logs))(
            jnp.arange(i, i + 3)
        )
        assert len(calls) == 8 and calls[0]["start"] == i


# --- lanes -----------------------------------------------------------------


def lane_log(x):
    lox.log({"x": x, "v": jnp.ones(2) * x}, step=x)
    return x


@pytest.mark.parametrize("inside", [True, False])
def test_tap_calls_back_per_lane_or_once_with_all_lanes(inside):
    def run(callback, **options):
        if inside:
            lox.tap(jax.vmap(lane_log), callback, **options)(jnp.arange(3))
        else:
            jax.vmap(lox.tap(lane_log, callback, **options))(jnp.arange(3))
        jax.effects_barrier()

    calls, batches = [], []
    run(calls.append)
    assert [c["x"].item() for c in calls] == [0, 1, 2]
    assert [c.step["x"].item() for c in calls] == [0, 1, 2]
    assert calls[2]["v"].tolist() == [2, 2]
    run(batches.append, batched=True)
    assert len(batches) == 1 and batches[0]["x"].tolist() == [0, 1, 2]
    assert [lane["v"].tolist() for lane in batches[0].lanes()] == [
        [0, 0],
        [1, 1],
        [2, 2],
    ]


def test_tap_of_many_lanes_makes_one_host_call_per_event(monkeypatch):
    from lox._host.callbacks import CallbackSink

    hosts = []
    original = CallbackSink.receiver

    def receiver(self, event):
        receive = original(self, event)
        return lambda *operands: hosts.append(event) or receive(*operands)

    monkeypatch.setattr(CallbackSink, "receiver", receiver)
    calls = []

    def f(x):
        return lax.scan(lambda c, i: (lane_log(c), None), x, None, length=5)[0]

    jax.vmap(lox.tap(f, calls.append))(jnp.arange(64))
    jax.effects_barrier()
    assert len(hosts) == 5 and len(calls) == 5 * 64


def test_batched_callback_gets_mask_of_lanes():
    def f(x):
        return lax.cond(x > 0, lane_log, lambda x: x, x)

    batches = []
    lox.tap(jax.vmap(f), batches.append, batched=True)(jnp.array([1, -1, 2]))
    (logs,) = batches
    assert logs.mask["x"].tolist() == [True, False, True]
    assert [dict(lane).get("x") for lane in logs.lanes()] == [1, None, 2]
    assert str(logs) == "{'x': [1, -, 2], 'v': [[1.0, 1.0], -, [2.0, 2.0]]}"
    batches.clear()
    lox.tap(jax.vmap(f), batches.append, batched=True)(jnp.array([-1, -1]))
    assert batches == []


# --- interval --------------------------------------------------------------


def test_interval_counts_each_key_across_calls_and_loops():
    def f(n):
        lox.log({"both": -1})

        def step(c, i):
            lox.log({"both": i, "inner": i})
            return c, None

        return lax.scan(step, n, jnp.arange(4))[0]

    calls = []
    lox.tap(f, calls.append, interval=2)(0)
    assert [dict(c) for c in calls] == [
        {"both": -1},
        {"inner": 0},
        {"both": 1},
        {"inner": 2},
        {"both": 3},
    ]
    _, logs = lox.spool(f, interval=2)(0)
    assert logs["both"].tolist() == [-1, 1, 3] and logs["inner"].tolist() == [0, 2]


def test_interval_restarts_per_call_and_counts_per_lane():
    def f(n):
        return lax.while_loop(
            lambda i: i < n, lambda i: lox.log({"i": i}, n=n)["i"] + 1, 0
        )

    for _ in range(2):
        calls = []
        lox.tap(f, calls.append, interval=3)(7)
        assert [int(c["i"]) for c in calls] == [0, 3, 6]
    calls = []
    jax.vmap(lox.tap(f, calls.append, interval=3))(jnp.array([2, 7]))
    jax.effects_barrier()
    found = [(int(c.n["i"]), int(c["i"])) for c in calls]
    assert sorted(found) == [(2, 0), (7, 0), (7, 3), (7, 6)]
    calls = []
    lox.tap(jax.vmap(f), calls.append, interval=3)(jnp.array([2, 7]))
    assert sorted((int(c.n["i"]), int(c["i"])) for c in calls) == sorted(found)


# --- exceptions ------------------------------------------------------------


class BoomError(Exception):
    pass


def test_callback_exception_reaches_eager_caller_and_next_calls_work():
    calls = []

    def callback(logs):
        calls.append(logs)
        if "a" in logs:
            raise BoomError("at a")

    f = lox.tap(loop, callback)
    for _ in range(2):
        calls.clear()
        with pytest.raises(BoomError, match="at a"):
            f(jnp.arange(3))
        # a callback that failed gets no more events of that call
        assert first_keys(calls) == ["start", "a"]
        jax.effects_barrier()
        assert jax.jit(lambda x: x + 1)(1) == 2
    seen = []
    assert lox.tap(loop, seen.append)(jnp.arange(3)) == 3 and len(seen) == 8


@pytest.mark.parametrize("ordered", [True, False])
def test_callback_exception_under_jit_is_raised_once_by_the_barrier(ordered):
    def callback(logs):
        raise BoomError("under jit")

    f = jax.jit(lox.tap(loop, callback, ordered=ordered))
    y = f(jnp.arange(3))
    with pytest.raises(BoomError, match="under jit"):
        jax.effects_barrier()
    assert y == 3  # the result is not lost
    jax.effects_barrier()
    jax.effects_barrier()
    jax.block_until_ready(jax.jit(lambda x: x + 1)(1))
    with pytest.raises(BoomError):
        f(jnp.arange(3))
        jax.effects_barrier()


def test_callback_exception_under_vmap_stops_at_that_lane():
    lanes = []

    def callback(logs):
        lanes.append(int(logs["x"]))
        if logs["x"] == 1:
            raise BoomError

    with pytest.raises(BoomError):
        lox.tap(jax.vmap(lane_log), callback)(jnp.arange(3))
    assert lanes == [0, 1]


def test_callback_is_never_called_concurrently():
    inside, calls = [], []

    def another_thread_delivers():
        stacks = map(traceback.extract_stack, sys._current_frames().values())
        functions = [{frame.name for frame in stack} for stack in stacks]
        return sum("deliver" in names for names in functions) > 1

    def callback(logs):
        inside.append(1)
        calls.append(1)
        if len(calls) == 1:  # there are two other threads, which want to enter
            wait_until(lambda: len(inside) > 1 or another_thread_delivers())
        assert len(inside) == 1
        inside.pop()

    f = lox.tap(loop, callback, ordered=False)
    # programs on one device may run one after the other
    in_threads(f, [(jax.device_put(jnp.arange(3), x),) for x in jax.devices()[:3]])
    jax.effects_barrier()
    assert len(calls) == 3 * len(ORDER)


def test_callback_that_is_not_callable_is_refused():
    with pytest.raises(lox.LoxTypeError, match="`callback` .*not 3"):
        lox.tap(loop, 3)


def test_callback_can_call_transformed_function_of_numpy_values():
    def f(x):
        lox.log({"x": x})
        return x

    deep = []
    lox.tap(f, lambda logs: deep.append(dict(logs)))(1)
    assert deep == [{"x": 1}]


def test_keep_logs_leaves_events_for_outer_transformation():
    calls, outer = [], []
    f = lox.tap(loop, calls.append, argnames="a", keep_logs=True)
    lox.tap(f, outer.append)(jnp.arange(3))
    assert first_keys(calls) == ["a"] * 3
    assert first_keys(outer) == ORDER


def test_tap_does_not_change_result_or_gradient():
    def f(w):
        def step(c, i):
            lox.log({"c": c})
            return jnp.sin(c * w), None

        return lax.scan(step, 1.0, jnp.arange(3))[0]

    plain = jax.value_and_grad(lox.nolog(f))(0.5)
    calls = []
    tapped = jax.value_and_grad(lox.tap(f, calls.append))(0.5)
    jax.effects_barrier()
    assert plain == tapped and len(calls) == 3
