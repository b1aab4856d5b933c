"""Logs of eager calls, which compiled programs return packed."""

import gc
import importlib
import pickle
import threading

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import lox
from lox._jax import tracing
from lox._logs import packing
from tests import programs, waiting


def unsorted_keys(x):
    lox.log({"z": x, "a": {"second": x + 1, "first": x + 2}, "m": x + 3})
    return x


def with_steps(x):
    lox.log({"z": x, "a": x + 1}, batch=x, epoch=2 * x)
    lox.log({"m": x}, epoch=3 * x)
    return x


@pytest.mark.parametrize("program", [unsorted_keys, with_steps])
def test_eager_logs_equal_those_of_a_jitted_program(program):
    x = jnp.float32(1)
    result, logs = lox.spool(program)(x)
    jitted_result, jitted = jax.jit(lox.spool(program))(x)
    assert result == jitted_result
    assert type(logs) is lox.logdict
    assert list(logs) == list(jitted)
    assert logs == jitted
    assert list(logs.steps) == list(jitted.steps)
    assert jax.tree.structure(logs) == jax.tree.structure(jitted)
    assert jax.tree.leaves(logs) == jax.tree.leaves(jitted)
    paths = [path for path, _ in jax.tree.leaves_with_path(logs)]
    assert paths == [path for path, _ in jax.tree.leaves_with_path(jitted)]
    assert pickle.loads(pickle.dumps(logs)) == logs
    assert logs.reduce("mean") == jitted.reduce("mean")


def test_keys_that_depend_on_shapes_are_distinguished():
    def f(x):
        for i in range(x.size):
            lox.log({f"x{i % 3}": x[i]})
        if x.size == 2:
            lox.log({"b": x[0]}, step=x[1])
        return x.size

    spooled = lox.spool(f)
    sizes = [*range(1, 7), 2, 1, 0, 7, 2]
    for size in sizes:
        result, logs = spooled(jnp.arange(size))
        assert result == size
        expected = {f"x{i}": list(range(size))[i::3] for i in range(min(size, 3))}
        if size == 2:
            expected["b"] = [0]
            assert logs.step["b"] == 1
        assert list(logs) == list(expected)
        found = {key: jnp.ravel(value).tolist() for key, value in logs.items()}
        assert found == expected


def test_logs_with_more_layouts_than_are_packed_are_returned():
    def f(x):
        lox.log({f"x{x.size}": x.sum()})
        return x

    spooled = lox.spool(f)
    for _ in range(2):
        for size in range(packing._MAX_LAYOUTS + 2):
            _, logs = spooled(jnp.ones(size))
            assert logs == {f"x{size}": size}


def test_eager_call_returns_static_leaves_and_removes_rows_that_did_not_happen():
    def f(x):
        lox.log({"positive": x}, when=x > 0)
        lox.log({"b": x, "a": x})
        return {"name": "f", "x": x}

    spooled = lox.spool(f)
    for x, keys in ((1.0, ["positive", "b", "a"]), (-1.0, ["b", "a"])):
        result, logs = spooled(x)
        assert result == {"name": "f", "x": x}
        assert list(logs) == keys
        assert not logs.mask


def test_logs_of_a_call_do_not_share_values_with_other_calls():
    spooled = lox.spool(unsorted_keys)
    _, first = spooled(1.0)
    _, second = spooled(2.0)
    first["new"] = 1
    del first["z"]
    _, third = spooled(2.0)
    assert second == third
    assert list(third) == ["z", "a", "m"]
    assert jax.tree.structure(second) == jax.tree.structure(third)
    assert jax.tree.structure(first) != jax.tree.structure(third)


def test_changed_logs_are_flattened_as_they_are():
    for program in (unsorted_keys, with_steps):
        _, logs = lox.spool(program)(1.0)
        logs["m"] = jnp.float32(7)
        assert jax.tree.map(lambda x: x, logs) == logs
        assert jax.tree.map(lambda x: x, logs)["m"] == 7
        # the methods of `dict` itself do not maintain the metadata
        dict.pop(logs, "m")
        assert jax.tree.map(lambda x: x, logs) == logs
        dict.__setitem__(logs, "other", jnp.float32(8))
        mapped = jax.tree.map(lambda x: x, logs)
        assert mapped == logs
        assert list(mapped) == ["z", "a", "other"]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_logs_of_few_keys_are_flattened(count):
    def f(x):
        lox.log({f"x{i}": x + i for i in range(count)})
        return x

    _, logs = lox.spool(f)(1.0)
    assert jax.tree.leaves(logs) == [1.0 + i for i in range(count)]
    assert jax.tree.map(lambda x: -x, logs) == {f"x{i}": -1.0 - i for i in range(count)}


def test_function_at_the_address_of_a_deleted_one_is_distinguished():
    def f(x):
        lox.log({"f": x})
        return x

    def g(x):
        lox.log({"g": x})
        return x

    known = importlib.import_module("lox._transforms.spool")._known
    assert lox.spool(f)(1.0)[1] == {"f": 1}
    # as if the entry of another function had not been removed
    known.entries[id(g)] = known.entries[id(f)]
    for _ in range(3):
        assert lox.spool(g)(1.0)[1] == {"g": 1}
        assert lox.spool(f)(1.0)[1] == {"f": 1}
    assert known.find(g) is not known.find(f)
    number = id(g)
    del g
    jax.clear_caches()
    gc.collect()
    assert number not in known.entries


def test_repeated_spool_of_a_function_differs_by_options():
    def f(x):
        return lax.scan(lambda c, _: (c + 1, lox.log({"c": c})), x, length=3)[0]

    rows = jnp.arange(3.0)
    for _ in range(3):
        assert lox.spool(f)(0.0)[1] == {"c": rows}
        assert lox.spool(f, reduce="mean")(0.0)[1] == {"c": 1}
        assert lox.spool(f, None, None)(0.0)[1] == {"c": rows}
        assert lox.spool(fun=f)(0.0)[1] == {"c": rows}
        assert lox.spool(prefix="p/")(f)(0.0)[1] == {"p/c": rows}
    with pytest.raises(TypeError, match="takes from 0 to 7 positional arguments"):
        lox.spool(f, None, None, False, None, None, "", None)


def test_threads_can_trace_different_keys_at_the_same_time():
    ready = threading.Barrier(4)

    def f(x):
        lox.log({f"x{x.size}": x.sum(), "a": x.sum()}, step=x.size)
        return x.size

    spooled = lox.spool(f)

    def work(size):
        ready.wait()
        for _ in range(3):
            _, logs = spooled(jnp.ones(size))
            found.append(logs == {f"x{size}": size, "a": size})

    found = []
    waiting.in_threads(work, [(size,) for size in range(1, 5)])
    assert found == [True] * 12


def test_state_of_jax_says_whether_a_call_is_outermost():
    def check(expected):
        assert tracing.at_top_level() is expected
        assert (tracing.trace_state.value is tracing.TOP_TRACE) is expected

    def inside(x):
        check(False)
        return x

    check(True)
    jax.jit(inside)(1.0)
    jax.vmap(inside)(jnp.ones(2))
    jax.vmap(inside, axis_name="i")(jnp.ones(2))
    jax.grad(inside)(1.0)
    jax.make_jaxpr(inside)(1.0)
    check(True)
    checked = []
    waiting.in_threads(lambda: checked.append(check(True)), [()])
    assert checked == [None]


def test_call_that_is_evaluated_inside_a_transformation_is_eager():
    def f(x):
        lox.log({"b": x, "a": x}, when=x > 0)
        return x

    spooled = lox.spool(f)
    spooled(jnp.float32(1))

    def inside(x):
        with jax.core.eval_context():
            assert spooled(jnp.float32(2))[1] == {"b": 2, "a": 2}
            assert spooled(jnp.float32(-2))[1] == {}
        return x + spooled(jnp.float32(3))[0]

    for transform in (jax.jit, jax.vmap, lambda g: jax.vmap(g, axis_name="i")):
        assert transform(inside)(jnp.ones(2)).tolist() == [4, 4]


def test_functions_with_flax_modules_are_searched_after_flax_is_imported():
    pytest.importorskip("flax")
    done = programs.run(
        """
        import sys
        import jax.numpy as jnp
        import lox

        count = None

        def f(x):
            if count is not None:
                count[...] += 1
            lox.log({"x": x})
            return x

        def g(x):
            return f(x)

        x = jnp.float32(1)
        assert lox.spool(f)(x)[1] == lox.spool(f)(x)[1] == {"x": 1}
        assert "flax.nnx" not in sys.modules
        from flax import nnx

        count = nnx.Variable(jnp.int32(0))
        for i in range(1, 4):
            assert lox.spool(g)(x)[1] == {"x": 1}
            assert count[...] == i
        print("done")
        """
    )
    assert done.stdout == "done\n", done.stderr


def rows_that_may_not_happen(x):
    def body(c):
        lox.log({"a": c, "b": {"c": 2 * c}}, step=c)
        lox.log({"odd": c}, when=c % 2 == 1)
        return c + 1

    return lax.while_loop(lambda c: c < 3, body, x)


def test_rows_that_did_not_happen_are_removed_without_device_put(monkeypatch):
    spooled = lox.spool(rows_that_may_not_happen, capacity=5)
    _, wanted = spooled(0)
    calls = []
    put = jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda *x: (calls.append(x), put(*x))[1])
    _, logs = spooled(0)
    assert not calls
    # it costs more, but a guard allows what is explicit
    with jax.transfer_guard("disallow"):
        _, guarded = spooled(jax.jit(lambda: 0)())
    assert len(calls) == 1
    for found in (wanted, logs, guarded):
        assert found["a"].tolist() == [0, 1, 2]
        assert found["b"]["c"].tolist() == [0, 2, 4]
        assert found["odd"].tolist() == [1]
        assert found.step["b"].tolist() == [0, 1, 2]


def test_rows_of_another_default_device_are_put_there():
    *_, last = jax.devices()
    with jax.default_device(last):
        _, logs = lox.spool(rows_that_may_not_happen, capacity=5)(0)
    assert logs["a"].tolist() == [0, 1, 2]
    assert logs["a"].devices() == {last}


def test_wide_rows_stay_wide():
    with jax.enable_x64(True):
        _, logs = lox.spool(rows_that_may_not_happen, capacity=5)(0)
        assert logs["a"].dtype == jnp.int64
        assert logs["a"].tolist() == [0, 1, 2]


def test_compacted_rows_do_not_keep_the_memory_of_all_rows():
    _, logs = jax.jit(lox.spool(rows_that_may_not_happen, capacity=100))(0)
    first, last = (x["a"].unsafe_buffer_pointer() for x in (logs, logs.compact()))
    assert first != last
