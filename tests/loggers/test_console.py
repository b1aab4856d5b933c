"""The console: a live table in a terminal, lines of text elsewhere."""

import collections
import io
import math
import os
import pty
import re
import select
import signal
import sys
import termios
import threading
import types

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import lox
import lox.loggers
from lox._text_curves import sparkline
from lox.loggers._console import logger as console_logger, view
from lox.loggers._console.curves import RECENT, Curves
from lox.loggers._console.view import format_rate, format_time
from tests import programs as processes
from tests.waiting import in_threads, join, wait_for, wait_until

# seconds that never pass, so that only the end is shown
NEVER = 600.0


class Terminal(io.StringIO):
    """A file that says that it is a terminal."""

    def isatty(self):
        return True

    @property
    def encoding(self):
        return "utf-8"

    def screen(self):
        return screen(self.getvalue())


def screen(raw):
    """The lines that a terminal shows after these characters: a minimal emulation."""
    lines, row, column = [""], 0, 0
    for code, number, final, text in re.findall(
        r"(\x1b\[\??([\d;]*)([A-Za-z]))|([^\x1b])", raw, re.DOTALL
    ):
        if final == "A":
            row -= int(number or 1)
        elif final == "K":
            lines[row] = ""
        elif text == "\r":
            column = 0
        elif text == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif text:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + text + line[column + 1 :]
            column += 1
        assert row >= 0 and (not code or final in "AKhlm"), code
    return [line.rstrip() for line in lines if line.strip()]


@pytest.fixture(autouse=True)
def terminal_of_known_size(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def terminal():
    pytest.importorskip("rich")
    return Terminal()


def shown(logs, file=None, many=1, **options):
    """The last line that is shown for some logs."""
    file = file or io.StringIO()
    logger = lox.loggers.ConsoleLogger(file=file, every=NEVER, **options)
    states = [logger.init(seed) for seed in range(many)]
    for state in states:
        logger.log(state, logs)
    for state in states:
        logger.finish(state)
    return file.getvalue().rstrip("\n")


def training(logger, steps=20):
    def run(key):
        def step(w, i):
            lox.log({"w": w, "half": w / 2}, step=i)
            return w + 1, None

        def train(seed):
            return jax.lax.scan(step, 1.0 * seed, jnp.arange(steps))[0]

        state = logger.init(key)
        result = logger.tap(train, state)(jax.random.key_data(key)[1])
        logger.finish(state)
        return result

    return run


def keys(count):
    return jax.vmap(jax.random.key)(jnp.arange(count))


# --- lines -----------------------------------------------------------------


def test_line_shows_steps_values_and_rate():
    logs = lox.logdict(
        {"loss": np.array([2.0, 0.53211]), "acc": np.array([0, 91])},
        steps={"step": {"loss": np.arange(2), "acc": np.arange(2)}},
        stacked=True,
    )
    line = shown(logs)
    assert re.fullmatch(r"step 1  loss 0.5321  acc 91  \(\S+ rows/s\)", line), line


def test_line_summarizes_64_vmapped_seeds():
    file = io.StringIO()
    logger = lox.loggers.ConsoleLogger(file=file, every=NEVER, total=20)
    result = jax.jit(jax.vmap(training(logger)))(keys(64))
    jax.effects_barrier()
    assert result[63] == 83
    (line,) = file.getvalue().splitlines()
    last = np.arange(64) + 19
    spread = f"{last.std(ddof=1):.2g}"
    expected = rf"100%  step 19  w {last.mean()} ± {spread}  half 25.25 ± 9.3  "
    assert re.fullmatch(expected + r"\(64 runs, \S+ rows/s\)", line), line


def test_line_shows_one_value_per_run():
    file = io.StringIO()
    logger = lox.loggers.ConsoleLogger(file=file, every=NEVER, runs="apart")
    jax.vmap(training(logger))(keys(3))
    jax.effects_barrier()
    assert "w 19 | 20 | 21  half 9.5 | 10 | 10.5  (3 runs" in file.getvalue()


def test_lines_are_limited_in_rate(monkeypatch):
    ticks = []

    class Timer(console_logger._Timer):
        """A timer that the test calls."""

        def __init__(self, call, every):
            assert every == 0.05
            ticks.append(call)

        def stop(self): ...

    monkeypatch.setattr(console_logger, "_Timer", Timer)
    file = io.StringIO()
    logger = lox.loggers.ConsoleLogger(file=file, every=0.05)
    state = logger.init(0)
    (tick,) = ticks
    for i in range(10_000):
        logger._runs.write((0, 0), lox.logdict({"i": np.array(i)}))
        if i % 4000 == 0:
            tick()
    logger.finish(state)
    shown = [line.split()[:2] for line in file.getvalue().splitlines()]
    assert shown == [["i", "0"], ["i", "4000"], ["i", "8000"], ["i", "9999"]]


def test_line_appears_without_another_event():
    class File(io.StringIO):
        written = threading.Event()

        def flush(self):
            self.written.set()

    file = File()
    logger = lox.loggers.ConsoleLogger(file=file, every=0.01)
    state = logger.init(0)
    logger.log(state, {"x": 1.0})
    wait_for(file.written)
    assert file.getvalue().startswith("x 1  (")
    logger.finish(state)
    assert file.getvalue().count("\n") == 1, "nothing has changed since"


def test_timer_waits_longer_after_slow_line(monkeypatch):
    now, durations, waits = [0.0], [0.0, 2.0, 0.01], []
    time = types.SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(console_logger, "time", time)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)

    def call():
        now[0] += durations.pop(0)

    class Stopped:
        def wait(self, seconds):
            waits.append(seconds)
            return not durations

    clock = console_logger._Timer(call, 0.5)
    clock._stopped = Stopped()
    clock._run()
    assert waits == [0.5, 0.5, 18.0, 0.5]


@pytest.mark.parametrize(
    "total, logs, percent",
    [
        (8, {"x": np.arange(4)}, "50%"),
        (300, {"x": np.arange(1)}, "0%"),
        (4, {"x": np.arange(9)}, "100%"),
    ],
)
def test_progress_without_steps_counts_rows(total, logs, percent):
    line = shown(lox.logdict(logs, stacked=True), total=total)
    assert line.startswith(f"{percent}  x")


def test_progress_uses_the_step_named_step():
    steps = {"epoch": {"x": np.array([7])}, "step": {"x": np.array([49])}}
    logs = lox.logdict({"x": np.ones(1)}, steps=steps, stacked=True)
    assert shown(logs, total=200).startswith("25%  epoch 7 step 49  x 1")
    steps = {"step": {"x": np.array([np.nan])}}
    logs = lox.logdict({"x": np.ones(1)}, steps=steps, stacked=True)
    assert shown(logs, total=200).startswith("0%  step nan  x 1")


def test_remaining_time_is_estimated_from_steps(monkeypatch):
    clock = types.SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(view, "time", clock)
    viewer, run = view.Viewer(total=1000, per_run=False), Curves("run")

    def left(now, step):
        clock.now = now
        run.add(lox.logdict({"x": np.ones(())}, {"step": {"x": np.array(step)}}))
        progress = viewer.view([run]).progress
        return progress.percent, progress.time_left

    assert viewer.view([run]).progress.time_left == ""
    assert left(60.0, 499) == (50, "")  # resumed, after a minute of compilation
    assert left(61.0, 509) == (51, "0:49")
    assert left(80.0, 899) == (90, "0:05")
    assert left(90.0, 999) == (100, "")


def test_runs_that_end_together_are_shown_together():
    file = io.StringIO()
    logger = lox.loggers.ConsoleLogger(file=file, every=NEVER)
    states = [logger.init(seed) for seed in range(3)]
    for value, state in enumerate(states):
        logger.log(state, {"x": float(value)})
    logger.finish(states[0])
    logger.log(states[1], {"x": 5.0})
    logger.finish(states[1])
    logger.finish(states[2])
    first, second = file.getvalue().splitlines()
    assert first.startswith("x 1 ± 1  (3 runs")
    assert second.startswith("x 3.5 ± 2.1  (2 runs")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0, 3.0], "x 2 ± 1.4  (2 runs"),
        ([1.0, 3.0, math.nan], "x 2 ± 1.4 (1 not finite)  (3 runs"),
        ([1.0, math.inf], "x 1 (1 not finite)  (2 runs"),  # there is no spread of one
        ([2, 2, 2], "x 2 ± 0  (3 runs"),
        ([1 + 1j, 3 + 1j], "x 2+1j ± 1.4  (2 runs"),
    ],
)
def test_line_has_the_standard_deviation_of_a_sample(values, text):
    file = io.StringIO()
    logger = lox.loggers.ConsoleLogger(file=file, every=NEVER)
    states = [logger.init(seed) for seed in range(len(values))]
    for value, state in zip(values, states, strict=True):
        logger.log(state, {"x": value})
    for state in states:
        logger.finish(state)
    (line,) = file.getvalue().splitlines()
    assert line.startswith(text), line


def test_run_without_rows_shows_nothing_at_exit():
    file = io.StringIO()
    logger = lox.loggers.ConsoleLogger(file=file)
    logger.finish(logger.init(0))
    assert file.getvalue() == ""


def test_closed_or_ascii_file_does_not_break_the_logger():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    logger = lox.loggers.ConsoleLogger(file=file, every=NEVER)
    state = logger.init(0)
    logger.log(state, {"é": 1.0})
    logger.finish(state)
    assert file.buffer.getvalue().startswith(b"? 1  (")
    state = logger.init(0)
    file.close()
    logger.log(state, {"é": 1.0})
    logger.finish(state)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"runs": "stacked"}, "`runs` of `ConsoleLogger` is 'stacked'; it must be"),
        ({"total": 0}, "`total` of `ConsoleLogger` is 0; it must be positive"),
        ({"every": -1.0}, "`every` of `ConsoleLogger` is -1.0; it must be positive"),
    ],
)
def test_bad_options_are_refused(options, match):
    with pytest.raises(lox.LoxValueError, match=match):
        lox.loggers.ConsoleLogger(**options)


# --- values ----------------------------------------------------------------

VALUES = {
    "float": (np.float32(0.125), "0.125"),
    "bfloat16": (np.array(0.125, ml_dtypes.bfloat16), "0.125"),
    "float8": (np.array(0.5, ml_dtypes.float8_e4m3fn), "0.5"),
    "int4": (np.array(-3, ml_dtypes.int4), "-3"),
    "bool": (np.array(True), "True"),
    "int": (np.array(123456), "123456"),
    "uint64": (np.array(2**64 - 1, np.uint64), "1.845e+19"),
    "large": (np.array(43210.9), "43211"),
    "complex": (np.array(1 - 2j), "1-2j"),
    "huge complex": (np.array(1e308 + 1e308j), "1e+308+1e+308j"),
    "huge": (10**400, "inf"),
    "nan": (np.array(np.nan), "nan"),
    "inf": (np.array(-np.inf), "-inf"),
    "key": (jax.random.key(0), "key<fry>"),
    "keys": (jax.random.split(jax.random.key(0), 2), "key<fry>[2]"),
    "array": (np.arange(6.0).reshape(2, 3), "(2,3) 2.5 [0..5]"),
    "bfloat16s": (np.array([1, 3], ml_dtypes.bfloat16), "(2,) 2 [1..3]"),
    "int4s": (np.array([1, 3], ml_dtypes.int4), "(2,) 2 [1..3]"),
    "bools": (np.array([True, False]), "(2,) 0.5 [0..1]"),
    "complexes": (np.array([3j, -5]), "(2,) 4 [3..5]"),
    "nans": (np.array([1, np.nan, np.inf]), "(3,) 1 [1..1] (2 not finite)"),
    "all nan": (np.array([np.nan]), "(1,) nan"),
    "empty": (np.zeros((0, 3)), "(0,3) empty"),
    "huges": (np.array([1e308, 1e308, -1e308]), "(3,) inf [-1e+308..1e+308]"),
    "tree": ({"b": [np.float32(1), np.zeros(2)]}, "1  x/b/1 (2,) 0 [0..0]"),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("runs", ["together", "apart"])
def test_table_formats_values_of_every_kind(name, runs, terminal):
    value, expected = VALUES[name]
    where = "x/b/0" if name == "tree" else "x"
    line = shown({"x": value})
    assert line.startswith(f"{where} {expected}  (" if expected else "")
    logs = lox.logdict({"x": value})
    if name not in ("key", "keys", "huge"):
        stacked = jax.tree.map(lambda x: np.stack([np.asarray(x)] * 3), value)
        rows = lox.logdict({"x": stacked}, stacked=True)
        assert shown(rows).startswith(f"{where} {expected}  (")
        assert shown(rows, many=3)
    # and in the table
    logger = lox.loggers.ConsoleLogger(file=terminal, every=NEVER, runs=runs)
    states = [logger.init(seed) for seed in range(2)]
    for state in states:
        logger.log(state, logs)
        logger._display.refresh()
    for state in states:
        logger.finish(state)
    if expected:
        assert any(line.startswith(where) for line in terminal.screen())


@pytest.mark.parametrize(
    "key, expected",
    [
        ("[red]x[/red]", "[red]x[/red]"),
        ("[/]", "[/]"),
        ("日本語/é", "日本語/é"),
        ("a\nb\x1b[31m\ud800", r"a\nb\x1b[31m\ud800"),
        ("k" * 500, "k" * 16 + "…"),
        ("", ""),
    ],
)
def test_table_formats_keys_of_every_kind(key, expected, terminal):
    assert shown({key: 1.0}).startswith(expected.rstrip("…"))
    shown({key: 1.0}, terminal)
    text = "\n".join(terminal.screen())
    assert expected in text and len(text) < 500


def test_lanes_inside_run_are_averaged():
    file = io.StringIO()
    logger = lox.loggers.ConsoleLogger(file=file, every=NEVER)
    state = logger.init(0)

    def f(x):
        def some():
            lox.log({"some": x})

        jax.lax.cond(x > 1, some, lambda: None)
        lox.log({"x": x, "pair": jnp.stack([x, x])})
        return x

    logger.spool(jax.vmap(f), state)(jnp.arange(4.0))
    logger.finish(state)
    text = file.getvalue()
    assert "some 2.5" in text and "x 1.5" in text and "pair (2,) 1.5 [0..3]" in text


def test_history_shows_the_last_rows():
    random = np.random.default_rng(0)
    run, expected = Curves("run"), collections.deque(maxlen=RECENT)
    for length in random.integers(0, 2 * RECENT, 50):
        rows = random.normal(size=length)
        run.add(lox.logdict({"x": rows}, stacked=True))
        expected.extend(rows)
        for x in random.normal(size=random.integers(0, 5)):
            run.add(lox.logdict({"x": np.array(x)}))
            expected.append(x)
        curve = run.by_name.get("x")
        if curve:
            np.testing.assert_array_equal(curve.recent(), list(expected))
            assert not expected or curve.last == expected[-1]
    assert curve._recent.size == RECENT


@pytest.mark.parametrize(
    "values, width, expected",
    [
        ([], 8, ""),
        (range(8), 8, "▁▂▃▄▅▆▇█"),
        (range(16), 8, "▁▂▃▄▅▆▇█"),
        ([1, 1, 1], 8, "▄▄▄"),
        ([0, np.nan, 1, np.inf], 8, "▁!█!"),
        ([np.nan], 8, "!"),
        ([-1.7e308, 0, 1.7e308], 8, "▁▅█"),
    ],
)
def test_sparkline_fits_width(values, width, expected):
    assert sparkline(np.array(values, float), width) == expected


def test_rates_and_times_are_formatted():
    rates = [None, 0.012, 3.14159, 250, 3141.59, 2.5e6]
    assert list(map(format_rate, rates)) == ["", "0.012", "3.1", "250", "3.14k", "2.5M"]
    assert list(map(format_rate, [99.4, 99.6, 999.4, 999.9, 999_900])) == [
        *("99", "100", "999", "1k", "1M"),
    ]
    assert list(map(format_time, [0.1, 75, 3700])) == ["0:01", "1:15", "1:01:40"]


# --- the table -------------------------------------------------------------


def test_table_is_left_on_the_screen(terminal):
    logger = lox.loggers.ConsoleLogger(file=terminal, every=NEVER, total=40)
    jax.jit(jax.vmap(training(logger)))(keys(64))
    jax.effects_barrier()
    title, head, w, half, bar = terminal.screen()
    assert title == "64 runs"
    assert head.split() == ["key", "last", "recent", "step", "rows/s"]
    assert re.fullmatch(r"w +50.5 ± 19 +▁[▁-█]*█ +19 +\S+", w)
    assert re.fullmatch(r"half +25.25 ± 9.3 +▁[▁-█]*█ +19 +\S+", half)
    assert "50%  20/40" in bar


def test_table_shows_as_many_runs_as_fit(terminal):
    logger = lox.loggers.ConsoleLogger(file=terminal, every=NEVER, runs="apart")
    jax.vmap(training(logger))(keys(3))
    jax.effects_barrier()
    title, head, *rows = terminal.screen()
    assert head.split() == ["key", "00000000", "00000001", "00000002", "step", "rows/s"]
    assert rows[0].split()[:5] == ["w", "19", "20", "21", "19"]
    assert re.fullmatch(r" +(▁[▁-█]*█ *){3}", rows[1])
    terminal.truncate(0)
    jax.vmap(training(logger))(keys(64))
    jax.effects_barrier()
    assert "+59" in terminal.screen()[1].split()


def test_final_table_shows_keys_beyond_terminal_height(terminal):
    logger = lox.loggers.ConsoleLogger(file=terminal, every=NEVER)
    state = logger.init(0)
    logger.log(state, {f"key{i:03}": 1.0 * i for i in range(100)})
    logger._display.refresh()
    assert terminal.screen()[-1] == "and 76 more keys"
    logger.finish(state)
    assert [line[:6] for line in terminal.screen()[-100:]] == [
        f"key{i:03}" for i in range(100)
    ]


def test_two_loggers_share_the_screen(terminal):
    first = lox.loggers.ConsoleLogger(file=terminal, every=NEVER)
    second = lox.loggers.ConsoleLogger(file=terminal, every=NEVER)
    states = first.init(0), second.init(0)
    first.log(states[0], {"x": 1.0})
    second.log(states[1], {"y": 2.0})
    second._display.refresh()
    names = [line.split()[0] for line in terminal.screen()]
    assert names == ["key", "x", "key", "y"]
    first.finish(states[0])
    second.log(states[1], {"y": 3.0})
    second.finish(states[1])
    _, x, _, y = terminal.screen()
    assert x.split()[:2] == ["x", "1"] and y.split()[:2] == ["y", "3"]
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("25l")


def test_other_live_display_does_not_break_the_logger(monkeypatch):
    rich = pytest.importorskip("rich")
    live = pytest.importorskip("rich.live")
    console = rich.get_console()
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(console, "is_interactive", True)
    with live.Live("theirs", auto_refresh=False, redirect_stderr=False):
        logger = lox.loggers.ConsoleLogger(every=NEVER)
        state = logger.init(0)
        logger.log(state, {"x": 1.0})
        logger.finish(state)
    assert any(line.startswith("x") for line in terminal.screen())
    assert any(line.startswith("theirs") for line in terminal.screen())


def test_threads_can_write_while_table_is_drawn(terminal):
    logger = lox.loggers.ConsoleLogger(file=terminal, every=0.001)
    states = [logger.init(seed) for seed in range(4)]

    def work(state):
        for i in range(300):
            logger.log(state, {f"x{i % 7}": i, "y": np.ones(i % 5)})

    in_threads(work, [(state,) for state in states])
    for state in states:
        logger.finish(state)
    rows = dict(line.split(maxsplit=1) for line in terminal.screen())
    assert rows["x0"].startswith("294 ± 0") and rows["x6"].startswith("293 ± 0")
    for thread in threading.enumerate():
        if thread.name == "lox-console":
            join(thread)


# --- in separate processes -------------------------------------------------

PROGRAM = """
import signal, sys, time
ending = sys.argv[1]
if ending == "absent":
    sys.modules["rich"] = None
import jax, jax.numpy as jnp
import lox, lox.loggers
assert sys.modules.get("rich") is None, "lox imports rich"
logger = lox.loggers.ConsoleLogger(total=1000, every=0.05)
state = logger.init(0)
def f(i):
    lox.log({"loss": 1 / (1 + i)}, step=i)
f = logger.tap(jax.jit(f), state)
for i in range(20):
    f(i)
    logger._display.refresh()  # which the clock does too, now and then
    if i % 10 == 5:
        print("printed", i)
        print("warned", i, file=sys.stderr)
if ending == "raise":
    raise ValueError("[red]oops[/red]")
if ending == "interrupt":
    # which a program that was started in the background would ignore
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("READY", flush=True)
    while True:
        time.sleep(0.01)
if ending == "finish":
    logger.finish(state)
    print("after")
"""


class Program:
    """Python in its own terminal, or with a pipe for its output."""

    def __init__(self, ending, tty=True, term="xterm"):
        environ = {**os.environ, "TERM": term, "COLUMNS": "100", "LINES": "30"}
        self.output = b""
        self._master, self._slave = pty.openpty() if tty else os.pipe()
        self._tty = tty
        self.before = termios.tcgetattr(self._slave) if tty else None
        self.process = processes.start(
            PROGRAM,
            ending,
            stdout=self._slave,
            stderr=self._slave,
            env=environ,
            new_session=True,
        )

    def read_until(self, wanted):
        """Reads until `wanted` appears, or to the end if it is None."""

        def is_there():
            ended = self.process.poll() is not None
            if select.select([self._master], [], [], 0)[0]:
                self.output += os.read(self._master, 1 << 16)
            elif ended:
                return True
            return wanted is not None and wanted in self.output

        wait_until(is_there)

    def finish(self):
        self.read_until(None)
        self.after = termios.tcgetattr(self._slave) if self._tty else None
        os.close(self._slave)
        os.close(self._master)
        self.code = self.process.wait()
        self.text = self.output.decode().replace("\r\n", "\n")
        self.screen = screen(self.text)
        return self


@pytest.fixture(scope="module")
def programs():
    """All programs, run at the same time."""
    started = {
        "finish": Program("finish"),
        "raise": Program("raise"),
        "interrupt": Program("interrupt"),
        "exit": Program("exit"),
        "absent": Program("absent"),
        "dumb": Program("finish", term="dumb"),
        "pipe": Program("finish", tty=False),
    }
    try:
        started["interrupt"].read_until(b"READY")
        started["interrupt"].process.send_signal(signal.SIGINT)
        yield {name: program.finish() for name, program in started.items()}
    finally:
        for program in started.values():
            program.process.kill()


@pytest.mark.parametrize("ending", ["finish", "raise", "interrupt", "exit"])
def test_terminal_is_restored_at_exit(ending, programs):
    pytest.importorskip("rich")
    program = programs[ending]
    assert program.code == {"raise": 1, "interrupt": -signal.SIGINT}.get(ending, 0)
    assert program.after == program.before
    assert "\x1b[?25l" in program.text
    assert program.text.rindex("\x1b[?25h") > program.text.rindex("\x1b[?25l")
    # printed lines are above the table, complete and in order
    lines = program.screen
    printed = [line for line in lines if line.startswith(("printed", "warned"))]
    assert printed == ["printed 5", "warned 5", "printed 15", "warned 15"]
    at = next(i for i, line in enumerate(lines) if line.startswith("key"))
    assert at > lines.index("warned 15")
    assert re.fullmatch(r"loss +0.05 +█[▁-█]*▁ +19 +\S+", lines[at + 1])
    assert "2%  20/1000" in lines[at + 2]
    assert len([line for line in lines if line.startswith("loss")]) == 1
    assert lines[at + 3 :] == (["after"] if ending == "finish" else [])
    if ending == "raise":
        assert "ValueError: [red]oops[/red]" in lines
    if ending == "interrupt":
        assert "KeyboardInterrupt" in lines


@pytest.mark.parametrize("where", ["pipe", "absent", "dumb"])
def test_lines_replace_table_without_terminal(where, programs):
    program = programs[where]
    assert program.code == 0
    assert "\x1b" not in program.text
    lines = [line for line in program.screen if "loss" in line]
    assert 1 <= len(lines) <= 100
    last = r"2%  step 19  loss 0.05  \(\S+ rows/s(, \S+ left)?\)"
    assert re.fullmatch(last, lines[-1]), lines[-1]
    assert "printed 5" in program.text and "warned 5" in program.text


def test_rate_ignores_time_before_first_row():
    """JAX compiles in that time."""
    meter = view._Meter(0.0, 0)
    assert meter.rate(10.0, 10) == 1.0
    assert meter.rate(10.5, 20) == pytest.approx(20 / 10.5)
    assert meter.rate(12.0, 50) == 40 / 2.0
