"""`lox.observe`, compared with the same loops unrolled in plain Python."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox

CAPACITY = 40


# --- programs, and what plain Python runs of them log -------------------------


def scanned(x):
    def step(state, t):
        return {"loss": state["loss"] * 0.5 + t * x, "n": state["n"] + 1}, x * t

    state, ys = lax.scan(step, {"loss": x, "n": 0}, jnp.arange(4.0))
    return state["loss"] + ys.sum()


def scanned_events(x):
    loss = x
    for i in range(4):
        loss = loss * 0.5 + i * x
        yield {"state['loss']": loss, "state['n']": i + 1, "ys": x * i}, i


def nested(x):
    def outer(total, t):
        inner = lax.fori_loop(0, 3, lambda i, v: v * 0.5 + t, total)
        return inner + x, None

    return lax.scan(outer, x, jnp.arange(2.0))[0]


def nested_events(x):
    total = x
    for t in range(2):
        for i in range(3):
            total = total * 0.5 + t
            yield {"scan[0]/scan[0]/i": i + 1, "scan[0]/scan[0]/v": total}, i
        total = total + x
        yield {"scan[0]/total": total}, t


def branching(x):
    def step(v, t):
        def loop(v):
            return lax.fori_loop(0, 2, lambda i, v: v + i, v)

        return lax.cond(t % 2 == 0, loop, lambda v: v * 2, v), None

    def body(v, t):
        return jax.checkpoint(step)(v, t)

    return lax.scan(body, x, jnp.arange(3))[0]


def branching_events(x):
    v = x
    for t in range(3):
        if t % 2 == 0:
            for i in range(2):
                v = v + i
                yield {"scan[0]/scan[0]/i": i + 1, "scan[0]/scan[0]/v": v}, i
        else:
            v = v * 2
        yield {"scan[0]/v": v}, t


@jax.custom_jvp
def custom_jvp(x):
    return lax.fori_loop(0, 3, lambda i, v: v * 0.5 + i, x)


custom_jvp.defjvp(lambda xs, ts: (custom_jvp(*xs), ts[0] / 8))


@jax.custom_vjp
def custom_vjp(x):
    return lax.fori_loop(0, 3, lambda i, v: v * 0.5 + i, x)


custom_vjp.defvjp(lambda x: (custom_vjp(x), None), lambda _, t: (t / 8,))


def custom_events(x):
    for i in range(3):
        x = x * 0.5 + i
        yield {"i": i + 1, "v": x}, i


@jax.custom_vjp
def other_loop_in_rule(x):
    return lax.fori_loop(0, 3, lambda i, v: v * 0.5 + i, x)


def _other_forward(x):
    (_, v) = lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 0.5 + c[0]), (0, x)
    )
    return v, None


other_loop_in_rule.defvjp(_other_forward, lambda _, t: (t / 8,))


def jitted(x):
    return jax.jit(scanned)(x) + 1


PROGRAMS = {
    scanned: scanned_events,
    jitted: scanned_events,
    nested: nested_events,
    branching: branching_events,
    custom_jvp: custom_events,
    custom_vjp: custom_events,
    other_loop_in_rule: custom_events,
}


def grows(x):
    """A loop whose length depends on the input."""
    return lax.while_loop(
        lambda c: c[0] < 10, lambda c: (c[0] * 2 + 1, c[1] + 1), (x, 0)
    )[0]


def grows_events(x):
    n = i = 0
    while x < 10:
        x, n = x * 2 + 1, n + 1
        yield {"c[0]": x, "c[1]": n}, i
        i += 1


def observed(program):
    return lox.observe(program, carry=True, ys=True)


def tapped(fun, *args):
    """The events of a run, in order."""
    events = []
    lox.tap(fun, events.append)(*args)
    jax.effects_barrier()
    return [(dict(logs), *set(map(int, logs.iteration.values()))) for logs in events]


def assert_same(events, expected):
    expected = list(expected)
    assert len(events) == len(expected)
    for (values, iteration), (other, number) in zip(events, expected, strict=True):
        assert values.keys() == other.keys()
        assert iteration == number
        for key in values:
            np.testing.assert_allclose(values[key], other[key], rtol=1e-5)


def interleaved(lanes):
    """The rows of all lanes in the order in which they are delivered."""
    rows = itertools.zip_longest(*lanes)
    return [row for at_once in rows for row in at_once if row is not None]


def plain(fun):
    return fun


def gradient(fun):
    return jax.value_and_grad(fun)


WAYS = {
    "eager": plain,
    "jit": jax.jit,
    "grad": gradient,
    "jit of grad": lambda fun: jax.jit(gradient(fun)),
    "checkpoint": lambda fun: gradient(jax.checkpoint(fun)),
    "linearize": lambda fun: lambda x: jax.linearize(fun, x)[0],
}
names = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)


@names
@pytest.mark.parametrize("way", WAYS)
def test_observed_loops_log_what_plain_python_does(program, way):
    events = tapped(WAYS[way](observed(program)), 1.5)
    assert_same(events, PROGRAMS[program](1.5))


@names
def test_observe_changes_neither_result_nor_gradient(program):
    fun = lox.nolog(jax.value_and_grad(observed(program)))
    for got, want in zip(fun(1.5), jax.value_and_grad(program)(1.5), strict=True):
        np.testing.assert_array_equal(got, want)


@names
def test_spool_under_grad_and_outside_it_returns_the_same_rows(program):
    inside = jax.grad(lox.spool(observed(program)), has_aux=True)(1.5)[1]
    outside = lox.spool(jax.grad(observed(program)))(1.5)[1]
    assert inside.keys() == outside.keys()
    jax.tree.map(np.testing.assert_array_equal, inside.compact(), outside)


@names
def test_vmapped_observe_logs_in_every_lane(program):
    xs = jnp.array([1.5, -2.0])
    events = tapped(jax.vmap(observed(program)), xs)
    lanes = [list(PROGRAMS[program](x)) for x in xs.tolist()]
    assert_same(events, interleaved(lanes))


@pytest.mark.parametrize(
    "way", [lambda f: jax.vmap(observed(f)), lambda f: observed(jax.vmap(f))]
)
def test_lanes_that_left_a_while_loop_log_nothing(way):
    xs = [3.0, 20.0, 0.0, 9.0]
    events = tapped(way(grows), jnp.array(xs))
    lanes = [list(grows_events(x)) for x in xs]
    assert_same(events, interleaved(lanes))
    logs = lox.spool(way(grows), capacity=CAPACITY)(jnp.array(xs))[1]
    counted = np.asarray(logs.mask["c[0]"]).sum(0)
    assert counted.tolist() == list(map(len, lanes))


def test_condition_that_logs_does_so_once_per_iteration():
    def fun(x):
        def cond(c):
            lox.log({"checked": c})
            return c < 10

        return lax.while_loop(cond, lambda c: c * 2 + 1, x)

    xs = jnp.array([3.0, 20.0])
    calls = []
    lox.tap(lox.observe(jax.vmap(fun), carry=True), calls.append)(xs)
    checked = [float(logs["checked"]) for logs in calls if "checked" in logs]
    assert checked == [3.0, 20.0, 7.0, 15.0]


def test_loops_in_a_kernel_are_not_observed():
    pallas = pytest.importorskip("jax.experimental.pallas")

    def kernel(x, out):
        out[...] = lax.fori_loop(0, 2, lambda i, v: v + 1, x[...])

    def fun(x):
        return pallas.pallas_call(kernel, out_shape=x, interpret=True)(x)

    assert lox.observe(fun).loops(jnp.arange(4)) == []


def test_while_loop_under_vmapped_cond_logs_in_lanes_that_take_it():
    def fun(x):
        return lax.cond(x > 2, grows, lambda x: x, x)

    xs = [3.0, 1.0, 6.0]
    events = tapped(jax.vmap(observed(fun)), jnp.array(xs))
    assert_same(events, interleaved([list(grows_events(x)) for x in (3.0, 6.0)]))


def test_reverse_scan_counts_in_the_order_of_execution():
    def fun(x):
        return lax.scan(lambda c, t: (c + t, t * 1), x, jnp.arange(3.0), reverse=True)

    _, logs = lox.spool(observed(fun))(0.0)
    assert logs.iteration["c"].tolist() == [0, 1, 2]
    assert logs["c"].tolist() == [2.0, 3.0, 3.0]
    assert logs["ys"].tolist() == [2.0, 1.0, 0.0]


def test_events_of_the_function_are_kept():
    def fun(x):
        def step(c, t):
            lox.log({"mine": t})
            return c + t, None

        return lax.scan(step, x, jnp.arange(3.0))[0]

    _, logs = lox.spool(lox.observe(fun, carry=lambda leaves: {"c": leaves[0]}))(1.0)
    assert logs["mine"].tolist() == [0.0, 1.0, 2.0]
    assert logs["c"].tolist() == [1.0, 2.0, 4.0]


@jax.custom_vjp
def logs_in_function(x):
    lox.log({"mine": x})
    return lax.fori_loop(0, 3, lambda i, v: v * 0.5 + i, x)


def _logging_forward(x):
    lox.log({"mine": x})
    return _other_forward(x)


logs_in_function.defvjp(_logging_forward, lambda _, t: (t / 8,))


def test_function_that_runs_in_addition_to_its_rule_logs_its_own_events_once():
    _, logs = lox.spool(jax.grad(observed(logs_in_function)))(1.5)
    np.testing.assert_array_equal(logs["mine"], 1.5)
    expected = [row["v"] for row, _ in custom_events(1.5)]
    np.testing.assert_allclose(logs["v"], expected)


def steps_that_log(x):
    def step(i, v):
        lox.log({"mine": v}, step=i)
        return v * 0.5 + i

    return lax.fori_loop(0, 3, step, x)


def test_rule_that_calls_its_function_is_observed_in_program_order():
    fun = jax.custom_vjp(steps_that_log)
    fun.defvjp(lambda x: (steps_that_log(x), None), lambda _, t: (t / 8,))
    seen = []
    lox.tap(jax.grad(observed(fun)), lambda logs: seen.append(list(logs)[-1]))(1.5)
    assert seen == ["mine", "v"] * 3  # a second run, for its events, would come later


def test_loops_in_a_shard_map_log_on_every_device():
    mesh = jax.sharding.Mesh(jax.devices()[:2], "d")
    spec = jax.sharding.PartitionSpec("d")

    def body(x):
        return lax.fori_loop(0, 3, lambda i, v: v + lax.axis_index("d"), x)

    def fun(x):
        return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(x)

    _, logs = lox.spool(lox.observe(fun, carry=lambda c: {"v": c[1]}))(jnp.arange(2))
    assert logs["v"][..., 0].tolist() == [[0, 2], [0, 3], [0, 4]]


def conjugate_gradients(b):
    matrix = jnp.array([[4.0, 1.0], [1.0, 3.0]])
    return jax.scipy.sparse.linalg.cg(lambda x: matrix @ x, b)[0]


@pytest.mark.parametrize(
    "way", [plain, jax.jacrev, jax.jacfwd, lambda f: jax.grad(lambda b: f(b).sum())]
)
def test_solver_of_a_linear_solve_logs_its_steps_once(way):
    fun = lox.observe(conjugate_gradients, carry=lambda leaves: {"x": leaves[0]})
    _, logs = lox.spool(way(fun), capacity=CAPACITY)(jnp.ones(2))
    assert logs["x"].shape == (2, 2)
    np.testing.assert_allclose(
        logs["x"][-1], conjugate_gradients(jnp.ones(2)), rtol=1e-5
    )


def test_keys_in_a_carry_are_logged():
    def fun(key):
        def split(key, _):
            return jax.random.split(key)[0], None

        return lax.scan(split, key, length=2)[0]

    last, logs = lox.spool(lox.observe(fun, carry=True))(jax.random.key(0))
    assert (logs["key"][-1] == last).all()


# --- options -----------------------------------------------------------------


def test_carry_function_maps_leaves_to_values():
    fun = lox.observe(scanned, carry=lambda leaves: {"loss": leaves[0]}, prefix="a/")
    _, logs = lox.spool(fun)(1.5)
    want = [row["state['loss']"] for row, _ in scanned_events(1.5)]
    assert list(logs) == ["a/loss"]
    np.testing.assert_allclose(logs["a/loss"], want)


def test_interval_reduction_tags_and_nolog_apply():
    fun = lox.observe(scanned, ys=True, tags="loop")
    _, logs = lox.spool(fun, tags="loop", interval=2)(1.5)
    assert logs["ys"].tolist() == [0.0, 3.0]
    assert lox.spool(fun, reduce="sum")(1.5)[1]["ys"] == 9.0
    assert not lox.spool(lox.nolog(fun))(1.5)[1]


def test_observe_is_a_decorator():
    @lox.observe(carry=True)
    def fun(x):
        return grows(x)

    assert lox.spool(fun, capacity=CAPACITY)(3.0)[1]["c[1]"].tolist() == [1, 2]


def test_outputs_log_what_a_primitive_returns():
    def fun(x):
        def step(c, t):
            return c + jnp.linalg.cholesky(x * (t + 1))[0, 0], None

        return lax.scan(step, 0.0, jnp.arange(3.0))[0]

    first = lox.observe(fun, outputs={"cholesky": lambda outs: {"l": outs[0][0, 0]}})
    for way in (plain, jax.grad):
        _, logs = lox.spool(way(first))(4.0 * jnp.eye(2))
        np.testing.assert_allclose(logs["l"], 2 * np.sqrt([1, 2, 3]), rtol=1e-6)
        assert logs.iteration["l"].tolist() == [0, 1, 2]
    _, logs = lox.spool(lox.observe(fun, outputs={"cholesky": True}))(jnp.eye(2))
    assert logs["cholesky"].shape == (3, 2, 2)


def test_outputs_are_logged_only_in_selected_loops():
    def fun(x):
        inside = lax.scan(lambda c, t: (c + jnp.sin(t), None), x, jnp.arange(3.0))[0]
        return inside + jnp.sin(x)

    outputs = {"sin": True}
    _, logs = lox.spool(lox.observe(fun, outputs=outputs))(1.0)
    assert logs.iteration["sin"].tolist() == [0, 1, 2, 0]
    _, logs = lox.spool(lox.observe(fun, outputs=outputs, loops="scan[0]"))(1.0)
    np.testing.assert_allclose(logs["sin"], np.sin(np.arange(3)), rtol=1e-6)
    with pytest.raises(lox.LoxValueError, match="these loops have no such primitive"):
        lox.observe(fun, outputs={"cos": True}, loops="scan[0]")(1.0)


@jax.custom_jvp
def sine_of(x):
    return jnp.sin(x)


@sine_of.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return jnp.sin(x), jnp.cos(x) * t


@jax.custom_vjp
def sine_with_vjp(x):
    return jnp.sin(x)


sine_with_vjp.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.cos(x) * ct,))


@pytest.mark.parametrize(
    "called",
    [
        jnp.sin,
        jax.jit(jnp.sin),
        jax.checkpoint(jnp.sin),
        sine_of,
        sine_with_vjp,
        lambda x: lax.cond(x > -9.0, jnp.sin, lambda x: x, x),
        lambda x: jax.jit(lambda x: lax.cond(x > -9.0, sine_of, lambda x: x, x))(x),
    ],
    ids=["plain", "jit", "checkpoint", "custom_jvp", "custom_vjp", "cond", "nested"],
)
def test_outputs_have_the_iteration_of_the_innermost_loop(called):
    def fun(x):
        def inner(c, t):
            return c + called(c + t), None

        def outer(c, t):
            c = lax.scan(inner, called(c), jnp.arange(2.0))[0]
            return c, None

        return called(lax.scan(outer, called(x), jnp.arange(2.0))[0])

    expected = [0, 0, 0, 1, 1, 0, 1, 0]
    numbers = {
        None: expected,
        "scan[0]": [0, 0, 0, 1, 1, 1],
        "scan[0]/scan[0]": [0, 1, 0, 1],
    }
    for loops, found in numbers.items():
        observed = lox.observe(fun, outputs={"sin": True}, loops=loops)
        assert lox.spool(observed)(0.5)[1].iteration["sin"].tolist() == found
    observed = lox.observe(fun, outputs={"sin": True})
    logs = lox.spool(jax.grad(observed))(0.5)[1]
    assert logs.iteration["sin"].tolist() == expected
    logs = jax.vmap(lox.spool(jax.grad(observed)))(jnp.arange(2.0))[1]
    assert logs.iteration["sin"].tolist() == [expected] * 2


@pytest.mark.parametrize("order", ["vmap(observe)", "observe(vmap)"])
def test_outputs_in_while_loops_have_the_iteration(order):
    def fun(x):
        def body(c):
            return c[0] + 1, jnp.sin(c[1]) + 1.0

        return lax.while_loop(lambda c: (c[0] < 3) & (jnp.cos(c[1]) < 2), body, (0, x))

    outputs = {"sin": True, "cos": True}
    if order == "vmap(observe)":
        fun = jax.vmap(lox.observe(fun, outputs=outputs))
    else:
        fun = lox.observe(jax.vmap(fun), outputs=outputs)
    received = []
    lox.tap(fun, received.append)(jnp.arange(2.0))
    jax.effects_barrier()
    for key, numbers in (("sin", [0, 1, 2]), ("cos", [0, 1, 2, 3])):
        found = {int(logs.iteration[key]) for logs in received if key in logs}
        assert sorted(found) == numbers


def both(x):
    def body(c, t):
        return grows(c * 0.1), t * c

    return lax.scan(body, x, jnp.arange(2.0))[0] + grows(x)


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        (None, ["scan[0]", "scan[0]/while[0]", "while[0]"]),
        ("*", ["scan[0]", "scan[0]/while[0]", "while[0]"]),
        ("*/while[*]", ["scan[0]/while[0]"]),
        ("while[0]", ["while[0]"]),
        (["while[?]", "scan[0]"], ["scan[0]", "while[0]"]),
        ("grows", ["scan[0]/while[0]", "while[0]"]),
        ("both", ["scan[0]"]),
        ("test_observe.py:*", ["scan[0]", "scan[0]/while[0]", "while[0]"]),
        (
            f"{__file__}:{grows.__code__.co_firstlineno + 2}",
            ["scan[0]/while[0]", "while[0]"],
        ),
    ],
)
def test_loops_selects_by_address_line_or_function(pattern, chosen):
    fun = lox.observe(both, carry=lambda leaves: {"x": leaves[0]}, loops=pattern)
    iterations = {"scan[0]": 2, "scan[0]/while[0]": 6, "while[0]": 1}
    assert len(tapped(fun, 5.0)) == sum(iterations[address] for address in chosen)


def test_loops_lists_loops_without_running_the_function():
    loops = lox.observe(both).loops(5.0)
    assert [loop.address for loop in loops] == [
        "scan[0]",
        "scan[0]/while[0]",
        "while[0]",
    ]
    scan, _, loop = loops
    assert (scan.kind, scan.length, loop.kind, loop.length) == (
        "scan",
        2,
        "while",
        None,
    )
    assert (scan.carry, scan.ys, loop.carry) == (("c",), ("ys",), ("c[0]", "c[1]"))
    assert (scan.function, loop.function) == ("both", "grows")
    assert scan.file == __file__
    assert "scan[0] at test_observe.py:" in str(scan)


def test_loops_of_a_backward_pass_are_observed_on_request():
    fun = jax.grad(scanned)
    loops = lox.observe(fun).loops(1.5)
    assert [loop.backward for loop in loops] == [False, True]
    by_default = lox.spool(lox.observe(fun, carry=True))(1.5)[1]
    assert all(len(rows) == 4 for rows in by_default.values())
    assert lox.spool(lox.observe(fun, carry=True, loops=loops[1].address))(1.5)[1]


def test_result_that_is_not_observed_is_the_same_program():
    fun = lox.observe(both, carry=True, loops="while[0]")
    text = str(jax.make_jaxpr(lox.nolog(fun))(5.0))
    assert text.count("scan[") == 1


# --- bad input ---------------------------------------------------------------


def test_pattern_without_a_loop_is_refused_and_lists_the_loops():
    message = r"(?s)test_observe.py:\d+, has 'scan\[7\]'.*no loop.*while\[0\] at"
    with pytest.raises(lox.LoxValueError, match=message):
        lox.observe(both, carry=True, loops="scan[7]")(5.0)


def test_function_without_loops_is_reported():
    with pytest.warns(lox.LoxWarning, match="found no loop"):
        lox.observe(lambda x: x + 1, carry=True)(5.0)


def test_function_that_returns_no_mapping_is_refused():
    with pytest.raises(lox.LoxTypeError, match=r"returned.*test_observe.py:\d+"):
        lox.observe(scanned, carry=lambda leaves: leaves[0])(1.5)


def test_exception_of_a_function_is_raised_unchanged():
    def raises(leaves):
        raise StopIteration("of the function")

    def looped(x):
        return jax.lax.fori_loop(0, 3, lambda i, x: x + 1.0, x)

    def branched(x):
        return jax.lax.cond(x > 0, looped, lambda x: x, x)

    for fun in (looped, branched, jax.checkpoint(branched)):
        observed = lox.observe(fun, carry=raises)
        for way in (lox.spool(observed), lox.nolog(observed), jax.grad(observed)):
            with pytest.raises(StopIteration, match="of the function") as error:
                way(1.0)
            assert error.traceback[-1].name == "raises"


def test_loops_of_a_linear_solve_without_a_transposed_one_are_found():
    def solved(b):
        def solve(matvec, b):
            return jax.lax.fori_loop(0, 3, lambda i, x: x + 0.1 * (b - matvec(x)), b)

        return jax.lax.custom_linear_solve(lambda x: 2.0 * x, b, solve)

    fun = lox.observe(solved, carry=lambda leaves: {"x": leaves[-1]})
    assert [loop.address for loop in fun.loops(1.0)] == ["scan[0]"]
    value, logs = lox.spool(fun)(1.0)
    np.testing.assert_allclose(logs["x"], [0.9, 0.82, 0.756], rtol=1e-6)
    np.testing.assert_allclose(value, 0.756, rtol=1e-6)


def test_value_that_is_not_an_array_is_refused():
    with pytest.raises(lox.LoxTypeError, match=r"`carry` of `lox.observe`, for .*'a'"):
        lox.observe(scanned, carry=lambda leaves: {"a": "x"})(1.5)


def test_key_that_is_not_a_string_is_refused():
    with pytest.raises(lox.LoxTypeError, match=r"`carry` of `lox.observe`.*key 1 for"):
        lox.observe(scanned, carry=lambda leaves: {1: leaves[0]})(1.5)


def test_same_key_in_carry_and_ys_is_refused():
    fun = lox.observe(scanned, carry=lambda _: {"a": 1}, ys=lambda _: {"a": 2})
    with pytest.raises(lox.LoxValueError, match=r"both log 'a'.*test_observe.py:\d+"):
        fun(1.5)


def test_observe_without_anything_to_log_is_refused():
    with pytest.raises(lox.LoxTypeError, match="nothing to log"):
        lox.observe(scanned)(1.5)


def test_observe_around_progress_is_refused():
    observed = lox.observe(lox.progress(scanned), carry=True)
    with pytest.raises(lox.LoxError, match=r"lox\.progress\(lox\.observe\(f"):
        lox.spool(observed)(1.0)


def test_unknown_primitive_is_refused():
    with pytest.raises(lox.LoxValueError, match="'cholesky'.*no such primitive"):
        lox.observe(scanned, outputs={"cholesky": True})(1.5)


@pytest.mark.parametrize(
    "options",
    [
        {"carry": "x"},
        {"ys": 3},
        {"outputs": ["a"]},
        {"loops": 3},
        {"prefix": 3},
        {"tags": 3},
    ],
    ids=str,
)
def test_option_of_the_wrong_type_is_refused(options):
    with pytest.raises(lox.LoxTypeError, match=next(iter(options))):
        lox.observe(scanned, **{"carry": True, **options})(1.5)
