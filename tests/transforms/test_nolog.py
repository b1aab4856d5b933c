"""`lox.nolog` removes all logs from a program."""

import re

import jax
import jax.numpy as jnp
from jax import lax

import lox


def with_logs(x):
    def step(c, i):
        lox.log({"c": c, "n": jnp.sum(c**2)}, step=i)
        return lax.cond(i > 1, lambda c: lox.log({"d": c})["d"] * 2, jnp.sin, c), None

    lox.log({"start": x})
    return lax.scan(step, x, jnp.arange(4))[0]


def without_logs(x):
    def step(c, i):
        return lax.cond(i > 1, lambda c: c * 2, jnp.sin, c), None

    return lax.scan(step, x, jnp.arange(4))[0]


def program(f):
    text = jax.jit(f).lower(jnp.ones(3)).compile().as_text()
    lines = [line for line in text.splitlines() if " = " in line]
    text = "\n".join(re.sub(r", metadata=\{[^}]*\}", "", line) for line in lines)
    return re.sub(r"[%.\w-]*(with_logs|without_logs)[.\w-]*", "main", text)


def test_nolog_compiles_the_program_without_logs():
    quiet = lox.nolog(with_logs)
    assert not jax.make_jaxpr(quiet)(jnp.ones(3)).effects
    assert program(quiet) == program(without_logs)
    assert quiet(jnp.ones(3)).tolist() == without_logs(jnp.ones(3)).tolist()


def test_nolog_prints_nothing(capsys):
    lox.nolog(with_logs)(jnp.ones(3))
    jax.grad(lambda x: lox.nolog(with_logs)(x).sum())(jnp.ones(3))
    jax.vmap(lox.nolog(with_logs))(jnp.ones((2, 3)))
    lox.nolog(jax.vmap(jax.jit(with_logs)))(jnp.ones((2, 3)))
    jax.effects_barrier()
    assert capsys.readouterr().out == ""


def test_nolog_leaves_nothing_for_outer_transformation():
    assert lox.spool(lox.nolog(with_logs))(jnp.ones(3))[1] == {}


def test_nolog_of_tap_still_calls_back():
    calls = []
    lox.nolog(lox.tap(with_logs, calls.append, argnames="start"))(jnp.ones(3))
    jax.effects_barrier()
    assert [set(c) for c in calls] == [{"start"}]
