"""Interrupts and signals while a tapped program runs."""

import io
import os
import signal
import sys
import threading

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import lox
from tests.waiting import in_threads

# A signal that arrives while a program runs is handled in a callback, if XLA calls
# callbacks in the main thread. Otherwise, the main thread waits for the program.

ENDLESS = 2**31 - 1


@pytest.fixture
def handlers():
    """Sets signal handlers that raise, however the tests were started."""
    old = {}
    for signum, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, lambda *_: sys.exit(3)),
        (signal.SIGUSR1, lambda *_: None),
    ):
        old[signum] = signal.signal(signum, handler)
    yield
    for signum, handler in old.items():
        signal.signal(signum, handler)


def count_up(x, steps=ENDLESS):
    def step(i, c):
        lox.log({"c": c}, step=i)
        return c + 1

    return lax.fori_loop(0, steps, step, x)


def pending():
    """A zero that is computed later: programs that use it run on XLA's threads."""
    return later(jnp.ones((400, 400)))


@jax.jit
def later(x):
    return lax.fori_loop(0, 100, lambda _, x: x @ x * 1e-3, x).sum().astype(int) * 0


INTERRUPTS = {
    "SIGINT": (lambda: os.kill(os.getpid(), signal.SIGINT), KeyboardInterrupt),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), SystemExit),
    "exit": (lambda: sys.exit(4), SystemExit),
    "raise": (lambda: raise_(KeyboardInterrupt("by hand")), KeyboardInterrupt),
}


def raise_(error):
    raise error


class InterruptedCallback:
    """Keeps rows, and is interrupted in the hundredth call."""

    def __init__(self, kind):
        self.interrupt, self.error = INTERRUPTS[kind]
        self.rows = []
        # whether callbacks run in the thread that called the program
        self.inline = None
        self.stop = False

    def __call__(self, logs):
        if self.stop:
            raise KeyboardInterrupt("to end the test")
        self.inline = threading.current_thread() is threading.main_thread()
        if len(self.rows) == 100:
            self.interrupt()
        self.rows.append(int(logs.step["c"]))


@pytest.mark.parametrize("kind", INTERRUPTS)
@pytest.mark.parametrize("argument", [lambda: 0, pending], ids=["ready", "pending"])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_interrupt_ends_the_program(jitted, ordered, argument, kind, handlers):
    callback = InterruptedCallback(kind)
    tapped = lox.tap(count_up, callback, ordered=ordered)
    tapped = jax.jit(tapped) if jitted else tapped
    assert tapped(argument(), 3) == 3  # compiles it
    callback.rows.clear()
    signalled, error, waits = kind.startswith("SIG"), callback.error, False
    if jitted and argument is pending and not signalled:
        # the callback may run on a thread where its exception cannot be raised
        error = (error, jax.errors.JaxRuntimeError)
    with pytest.raises(error) as raised:
        jax.block_until_ready(tapped(argument(), ENDLESS))
    if isinstance(raised.value, jax.errors.JaxRuntimeError):
        assert not callback.inline
        with pytest.raises(callback.error) as raised:
            jax.effects_barrier()
    expected = {"SIGTERM": (3,), "exit": (4,), "raise": ("by hand",), "SIGINT": ()}
    assert raised.value.args == expected[kind]
    if jitted and signalled and not callback.inline:
        # the program continues, and so does its logging
        callback.stop = waits = True
    # the interrupted event is delivered, unless the callback itself raised
    assert len(callback.rows) >= (101 if signalled else 100)
    if waits:
        with pytest.raises(KeyboardInterrupt, match="to end the test"):
            jax.effects_barrier()
    jax.effects_barrier()
    assert callback.rows == list(range(len(callback.rows)))


class InterruptingFile(io.StringIO):
    """Sends an interrupt to the main thread, which arrives between two lines."""

    def write(self, line):
        if not self.getvalue():
            args = threading.main_thread().ident, signal.SIGINT
            threading.Thread(target=signal.pthread_kill, args=args).start()
        return super().write(line)


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_interrupt_ends_a_loop_with_a_progress_bar(jitted, handlers):
    def endless(x):
        return lax.fori_loop(0, x, lambda i, c: c + i, 0)

    file = InterruptingFile()
    shown = lox.progress(endless, total=10_000, file=file)
    with pytest.raises(KeyboardInterrupt):
        jax.block_until_ready((jax.jit(shown) if jitted else shown)(ENDLESS))
    jax.effects_barrier()
    assert file.getvalue()


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_logging_continues_after_caught_interrupt(jitted, handlers):
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    for _ in range(3):
        callback = InterruptedCallback("SIGINT")
        tapped = lox.tap(count_up, callback)
        with pytest.raises(KeyboardInterrupt):
            jax.block_until_ready((jax.jit(tapped) if jitted else tapped)(0))
        calls = []
        y = lox.tap(count_up, calls.append)(0, 3)
        assert y == 3 and len(calls) == 3
    jax.effects_barrier()
    after = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    assert after == before


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_signal_handlers_are_restored_between_calls(jitted, handlers):
    tapped = lox.tap(count_up, lambda logs: None)
    tapped = jax.jit(tapped) if jitted else tapped

    def own(signum, frame):
        raise AssertionError("no such signal is sent")

    for handler in (signal.default_int_handler, own, signal.SIG_IGN, signal.SIG_DFL):
        signal.signal(signal.SIGINT, handler)
        jax.block_until_ready(tapped(0, 3))
        assert signal.getsignal(signal.SIGINT) is handler
        lox.tap(lambda: lox.log({"x": 1}), lambda logs: None)()
        assert signal.getsignal(signal.SIGINT) is handler


def test_signal_handler_set_by_callback_is_kept(handlers):
    def own(signum, frame):
        raise AssertionError("no such signal is sent")

    lox.tap(count_up, lambda logs: signal.signal(signal.SIGINT, own))(0, 3)
    assert signal.getsignal(signal.SIGINT) is own


def test_program_in_another_thread_does_not_change_signal_handlers(handlers):
    seen = []
    tapped = lox.tap(count_up, lambda logs: seen.append(signal.getsignal(2)))
    in_threads(tapped, [(0, 3)])
    assert seen == [signal.default_int_handler] * 3


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_signal_handler_that_does_not_raise_changes_nothing(jitted, handlers):
    handled, rows = [], []
    signal.signal(signal.SIGUSR1, lambda *_: handled.append(len(rows)))

    def callback(logs):
        if logs.step["c"] % 10 == 5:
            os.kill(os.getpid(), signal.SIGUSR1)
        rows.append(int(logs["c"]))

    def short(x):
        def step(c, i):
            lox.log({"c": c}, step=i)
            return c + 1, None

        return lax.scan(step, x, jnp.arange(50))[0]

    tapped = lox.tap(short, callback)
    assert (jax.jit(tapped) if jitted else tapped)(0) == 50
    jax.effects_barrier()
    assert rows == list(range(50)) and handled


def test_second_signal_does_not_wait_for_callback(handlers):
    def callback(logs):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it was not interrupted")

    with pytest.raises(KeyboardInterrupt):
        lox.tap(count_up, callback)(0)


def test_program_on_several_devices_continues_to_log_after_interrupt(handlers):
    """If one device failed, the others would wait forever."""
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = []

    def each(x):
        def step(c, i):
            lox.log({"c": c[0]}, step=i)
            return c + lax.psum(c, "d") * 0, None

        return lax.scan(step, x, jnp.arange(20))[0]

    def callback(logs):
        rows.append(logs)
        if len(rows) == 7:
            raise KeyboardInterrupt("by hand")

    spec = jax.sharding.PartitionSpec("d")
    f = jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec)
    with pytest.raises(KeyboardInterrupt, match="by hand"):
        lox.tap(f, callback)(jnp.arange(4.0))
    assert len(rows) == 80
