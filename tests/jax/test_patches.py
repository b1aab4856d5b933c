"""Patches of JAX: installed by the first event, and reported if they cannot be."""

import re
import textwrap

import jax
import pytest

import lox
from lox._jax import patches
from tests import programs

START = """
    import jax
    import jax.numpy as jnp
    from jax import lax
    import lox

    def log(x):
        lox.log({"x": x})
        return x
"""


def run(program, start=START, check=True, **options):
    """What a program prints in its own process."""
    code = textwrap.dedent(start) + textwrap.dedent(program)
    code = "import warnings; warnings.simplefilter('error')\n" + code
    done = programs.run(code, **options)
    if check:
        assert done.returncode == 0, done.stderr
    return done.stdout if check else done.stderr


# --- installing ------------------------------------------------------------


def test_patches_are_installed_by_first_event_not_by_import():
    program = """
        from lox._jax import rule_tables
        import lox._runtime
        from lox._jax import early_patches, host, patches

        tables = [get() for get, _ in rule_tables._TABLES.values()]
        early = early_patches.primitives.hijax_p

        def rules():
            return [
                (p, rule)
                for table in (*tables, rule_tables._lowerings)
                for p, rule in table.items()
                if not p.name.startswith("lox_") and p is not early
            ] + [
                host._ExecuteReplicated.__call__,
                type(host._runtime_tokens).block_until_ready,
            ]

        before = rules()
        jax.jit(jax.vmap(lambda x: lax.cond(x > 0, lambda: 1, lambda: 2)))(jnp.ones(2))
        assert lox.nolog(lambda x: x + 1)(1) == 2
        assert rules() == before and not patches.installed
        log(1.0)
        changed = rules()
        assert changed != before and patches.installed

        log(1.0)  # installing twice does nothing
        patches.install()
        assert rules() == changed
    """
    run(program, without_lox=True)


def test_lox_module_can_be_first_to_import_jax():
    # forks of a process that has imported only what JAX imports
    program = """
        import importlib, os, sys
        import jaxlib.xla_client, ml_dtypes, numpy

        for module in ("compat", "patches", "early_patches", "watches"):
            if os.fork() == 0:
                assert "jax" not in sys.modules
                importlib.import_module(f"lox._jax.{module}")
                assert "jax" in sys.modules
                break
            assert os.wait()[1] == 0, module
    """
    done = programs.run(program, fresh=True)
    assert done.returncode == 0, done.stderr


def test_patches_are_all_installed_in_this_jax_version():
    lox.log({"x": 1})
    assert not patches.missing()


def test_patches_have_descriptions():
    lox.log({"x": 1})
    table = patches.table()
    assert len({patch.target for patch in table}) == len(table) > 20
    for patch in table:
        assert patch.without and patch.instead


@pytest.mark.parametrize(
    "program",
    [
        "jax.jacfwd(log)(jnp.arange(3.0))",
        "jax.hessian(lambda x: log(x).sum())(jnp.arange(3.0))",
        "f.defvjp(lambda x: (log(x), x), lambda r, g: (log(r) * g,)); jax.grad(f)(3.0)",
        "g.defjvp(lambda p, t: (g(*p), log(*p) * t[0])); jax.jvp(g, (3.0,), (1.0,))",
        "g.defjvp(lambda p, t: (g(*p), g(*p) * t[0])); jax.jvp(g, (3.0,), (1.0,))",
        "jax.jit(jax.grad(lambda x: lax.scan(body, x, None, 1)[0]))(3.0)",
        "jax.vmap(lambda x: lax.cond(x > 0, log, abs, x))(jnp.array([1.0, -1.0]))",
        "with jax.disable_jit(): log(3.0)",
        "with jax.ensure_compile_time_eval(): log(3.0)",
        "with jax.checking_leaks(): jax.jit(log)(3.0)",
        "jax.eval_shape(lambda x: (jax.jit(lox.tap(log)), x)[1], 3.0); log(3.0)",
        "on_one_device(log)(jnp.ones(1))",
        "jax.jit(on_one_device(log))(jnp.ones(1))",
    ],
)
def test_first_event_of_process_is_logged_once(program):
    printed = run(f"""
        f = jax.custom_vjp(lambda x: x)
        g = jax.custom_jvp(lambda x: log(x))

        def body(c, _):
            return log(1.0) * c, None

        def on_one_device(f):
            mesh = jax.sharding.Mesh(jax.devices()[:1], "i")
            spec = jax.P("i")
            return jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)

        {program}
        jax.effects_barrier()
        from lox._jax import patches
        assert not patches.missing()
    """)
    assert printed.count("'x'") == 1


# --- patches that cannot be installed --------------------------------------


def test_missing_check_of_devices_refuses_over_in_branches():
    printed = run(
        """
        del rule_tables._lowerings[primitives.shard_map_p]

        def log_mean(x):
            lox.log({"x": x.sum()}, over="i")
            return x

        def branch(x):
            return lax.cond(x.sum() > 0, log_mean, lambda x: x, x)

        mesh, spec = jax.sharding.Mesh(jax.devices()[:1], "i"), jax.P("i")
        for f in (log_mean, branch):
            mapped = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)
            try:
                jax.make_jaxpr(mapped)(jnp.ones(1))
            except lox.UnsupportedJaxError as error:
                print(f.__name__, error)
        """,
        START + PREPARE,
    )
    assert re.match(r"branch 'x', logged at <string>:\d+, is inside `cond`: ", printed)
    assert "log with `over` outside branches" in printed


# How to log where a patch is needed, by its target.
PROGRAMS = {
    "`scan`": "lax.scan(lambda c, _: (log(c), None), x, None, length=2)",
    "rule of `cond`": "lax.cond(x > 0, log, lambda y: y, x)",
    "batching rule of `while_loop`": "loop(x, log)",
    "partial evaluation rule of `while_loop`": "loop(x, log)",
    "checkpoint rule of `while_loop`": "loop(x, log)",
    "lowering rule of `while_loop`": "condition(x, log)",
    "checkify rule of `while_loop`": "condition(x, log)",
    "`checkpoint`": "jax.checkpoint(log)(x)",
    "`custom_linear_solve`": "lax.custom_linear_solve(log, x, lambda _, b: b)",
}
RULES = [
    ("batching", "cond", "all lanes log"),
    ("batching", "while_loop", "continue to log"),
    ("checkify", "while_loop", "twice"),
    ("checkpoint", "scan", "moves constant events"),
    ("checkpoint", "while_loop", "twice"),
    ("dead code", "checkpoint", "removes a `checkpoint`"),
    ("JVP", "custom_linear_solve", "again for each tangent"),
    ("JVP", "scan", "moves constant events"),
    ("linearization", "scan", "moves constant events"),
    ("lowering", "while_loop", "removes the condition"),
    ("partial evaluation", "scan", "moves constant events"),
    ("partial evaluation", "while_loop", "twice"),
]
if getattr(jax.config, "jax_remat3", False):  # makes it a high-level primitive
    RULES.remove(("dead code", "checkpoint", "removes a `checkpoint`"))
PREPARE = """
    import jax.experimental.checkify
    import lox._runtime
    from lox._jax import patches, primitives, rule_tables

    def loop(x, log):
        return lax.while_loop(lambda y: y < 3, lambda y: log(y) + 1, x)

    def condition(x, log):
        return lax.while_loop(lambda y: log(y) < 3, lambda y: y + 1, x)

    def remove(kind, name):
        (primitive,) = [
            p for p in primitives.HIGHER_ORDER if primitives.public_name(p) == name
        ]
        if kind == "lowering":
            del rule_tables._lowerings[primitive]
        else:
            del rule_tables._TABLES[kind][0]()[primitive]
"""


def program_for(kind, name):
    target = f"{kind} rule of `{name}`"
    return next(program for key, program in PROGRAMS.items() if key in target)


@pytest.mark.parametrize(
    ("kind", "name", "without"),
    RULES,
    ids=[f"{kind} of {name}" for kind, name, _ in RULES],
)
def test_missing_patch_refuses_program_that_needs_it(kind, name, without):
    printed = run(
        f"""
        remove({kind!r}, {name!r})

        def program(x):
            return {program_for(kind, name)}

        def silent(x):
            return {program_for(kind, name).replace("log", "(lambda y: y)")}

        lox.log({{"y": 1.0}})  # what does not need it is logged
        def lanes(x):
            return jax.vmap(program)(jnp.stack([x, x]))

        for f in (program, jax.jit(program), lanes, lox.spool(program)):
            try:
                jax.make_jaxpr(f)(1.0)
            except lox.UnsupportedJaxError as error:
                print(error)
            else:
                raise AssertionError(f)
        jax.make_jaxpr(lox.nolog(program))(1.0)
        jax.make_jaxpr(silent)(1.0)
        """,
        START + PREPARE,
    )
    event, *messages = printed.splitlines()
    assert event == "{'y': 1.0}"
    assert len(set(messages)) == 1 and len(messages) == 4
    (message,) = set(messages)
    assert re.match(rf"'x', logged at <string>:\d+, is inside `{name}`: ", message)
    assert f"the {kind} rule of `{name}` in JAX " in message
    assert f"has no {kind} rule" in message and without in message
    assert "Install a version of JAX that lox supports (0.9 to 0.12), or " in message


@pytest.mark.parametrize(
    ("remove", "program", "message"),
    [
        (
            "del ad.JVPTrace.process_custom_vjp_call",
            "f = jax.custom_vjp(log); f.defvjp(log, log); f(1.0)",
            r"is in a custom function or its rules: .*process_custom_vjp_call.* "
            "or log outside custom functions",
        ),
        (
            "del ad.JVPTrace.process_custom_vjp_call",
            "f = jax.custom_jvp(lambda x: branch(x)); f.defjvp(log); f(1.0)",
            "is in a custom function or its rules",
        ),
        (
            "ad._old = ad.LinearizeTrace; del ad.LinearizeTrace",
            "f.defvjp(lambda x: (log(x), x), lambda r, ct: (ct,)); jax.grad(f)(1.0)",
            r"in a custom function.*has no `jax._src.interpreters.ad.LinearizeTrace`",
        ),
        (
            "api._old = api._jvp; del api._jvp",
            "jax.vmap(lambda x: jacfwd(log)(x))(jnp.ones((2, 2)))",
            r"jacfwd.*once for each dimension.*use `jax.jacrev`",
        ),
    ],
    ids=["custom_vjp", "a branch in custom_jvp", "a rule", "jacfwd"],
)
def test_missing_watch_refuses_event_in_that_function(remove, program, message):
    errors = run(
        f"""
        f = jax.custom_vjp(lambda x: x)
        logged = jax.jit(log)
        log(2.0)  # outside, it is logged
        jax.make_jaxpr(logged)(1.0)

        def branch(x):
            return lax.cond(x > 0, logged, logged, x)

        def jacfwd(f):  # as JAX's own, were it written in another way
            def jacfun(x):
                return jax.vmap(lambda t: jax.jvp(f, (x,), (t,))[1])(jnp.eye(len(x)))
            code = jacfun.__code__.replace(
                co_filename=api.__file__, co_qualname="jacfwd.<locals>.jacfun"
            )
            return type(jacfun)(code, globals(), "jacfun", None, jacfun.__closure__)

        {program}
        """,
        f"""
        import jax
        import jax.numpy as jnp
        from jax import lax
        from jax._src import api
        from jax._src.interpreters import ad
        {remove}
        import lox
        if hasattr(api, "_old"):
            api._jvp = api._old
        if hasattr(ad, "_old"):
            ad.LinearizeTrace = ad._old

        def log(x):
            lox.log({{"x": x}})
            return x
        """,
        check=False,
        without_lox=True,
    )
    raised = [x for x in errors.splitlines() if x.startswith("lox.Unsupported")]
    assert raised, errors
    assert raised[-1].startswith("lox.UnsupportedJaxError: 'x', logged at <string>:")
    assert re.search(message, raised[-1])


def test_missing_barrier_patch_keeps_callback_exceptions():
    errors = run(
        """
        from lox._jax import host

        def fail(logs):
            raise ValueError("bad")

        host._runtime_tokens = None  # has no such method
        lox.set_default(fail)
        jax.jit(log)(1.0)
        jax.effects_barrier()
        """,
        check=False,
    )
    assert "A callback raised ValueError('bad'): lox cannot patch" in errors
    assert "`jax.effects_barrier` in JAX " in errors


def test_missing_private_name_raises_where_it_is_used():
    from lox._jax import compat

    gone = compat.private("core.no_such_name", "do something")
    assert compat.is_missing(gone)
    for use in (
        lambda: gone(),
        lambda: gone.attribute,
        lambda: gone["key"],
        lambda: "key" in gone,
        lambda: isinstance(1, gone),
    ):
        with pytest.raises(lox.UnsupportedJaxError, match=r"no `jax._src.core.no_such"):
            use()
    assert compat.private("no_such_module.name", "do something", default=3) == 3
