"""`lox.watch`: statistics of trees as events."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox

STATS = ("rms", "min", "max_abs", "nonfinite")
LAYERS, WIDTH, STEPS = 3, 4, 5
rng = np.random.default_rng(0)
WEIGHTS = rng.normal(size=(LAYERS, WIDTH, WIDTH)).astype(np.float32)


def oracle(name, tree):
    """What `watch` logs of a flat dict of arrays, by NumPy in float64."""
    rows = {}
    for path, x in tree.items():
        x = np.asarray(x, np.float64)
        rows[f"{name}/{path}/rms"] = np.sqrt(np.mean(x**2))
        rows[f"{name}/{path}/min"] = x.min()
        rows[f"{name}/{path}/max_abs"] = np.abs(x).max()
        rows[f"{name}/{path}/nonfinite"] = np.sum(~np.isfinite(x))
    return rows


def assert_rows(logs, rows, steps=None):
    """Compares spooled logs with a list of dicts by key."""
    assert list(logs) == list(rows[0])
    for key in logs:
        wanted = np.array([row[key] for row in rows])
        # a minimum near zero is rounded like the other elements of its array
        np.testing.assert_allclose(
            np.atleast_1d(logs[key]), wanted, rtol=1e-5, atol=1e-6, err_msg=key
        )
        if steps is not None:
            assert np.atleast_1d(logs.step[key]).tolist() == steps


def train(x):
    """A loop that watches its parameters."""

    def body(params, i):
        params = {"b": params["b"] + i, "w": params["w"] * 0.5}
        return lox.watch("params", params, stats=STATS, step=i), None

    return lax.scan(body, {"b": x, "w": jnp.outer(x, x)}, jnp.arange(STEPS))[0]


def train_rows(x):
    b, w = np.asarray(x, np.float32), np.outer(x, x).astype(np.float32)
    for i in range(STEPS):
        b, w = b + np.float32(i), w * np.float32(0.5)
        yield oracle("params", {"b": b, "w": w})


def test_watch_returns_the_tree_itself():
    tree = {"a": np.ones(2), "b": [jnp.ones(1), "text", None]}
    assert lox.nolog(lambda: lox.watch("x", tree, stats="rms") is tree)()
    assert lox.watch("x", tree, explicit=True) is tree


@pytest.mark.parametrize("jitted", [False, True])
def test_watch_logs_the_statistics_of_each_iteration(jitted):
    x = jnp.array([1.0, -2.0, 0.5])
    spooled = lox.spool(train)
    out, logs = (jax.jit(spooled) if jitted else spooled)(x)
    assert_rows(logs, list(train_rows(x)), list(range(STEPS)))
    np.testing.assert_array_equal(out["b"], lox.nolog(train)(x)["b"])


@pytest.mark.parametrize("order", ["vmap(spool)", "spool(vmap)"])
def test_watch_logs_each_lane(order):
    xs = jnp.array([[1.0, -2.0, 0.5], [0.0, 3.0, 4.0]])
    spooled = {
        "vmap(spool)": lambda: jax.vmap(lox.spool(train)),
        "spool(vmap)": lambda: lox.spool(jax.vmap(train)),
    }[order]()
    for x, lane in zip(xs, spooled(xs)[1].lanes(), strict=True):
        assert_rows(lane, list(train_rows(x)), list(range(STEPS)))


def test_watch_is_one_event():
    found = []
    lox.tap(train, found.append)(jnp.ones(3))
    jax.effects_barrier()
    assert len(found) == STEPS
    assert all(len(logs) == 2 * len(STATS) for logs in found)


def test_reduction_is_that_of_the_call():
    def program(x):
        for i in range(3):
            tree = {"a": x + i}
            lox.watch("x", tree, stats=["min", "max"], reduce={"a/min": "min"})
        return x

    logs = lox.spool(program, reduce={"x/a/max": "last"})(jnp.arange(2.0))[1]
    assert logs["x/a/max"] == 3
    logs = lox.spool(program)(jnp.arange(2.0))[1]
    assert logs["x/a/min"] == 0 and logs["x/a/max"].tolist() == [1, 2, 3]


def test_tags_prefix_and_explicit_are_those_of_log():
    def program(x):
        lox.watch("x", x, stats="rms", tags="watched", prefix="model/")
        lox.watch("hidden", x, stats="rms", explicit=True)
        lox.watch("", x, stats="max")
        return x

    logs = lox.spool(program)(jnp.ones(2))[1]
    assert list(logs) == ["model/x/rms", "max"]
    assert list(lox.spool(program, tags="watched")(jnp.ones(2))[1]) == ["model/x/rms"]
    assert "hidden/rms" in lox.spool(program, "hidden/rms")(jnp.ones(2))[1]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_split_logs_stacked_layers_separately(axis):
    params = {"b": WEIGHTS[:, 0], "w": WEIGHTS}
    moved = jax.tree.map(lambda x: np.moveaxis(x, 0, axis), params)
    logs = lox.spool(lambda p: lox.watch("params", p, stats=STATS, split=axis))(moved)
    wanted = {}
    for i in range(LAYERS):
        layer = {key: x[i] for key, x in params.items()}
        wanted |= oracle(f"params/{i}", layer)
    assert_rows(logs[1], [wanted])


def test_split_of_stacked_layers_is_what_their_scan_logs():
    def scanned(weights):
        def layer(_, w):
            lox.watch("w", {"w": w}, stats=STATS)
            return None, None

        lax.scan(layer, None, weights)

    in_scan = lox.spool(scanned)(WEIGHTS)[1]
    watch = lambda x: lox.watch("w", {"w": x}, stats=STATS, split=0)  # noqa: E731
    split = lox.spool(watch)(WEIGHTS)[1]
    for i in range(LAYERS):
        for name in STATS:
            assert split[f"w/{i}/w/{name}"] == in_scan[f"w/w/{name}"][i]


def bad_steps(scale):
    """Lane `scale` overflows in step 2 if it is large, and its product one later."""

    def body(x, i):
        x = x * scale
        tree = {"b": x, "w": jnp.stack([x - x, x - 1]), "count": i}
        lox.watch("state", tree, stats=["nonfinite"], when="nonfinite", step=i)
        return x, None

    return lax.scan(body, jnp.float32(1), jnp.arange(STEPS))[0]


def bad_rows(scale):
    x = np.float32(1)
    for i in range(STEPS):
        with np.errstate(all="ignore"):
            x = np.float32(x * np.float32(scale))
            tree = {"b": x, "w": np.stack([x - x, x - 1])}
        for key, value in tree.items():
            count = np.sum(~np.isfinite(value))
            if count:
                yield f"state/{key}/nonfinite", i, int(count)


def rows_of(logs):
    return [
        (key, int(step), int(value))
        for key in logs
        for step, value in zip(
            np.atleast_1d(logs.step[key]), np.atleast_1d(logs[key]), strict=True
        )
    ]


@pytest.mark.parametrize("scale", [2.0, 1e15])
def test_nonfinite_logs_only_arrays_that_are_not_finite(scale):
    found = []
    lox.tap(bad_steps, found.append)(scale)
    jax.effects_barrier()
    wanted = list(bad_rows(scale))
    assert [row for logs in found for row in rows_of(logs)] == wanted
    assert bool(wanted) == (scale > 2)
    spooled = lox.spool(bad_steps)(scale)[1].compact()
    assert sorted(rows_of(spooled)) == sorted(wanted)


def test_nonfinite_decides_per_lane():
    scales = jnp.array([2.0, 1e15, 1e20])
    for logs in (
        jax.vmap(lox.spool(bad_steps))(scales)[1],
        lox.spool(jax.vmap(bad_steps))(scales)[1],
    ):
        for scale, lane in zip(scales, logs.lanes(), strict=True):
            assert sorted(rows_of(lane)) == sorted(bad_rows(scale))


def test_nonfinite_names_the_layer():
    weights = jnp.asarray(WEIGHTS).at[1, 0, 0].set(jnp.inf)
    found = []
    watch = lambda x: lox.watch("w", x, split=0, when="nonfinite")  # noqa: E731
    lox.tap(jax.jit(watch), found.append)(weights)
    jax.effects_barrier()
    assert [list(logs) for logs in found] == [
        ["w/1/rms", "w/1/max_abs", "w/1/nonfinite"]
    ]


def test_when_is_that_of_log():
    def program(x):
        lox.watch("x", x, stats="max", when=x.max() > 2)

    assert lox.spool(program)(jnp.array([1.0, 3.0]))[1]["x/max"] == 3
    assert not lox.spool(program)(jnp.array([1.0, 2.0]))[1].compact()


def test_derivatives_are_those_without_watch():
    def loss(watch, w):
        def layer(h, w):
            h = jnp.tanh(w @ h)
            return (lox.watch("h", {"h": h}, stats=STATS)["h"] if watch else h), None

        return lax.scan(jax.checkpoint(layer), jnp.ones(WIDTH), w)[0].sum()

    gradient = jax.grad(lambda w: loss(True, w))
    found, logs = lox.spool(gradient)(WEIGHTS)
    np.testing.assert_allclose(found, jax.grad(lambda w: loss(False, w))(WEIGHTS))
    rows, h = [], np.ones(WIDTH)
    for w in WEIGHTS.astype(np.float64):
        h = np.tanh(w @ h)
        rows.append(oracle("h", {"h": h}))
    assert_rows(logs, rows)


def test_watch_adds_no_derivatives_of_statistics():
    def loss(x):
        return (lox.watch("x", x, stats="rms") ** 2).sum()

    jaxpr = str(jax.make_jaxpr(jax.grad(lox.nolog(loss)))(jnp.ones(3)))
    assert jaxpr.count("sqrt") <= 1


# --- cotangents --------------------------------------------------------------


def loss(w, h, watch=True):
    """Scanned layers; each watches its weights and its activation."""

    def layer(h, inputs):
        w, i = inputs
        if watch:
            options = {"stats": STATS, "grad": True, "step": i}
            w = lox.watch("w", {"w": w}, **options)["w"]
            h = lox.watch("h", h, **options)
        return jnp.tanh(w @ h), None

    return lax.scan(layer, h, (w, jnp.arange(LAYERS)))[0].sum()


def cotangent_rows(weights, h):
    """The cotangents of weights and activations, last layer first, by hand."""
    inputs = [np.asarray(h, np.float64)]
    for w in np.asarray(weights, np.float64):
        inputs.append(np.tanh(w @ inputs[-1]))
    cotangent = np.ones(WIDTH)
    for i in reversed(range(LAYERS)):
        before = cotangent * (1 - inputs[i + 1] ** 2)
        cotangent = np.asarray(weights, np.float64)[i].T @ before
        yield i, np.outer(before, inputs[i]), cotangent


def assert_cotangents(logs, weights, h):
    found = list(cotangent_rows(weights, h))
    steps = [i for i, _, _ in found]
    for name, rows in {
        "w/grad": [oracle("w/grad", {"w": dw}) for _, dw, _ in found],
        "h/grad": [oracle("h", {"grad": dh}) for _, _, dh in found],
    }.items():
        assert_rows(logs.filter(f"{name}/*"), rows, steps)


H = jnp.linspace(-1, 1, WIDTH)
DERIVATIVES = {
    "grad": lambda f: jax.grad(f),
    "jit(value_and_grad)": lambda f: jax.jit(jax.value_and_grad(f)),
    "vjp": lambda f: lambda *args: jax.vjp(f, *args)[1](1.0),
    "grad(checkpoint)": lambda f: jax.grad(jax.checkpoint(f)),
    "grad(jit)": lambda f: jax.grad(jax.jit(f)),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_grad_logs_the_statistics_of_cotangents(name):
    derivative = DERIVATIVES[name](loss)
    # an argument that is not differentiated has cotangents inside the loop only
    out, logs = lox.spool(derivative)(WEIGHTS, H)
    plain = DERIVATIVES[name](lambda w, h: loss(w, h, watch=False))(WEIGHTS, H)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), out, plain)
    if name == "vjp":  # everything is differentiated
        assert_cotangents(logs, WEIGHTS, H)
        return
    found = list(cotangent_rows(WEIGHTS, H))
    rows = [oracle("w/grad", {"w": dw}) for _, dw, _ in found]
    assert_rows(logs.filter("w/grad/*"), rows, [i for i, _, _ in found])


def test_grad_logs_the_forward_statistics_too():
    _, logs = lox.spool(jax.grad(loss, (0, 1)))(WEIGHTS, H)
    assert_cotangents(logs, WEIGHTS, H)
    rows = [oracle("w", {"w": w}) for w in WEIGHTS]
    assert_rows(logs.filter("w/w/*"), rows, list(range(LAYERS)))


@pytest.mark.parametrize("order", ["vmap(spool)", "spool(vmap)", "grad(vmap)"])
def test_grad_logs_each_lane(order):
    batch = jnp.stack([H, H**2, -2 * H])
    gradient = jax.grad(loss, (0, 1))
    if order == "grad(vmap)":
        total = lambda w, h: jax.vmap(loss, (None, 0))(w, h).sum()  # noqa: E731
        logs = lox.spool(jax.grad(total, (0, 1)))(WEIGHTS, batch)[1]
    elif order == "vmap(spool)":
        logs = jax.vmap(lox.spool(gradient), (None, 0))(WEIGHTS, batch)[1]
    else:
        logs = lox.spool(jax.vmap(gradient, (None, 0)))(WEIGHTS, batch)[1]
    for h, lane in zip(batch, logs.filter("*/grad/*").lanes(), strict=True):
        assert_cotangents(lane, WEIGHTS, h)


def test_grad_reaches_tap_in_one_event_per_call():
    found = []
    lox.tap(jax.grad(loss), found.append, "w/grad/*")(WEIGHTS, H)
    jax.effects_barrier()
    assert [int(logs.step["w/grad/w/rms"]) for logs in found] == [2, 1, 0]
    for logs, (_, dw, _) in zip(found, cotangent_rows(WEIGHTS, H), strict=True):
        assert_rows(logs, [oracle("w/grad", {"w": dw})])


def test_grad_logs_nothing_without_a_derivative():
    logs = lox.spool(loss)(WEIGHTS, H)[1]
    assert not any("/grad/" in key for key in logs)
    logs = lox.spool(lambda w, h: jax.jvp(loss, (w, h), (w, h)))(WEIGHTS, H)[1]
    assert not any("/grad/" in key for key in logs)


def test_nolog_removes_the_statistics_of_cotangents(capsys):
    for fun in (jax.grad(lox.nolog(loss)), lox.nolog(jax.grad(loss))):
        fun(WEIGHTS, H)
    jax.effects_barrier()
    assert capsys.readouterr().out == ""


def test_grad_of_a_split_tree_logs_each_layer():
    def total(w):
        w = lox.watch("w", {"w": w}, stats=STATS, grad=True, split=0)["w"]
        return loss(w, H, watch=False)

    _, logs = lox.spool(jax.grad(total))(WEIGHTS)
    wanted = {}
    for i, dw, _ in reversed(list(cotangent_rows(WEIGHTS, H))):
        wanted |= oracle(f"w/grad/{i}", {"w": dw})
    assert_rows(logs.filter("w/grad/*"), [wanted])


@pytest.mark.parametrize("mapped", [False, True])
def test_grad_names_the_first_cotangent_that_is_not_finite(mapped):
    def total(x):
        tree = {"a": x, "b": x + 1, "n": 3}
        tree = lox.watch("x", tree, stats="max", grad=True, when="nonfinite", step=7)
        return jnp.sqrt(tree["a"]).sum() + tree["b"].sum()

    found = []
    gradient = lox.tap(jax.grad(total), found.append)
    xs = jnp.array([[1.0, 2.0], [0.0, 1.0]])
    jax.vmap(gradient)(xs) if mapped else gradient(xs[1])
    jax.effects_barrier()
    (logs,) = found
    assert list(logs) == ["x/grad/a/max"] and logs.step["x/grad/a/max"] == 7
    assert logs["x/grad/a/max"] == np.inf


def test_grad_takes_when_from_the_forward_pass():
    def total(x):
        return (lox.watch("x", x, stats="max", grad=True, when=x.sum() > 1) ** 2).sum()

    logs = lox.spool(jax.grad(total))(jnp.array([1.0, 2.0]))[1].compact()
    assert logs["x/grad/max"] == 4
    assert not lox.spool(jax.grad(total))(jnp.array([-1.0, 2.0]))[1].compact()


@pytest.mark.parametrize("order", ["vmap(spool)", "spool(vmap)"])
def test_grad_logs_cotangents_of_branches_that_lanes_take(order):
    def total(x):
        def body(c, i):
            def watched(c):
                return 2 * lox.watch("c", c, stats="max_abs", grad=True, step=i)

            return lax.cond(c.sum() > 1 + i, watched, lambda c: 3 * c, c), None

        return lax.scan(body, x, jnp.arange(STEPS))[0].sum()

    def rows(x):
        taken, x = [], np.asarray(x, np.float64)
        for i in range(STEPS):
            taken.append(x.sum() > 1 + i)
            x = x * (2 if taken[-1] else 3)
        cotangent = 1
        for i in reversed(range(STEPS)):
            cotangent *= 2 if taken[i] else 3
            if taken[i]:
                yield i, cotangent

    xs = jnp.array([[1.0, 2.0], [0.1, 0.1], [0.5, 0.4]])
    gradient = jax.grad(total)
    logs = (
        jax.vmap(lox.spool(gradient))(xs)
        if order == "vmap(spool)"
        else lox.spool(jax.vmap(gradient))(xs)
    )[1]
    for x, lane in zip(xs, logs.filter("c/grad/*").lanes(), strict=True):
        found = rows_of(lane)
        assert [(step, value) for _, step, value in found] == list(rows(x))


def test_grad_is_reduced_in_the_loop():
    logs = lox.spool(jax.grad(loss), "w/grad/*", reduce="last")(WEIGHTS, H)[1]
    *_, (step, dw, _) = cotangent_rows(WEIGHTS, H)
    assert_rows(logs, [oracle("w/grad", {"w": dw})], [step])


def test_watch_in_shard_map_logs_each_device():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")

    def shard(x):
        return lox.watch("x", x, stats="max_abs", grad=True) ** 2

    def total(x):
        return jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec)(x).sum()

    logs = lox.spool(jax.grad(total))(jnp.array([1.0, -2.0, 3.0, 0.0]))[1]
    assert logs["x/max_abs"].tolist() == [2, 3]
    assert logs["x/grad/max_abs"].tolist() == [4, 6]


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_sharded_arrays_have_the_same_statistics(kind):
    types = (getattr(jax.sharding.AxisType, kind),)
    mesh = jax.make_mesh((2,), ("d",), axis_types=types)
    x = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    stats = (*STATS, "histogram")
    with jax.set_mesh(mesh):
        sharding = jax.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
        sharded = jax.device_put(x, sharding)
        for split in (None, 0, 1):
            watch = lambda x: lox.watch("x", x, stats=stats, split=split)  # noqa: B023, E731
            found = lox.spool(watch)(sharded)[1]
            wanted = lox.spool(watch)(x)[1]
            assert list(found) == list(wanted)
            jax.tree.map(np.testing.assert_allclose, dict(found), dict(wanted))


def test_grad_of_values_without_a_cotangent_is_zero():
    def total(tree):
        tree = lox.watch("x", tree, stats="max_abs", grad=True, reduce="last")
        return tree["used"] * 2

    logs = lox.spool(jax.grad(total))({"used": 1.0, "unused": 2.0})[1]
    assert logs["x/grad/used/max_abs"] == 2 and logs["x/grad/unused/max_abs"] == 0


def test_grad_logs_an_equinox_module():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))

    def total(model, x):
        return lox.watch("model", model, stats="norm", grad=True)(x).sum()

    gradient = eqx.filter_grad(total)
    found, logs = lox.spool(gradient)(model, jnp.ones(2))
    wanted = lox.stats(found, "norm")
    logged = logs.filter("model/grad/*")
    assert list(logged) == [f"model/grad/{key}" for key in wanted]
    for key, value in wanted.items():
        np.testing.assert_allclose(logged[f"model/grad/{key}"], value, rtol=1e-6)


def test_grad_logs_an_nnx_state():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(model)

    def total(state):
        state = lox.watch("model", state, stats="norm", grad=True)
        return nnx.merge(graph, state)(jnp.ones(2)).sum()

    found, logs = lox.spool(jax.grad(total))(state)
    wanted = lox.stats(found, "norm")
    assert [*wanted] == ["layers/0/bias/norm", "layers/0/kernel/norm"]
    for key, value in wanted.items():
        np.testing.assert_allclose(logs[f"model/grad/{key}"], value, rtol=1e-6)


def test_histograms_are_stored_as_arrays(tmp_path):
    def program(x):
        for i in range(2):
            lox.watch("x", {"a": x + i}, stats=["histogram", "max"], step=i)

    logs = lox.spool(program)(jnp.arange(5.0))[1]
    lox.save(logs, tmp_path)
    loaded = lox.load(tmp_path)
    assert type(loaded["x/a/histogram"]) is dict
    for name in ("counts", "edges"):
        np.testing.assert_array_equal(
            loaded["x/a/histogram"][name], logs["x/a/histogram"][name]
        )
    last = logs.reduce("last")["x/a/histogram"]
    assert last["edges"][0] == 1 and last["counts"].sum() == 5


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("x", 1.0), {"stats": "rsm"}, lox.LoxValueError, "'rsm'.*rms, norm"),
        (("x", {}), {}, lox.LoxTypeError, "no array"),
        (({"x": 1.0}, "x"), {}, lox.LoxTypeError, 'lox.watch."params", params'),
        (("x", 1.0), {"split": 0}, lox.ShapeError, "the array has the shape"),
        (
            ("x", {"a": np.ones((2, 3)), "b": np.ones(2)}),
            {"split": 1},
            lox.ShapeError,
            r"'b' has the shape \(2,\).*no such axis",
        ),
        (
            ("x", {"a": np.ones((2, 3)), "b": np.ones(5)}),
            {"split": 0},
            lox.ShapeError,
            "'a' has 2 layers and 'b' has 5",
        ),
        (
            ("x", {"n": np.ones(2, int)}),
            {"grad": True},
            lox.LoxTypeError,
            "no array in",
        ),
        (("x", 1.0), {"grad": np.ones(2)}, lox.LoxTypeError, "must be a bool"),
        (
            ("x", {"a": np.ones(2), "grad": {"a": np.ones(2)}}),
            {"grad": True},
            lox.LoxValueError,
            "'grad/a', which is also",
        ),
        (("x", 1.0), {"split": "a"}, lox.LoxTypeError, "number of an axis"),
        (("x", 1.0), {"when": "nan"}, lox.LoxValueError, '"nonfinite", not .nan'),
        (("x", 1.0), {"when": np.ones(2, bool)}, lox.ShapeError, "must be a scalar"),
        (("x", 1.0), {"when": 1.0}, lox.LoxTypeError, "must be a boolean"),
        (
            ("x", {"a": {"b": 1.0}, "a/b": 2.0}),
            {},
            lox.LoxValueError,
            r"\['a'\]\['b'\] and \['a/b'\]",
        ),
    ],
)
def test_bad_input_is_refused(arguments, options, error, message):
    with pytest.raises(error, match=rf"test_watch.py:\d+(?s:.*){message}"):
        lox.watch(*arguments, **options)
