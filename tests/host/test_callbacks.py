"""Host callbacks: shapes, threads and errors."""

import threading

import jax
import jax.custom_batching
import jax.numpy as jnp
import pytest

import lox
from tests.waiting import in_threads, wait_for


def test_callback_gets_axes_of_each_argument_shape():
    calls = []

    def f(x):
        lox.log({"x": x})
        return x

    for x in (1.0, jnp.arange(3.0), jnp.ones((2, 2))):
        lox.tap(f, calls.append)(x)
    assert [len(c.lanes()) for c in calls] == [1, 1, 1]
    assert (calls[1] + calls[1])["x"].shape == (2, 3)


def test_first_calls_in_several_threads_share_one_sink():
    for _ in range(5):

        def f(x):
            lox.log({"x": x})
            return x

        barrier = threading.Barrier(4)
        found = {}

        def work(i, f=f, barrier=barrier, found=found):
            calls = []
            barrier.wait()
            lox.tap(f, calls.append)(i)
            found[i] = [int(c["x"]) for c in calls]

        in_threads(work, [(i,) for i in range(4)])
        assert found == {i: [i] for i in range(4)}


def bad(logs):
    raise KeyError("mine")


def test_callback_error_is_raised_only_by_its_call_or_a_barrier():
    def f(x):
        lox.log({"x": x})
        return x

    def program(x):
        y = lox.tap(f, bad)(x)
        lox.log({"y": y})  # comes after the error
        return y

    failed = threading.Event()
    jax.jit(lox.tap(program, lambda logs: failed.set()))(1.0)
    wait_for(failed)
    seen = []
    lox.set_default(seen.append)
    lox.log({"unrelated": 1})
    assert lox.tap(f, seen.append)(2.0) == 2 and len(seen) == 2
    with pytest.raises(KeyError, match="mine"):
        jax.effects_barrier()
    jax.effects_barrier()


def test_barrier_reports_errors_of_several_callbacks():
    def f(x):
        lox.tap(lambda x: lox.log({"x": x}), lambda logs: 1 / 0)(x)
        lox.tap(lambda x: lox.log({"x": x}), bad)(x)
        return x

    jax.jit(f)(1.0)
    with pytest.raises((ZeroDivisionError, KeyError)) as caught:
        jax.effects_barrier()
    assert len(caught.value.__notes__) == 1
