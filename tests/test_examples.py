"""Excerpts of `examples/` in its pages, and examples of early documentation."""

import pathlib
import re
import textwrap

import jax
import jax.numpy as jnp
import pytest

import lox

ROOT = pathlib.Path(__file__).parents[1]
PROGRAMS = sorted(path.stem for path in ROOT.glob("examples/*.py"))
PAGES = sorted(path.stem for path in ROOT.glob("docs/examples/*.md"))


def test_every_example_has_a_page_that_is_listed():
    assert [name for name in PROGRAMS if name != "spirals"] == PAGES
    index = (ROOT / "docs" / "examples.md").read_text()
    assert all(f"(examples/{name}.md)" in index for name in PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_page_of_example_shows_its_lines(name):
    page = (ROOT / "docs" / "examples" / f"{name}.md").read_text()
    program = (ROOT / "examples" / f"{name}.py").read_text()
    excerpts = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert excerpts and f"(../../examples/{name}.py)" in page
    for excerpt in excerpts:
        indented = [textwrap.indent(excerpt, " " * n) for n in range(0, 20, 4)]
        assert any(f"\n{lines}" in program for lines in indented), excerpt


def test_example_of_first_readme():
    def f(xs):
        lox.log({"xs": xs})

        def scan_step(carry, x):
            carry = carry + x
            lox.log({"xs": carry, "x": x})
            return carry, x

        lox.log({"xs": xs})
        ys, _ = jax.lax.scan(scan_step, xs, xs)
        return ys

    _, logs = lox.spool(f)(jnp.arange(3))
    assert logs["x"].tolist() == [0, 1, 2]
    assert logs["xs"].tolist() == [
        [0, 1, 2],
        [0, 1, 2],
        [0, 1, 2],
        [1, 2, 3],
        [3, 4, 5],
    ]


def test_example_of_general_logging(capsys):
    def f(x):
        lox.log({"x": x})

        def step(carry, x):
            lox.log({"x": x})
            return carry + x, None

        return jax.lax.scan(step, x, jnp.arange(5))

    f(3)
    jax.effects_barrier()
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["{'x': 3}", *(f"{{'x': {i}}}" for i in range(5))]


def test_example_of_spool_prints_as_shown(capsys):
    def f(x, y):
        lox.log({"x": x, "y": y})
        return x * y

    z, logs = lox.spool(f)(3, 4)
    print("f(x, y)", z)
    print("Logs:", logs)
    assert capsys.readouterr().out == "f(x, y) 12\nLogs: {'x': 3, 'y': 4}\n"


def quick_start(xs):
    lox.log({"xs": xs})

    def step(carry, x):
        carry += x
        lox.log({"carry": carry})
        return carry, x

    y, _ = jax.lax.scan(step, 0, xs)
    return y


def test_example_of_quick_start(capsys):
    xs = jnp.arange(3)
    lox.tap(quick_start, callback=lambda logs: print("Logging:", logs))(xs)
    _, logs = lox.spool(quick_start)(xs)
    print("Collected Logs:", logs)
    assert capsys.readouterr().out.splitlines() == [
        "Logging: {'xs': [0, 1, 2]}",
        "Logging: {'carry': 0}",
        "Logging: {'carry': 1}",
        "Logging: {'carry': 3}",
        "Collected Logs: {'xs': [0, 1, 2], 'carry': [0, 1, 3]}",
    ]


def test_example_of_steps():
    xs = jnp.arange(3)

    def f(xs):
        def body(i, carry):
            carry += xs[i]
            lox.log({"carry": carry}, step=i, episode=i // 2)
            return carry

        return jax.lax.fori_loop(0, len(xs), body, 0)

    _, logs = lox.spool(f)(xs)
    assert logs["carry"].tolist() == [0, 1, 3]
    assert logs.step["carry"].tolist() == [0, 1, 2]
    assert logs.episode["carry"].tolist() == [0, 0, 1]


def test_example_of_spool_reference():
    def f(x):
        lox.log({"x": x})
        return x + 1.0

    assert lox.spool(f)(1.0) == (2.0, {"x": 1.0})

    def g(xs):
        carry, ys = jax.lax.scan(lambda c, x: (f(c), f(x)), 0.0, xs)
        lox.log({"carry": carry})
        return ys

    ys, logs = lox.spool(g)(jnp.arange(3.0))
    assert ys.tolist() == [1, 2, 3] and logs["carry"] == 3
    assert logs["x"].tolist() == [0, 0, 1, 1, 2, 2]

    def h(x):
        return jax.lax.cond(x > 0, lambda x: f(x), lambda x: f(x + 1), x)

    assert lox.spool(h)(3.0) == (4.0, {"x": 3.0})

    def j(x):
        y, _ = lox.spool(f)(x)
        return y

    assert lox.spool(j)(1.0) == (2.0, {})


def test_example_of_sharp_bits():
    @jax.jit
    def f(x):
        lox.log({"loss": x}, tags=["metric"])
        lox.log({"gradient_norm": x}, tags=["debug"])
        return x

    lox.set_default("silent")
    f(1.0), f(1.0)
    assert lox.spool(f)(1.0) == (1.0, {"loss": 1.0, "gradient_norm": 1.0})
    calls = []
    lox.tap(f, calls.append, tags=["metric"])(1.0)
    assert calls == [{"loss": 1.0}]

    def loop(n):
        body = lambda i: lox.log({"i": i})["i"] + 1  # noqa: E731
        return jax.lax.while_loop(lambda i: i < n, body, 0)

    with pytest.raises(lox.UnboundedLoopError):
        lox.spool(loop)(3)
    calls.clear()
    lox.tap(loop, calls.append)(3)
    assert [int(c["i"]) for c in calls] == [0, 1, 2]


def test_example_of_loggers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    xs = jnp.arange(3)
    key = jax.random.key(0)
    expected = lox.spool(quick_start)(xs)[1]

    logger = lox.loggers.SaveLogger("./.lox/")
    logger_state = logger.init(key)
    logger.spool(quick_start, logger_state)(xs)
    assert lox.load("./.lox/") == expected

    # the same key is the same run, so `exists` says what to do with it
    console_logger = lox.loggers.ConsoleLogger()
    save_logger = lox.loggers.SaveLogger("./.lox/", exists="resume")
    multi_logger = lox.loggers.MultiLogger(console_logger, save_logger)
    multi_logger_state = multi_logger.init(key)
    multi_logger.tap(quick_start, multi_logger_state)(xs)
    multi_logger.finish(multi_logger_state)
    assert lox.load("./.lox/") == expected + expected
    assert "carry 3" in capsys.readouterr().out


def test_example_of_logger_state(tmp_path):
    def f(x):
        lox.log({"x": x})
        return x

    logger = lox.loggers.SaveLogger(tmp_path / "logs")
    logger_state = logger.init(jax.random.key(0))
    assert logger.spool(f, logger_state)(1.0) == 1.0
    assert lox.load(tmp_path / "logs") == {"x": 1.0}
