"""Inferring which values have lanes, compared with JAX, which finds out by batching.

The inference may return "unknown", but it must never be wrong. Thanks to it, the body
of a loop that logs is batched once.
"""

import functools
import itertools

import jax
import jax.custom_batching
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

import lox
from lox._interpreter import lane_flow
from lox._interpreter.lane_flow import lanes_of_scan, lanes_of_while
from lox._jax import batching as lane_batching

LANES = 3

# --- comparison with JAX ----------------------------------------------------

# The batching rule of this primitive gets the axis, which JAX's own functions need.
compare_p = Primitive("compare")
compare_p.multiple_results = True
compare_p.def_abstract_eval(lambda *avals, closed, answers: closed.out_avals)


def _compare(axis_data, args, dims, *, closed, answers):
    batched = [dim is not None for dim in dims]
    none = [False] * len(closed.out_avals)
    found = lane_batching.batched_outputs(closed, axis_data, batched, none)
    levels = lane_flow._propagate(closed, lane_flow._levels(batched))
    answers.append((lane_flow._answers(levels), list(found)))
    return lane_batching.batch(closed, axis_data, args, dims)


batching.fancy_primitive_batchers[compare_p] = _compare


def both_answers(fun, args, batched):
    """Which results of `fun` have lanes, according to the data flow and to JAX."""
    closed = jax.make_jaxpr(fun, axis_env=[("lanes", LANES)])(*args)
    answers = []
    in_axes = tuple(0 if one else None for one in batched)
    lanes = [
        jnp.stack([x] * LANES) if one else x
        for x, one in zip(args, batched, strict=True)
    ]

    def run(*args):
        return compare_p.bind(*args, closed=closed, answers=answers)

    vmapped = jax.vmap(run, in_axes, axis_name="lanes", axis_size=LANES)
    jax.make_jaxpr(vmapped)(*lanes)
    ((ours, of_jax),) = answers
    for answer, real in zip(ours, of_jax, strict=True):
        assert answer is None or answer == real, (ours, of_jax, closed)
    return ours, of_jax


def all_flags(count):
    return list(itertools.product([False, True], repeat=count))


def assert_known(fun, *args):
    """Asserts that the data flow is exact, whichever inputs have lanes."""
    for batched in all_flags(len(args)):
        ours, of_jax = both_answers(fun, args, batched)
        assert ours == of_jax, (batched, jax.make_jaxpr(fun)(*args))


X, Y = jnp.arange(4.0), jnp.arange(4.0) + 1
M = jnp.eye(4)
N = jnp.int32(2)


# --- plain operations ------------------------------------------------------


@pytest.mark.parametrize(
    "fun, args",
    [
        (lambda x, y: (x + y, x * 2, jnp.where(x > y, x, 0)), (X, Y)),
        (lambda x, y: (jnp.clip(x, y, 5), jnp.clip(y, 0, x)), (X, Y)),
        (lambda x, m: (m @ x, jnp.outer(x, x), jnp.cumsum(x)), (X, M)),
        (lambda x, i: (x[i], lax.dynamic_slice(x, (i,), (2,)), x[::-1]), (X, N)),
        (lambda x, y, i: (x.at[i].set(y[0]), x.at[i].add(1), y[1:]), (X, Y, N)),
        (lambda x, y, i: lax.dynamic_update_slice(x, y[:2], (i,)), (X, Y, N)),
        (lambda x, y: (jnp.concatenate([x, y]), jnp.stack([x, y]), x.T), (X, Y)),
        (lambda x, y: (jnp.pad(x, 2), jnp.tile(y, 2), x.reshape(2, 2)), (X, Y)),
        (lambda x, y: (*lax.sort((x, y)), *lax.top_k(y, 2), jnp.argmax(x)), (X, Y)),
        (lambda x, m: (jnp.linalg.eigh(m), jnp.linalg.qr(m), jnp.fft.fft(x)), (X, M)),
        (
            lambda m, x: (
                jnp.linalg.cholesky(m),
                jax.scipy.linalg.solve_triangular(m, x),
            ),
            (M, X),
        ),
        (lambda x, y: (x.astype(int), lax.stop_gradient(y), jnp.split(x, 2)), (X, Y)),
        (
            lambda key, x: (
                jax.random.split(key),
                jax.random.normal(key, (3,)) + x[0],
                jax.random.bernoulli(jax.random.fold_in(key, 1), 0.3),
                jax.random.gamma(key, x + 1),
            ),
            (jax.random.key(0), X),
        ),
        (
            lambda x, m: lax.conv(x[None, None, None], m[None, None], (1, 1), "SAME"),
            (X, M),
        ),
        (lambda x: (lax.iota(float, 4), 1.0, x), (X,)),
    ],
)
def test_lane_flow_of_plain_operations_is_exact(fun, args):
    assert_known(fun, *args)


# --- calls, branches and loops ---------------------------------------------


def with_jvp(f):
    g = jax.custom_jvp(f)
    g.defjvp(lambda primals, tangents: (f(*primals), f(*tangents)))
    return g


def with_vjp(f):
    g = jax.custom_vjp(f)
    g.defvjp(lambda *args: (f(*args), args), lambda args, _: args)
    return g


@pytest.mark.parametrize("wrap", [jax.jit, with_jvp, with_vjp, jax.checkpoint])
def test_lane_flow_of_call_is_exact_per_result(wrap):
    assert_known(wrap(lambda x, y: (jnp.sin(x), y * 2, x + y, jnp.ones(2))), X, Y)


def test_lane_flow_of_counter_in_inner_jit_has_no_lanes():
    step = jax.jit(lambda i, x, y: (i + 1, x * 2 + y, y))

    def loop(i, x, y):
        return lax.while_loop(lambda c: c[0] < 5, lambda c: step(*c), (i, x, y))

    assert_known(loop, N, X, Y)
    assert both_answers(loop, (N, X, Y), (False, False, True))[0] == [False, True, True]


def test_lane_flow_of_while_predicate_reaches_every_carry():
    def loop(i, x, y):
        return lax.while_loop(
            lambda c: jnp.sum(c[1]) < 5,
            lambda c: (c[0] + 1, c[1] + 1, c[2] * 2),
            (i, x, y),
        )

    assert_known(loop, N, X, Y)
    assert both_answers(loop, (N, X, Y), (False, True, False))[0] == [True] * 3
    ours, _ = both_answers(loop, (N, X, Y), (False, False, True))
    assert ours == [False, False, True]


def test_lane_flow_of_nested_loops_is_exact():
    def inner(i, x):
        return lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (i, x)
        )

    def loop(i, limit, x, y):
        def body(c):
            i, limit, x, y = c
            count, x = inner(i * 0, x)
            _, y = lax.fori_loop(
                0, limit, lambda j, c: (c[0] + 1, c[1] + 1), (count, y)
            )
            return i + 1, limit, x, y

        return lax.while_loop(lambda c: c[0] < 5, body, (i, limit, x, y))

    assert_known(loop, N, N, X, Y)


def test_lane_flow_passes_from_carry_to_carry():
    def loop(a, b, c, x):
        def body(carry, x):
            a, b, c = carry
            return (b, c, a), (a, x, 1.0)

        return lax.scan(body, (a, b, c), x)

    assert_known(loop, X[0], X[1], X[2], X)

    def one_way(a, b, c, x):
        def body(carry, x):
            a, b, c = carry
            return (a + b, b + c, c), (a, x, 1.0)

        return lax.scan(body, (a, b, c), x)

    assert_known(one_way, X[0], X[1], X[2], X)


def test_lane_flow_of_scan_without_carry_is_exact():
    assert_known(lambda x, y: lax.scan(lambda _, t: (None, (t, y)), None, x)[1], X, Y)


def test_lane_flow_of_switch_index_reaches_every_result():
    def branches(i, x, y):
        return lax.switch(
            i,
            [
                lambda x, y: (x, y, 1.0),
                lambda x, y: (y, y, 2.0),
                lambda x, y: (x * 0, x * 0, 3.0),
            ],
            x,
            y,
        )

    assert_known(branches, N, X, Y)
    assert both_answers(branches, (N, X, Y), (True, False, False))[0] == [True] * 3
    ours, _ = both_answers(branches, (N, X, Y), (False, False, True))
    assert ours == [True, True, False]


def test_lane_flow_of_platform_dependent_is_never_wrong():
    def branches(x, y):
        return lax.platform_dependent(x, y, cpu=lambda x, y: x, default=lambda x, y: y)

    for batched in all_flags(2):
        both_answers(branches, (X, Y), batched)


# --- other primitives ------------------------------------------------------


def primitive(name):
    new = Primitive(name)
    new.def_impl(lambda x: x)
    new.def_abstract_eval(lambda x: x)
    mlir.register_lowering(new, mlir.lower_fun(lambda x: x, multiple_results=False))
    return new


drops_p = primitive("drops")
batching.primitive_batchers[drops_p] = lambda args, dims: (
    jnp.max(args[0], dims[0]),
    None,
)
drops_by_axis_p = primitive("drops_by_axis")


def _drop(axis_data, args, dims):
    (x,), (dim,) = args, dims
    return (x if dim is None else jnp.max(x, dim)), None


batching.fancy_primitive_batchers[drops_by_axis_p] = _drop
adds_p = primitive("adds")


def _add(axis_data, args, dims):
    (x,), (dim,) = args, dims
    return (jnp.stack([x] * axis_data.size), 0) if dim is None else (x, dim)


batching.fancy_primitive_batchers[adds_p] = _add
old_table_p = primitive("old_table")
batching.axis_primitive_batchers[old_table_p] = lambda size, name, kind, args, dims: (
    (jnp.stack([args[0]] * size), 0) if dims[0] is None else (args[0], dims[0])
)
refuses_p = primitive("refuses")


def _refuse(args, dims):
    raise ValueError("lanes are refused here")


batching.primitive_batchers[refuses_p] = _refuse
# has the name of one of JAX's own rules
disguised_p = primitive("disguised")
_rule = batching.fancy_primitive_batchers[lax.add_p].func


@functools.wraps(_rule)
def broadcast_batcher(axis_data, args, dims):
    return _drop(axis_data, args, dims)


assert broadcast_batcher.__code__.co_name == _rule.__code__.co_name
batching.fancy_primitive_batchers[disguised_p] = broadcast_batcher
# batched by one of JAX's own rules
vectorized_p = primitive("vectorized")
batching.defvectorized(vectorized_p)


@pytest.mark.parametrize(
    "foreign", [drops_p, drops_by_axis_p, adds_p, old_table_p, disguised_p]
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint, with_vjp])
def test_lane_flow_of_unknown_primitive_is_never_wrong(foreign, wrap):
    f = wrap(lambda x, y: (foreign.bind(x), foreign.bind(x) + y, y))
    for batched in all_flags(2):
        ours, of_jax = both_answers(f, (X, Y), batched)
        assert ours[2] == of_jax[2]
        if batched[1]:
            assert ours[1] is True  # `y` has lanes, whatever the primitive does

    def loop(x, y):
        def body(c):
            return foreign.bind(c[0]) + 1, c[1] + c[0]

        return lax.while_loop(lambda c: jnp.sum(c[0]) < 50, body, (x, y))

    for batched in all_flags(2):
        both_answers(loop, (X, Y), batched)


def test_lane_flow_of_primitive_with_plain_batching_rule_is_exact():
    assert_known(lambda x, y: (vectorized_p.bind(x), y), X, Y)


def test_lane_flow_of_primitive_that_refuses_lanes_has_none():
    def loop(x, i):
        def body(c):
            return c[0] * 2, refuses_p.bind(c[1]) + 1

        return lax.while_loop(lambda c: c[1] < 5, body, (x, i))

    assert both_answers(loop, (X, N), (True, False))[0] == [True, False]


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, y: (lax.psum(x, "lanes"), y),
        lambda x, y: (lax.pmax(x, "lanes") + y, y),
        lambda x, y: (lax.axis_index("lanes"), y),
        lambda x, y: (jax.jit(lambda x: lax.psum(x, "lanes"))(x), x),
        lambda x, y: lax.while_loop(
            lambda c: lax.pmax(jnp.sum(c[0]), "lanes") < 9,
            lambda c: (c[0] + 1, c[1]),
            (x, y),
        ),
        lambda x, y: lax.while_loop(
            lambda c: c[0] < 9, lambda c: (c[0] + lax.axis_index("lanes"), c[1]), (0, y)
        ),
        lambda x, y: lax.scan(
            lambda c, t: (c + lax.psum(t, "lanes"), lax.axis_index("lanes")), y, x
        ),
    ],
)
def test_lane_flow_of_collectives_is_never_wrong(fun):
    for batched in all_flags(2):
        both_answers(fun, (X, Y[0]), batched)


def test_lane_flow_of_custom_vmap_is_never_wrong():
    @jax.custom_batching.custom_vmap
    def f(x, y):
        return x, y

    @f.def_vmap
    def _(size, batched, x, y):
        x = jnp.max(x, 0) if batched[0] else x
        y = y if batched[1] else jnp.stack([y] * size)
        return (x, y), (False, True)

    for batched in all_flags(2):
        both_answers(lambda x, y: (*f(x, y), x), (X, Y), batched)


def test_lane_flow_of_optimization_barrier_is_never_wrong():
    for batched in all_flags(2):
        both_answers(lambda x, y: lax.optimization_barrier((x, y)), (X, Y), batched)


@pytest.mark.skipif(not hasattr(lax, "empty"), reason="there is no `lax.empty`")
def test_lane_flow_of_inner_vmap_is_never_wrong():
    both_answers(lambda x: (lax.empty((2,), float), x), (X,), (True,))
    both_answers(lambda x: (lax.empty((2,), float), x), (X,), (False,))


# --- random programs -------------------------------------------------------


def random_program(rng, depth=0):
    """A function of four numbers, with four results."""
    wraps = [jax.jit, jax.checkpoint, with_jvp, with_vjp]
    inner = [random_program(rng, depth + 1) for _ in range(2)] if depth < 3 else []
    kinds = ["plain"] + ["call", "while", "scan", "cond", "both"] * bool(inner)
    kind = rng.choice(kinds)
    a, b, c, d = (int(i) for i in rng.integers(0, 4, 4))
    wrap = wraps[rng.integers(len(wraps))]
    lost = [lambda x: x, drops_p.bind, drops_by_axis_p.bind][rng.integers(3)]

    def program(*xs):
        xs = list(xs)
        if kind == "plain":
            xs[a] = jnp.sin(xs[b]) + 1
            xs[c] = lost(xs[d]) * 2 if rng_choice else jnp.float32(0)
        elif kind == "call":
            xs = wrap(inner[0])(*xs)
        elif kind == "both":
            xs = inner[1](*inner[0](*xs))
        elif kind == "while":
            xs = lax.while_loop(lambda xs: xs[a] < 3, lambda xs: inner[0](*xs), xs)
        elif kind == "scan":
            more = jnp.stack([xs[a], xs[b]])
            body = inner[0]
            xs, ys = lax.scan(lambda xs, x: (body(x, *xs[1:]), xs[c]), xs, more)
            xs[d] = jnp.sum(ys)
        else:
            xs = lax.cond(xs[a] > 1, inner[0], inner[1], *xs)
        return list(xs)

    rng_choice = bool(rng.integers(2))
    return program


@pytest.mark.parametrize("seed", range(12))
def test_lane_flow_of_random_programs_is_never_wrong(seed):
    rng = np.random.default_rng(seed)
    known = 0
    for _ in range(3):
        f = random_program(rng)
        args = [jnp.float32(i) for i in range(4)]
        for batched in all_flags(4)[1::4]:
            ours, _ = both_answers(f, args, batched)
            known += sum(answer is not None for answer in ours)
    assert known


# --- bodies are batched once -----------------------------------------------


def counting(name):
    """An identity that counts how often it is batched."""
    times = []
    new = primitive(name)

    def rule(axis_data, args, dims):
        times.append(dims)
        return new.bind(*args), dims[0]

    batching.fancy_primitive_batchers[new] = rule
    return new, times


def test_scan_body_that_logs_is_batched_once():
    count_p, times = counting("count_in_scan")

    def f(x):
        def body(carry, t):
            a, b, c = carry
            lox.log({"a": a})
            return (a + b, b + c, c * x), count_p.bind(b)

        return lax.scan(body, (0.0, 0.0, 1.0), jnp.arange(3))[0]

    xs = jnp.array([1.0, 2.0])
    (a, _, _), logs = lox.spool(jax.vmap(f))(xs)
    assert len(times) == 1
    assert logs["a"].tolist() == [[0, 0], [0, 0], [1, 1]]
    assert a.tolist() == [1 + 2, 1 + 3]


def test_while_body_with_predicate_per_lane_is_batched_once():
    count_p, times = counting("count_in_while")

    def f(n):
        def body(c):
            i, total, unused = c
            lox.log({"i": i})
            return i + 1, total + count_p.bind(i), unused

        return lax.while_loop(lambda c: c[0] < n, body, (0, 0, 1.0))

    _, logs = lox.spool(jax.vmap(f), capacity=9)(jnp.array([1, 3]))
    assert len(times) == 1
    lanes = [lane["i"].tolist() for lane in logs.lanes()]
    assert lanes == [[0], [0, 1, 2]]


def nested_loops(count_p):
    def f(n):
        def outer(carry, t):
            def inner(c):
                i, total = c
                lox.log({"total": total})
                return i + 1, total + count_p.bind(i)

            _, total = lax.while_loop(lambda c: c[0] < n + t, inner, (0, carry))
            return total, None

        return lax.scan(outer, 0, jnp.arange(2))[0]

    return f


def test_nested_loops_that_log_are_batched_once():
    count_p, times = counting("count_in_nested")
    f = nested_loops(count_p)
    out, logs = lox.spool(jax.vmap(f), capacity=9)(jnp.array([1, 2]))
    assert len(times) == 1
    assert out.tolist() == [0 + 0 + 1, 0 + 1 + 0 + 1 + 2]
    lanes = [lane["total"].tolist() for lane in logs.lanes()]
    assert lanes == [[0, 0, 0], [0, 0, 1, 1, 2]]


def test_loops_of_spooled_function_are_batched_once():
    count_p, times = counting("count_in_spooled")
    f = nested_loops(count_p)
    out, logs = jax.vmap(lox.spool(f, capacity=9))(jnp.array([1, 2]))
    assert len(times) == 1
    assert out.tolist() == [0 + 0 + 1, 0 + 1 + 0 + 1 + 2]
    lanes = [lane["total"].tolist() for lane in logs.lanes()]
    assert lanes == [[0, 0, 0], [0, 0, 1, 1, 2]]


@pytest.mark.parametrize("transform", ["spool of vmap", "vmap of spool", "tap"])
def test_loop_that_logs_can_carry_counter_that_refuses_lanes(transform):
    def f(x):
        def step(carry, _):
            i, x = carry
            lox.log({"x": x}, step=i)
            return (refuses_p.bind(i) + 1, x * 2), None

        def again(c):
            lox.log({"y": c[1]})
            return refuses_p.bind(c[0]) + 1, c[1] + 1

        (_, x), _ = lax.scan(step, (0, x), None, length=2)
        return lax.while_loop(lambda c: c[0] < 2, again, (0, x))[1]

    xs = jnp.array([1.0, 3.0])
    if transform == "tap":
        calls = []
        out = lox.tap(jax.vmap(f), calls.append)(xs)
        rows = [call["y"].tolist() for call in calls if "y" in call]
        assert sorted(rows) == [4, 5, 12, 13]
    elif transform == "spool of vmap":
        out, logs = lox.spool(jax.vmap(f), capacity=9)(xs)
        assert logs["y"].tolist() == [[4, 12], [5, 13]]
    else:
        out, logs = jax.vmap(lox.spool(f, capacity=9))(xs)
        assert logs["x"].tolist() == [[1, 2], [3, 6]]
    assert out.tolist() == [6, 14]


def test_loop_parameters_say_which_carries_have_lanes():
    def loops(x, n):
        (i, x), _ = lax.scan(
            lambda c, _: ((c[0] + 1, c[1] * x), c[0]), (0, 1.0), None, 2
        )
        return lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2), (i, x)
        )

    eqns = jax.make_jaxpr(loops)(1.0, 3).eqns
    (scan,) = [eqn for eqn in eqns if eqn.primitive.name == "scan"]
    (loop,) = [eqn for eqn in eqns if eqn.primitive.name == "while"]
    x, *rest = scan.invars
    assert x.aval.dtype.kind == "f" and len(rest) == 2
    assert lanes_of_scan(scan.params, [True, False, False]) == [False, True, False]
    n, *rest = loop.invars
    assert n.aval.dtype.kind == "i" and len(rest) == 2
    assert lanes_of_while(loop.params, [False, False, True]) == (False, [False, True])
    assert lanes_of_while(loop.params, [True, False, False]) == (True, [True, True])
