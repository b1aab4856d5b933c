"""`lox.progress`: what it prints, and that it changes nothing else."""

import io
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from lox._events.event import Call, Event
from lox._host import progress_bars
from lox._source import Source


def counted(x):
    return lax.fori_loop(0, 50, lambda i, v: v * 0.5 + i, x)


def unknown(x):
    return lax.while_loop(
        lambda c: c[0] < x, lambda c: (c[0] + 1, c[1] * 0.5), (0, 1.0)
    )


def two(x):
    def step(c, t):
        return lax.fori_loop(0, 3, lambda i, v: v + i, c), t

    return lax.scan(step, x, jnp.arange(4.0))[0] + counted(x)


@jax.custom_vjp
def custom(x):
    return counted(x)


custom.defvjp(lambda x: (custom(x), None), lambda _, t: (t,))


class Output(io.StringIO):
    """Lines of text, without rates, which depend on time."""

    def lines(self):
        text = re.sub(r", \S+ iterations/s", "", self.getvalue())
        self.seek(0)
        self.truncate()
        return text.splitlines()


@pytest.fixture
def output():
    return Output()


@pytest.fixture(autouse=True)
def all_lines(monkeypatch):
    """Prints every line, however fast the loop is."""
    monkeypatch.setattr(progress_bars, "_SECONDS_BETWEEN_LINES", 0)


TENTHS = [f"counted: {10 * i}% ({5 * i}/50)" for i in range(1, 11)]

WAYS = {
    "eager": lambda fun: fun,
    "jit": jax.jit,
    "grad": jax.grad,
    "value_and_grad of checkpoint": lambda fun: jax.value_and_grad(jax.checkpoint(fun)),
    "jit of grad": lambda fun: jax.jit(jax.grad(fun)),
}


@pytest.mark.parametrize("way", WAYS)
def test_progress_prints_every_tenth_of_a_loop_once(way, output):
    fun = WAYS[way](lox.progress(counted, file=output))
    for _ in range(2):
        fun(1.0)
        jax.effects_barrier()
        assert output.lines() == TENTHS


def test_vmapped_loops_share_one_bar(output):
    fun = jax.vmap(lox.progress(counted, file=output))
    fun(jnp.arange(3.0))
    jax.effects_barrier()
    assert output.lines() == TENTHS


def test_loop_with_a_custom_derivative_is_shown_once(output):
    jax.grad(lox.progress(custom, file=output, label="counted"))(1.0)
    jax.effects_barrier()
    assert output.lines() == TENTHS


def test_progress_of_grad_shows_the_backward_pass_too(output):
    lox.progress(jax.grad(counted), file=output, label="f")(1.0)
    lines = output.lines()
    assert lines.count("f scan[0]: 100% (50/50)") == 1
    assert lines.count("f scan[1]: 100% (50/50)") == 1


def test_while_loop_shows_its_count_each_time_it_doubles(output):
    lox.progress(unknown, file=output)(20)
    counts = [f"unknown: {count}" for count in (2, 4, 8, 16, 20)]
    assert output.lines() == counts


def test_vmapped_while_loop_shows_the_lane_that_runs_longest(output):
    for way in (
        lambda **options: jax.vmap(lox.progress(unknown, **options)),
        lambda **options: lox.progress(jax.vmap(unknown), **options),
    ):
        way(file=output, label="f")(jnp.array([3, 20, 0]))
        jax.effects_barrier()
        assert output.lines() == [f"f: {count}" for count in (2, 4, 8, 16, 20)]


def test_while_loop_with_vmaps_on_both_sides_shows_its_longest_lane(output):
    fun = jax.vmap(lox.progress(jax.vmap(unknown), file=output, label="f"))
    counts = jnp.array([[3, 20, 0], [1, 2, 5]])
    np.testing.assert_array_equal(fun(counts), jax.vmap(jax.vmap(unknown))(counts))
    jax.effects_barrier()
    assert output.lines() == [f"f: {count}" for count in (2, 4, 8, 16, 20)]


def test_total_is_the_length_of_a_while_loop(output):
    lox.progress(unknown, total=20, file=output)(20)
    assert output.lines() == [f"unknown: {10 * i}% ({2 * i}/20)" for i in range(1, 11)]


def test_total_that_is_too_small_is_ignored(output):
    lox.progress(unknown, total=10, file=output)(20)
    assert output.lines()[-1] == "unknown: 20"


def test_only_outermost_loops_have_bars(output):
    lox.progress(two, file=output)(1.0)
    quarters = [f"two scan[0]: {25 * i}% ({i}/4)" for i in range(1, 5)]
    assert output.lines() == [
        *quarters,
        *(line.replace("counted", "two scan[1]") for line in TENTHS),
    ]


def test_progress_is_a_decorator_and_has_a_name(output):
    @lox.progress(label="training", file=output)
    def fun(x):
        return counted(x)

    fun(1.0)
    assert output.lines()[-1] == "training: 100% (50/50)"


def test_progress_changes_neither_result_nor_gradient_nor_events(output):
    def fun(x):
        def step(c, t):
            lox.log({"c": c})
            return c * 0.5 + t, None

        return lax.scan(step, x, jnp.arange(4.0))[0]

    shown = lox.progress(fun, file=output)
    got, logs = lox.spool(jax.value_and_grad(shown))(1.0)
    want, expected = lox.spool(jax.value_and_grad(fun))(1.0)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(logs["c"], expected["c"])


def logs_in_body(x):
    def body(c):
        lox.log({"c": c[1]})
        return c[0] + 1, c[1] * 0.5

    return lax.while_loop(lambda c: c[0] < x, body, (0, 1.0))


def logs_in_condition(x):
    def condition(c):
        lox.log({"c": c[1]})
        return c[0] < x

    return lax.while_loop(condition, lambda c: (c[0] + 1, c[1] * 0.5), (0, 1.0))


@pytest.mark.parametrize("fun", [logs_in_body, logs_in_condition])
def test_progress_of_while_loop_changes_neither_result_nor_events(fun, output):
    x = jnp.array([9, 3, 0])
    (want, expected) = lox.spool(jax.vmap(fun), capacity=16)(x)
    for shown in (
        lox.progress(jax.vmap(fun), file=output),
        jax.vmap(lox.progress(fun, file=output)),
    ):
        got, logs = lox.spool(shown, capacity=16)(x)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(logs["c"], expected["c"])


def test_empty_loop_and_function_without_loops_work(output):
    lox.progress(lambda x: lax.scan(lambda c, t: (c, t), x, length=0), file=output)(1.0)
    assert output.lines() == ["<lambda>: 100% (0/0)"]
    assert lox.progress(lambda x: x + 1, file=output)(1.0) == 2.0
    assert output.lines() == []


def reports(monkeypatch, fun, *args, **options):
    """The counts that reach the host while a function runs."""
    counts = []
    monkeypatch.setattr(
        progress_bars._Lines, "show", lambda self, bar: counts.append(bar.count)
    )
    lox.progress(fun, file=Output(), **options)(*args)
    return counts


@pytest.mark.parametrize(
    ("length", "interval"),
    [(30, 1), (1000, 20), (12_345, 617), (40_000, 800), (1_000_000, 10_000)],
)
def test_loop_reports_from_20_to_100_times(monkeypatch, length, interval):
    def fun(x):
        return lax.fori_loop(0, length, lambda i, v: v + 1, x)

    # the last iteration may be the end of the loop
    counts = reports(monkeypatch, fun, 0)
    assert counts == list(range(interval, length + 1, interval))[: len(counts)]
    assert len(counts) in (length // interval, (length - 1) // interval)


def test_while_loop_reports_four_times_per_doubling(monkeypatch):
    counts = reports(monkeypatch, unknown, 40)
    assert counts == [*range(1, 8), *range(8, 16, 2), *range(16, 32, 4), 32, 40]


@pytest.mark.parametrize("total", [None, 40])
def test_lanes_that_have_left_a_while_loop_report_no_more(monkeypatch, total):
    limits = jnp.array([8, 40, 0])  # a report is due at 8, where the first lane stops
    expected = reports(monkeypatch, unknown, 40, total=total)
    assert reports(monkeypatch, jax.vmap(unknown), limits, total=total) == expected


def test_error_of_the_file_is_raised_after_the_loop():
    class Broken(Output):
        def write(self, text):
            if "30%" in text:
                raise RuntimeError("no more room")
            return super().write(text)

    def fun(x):
        return lax.fori_loop(0, 100, lambda i, v: v + 1, x)

    with pytest.raises(RuntimeError, match="no more room"):
        lox.progress(fun, file=Broken())(0)


def test_loop_that_fails_leaves_no_bar(output):
    def fail(x):
        raise RuntimeError("stop")

    def fun(x):
        def step(c, _):
            return c + jax.pure_callback(fail, jnp.float32(0), c), None

        return lax.scan(step, x, length=3)[0]

    with pytest.raises(Exception, match="stop"):
        lox.progress(fun, file=output)(1.0)
    assert output.lines() == []


def test_progress_in_a_shard_map_counts_once(output):
    mesh = jax.sharding.Mesh(jax.devices()[:2], "d")
    spec = jax.sharding.PartitionSpec("d")

    def fun(x):
        return jax.shard_map(counted, mesh=mesh, in_specs=spec, out_specs=spec)(x)

    lox.progress(fun, file=output, label="counted")(jnp.arange(2.0))
    lines = output.lines()
    assert lines[-1] == TENTHS[-1]
    assert len(lines) == len(set(lines))


def test_line_has_the_rate_since_the_first_report():
    seconds = iter([0.0, 1.0, 2.0])
    bar = progress_bars._Bar("f", 100, lambda: next(seconds))
    bar.count = 10
    assert bar.line() == "f: 10% (10/100)"
    bar.count = 50
    assert bar.line() == "f: 50% (50/100), 20 iterations/s"


def deliver(sink, count, total, ends=False):
    report = progress_bars.Report("scan[0]", "f", total, ends)
    tree, source = jax.tree.structure(0), Source("program.py", 1)
    call = Call(("count",), (tree,), (), source, api_data=report)
    sink.deliver(Event(call), [np.int32(count if ends else count - 1)])


@pytest.mark.parametrize(
    ("seconds", "percents"),
    [
        (2**-10, [10, 100]),
        (0.0625, [10, 50, 90, 100]),
        (0.125, [10, 30, 50, 70, 90, 100]),
        (0.25, range(10, 101, 10)),
    ],
)
def test_lines_of_fast_loops_are_half_a_second_apart(
    monkeypatch, output, seconds, percents
):
    monkeypatch.undo()
    time = 0.0
    sink = progress_bars.ProgressSink(output, clock=lambda: time)
    for count in range(1, 21):
        deliver(sink, count, 20)
        time += seconds
    deliver(sink, 20, 20, ends=True)
    assert output.lines() == [f"f: {p}% ({p // 5}/20)" for p in percents]


def test_loop_that_restarts_after_an_interruption_has_a_new_bar(output):
    sink = progress_bars.ProgressSink(output)
    for count in (5, 15, 5, 10, 15, 20):  # the first run ends after 15 of 20 iterations
        for ends in (False, True) if count == 20 else (False,):
            deliver(sink, count, 20, ends)
    expected = [25, 75, 25, 50, 75, 100]
    assert output.lines() == [f"f: {p}% ({p // 5}/20)" for p in expected]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_terminal_shows_live_bars(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Terminal()
    lox.progress(counted, file=screen)(1.0)
    assert "counted" in screen.getvalue()
    assert "50/50" in screen.getvalue()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"total": 0}, lox.LoxValueError),
        ({"total": 1.5}, lox.LoxTypeError),
        ({"label": 3}, lox.LoxTypeError),
        ({"file": "log.txt"}, lox.LoxTypeError),
    ],
    ids=str,
)
def test_wrong_option_is_refused(options, error):
    with pytest.raises(error, match=next(iter(options))):
        lox.progress(counted, **options)
