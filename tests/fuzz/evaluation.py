"""Evaluates jaxprs with NumPy, because compiling them takes most of the time.

lox transforms jaxprs, so this finds its bugs, too. It does not test XLA and the
callbacks of compiled programs, so some programs are compiled as well.
"""

import contextlib
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import pjit
from jax.sharding import NamedSharding, PartitionSpec

from lox._jax import jaxprs, primitives

_CONTROL = ("scan", "while", "cond", "shard_map")


@contextlib.contextmanager
def without_compiling() -> Iterator[None]:
    """Inside, only single operations that NumPy does not have are compiled."""
    compiled = pjit._pjit_call_impl_python
    assert not is_evaluating()

    def call(*args: Any, jaxpr: Any, **params: Any) -> Any:
        if _needs_jax(jaxpr, args):
            return compiled(*args, jaxpr=jaxpr, **params)
        with np.errstate(all="ignore"):
            outs = evaluate(jaxpr, args)
        return list(map(_jax_array, outs)), None, None, []

    pjit._pjit_call_impl_python = call
    _evaluating.append(True)
    try:
        yield
    finally:
        _evaluating.clear()
        pjit._pjit_call_impl_python = compiled


_evaluating: list[bool] = []


def is_evaluating() -> bool:
    """Whether this is inside `without_compiling`."""
    return bool(_evaluating)


def _needs_jax(closed: Any, args: Sequence[Any]) -> bool:
    """Whether this is a single operation that NumPy does not have."""
    if closed.effects or len(closed.eqns) > 1:
        return False
    for eqn in closed.eqns:
        if eqn.primitive.name in _CONTROL or _called(eqn) is not None:
            return False
        if eqn.primitive.name in _OPERATIONS:
            return any(map(_is_key, args))
    return True


def evaluate(closed: Any, args: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr."""
    closed = jaxprs.close(closed)
    jaxpr = closed.jaxpr
    env = dict(zip(jaxpr.constvars, map(_numpy, closed.consts), strict=True))
    for var, x in zip(jaxpr.invars, args, strict=True):
        value = _numpy(x)
        if type(value) is np.ndarray:  # up to 0.9, arguments may be Python numbers
            value = np.asarray(value, var.aval.dtype)
        env[var] = value

    def read(atom: Any) -> Any:
        if isinstance(atom, jaxprs.Literal):
            return np.asarray(atom.val, atom.aval.dtype)
        return env[atom]

    for eqn in jaxpr.eqns:
        outs = _evaluate(eqn, list(map(read, eqn.invars)))
        env.update(zip(eqn.outvars, outs, strict=True))
    return list(map(read, jaxpr.outvars))


def _numpy(x: Any) -> Any:
    """As a NumPy array; PRNG keys, which NumPy does not have, stay as they are."""
    if _is_key(x) or isinstance(x, DeviceValues):
        return x
    if isinstance(x, jax.Array) and len(x.devices()) > 1 and x.is_fully_replicated:
        mesh, shards = x.sharding.mesh, x.addressable_shards
        own = {shard.device: np.asarray(shard.data) for shard in shards}
        return _joined(mesh, {at: own[d] for at, d in np.ndenumerate(mesh.devices)})
    return np.asarray(x)


def _jax_array(x: Any) -> Any:
    # up to 0.9, JAX would make constants of NumPy arrays
    return x.as_jax() if isinstance(x, DeviceValues) else jnp.asarray(x)


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.extended)


def _evaluate(eqn: Any, args: list[Any]) -> list[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        return _scan(params, args)
    if name == "while":
        return _while(params, args)
    if name == "cond":
        index, *operands = args
        branches = params["branches"]
        return evaluate(branches[min(max(int(index), 0), len(branches) - 1)], operands)
    if name == "shard_map":
        return _shard_map(params, args)
    inner = _called(eqn)
    if inner is not None:
        return evaluate(inner, args)
    if any(isinstance(x, DeviceValues) for x in args):
        return _on_each_device(lambda own: _evaluate(eqn, own), args)
    operation = _OPERATIONS.get(name)
    if operation is not None and all(type(x) is np.ndarray for x in args):
        out = operation(params, *args)
        return [np.asarray(out, eqn.outvars[0].aval.dtype)]
    outs = eqn.primitive.bind(*args, **params)
    outs = outs if eqn.primitive.multiple_results else [outs]
    return list(map(_numpy, outs))


def _called(eqn: Any) -> Any:
    """The jaxpr that an equation calls, if it is a call."""
    if eqn.primitive.name.startswith("reduce"):
        return None
    return eqn.params.get("call_jaxpr", eqn.params.get("jaxpr"))


# --- loops ---------------------------------------------------------------------


def _scan(params: dict[str, Any], args: list[Any]) -> list[Any]:
    consts, carry, _ = primitives.scan_sizes(params, len(args))
    fixed, state, xs = args[:consts], args[consts:][:carry], args[consts + carry :]
    length, body = params["length"], params["jaxpr"]
    rows = []
    for i in reversed(range(length)) if params["reverse"] else range(length):
        outs = evaluate(body, [*fixed, *state, *(x[i] for x in xs)])
        state = outs[:carry]
        rows.append(outs[carry:])
    if not rows:
        avals = jaxprs.close(body).out_avals[carry:]
        return [*state, *(np.zeros((0, *aval.shape), aval.dtype) for aval in avals)]
    if params["reverse"]:
        rows.reverse()
    return [*state, *(_stacked(column) for column in zip(*rows, strict=True))]


def _stacked(rows: Sequence[Any]) -> Any:
    if any(isinstance(row, DeviceValues) for row in rows):
        (out,) = _on_each_device(lambda own: [np.stack(own)], rows)
        return out
    return (np if type(rows[0]) is np.ndarray else jnp).stack(list(rows))


def _while(params: dict[str, Any], args: list[Any]) -> list[Any]:
    cond_consts, body_consts, carry = primitives.split_while(params, args)
    while True:
        (running,) = evaluate(params["cond_jaxpr"], [*cond_consts, *carry])
        if not np.any(running):
            return list(carry)
        new = evaluate(params["body_jaxpr"], [*body_consts, *carry])
        if np.ndim(running):  # after a `vmap`, lanes that have ended keep their values
            new = [_where(running, *pair) for pair in zip(new, carry, strict=True)]
        carry = new


def _where(running: Any, new: Any, old: Any) -> Any:
    running = running.reshape(running.shape + (1,) * (new.ndim - running.ndim))
    return (np if type(new) is np.ndarray else jnp).where(running, new, old)


# --- devices -------------------------------------------------------------------

# where the device whose part of a `shard_map` is evaluated is along each mesh axis, and
# the sizes of these axes
_device: dict[str, tuple[int, int]] = {}


class DeviceValues:
    """An array of which each device has its own values, by the place of the device.

    Where branches differ between devices, JAX's type of a residual may say that all
    devices have the same values. They then leave the `shard_map` without an axis, and
    each device gets back its own in the backward pass.
    """

    def __init__(self, mesh: Any, values: dict[tuple[int, ...], Any]):
        self.mesh = mesh
        self.values = values

    @property
    def ndim(self) -> int:
        return next(iter(self.values.values())).ndim

    def __getitem__(self, index: Any) -> "DeviceValues":
        return DeviceValues(
            self.mesh, {place: own[index] for place, own in self.values.items()}
        )

    def as_jax(self) -> jax.Array:
        values = self.values.items()
        arrays = [jax.device_put(own, self.mesh.devices[at]) for at, own in values]
        return jax.make_array_from_single_device_arrays(
            arrays[0].shape, NamedSharding(self.mesh, PartitionSpec()), arrays
        )


def _joined(mesh: Any, values: dict[tuple[int, ...], Any]) -> Any:
    """One array if it is the same on all devices."""
    first, *others = values.values()
    if all(first.tobytes() == other.tobytes() for other in others):
        return first
    return DeviceValues(mesh, values)


def _on_each_device(
    function: Callable[[list[Any]], list[Any]], args: Sequence[Any]
) -> list[Any]:
    """The results of operations outside a `shard_map`, which every device executes."""
    differing = next(x for x in args if isinstance(x, DeviceValues))
    results = {
        place: function([_on_device(x, place) for x in args])
        for place in differing.values
    }
    return [
        _joined(differing.mesh, dict(zip(results, column, strict=True)))
        for column in zip(*results.values(), strict=True)
    ]


def _on_device(x: Any, place: tuple[int, ...]) -> Any:
    return x.values[place] if isinstance(x, DeviceValues) else x


def _shard_map(params: dict[str, Any], args: list[Any]) -> list[Any]:
    """Evaluates the program of one device after the other, without collectives."""
    mesh, out_specs = params["mesh"], params["out_specs"]
    sizes = dict(mesh.shape)
    places = list(itertools.product(*map(range, sizes.values())))
    outs: list[dict[Any, Any]] = [{} for _ in out_specs]
    before = dict(_device)
    for place in places:
        _device.update(zip(sizes, zip(place, sizes.values(), strict=True), strict=True))
        own = [_on_device(x, place) for x in args]
        blocks = zip(own, params["in_specs"], strict=True)
        parts = evaluate(params["jaxpr"], [x[_block(x, spec)] for x, spec in blocks])
        for arrays, part, spec in zip(outs, parts, out_specs, strict=True):
            counts = [_place(names)[1] for names in _by_axis(spec, part.ndim)]
            shape = np.multiply(part.shape, counts).astype(int)
            copy = _copy(sizes, place, spec)
            array = arrays.setdefault(copy, np.zeros(shape, part.dtype))
            array[_block(array, spec)] = part
    _device.clear()
    _device.update(before)
    return [
        _joined(mesh, {place: arrays[_copy(sizes, place, spec)] for place in places})
        for arrays, spec in zip(outs, out_specs, strict=True)
    ]


def _copy(sizes: dict[str, int], place: tuple[int, ...], spec: Any) -> tuple[int, ...]:
    """Which copy of a global array the device has a part of."""
    sharded = {name for names in _by_axis(spec, len(spec)) for name in names}
    return tuple(i for i, name in zip(place, sizes, strict=True) if name not in sharded)


def _by_axis(spec: Any, ndim: int) -> list[tuple[str, ...]]:
    """The mesh axes over which each axis of an array is sharded."""
    names = [(n,) if isinstance(n, str) else tuple(n or ()) for n in spec]
    return names + [()] * (ndim - len(names))


def _place(names: Sequence[str]) -> tuple[int, int]:
    """The index of the device along mesh axes, and the number of devices there."""
    places = [_device[name] for name in names]
    sizes = [size for _, size in places]
    return int(np.ravel_multi_index([i for i, _ in places], sizes)) if places else 0, (
        math.prod(sizes)
    )


def _block(x: Any, spec: Any) -> tuple[slice, ...]:
    """The part of a global array that the device has."""
    slices = []
    for size, names in zip(x.shape, _by_axis(spec, x.ndim), strict=True):
        index, count = _place(names)
        part = size // count
        slices.append(slice(index * part, (index + 1) * part))
    return tuple(slices)


def _axis_index(params: dict[str, Any]) -> Any:
    names = params["axis_name"]
    return _place((names,) if isinstance(names, str) else names)[0]


# --- operations ------------------------------------------------------------------


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, *args: function(*args)


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, x: function(x, axis=tuple(params["axes"]))


def _div(params: Any, x: Any, y: Any) -> Any:
    if x.dtype.kind == "f":
        return x / y
    return np.where(y == 0, -1, np.fix(x / np.where(y == 0, 1, y)))


def _rem(params: Any, x: Any, y: Any) -> Any:
    if x.dtype.kind == "f":
        return np.fmod(x, y)
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y)))


def _select(params: Any, which: Any, *cases: Any) -> Any:
    if len(cases) == 1:
        return cases[0]
    if which.dtype == bool:
        return np.where(which, cases[1], cases[0])
    return np.choose(np.clip(which, 0, len(cases) - 1), cases)


def _broadcast(params: Any, x: Any) -> Any:
    shape = [1] * len(params["shape"])
    for axis, size in zip(params["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _within(x: Any, starts: Sequence[Any], sizes: Sequence[int]) -> tuple[slice, ...]:
    """Slices that begin inside an array, as XLA does."""
    first = [
        min(max(int(start), 0), size - part)
        for start, size, part in zip(starts, x.shape, sizes, strict=True)
    ]
    return tuple(slice(a, a + part) for a, part in zip(first, sizes, strict=True))


def _dynamic_slice(params: Any, x: Any, *starts: Any) -> Any:
    return x[_within(x, starts, params["slice_sizes"])]


def _dynamic_update(params: Any, x: Any, update: Any, *starts: Any) -> Any:
    new = np.array(x)
    new[_within(x, starts, update.shape)] = update
    return new


def _slice(params: Any, x: Any) -> Any:
    strides = params["strides"] or (1,) * x.ndim
    limits = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*each) for each in limits)]


def _iota(params: Any) -> Any:
    shape, axis = params["shape"], params["dimension"]
    column = np.arange(shape[axis]).reshape([-1] + [1] * (len(shape) - axis - 1))
    return np.broadcast_to(column, shape)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "abs": _plain(np.abs),
    "add": _plain(operator.add),
    "add_any": _plain(operator.add),
    "and": _plain(operator.and_),
    "axis_index": _axis_index,
    "broadcast_in_dim": _broadcast,
    "clamp": _plain(lambda low, x, high: np.clip(x, low, high)),
    "concatenate": lambda params, *xs: np.concatenate(xs, params["dimension"]),
    "convert_element_type": lambda params, x: x.astype(params["new_dtype"]),
    "copy": _plain(np.array),
    "div": _div,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "eq": _plain(operator.eq),
    "floor": _plain(np.floor),
    "ge": _plain(operator.ge),
    "gt": _plain(operator.gt),
    "iota": _iota,
    "is_finite": _plain(np.isfinite),
    "le": _plain(operator.le),
    "lt": _plain(operator.lt),
    "lox_vary": _plain(np.asarray),
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "mul": _plain(operator.mul),
    "ne": _plain(operator.ne),
    "neg": _plain(operator.neg),
    "not": _plain(operator.invert),
    "or": _plain(operator.or_),
    "pcast": _plain(np.asarray),
    "pvary": _plain(np.asarray),
    "reduce_and": _reduction(np.all),
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_or": _reduction(np.any),
    "reduce_sum": _reduction(np.sum),
    "rem": _rem,
    "reshape": lambda params, x: x.reshape(params["new_sizes"]),
    "rev": lambda params, x: np.flip(x, params["dimensions"]),
    "select_n": _select,
    "slice": _slice,
    "sqrt": _plain(np.sqrt),
    "square": _plain(np.square),
    "squeeze": lambda params, x: np.squeeze(x, tuple(params["dimensions"])),
    "stack": lambda params, *xs: np.stack(xs, params["axis"]),
    "stop_gradient": _plain(np.asarray),
    "sub": _plain(operator.sub),
    "transpose": lambda params, x: np.transpose(x, params["permutation"]),
}
