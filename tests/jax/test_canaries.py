"""Canaries: the private names of JAX that lox relies on, and what its patches fix.

A failure here means that a version of JAX has moved something, or has fixed what lox
patches. It names the file that has to change.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import json
import pathlib
import re
import types
from typing import NamedTuple

import jax
import jax.extend
import pytest

import lox
from lox._jax import compat, jaxprs, patches, rule_sources
from tests import programs

JAX = jax.__version_info__[:3]
SOURCE = pathlib.Path(lox.__file__).parent / "_jax"

# Names that older versions of JAX lack, with the first version that has them.
SINCE = {
    "core.trace_state_strong_ref": (0, 10),
    "interpreters.ad.CustomBwdWithAccums": (0, 12),
    "api.Inline": (0, 11),
    "core.eval_jaxpr_p": (0, 11),
    "hijax._vjp_from_remat_rules": (0, 12),
    "lax/erf.py": (0, 12),
}
# Names that newer versions lack, with the last version that has them.
UNTIL = {"hijax.VJPHiPrimitive": (0, 11, 1)}


def exists_in_this_version(name):
    return SINCE.get(name, JAX) <= JAX <= UNTIL.get(name, JAX)


# --- versions --------------------------------------------------------------


def test_oldest_and_newest_versions_are_the_same_everywhere():
    """In `pyproject.toml`, in messages, and in what `.ci` tests."""
    root = pathlib.Path(__file__).parents[2]
    declared = re.search(r'"jax>=([\d.]+)"', (root / "pyproject.toml").read_text())[1]
    assert declared == compat.OLDEST

    def tested(file, pattern):
        found = re.findall(pattern, (root / ".ci" / file).read_text())
        return sorted(tuple(map(int, version.split("."))) for version in found)

    in_ci = tested("run", r"\ninstall_jax ([\d.]+)")
    everywhere = tested("survival", r'"([\d.]+) 3\.\d+"')
    oldest = tuple(map(int, f"{declared}.0".split(".")))
    assert in_ci[0] == everywhere[0] == oldest
    assert in_ci[-1] == everywhere[-1]
    assert ".".join(map(str, in_ci[-1][:2])) == compat.NEWEST
    assert {*in_ci} <= {*everywhere}


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


def private_files():
    """The files that `compat.private_files` looks up."""
    for file in sorted(SOURCE.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and "private_files" in ast.unparse(node.func):
                place = f"{file.name}:{node.lineno}"
                yield from (Use(string(path), "", place) for path in node.args)


# Modules of JAX whose names are not covered by its deprecation policy, or hardly.
INTERNAL = ("jax.core", "jax.custom_derivatives", "jax.extend", "jax.interpreters")


def module_names():
    """What lox uses of the modules in `INTERNAL`, such as `jax.extend.core.Jaxpr`."""
    for file in sorted(SOURCE.parent.rglob("*.py")):
        tree = ast.parse(file.read_text())
        aliases = {"jax": "jax"}
        place = str(file.relative_to(SOURCE.parent))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    path = f"{node.module}.{alias.name}"
                    aliases[alias.asname or alias.name] = path
                    if path.startswith(INTERNAL):
                        yield Use(path, "", f"{place}:{node.lineno}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                first, _, rest = ast.unparse(node).partition(".")
                path = f"{aliases.get(first)}.{rest}"
                if path.startswith(tuple(f"{x}." for x in INTERNAL)):
                    yield Use(path, "", f"{place}:{node.lineno}")


def by_path(uses):
    """One use of each name."""
    return {use.path: use for use in reversed(list(uses))}


def holder_of(path):
    """The object that has a name as its attribute; None if there is none."""
    of, _, _ = path.rpartition(".")
    with contextlib.suppress(ImportError):
        return importlib.import_module(of)
    outer = holder_of(of)
    return getattr(outer, of.rpartition(".")[2], None)


def found(path):
    if hasattr(holder_of(path), path.rpartition(".")[2]):
        return True
    with contextlib.suppress(ImportError):  # a module that nothing has imported yet
        return importlib.import_module(path) is not None
    return False


PRIVATE = by_path(private_names())
# without the methods of what is in a module
OF_MODULES = {
    path: use
    for path, use in by_path(module_names()).items()
    if isinstance(holder_of(path), types.ModuleType | None)
}


@pytest.mark.parametrize("path", PRIVATE)
def test_private_name_exists_in_jax(path):
    use = PRIVATE[path]
    assert found(f"jax._src.{path}") == exists_in_this_version(path), (
        f"JAX {jax.__version__}: `jax._src.{path}` has come or gone. "
        f"`_jax/{use.place}` uses it: {use.reason}."
    )


@pytest.mark.parametrize("use", [*private_files()], ids=lambda use: use.path)
def test_private_file_exists_in_jax(use):
    (path,) = compat.private_files(use.path)
    assert pathlib.Path(path).exists() == exists_in_this_version(use.path), (
        f"JAX {jax.__version__}: `jax/_src/{use.path}` has come or gone. "
        f"`_jax/{use.place}` looks for it in call stacks."
    )


@pytest.mark.parametrize("path", OF_MODULES)
def test_internal_module_name_exists_in_jax(path):
    assert found(path) == exists_in_this_version(path), (
        f"JAX {jax.__version__}: `{path}` has come or gone. "
        f"`{OF_MODULES[path].place}` uses it."
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


# --- attributes --------------------------------------------------------------

# The attributes of private classes that lox uses.
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


def probe():
    """Runs small programs, and collects JAX's own objects on the way, by name."""
    from jax._src import dispatch, distributed
    from jax._src.interpreters import batching
    from jax.experimental import io_callback
    from jax.interpreters import mlir

    of = {}
    contexts = []
    identity_p = jax.extend.core.Primitive("identity")
    identity_p.def_abstract_eval(lambda x: x)
    mlir.register_lowering(identity_p, lambda ctx, x: (contexts.append(ctx), [x])[1])

    def in_shard_map(x):
        of["mesh"], of["aval_in_shard_map"] = (
            jax.sharding.get_abstract_mesh(),
            jax.typeof(x),
        )
        return identity_p.bind(x)

    def in_vmap(x):
        of["tracer"] = x
        of["trace"] = x._trace
        return x

    mesh, spec = jax.sharding.Mesh(jax.devices()[:1], "i"), jax.P("i")
    mapped = jax.shard_map(in_shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    jax.jit(identity_p.bind).lower(1.0)
    jax.jit(mapped).lower(jax.numpy.ones(1))
    jax.vmap(in_vmap)(jax.numpy.ones(1))
    of["context"], of["context_in_shard_map"] = (
        ctx.module_context.axis_context for ctx in contexts
    )
    of["aval"] = jax.typeof(jax.numpy.ones(1))
    of["sharding"] = of["aval"].sharding
    of["key_dtype"] = jax.random.key(0).dtype
    of["axis_data"] = batching.AxisData("i", 1, None, None)
    closed = jax.make_jaxpr(lambda x: jax.pure_callback(abs, x, x))(1.0)
    of["jaxpr"] = closed.jaxpr
    of["callback"] = closed.jaxpr.eqns[0].params["callback"]
    of["debug_info"] = closed.jaxpr.debug_info
    of["traced"] = jax.jit(lambda x: x).trace(1.0)
    of["distributed"] = distributed.global_state
    jax.jit(lambda x: io_callback(lambda _: None, None, x, ordered=True))(1.0)
    of["token"] = next(iter(dispatch.runtime_tokens.current_tokens.values()))
    jax.effects_barrier()
    return of


OBJECTS = {
    "mesh": "manual_axes axis_names",
    "aval_in_shard_map": "manual_axis_type" if JAX >= (0, 10) else "vma",
    "aval": "update sharding to_tangent_aval" + " to_ct_aval" * (JAX >= (0, 10)),
    "sharding": "spec mesh update",
    "sharding.mesh": "are_all_axes_explicit",
    "context": "num_devices",
    "context_in_shard_map": "mesh manual_axes",
    "tracer": "_trace aval",
    "trace": "parent_trace",
    "key_dtype": "_impl",
    "axis_data": "explicit_mesh_axis size",
    "callback": "callback_func",
    "jaxpr": "is_high debug_info effects",
    "debug_info": "with_unknown_names arg_names _replace func_src_info",
    "traced": "_params _lojax jaxpr" + " _closure_converted" * (JAX >= (0, 11)),
    "distributed": "process_id client num_processes",
    "token": "_buf",
}


@pytest.fixture(scope="module")
def objects():
    return probe()


def attributes_of(objects, name):
    first, *rest = name.split(".")
    return functools.reduce(getattr, rest, objects[first])


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_of_jax_have_the_attributes_that_are_used(name, objects):
    one = attributes_of(objects, name)
    gone = [x for x in OBJECTS[name].split() if not hasattr(one, x)]
    assert not gone, (
        f"JAX {jax.__version__}: `{type(one).__name__}` (the {name}) has no {gone}. "
        "`_jax` uses it: see there what happens without it."
    )


# Attributes that other canaries test: high-level primitives in `test_flags.py`, the
# entries of rule tables and effects below.
TESTED_ELSEWHERE = {
    "JAX_LATE",
    "defvjp_with_logs",
    "effect_handles",
    "in_avals_flat",
    "inline",
    "params",
    "vjp_bwd_retval_logs",
}
# ... and those that are Python's or lox's own.
NOT_OF_JAX = {
    *("_fields", "_getframe", "_make", "is_partly_manual", "lox_stopped"),
    "watched_function",
}


def test_attributes_that_may_be_missing_have_canaries():
    """Those with a fallback, and private ones: without them, lox may go wrong."""
    used = set()
    for file in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                owner = ast.unparse(node.value)
                is_private = node.attr.startswith("_") and owner not in ("self", "cls")
                used |= {node.attr} if is_private else set()
            elif isinstance(node, ast.Call) and len(node.args) > 1:
                asks = ast.unparse(node.func) in ("getattr", "hasattr")
                used |= {string(node.args[1])} if asks else set()
    tables = (*ATTRIBUTES.values(), *OBJECTS.values(), "vma manual_axis_type")
    known = {name for names in tables for name in names.split()}
    known |= {"to_ct_aval", "_closure_converted"}  # of newer versions
    used = {name for name in used if name and not name.startswith("__")}
    assert len(used) > 30
    assert not used - known - TESTED_ELSEWHERE - NOT_OF_JAX


def test_traced_custom_functions_are_known_by_their_jaxprs(monkeypatch):
    """Otherwise a rule that calls its function is not recognized (`rule_sources`)."""
    found = []
    find = rule_sources.custom_function

    def recorded(fun, rule):
        found.append(find(fun, rule).function)
        return find(fun, rule)

    monkeypatch.setattr(rule_sources, "custom_function", recorded)
    f = jax.custom_jvp(lambda x: x)
    f.defjvp(lambda p, t: (f(*p), t[0]))
    jax.grad(f)(1.0)
    assert found[0] is f.fun
    found.clear()
    jax.grad(jax.jit(f))(1.0)
    assert found and all(map(jaxprs.is_jaxpr, found))


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


# --- a name that is gone -----------------------------------------------------


def canary_message(canary, *arguments):
    with pytest.raises(AssertionError) as raised:
        canary(*arguments)
    return str(raised.value)


@pytest.mark.parametrize(
    ("canary", "uses", "prefix"),
    [
        (test_private_name_exists_in_jax, PRIVATE, "jax._src."),
        (test_internal_module_name_exists_in_jax, OF_MODULES, ""),
    ],
    ids=["private", "internal"],
)
def test_canary_names_what_is_gone_and_who_uses_it(canary, uses, prefix, monkeypatch):
    for path, use in uses.items():
        if not exists_in_this_version(path):
            continue
        holder, name = holder_of(prefix + path), path.rpartition(".")[2]
        if isinstance(getattr(holder, name), types.ModuleType):
            continue  # a module, which is found by importing it
        with monkeypatch.context() as gone:
            gone.delattr(holder, name)
            if hasattr(holder, name):  # by a `__getattr__` of the module
                continue
            message = canary_message(canary, path)
        assert f"`{prefix}{path}` has come or gone" in message
        assert jax.__version__ in message and use.place in message


@pytest.mark.parametrize("path", [path for path, names in ATTRIBUTES.items() if names])
def test_canary_names_attribute_that_is_gone(path, monkeypatch):
    kind = holder_of(f"jax._src.{path}.x")
    for name in ATTRIBUTES[path].split():
        owner = next(x for x in kind.__mro__ if name in vars(x))
        with monkeypatch.context() as gone:
            gone.delattr(owner, name)
            if hasattr(kind, name):  # by a base class
                continue
            message = canary_message(
                test_private_classes_have_the_attributes_that_are_used, path
            )
        assert f"`jax._src.{path}` has no ['{name}']" in message


# --- what JAX does without the patches -------------------------------------

# Each program logs `expected` events, and another number, or fails, on a JAX that is
# not patched. On the versions of JAX that need no patch, it logs the same.
PROGRAMS = """
    import json, sys
    import jax
    import jax.numpy as jnp
    from jax import lax
    import lox, lox._runtime
    from lox._jax import early_patches, patches

    # Patches that are installed already, by what they are for.
    def without_custom_functions():
        for trace in (early_patches._JVPTrace, early_patches._LinearizeTrace):
            for name in ("process_custom_jvp_call", "process_custom_vjp_call"):
                setattr(trace, name, getattr(trace, name).__wrapped__)

    def without_jacfwd():
        jax._src.api._jvp = jax._src.api._jvp.__wrapped__

    EARLY = {
        "how JAX differentiates `custom_jvp` and `custom_vjp` functions":
            without_custom_functions,
        "how `jax.jacfwd` calls forward mode": without_jacfwd,
    }

    def unpatch(targets):
        added = patches.add
        patches.add = lambda *late: added(*(x for x in late if x.target not in targets))
        patches._waiting[:] = [x for x in patches._waiting if x.target not in targets]
        for target in targets:
            EARLY.get(target, int)()

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

    def checkpointed(x):
        return x * constant_in_scan(lax.stop_gradient(x))

    with_rule = jax.custom_jvp(constant_in_scan)
    with_rule.defjvp(lambda x, t: jax.jvp(constant_in_scan, x, t))

    def ordered(x):
        return lox.tap(log, lambda logs: lox._settings.default_handler()(logs))(x)

    def in_host_memory():
        there = jax.sharding.SingleDeviceSharding(
            jax.devices()[0], memory_kind="pinned_host"
        )
        jax.jit(ordered, out_shardings=there)(1.0)

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
            jax.checkpoint(checkpointed)
        )(1.0),
        "a constant in a scan in a JVP rule": lambda: jax.grad(with_rule)(1.0),
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
        "results in host memory": in_host_memory,
        "checking_leaks": leaks,
    }
    names, targets = json.loads(sys.argv[1])
    unpatch(targets)
    print(json.dumps({name: count(PROGRAMS[name]) for name in names}))
"""

EXPECTED = {
    "a constant in a scan under grad": 3,
    "a constant in a scan under linearize": 3,
    "a constant in a scan under checkpoint": 3,
    "a constant in a scan in a JVP rule": 3,
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
    "results in host memory": 1,
    "checking_leaks": 1,
}
# The patches without which each program goes wrong. Either of two is enough where both
# are named.
PATCHES = {
    "a constant in a scan under grad": ["the linearization rule of `scan`"],
    "a constant in a scan under linearize": ["the linearization rule of `scan`"],
    "a constant in a scan under checkpoint": ["the checkpoint rule of `scan`"],
    "a constant in a scan in a JVP rule": [
        "the JVP rule of `scan`",
        "the partial evaluation rule of `scan`",
    ],
    "cond under vmap": ["the batching rule of `cond`"],
    "while_loop under vmap": ["the batching rule of `while_loop`"],
    "while_loop under linearize": ["the partial evaluation rule of `while_loop`"],
    "while_loop under checkpoint": ["the checkpoint rule of `while_loop`"],
    "the condition of a while_loop": ["the lowering rule of `while_loop`"],
    "the condition of a while_loop under checkify": [
        "the checkify rule of `while_loop`"
    ],
    "custom_linear_solve under jvp": ["the JVP rule of `custom_linear_solve`"],
    "custom_vjp under grad": [
        "how JAX differentiates `custom_jvp` and `custom_vjp` functions"
    ],
    "jacfwd": ["how `jax.jacfwd` calls forward mode"],
    "checkpoint whose results are not used": ["the dead code rule of `checkpoint`"],
    "results in host memory": ["the lowering of functions with memory kinds"],
    "checking_leaks": ["the end of a partial evaluation"],
}
# Patches whose canaries need a signal, several devices, flags of JAX or Equinox.
TESTS = {
    "`jax.effects_barrier`": (
        "host/test_callbacks.py",
        "test_barrier_reports_errors_of_several_callbacks",
    ),
    "the call of compiled programs with effects": (
        "host/test_interrupts.py",
        "test_interrupt_ends_the_program",
    ),
    "the lowering rule of `shard_map`": (
        "events/test_over.py",
        "test_event_that_only_some_devices_reach_is_refused",
    ),
    "the lowering rule of `shard_map`, for events in program order": (
        "events/test_over.py",
        "test_ordered_delivery_from_nested_shard_maps_is_refused",
    ),
    "`call_hi_primitive`": (
        "jax/test_flags.py",
        "test_flags_do_not_change_events_of_derivatives",
    ),
    "high-level primitives": (
        "jax/test_flags.py",
        "test_flags_do_not_change_events_of_derivatives",
    ),
    "the rules of `defremat`": (
        "jax/test_flags.py",
        "test_defremat_recomputation_logs_nothing",
    ),
    "for Equinox loops": (
        "libraries/test_equinox_loops.py",
        "test_ended_lanes_of_an_equinox_loop_log_nothing",
    ),
    "for inputs without lanes": (
        "interpreter/test_constants_under_vmap.py",
        "test_spool_has_constants_of_every_lane",
    ),
    "the JVP rule of `lineax.linear_solve`": (
        "libraries/test_equinox_loops.py",
        "test_solves_for_derivatives_log_nothing",
    ),
}
# Patches without a canary: the first only saves time; the second avoids a crash of
# XLA's inliner that no small program shows.
NO_CANARY = {
    "the batching rule of `scan`, once instead of several times",
    "the lowering rule of `jit`",
}


def has_host_memory():
    """Whether this version of JAX can return results there on CPUs, without events."""
    there = jax.sharding.SingleDeviceSharding(
        jax.devices()[0], memory_kind="pinned_host"
    )
    try:
        jax.jit(lambda x: x + 1, out_shardings=there)(1.0)
    except jax.errors.JaxRuntimeError:
        return False
    return True


if not has_host_memory():  # up to 0.10.0
    del EXPECTED["results in host memory"]
# With these flags, checkpoints and custom functions are high-level primitives, which
# have patches of their own.
REMAT3 = getattr(jax.config, "jax_remat3", False)
CUSTOM_VJP3 = getattr(jax.config, "jax_custom_vjp3", False)
# Programs that JAX runs correctly without patches, with its versions.
FIXED = {
    "checkpoint whose results are not used": lambda: JAX >= (0, 12) or REMAT3,
    "a constant in a scan under checkpoint": lambda: REMAT3,
    "while_loop under checkpoint": lambda: REMAT3,
    "custom_vjp under grad": lambda: CUSTOM_VJP3,
}


def run_programs(names, without=()):
    """How many events programs log without some patches, or their exceptions."""
    done = programs.run(PROGRAMS, json.dumps([list(names), list(without)]))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_patched_programs_log_every_event_once():
    assert run_programs(EXPECTED) == EXPECTED


def test_patches_are_all_still_needed():
    fixed = []
    for name in EXPECTED:
        # in a separate process, since other patches stay
        is_same = run_programs([name], PATCHES[name])[name] == EXPECTED[name]
        if is_same and not (name in FIXED and FIXED[name]()):
            fixed.append(name)
    assert not fixed, (
        f"JAX {jax.__version__} logs {fixed} correctly without lox's patches "
        f"({[PATCHES[name] for name in fixed]}): check whether they can go, and add "
        "the version to `FIXED`."
    )


def test_patches_have_canaries():
    lox.log({"x": 1})
    importlib.import_module("jax.experimental.checkify")
    found = {patch.target for patch in patches.table()}
    named = {target for targets in PATCHES.values() for target in targets}
    assert not named - found
    others = {x for x in found if any(x.endswith(end) for end in TESTS)}
    assert not found - named - others - NO_CANARY
    for file, test in TESTS.values():
        source = pathlib.Path(__file__).parents[1] / file
        assert f"def {test}(" in source.read_text(), (file, test)
