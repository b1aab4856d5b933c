"""Canaries: the private names of JAX that lox relies on, and what its patches fix.

A failure here means that a version of JAX has moved something, or has fixed what lox
patches. It names the file that has to change.
"""

import ast
import importlib
import inspect
import json
import pathlib
from typing import NamedTuple

import jax
import jax.extend
import pytest

import lox
from tests import programs

JAX = tuple(int(part) for part in jax.__version__.split(".")[:2])
SOURCE = pathlib.Path(lox.__file__).parent / "_jax"

# Names that older versions of JAX lack, with the first version that has them.
SINCE = {
    "interpreters.ad.CustomBwdWithAccums": (0, 12),
    "api.Inline": (0, 11),
    "core.eval_jaxpr_p": (0, 11),
    "hijax._vjp_from_remat_rules": (0, 12),
}
# Names that newer versions lack, with the last version that has them.
UNTIL = {"hijax.VJPHiPrimitive": (0, 11)}


def exists_in_this_version(name):
    return SINCE.get(name, JAX) <= JAX <= UNTIL.get(name, JAX)


# --- names -----------------------------------------------------------------


class Use(NamedTuple):
    path: str
    reason: str
    place: str


def string(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def private_names():
    """The names that `compat.private` and `compat.replace` look up."""
    for file in sorted(SOURCE.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                function = ast.unparse(node.func).removeprefix("compat.")
                if function in ("private", "replace") and string(node.args[0]):
                    place = f"{file.name}:{node.lineno}"
                    yield Use(string(node.args[0]), string(node.args[1]), place)


def module_names():
    """The attributes of the modules `jax.interpreters.*` and `jax.extend.*`."""
    for file in sorted(SOURCE.glob("*.py")):
        tree = ast.parse(file.read_text())
        modules = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            and node.module in ("jax.interpreters", "jax.extend")
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = modules.get(node.value.id)
                if module is not None:
                    place = f"{file.name}:{node.lineno}"
                    yield Use(f"{module}.{node.attr}", "", place)


def by_path(uses):
    """One use of each name."""
    return {use.path: use for use in reversed(list(uses))}


def found(path):
    module, _, name = path.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


PRIVATE = by_path(private_names())
OF_MODULES = by_path(module_names())


@pytest.mark.parametrize("path", PRIVATE)
def test_private_name_exists_in_jax(path):
    use = PRIVATE[path]
    assert found(f"jax._src.{path}") == exists_in_this_version(path), (
        f"JAX {jax.__version__}: `jax._src.{path}` has come or gone. "
        f"`_jax/{use.place}` uses it: {use.reason}."
    )


@pytest.mark.parametrize("path", OF_MODULES)
def test_internal_module_name_exists_in_jax(path):
    assert found(path) == exists_in_this_version(path), (
        f"JAX {jax.__version__}: `{path}` has come or gone. "
        f"`_jax/{OF_MODULES[path].place}` uses it."
    )


def test_private_names_have_reasons():
    assert len(PRIVATE) > 20
    assert not [use for use in PRIVATE.values() if len(use.reason) < 15]


def test_private_names_are_all_found_by_canaries():
    for file in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            asks = isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "compat.private",
                "compat.replace",
            )
            assert not asks or string(node.args[0]), f"{file.name}:{node.lineno}"


# The attributes of JAX's objects that lox uses, by private class.
ATTRIBUTES = {
    "core.Trace": "",
    "core.JaxprEqnContext": "manager",
    "core.JaxprEqn": "replace",
    "interpreters.partial_eval.DynamicJaxprTrace": "emit_eqn to_jaxpr_tracer",
    "interpreters.partial_eval.JaxprTrace": "invalidate new_const",
    "interpreters.partial_eval.PartialVal": "is_known get_known",
    "interpreters.ad.JVPTrace": "process_custom_jvp_call process_custom_vjp_call",
    "interpreters.ad.LinearizeTrace": "process_custom_jvp_call process_custom_vjp_call",
    "interpreters.mlir.LoweringRuleContext": "replace set_tokens_out",
    "interpreters.pxla.ExecuteReplicated": "__call__ _add_tokens_to_inputs",
    "dispatch.RuntimeTokenSet": "block_until_ready",
    "linear_util.WrappedFun": "call_wrapped",
}


@pytest.mark.parametrize("path", ATTRIBUTES)
def test_private_classes_have_the_attributes_that_are_used(path):
    module, _, name = path.rpartition(".")
    kind = getattr(importlib.import_module(f"jax._src.{module}"), name)
    gone = [x for x in ATTRIBUTES[path].split() if not hasattr(kind, x)]
    assert not gone, f"JAX {jax.__version__}: `jax._src.{path}` has no {gone}"


def test_runtime_tokens_are_stored_by_effect_and_device():
    from jax._src import dispatch

    assert isinstance(dispatch.runtime_tokens.current_tokens, dict)
    assert isinstance(dispatch.runtime_tokens.output_runtime_tokens, dict)


def test_lowering_rules_are_stored_with_inline_flag():
    from jax._src.interpreters import mlir

    for primitive in (jax.extend.core.primitives.jit_p, jax.lax.while_p):
        entry = mlir._lowerings[primitive]
        assert callable(entry.rule) and isinstance(entry.inline, bool)


def test_partial_evaluation_keeps_effect_handles():
    from jax._src.interpreters import partial_eval

    assert "effect_handles" in inspect.getsource(partial_eval.JaxprTrace)


# --- what JAX does without the patches -------------------------------------

# Each program logs `expected` events, and another number, or fails, on a JAX that is
# not patched. On the versions of JAX that need no patch, it logs the same.
PROGRAMS = """
    import contextlib, io, json, sys
    import jax
    import jax.numpy as jnp
    from jax import lax
    import lox

    def unpatched():
        import lox._runtime
        from lox._jax import early_patches, patches

        patches._waiting.clear()
        patches.add = lambda *late: None
        for trace in (early_patches._JVPTrace, early_patches._LinearizeTrace):
            for name in ("process_custom_jvp_call", "process_custom_vjp_call"):
                setattr(trace, name, getattr(trace, name).__wrapped__)
        jax._src.api._jvp = jax._src.api._jvp.__wrapped__
        rules = jax._src.interpreters.ad
        for table in (rules.primitive_jvps, rules.primitive_linearizations):
            p = early_patches.primitives.hijax_p
            table[p] = table[p].__wrapped__

    def count(program):
        seen = []
        lox.set_default(seen.append)
        try:
            program()
            jax.effects_barrier()
        except Exception as error:
            return type(error).__name__
        return len(seen)

    def log(x, name="x"):
        lox.log({name: x})
        return x

    def constant_in_scan(x):
        def body(c, _):
            log(1.0)
            return c * 2, None
        return lax.scan(body, x, None, length=3)[0]

    def branch(x):
        return lax.cond(x > 0, log, lambda y: y, x)

    def loop(x):
        return lax.while_loop(lambda y: y < 3, lambda y: log(y) + 1, x)

    def condition(x):
        return lax.while_loop(lambda y: log(y) < 3, lambda y: y + 1, x)

    def halving(x):
        def body(c):
            return log(c[0]) * 0.5, c[1] + 1
        return lax.while_loop(lambda c: c[1] < 3, body, (x, 0))[0]

    def recomputed(x):
        return x * halving(lax.stop_gradient(x))

    def known_length(x):
        return lax.while_loop(
            lambda c: log(c[0]) < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x)
        )

    def checked(x):
        from jax.experimental import checkify
        return checkify.checkify(condition)(x)

    def solve(b):
        return lax.custom_linear_solve(
            lambda v: 2 * v, b, lambda _, b: log(b) / 2, symmetric=True
        )

    custom = jax.custom_vjp(lambda x: x * 2)
    custom.defvjp(lambda x: (log(x) * 2, x), lambda r, ct: (log(r) * 0 + ct,))

    ones = jnp.ones(3)

    def unused_checkpoint(x):
        jax.checkpoint(lambda: log(jnp.zeros(())))()
        return x

    def leaks():
        with jax.checking_leaks():
            jax.grad(lambda x: lax.scan(
                lambda c, _: (jnp.sin(log(c)), None), x, None, length=1
            )[0])(1.0)

    PROGRAMS = {
        "a constant in a scan under grad": lambda: jax.grad(constant_in_scan)(1.0),
        "a constant in a scan under linearize": lambda: jax.linearize(
            constant_in_scan, 1.0
        ),
        "a constant in a scan under checkpoint": lambda: jax.grad(
            jax.checkpoint(constant_in_scan)
        )(1.0),
        "cond under vmap": lambda: jax.vmap(branch)(jnp.array([1.0, -1.0])),
        "while_loop under vmap": lambda: jax.vmap(loop)(jnp.array([0, 2])),
        "while_loop under linearize": lambda: jax.linearize(halving, 1.0)[1](1.0),
        "while_loop under checkpoint": lambda: jax.grad(jax.checkpoint(recomputed))(
            1.0
        ),
        "the condition of a while_loop": lambda: jax.jit(known_length)(1.0),
        "the condition of a while_loop under checkify": lambda: checked(0),
        "custom_linear_solve under jvp": lambda: jax.jvp(solve, (2.0,), (1.0,)),
        "custom_vjp under grad": lambda: jax.grad(custom)(1.0),
        "jacfwd": lambda: jax.jacfwd(lambda x: log(x[0]) * x)(ones),
        "checkpoint whose results are not used": lambda: jax.jit(
            jax.grad(unused_checkpoint)
        )(1.0),
        "checking_leaks": leaks,
    }
    if sys.argv[1] == "unpatched":
        unpatched()
    print(json.dumps({name: count(program) for name, program in PROGRAMS.items()}))
"""

EXPECTED = {
    "a constant in a scan under grad": 3,
    "a constant in a scan under linearize": 3,
    "a constant in a scan under checkpoint": 3,
    "cond under vmap": 1,
    "while_loop under vmap": 4,
    "while_loop under linearize": 3,
    "while_loop under checkpoint": 3,
    "the condition of a while_loop": 4,
    "the condition of a while_loop under checkify": 4,
    "custom_linear_solve under jvp": 1,
    "custom_vjp under grad": 1,
    "jacfwd": 1,
    "checkpoint whose results are not used": 1,
    "checking_leaks": 1,
}
# Programs that JAX runs correctly without patches, with its versions.
FIXED = {
    "checkpoint whose results are not used": lambda: JAX >= (0, 12),
}


def run_programs(how):
    done = programs.run(PROGRAMS, how)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_patched_programs_log_every_event_once():
    assert run_programs("patched") == EXPECTED


def test_patches_are_all_still_needed():
    counts = run_programs("unpatched")
    fixed = [
        name
        for name, count in counts.items()
        if count == EXPECTED[name] and not (name in FIXED and FIXED[name]())
    ]
    assert not fixed, (
        f"JAX {jax.__version__} logs {fixed} correctly without lox's patches: check "
        "whether the patch can go, and add the version to `FIXED`."
    )
