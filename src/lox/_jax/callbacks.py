"""Host callbacks in programs: their lowering, and the functions that they call."""

import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from . import compat, host, tracebacks

_callback_op_sharding = compat.private(
    "callback._callback_op_sharding",
    "events of programs on multiple devices have no order",
    default=None,
)


def host_functions_of(eqn: JaxprEqn) -> tuple[Any, ...]:
    """The user's function that an equation calls on the host, if any."""
    if eqn.primitive.name not in PRIMITIVES:
        return ()
    callback = eqn.params["callback"]
    if isinstance(callback, types.FunctionType):  # made by `jax.debug.callback`
        cells = zip(
            callback.__code__.co_freevars, callback.__closure__ or (), strict=True
        )
        found = [cell.cell_contents for name, cell in cells if name == "callback"]
        return tuple(found)
    return (getattr(callback, "callback_func", callback),)


PRIMITIVES = frozenset({"pure_callback", "io_callback", "debug_callback"})


def running_host_functions() -> Iterator[Any]:
    """The users' functions whose callbacks are on the call stack, innermost first."""
    for frame in tracebacks.frames(sys._getframe(1)):
        if frame.f_code.co_filename in _JAX_CALLBACKS:
            names = frame.f_locals
            if hasattr(names.get("self"), "callback_func"):
                yield names["self"].callback_func
            elif "callback" in names:
                yield names["callback"]


_JAX_CALLBACKS = compat.private_files("callback.py", "debugging.py")


def emit_callback(
    ctx: Any,
    callback: Callable[..., Any],
    operands: Sequence[Any],
    avals: Sequence[Any],
    effect: Any,
) -> None:
    """Lowers a call of `callback` on NumPy arrays, which returns `()`.

    If XLA partitions the program over devices, the call gets a sharding: it runs on the
    first device, with unsharded values. Where only some mesh axes are partitioned by
    XLA, `jax.debug.callback` is used, which is unordered.

    Args:
        ctx: the lowering context.
        callback: the function.
        operands: its arguments, as values of the lowered program.
        avals: their types.
        effect: the ordered effect of the call, or None.
    """
    callback, operands, avals = _widen(callback, operands, avals)
    inner = ctx.replace(avals_in=list(avals), avals_out=[])
    partitioned = is_partitioned(ctx)
    sharding = _first_device_sharding(ctx) if partitioned else None
    if partitioned and sharding is None:

        def call(*args: Any) -> list[Any]:
            jax.debug.callback(lambda *a: callback(*map(np.asarray, a)), *args)
            return []

        lowered = _on_first_of(_automatic_axes(ctx), call)
        mlir.lower_fun(lowered, multiple_results=True)(inner, *operands)
        if effect is not None:
            ctx.set_tokens_out(mlir.TokenSet({effect: ctx.tokens_in.get(effect)}))
        return
    token = None if effect is None else ctx.tokens_in.get(effect)
    _, new_token, wrapped = mlir.emit_python_callback(
        inner,
        callback,
        token,
        list(operands),
        list(avals),
        [],
        has_side_effect=True,
        returns_token=effect is not None or partitioned,
        sharding=sharding,
    )
    if effect is not None:
        ctx.set_tokens_out(mlir.TokenSet({effect: new_token}))
    host.receivers.add(callback.__code__)
    _call_directly(ctx.module_context.host_callbacks, wrapped, callback, bool(token))


def _widen(
    callback: Callable[..., Any], operands: Sequence[Any], avals: Sequence[Any]
) -> tuple[Callable[..., Any], Sequence[Any], Sequence[Any]]:
    """Transfers `int4` and similar types as `int8`.

    JAX 0.9 passes arbitrary bits to the host for scalars of fewer than eight bits.
    """
    narrow = {i: aval.dtype for i, aval in enumerate(avals) if _is_narrow(aval.dtype)}
    if not narrow:
        return callback, operands, avals
    operands, avals = list(operands), list(avals)
    for i in narrow:
        avals[i] = _wide(avals[i])
        element = mlir.dtype_to_ir_type(avals[i].dtype)
        wide = ir.RankedTensorType.get(avals[i].shape, element)
        operands[i] = stablehlo.convert(wide, operands[i])

    def call(*args: Any) -> Any:
        arrays = list(args)
        for i, dtype in narrow.items():
            arrays[i] = np.asarray(arrays[i]).astype(dtype)
        return callback(*arrays)

    return call, operands, avals


def _is_narrow(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.integer)) and jnp.iinfo(dtype).bits < 8


def _wide(aval: Any) -> Any:
    signed = jnp.issubdtype(aval.dtype, jnp.signedinteger)
    return aval.update(dtype=np.dtype(np.int8 if signed else np.uint8))


def _call_directly(
    callbacks: list[Any], wrapped: Any, callback: Callable[..., Any], token: bool
) -> None:
    """Makes XLA call `callback` directly, not through JAX's wrapper.

    The wrapper checks the results. There are none, and the checks would double the cost
    of an event.
    """
    if not callbacks or callbacks[-1] is not wrapped:
        return

    def call(token: Any, *operands: Any) -> tuple[Any]:
        callback(*operands)
        return (token,)

    callbacks[-1] = call if token else callback
    host.receivers.add(callbacks[-1].__code__)


def _first_device_sharding(ctx: Any) -> Any:
    if _callback_op_sharding is None:
        return None
    context = ctx.module_context.axis_context
    if getattr(context, "mesh", None) is not None:
        return None
    return _callback_op_sharding(context, None, [])


def _automatic_axes(ctx: Any) -> tuple[Any, ...]:
    """The mesh axes that XLA partitions, in a program that is partly manual."""
    context = ctx.module_context.axis_context
    mesh, manual = getattr(context, "mesh", None), getattr(context, "manual_axes", ())
    names = () if mesh is None else mesh.axis_names
    return tuple(name for name in names if name not in manual)


def _on_first_of(
    axes: tuple[Any, ...], call: Callable[..., list[Any]]
) -> Callable[..., list[Any]]:
    """Calls `call` on the first device along several axes that XLA partitions.

    JAX (as of 0.12) does this for one such axis, and fails for more.
    """
    if len(axes) < 2:
        return call

    def call_once(*args: Any) -> list[Any]:
        def on_device() -> list[Any]:
            is_first = jax.lax.axis_index(axes) == 0
            return jax.lax.cond(is_first, lambda: call(*args), list)

        return jax.shard_map(on_device, in_specs=(), out_specs=[])()

    return call_once


def is_partitioned(ctx: Any) -> bool:
    """Whether XLA's partitioner splits this program over devices."""
    context = ctx.module_context.axis_context
    if getattr(context, "num_devices", None) is not None:
        return context.num_devices > 1
    mesh = getattr(context, "mesh", None)
    if mesh is None or mesh.size == 1:
        return False
    manual: Any = getattr(context, "manual_axes", ())
    return set(mesh.axis_names) != set(manual)


def devices_of(ctx: Any) -> tuple[int, int]:
    """The number of devices of a program, and how many of this process make calls.

    The second is 0 if one device calls for all of them.
    """
    context = ctx.module_context.axis_context
    mesh = getattr(context, "mesh", None)
    if mesh is None:
        return getattr(context, "num_devices", None) or 1, 0
    if not getattr(context, "manual_axes", ()):
        return int(mesh.size), 0
    if not isinstance(mesh, jax.sharding.Mesh):  # an abstract mesh has no devices
        return int(mesh.size), min(int(mesh.size), jax.local_device_count())
    local = (device in mesh.local_devices for device in mesh.devices.flat)
    return int(mesh.size), sum(local)
