"""Everything that differs between JAX versions, or that JAX does not promise.

No other module imports `jax._src`, names a JAX version, or touches a table of JAX's
rules. What is read here was measured on JAX 0.9 to 0.12; where a private name is gone,
the function that needs it says what is lost without it.
"""

import copy
import functools
import inspect
import os
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax
from jax._src import core
from jax._src.interpreters import ad as ad_internal, batching as batching_internal
from jax.custom_derivatives import SymbolicZero
from jax.experimental import io_callback
from jax.extend import core as jex, linear_util as lu, source_info_util
from jax.interpreters import ad, batching, mlir, partial_eval as pe

from lox._imports import when_imported

try:
    from jax._src.core import trace_ctx as _trace_ctx
    from jax._src.interpreters.partial_eval import DynamicJaxprTrace
except ImportError:  # then functions are jitted where they need not be

    def _current_trace() -> Any:
        return None
else:

    def _current_trace() -> Any:
        return _trace_ctx.trace


try:
    from jax._src.config import eager_constant_folding as _folding
except ImportError:  # then events under `ensure_compile_time_eval` are not traced
    _folding = types.SimpleNamespace(value=False)

try:
    from jax._src.core import trace_state_clean as _trace_state_clean
except ImportError:  # then an eager call is treated like one inside a transformation

    def _trace_state_clean() -> bool:
        return False


__all__ = [
    "DebugEffect",
    "Jaxpr",
    "Literal",
    "OrderedEffect",
    "Primitive",
    "SymbolicZero",
    "ad",
    "batching",
    "bind",
    "hijax_p",
    "mlir",
]

Jaxpr = jex.Jaxpr
ClosedJaxpr = jex.ClosedJaxpr
Literal = jex.Literal
Primitive = jex.Primitive
JaxprEqn = Any


def hide_frames(directory: str) -> None:
    """Leaves our own frames out of tracebacks, as JAX leaves out its own."""
    try:
        from jax._src.traceback_util import register_exclusion
    except ImportError:
        return
    register_exclusion(directory)


_HERE = os.path.dirname(os.path.abspath(__file__))
hide_frames(_HERE)
hide_frames(os.path.join(os.path.dirname(_HERE), "logify"))

# --- effects -----------------------------------------------------------------


def _effect_type(fun: Callable[[], Any]) -> type:
    (effect,) = jax.make_jaxpr(fun)().effects
    return type(effect)


def _nothing() -> None:
    return None


# A subclass of these is allowed wherever JAX allows its parents: every allow-list
# tests with isinstance. The ordered one needs both parents, since some lists name
# only one of them.
DebugEffect: Any = _effect_type(lambda: jax.debug.callback(_nothing))
_OrderedDebugEffect: Any = _effect_type(
    lambda: jax.debug.callback(_nothing, ordered=True)
)
_OrderedIOEffect: Any = _effect_type(lambda: io_callback(_nothing, None, ordered=True))


class OrderedEffect(_OrderedDebugEffect, _OrderedIOEffect):
    """An effect whose events keep program order wherever JAX can keep one."""


# --- jaxprs ------------------------------------------------------------------


def is_jaxpr(x: Any) -> bool:
    return isinstance(x, jex.Jaxpr | jex.ClosedJaxpr)


def open_jaxpr(x: Any) -> Any:
    """The equations of `x`, closed or not (from 0.11 on, both are one class)."""
    return x.jaxpr if isinstance(x, jex.ClosedJaxpr) else x


def close(x: Any) -> Any:
    """`x` with its constants, of which an open jaxpr must not have any."""
    return x if isinstance(x, jex.ClosedJaxpr) else jex.ClosedJaxpr(x, ())


def _constants(x: Any) -> tuple[Any, Sequence[Any]]:
    """The variables of a jaxpr's constants, and their values, if it has them."""
    constvars = open_jaxpr(x).constvars
    values = x.consts if isinstance(x, jex.ClosedJaxpr) else ()
    return constvars, values or ()


def rewritten(like: Any, rewrite: Callable[[Any], Any]) -> Any:
    """A jaxpr, closed or not, with what `rewrite` makes of it as a closed one.

    An open jaxpr may have constants, whose values come from elsewhere.
    """
    constvars, values = _constants(like)
    if isinstance(like, jex.ClosedJaxpr) and len(values) == len(constvars):
        new = rewrite(like)
        return new if values else _without_constants(new)
    new = rewrite(jex.ClosedJaxpr(_with_constants_as_inputs(open_jaxpr(like)), ()))
    new = _without_constants(new)
    inputs, count = new.jaxpr.invars, len(constvars)
    return new.jaxpr.replace(constvars=inputs[:count], invars=inputs[count:])


def _without_constants(closed: Any) -> Any:
    """Hides constants in a call, where a parameter has no place for them."""
    if not closed.consts:
        return closed
    return trace(jax.jit(jex.jaxpr_as_fun(closed)), closed.in_avals, closed)[0]


def constants_to_inputs(x: Any) -> tuple[Any, list[Any]]:
    """An open jaxpr whose first inputs are what were its constants, and those."""
    return _with_constants_as_inputs(open_jaxpr(x)), list(_constants(x)[1])


def _with_constants_as_inputs(jaxpr: Any) -> Any:
    if not jaxpr.constvars:
        return jaxpr
    return jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *jaxpr.invars],
        debug_info=_unnamed(jaxpr.debug_info),
    )


def _unnamed(debug_info: Any) -> Any:
    # 0.9 has no such method, and does not check the names either.
    forget = getattr(debug_info, "with_unknown_names", None)
    return forget() if forget else debug_info


def trace(
    fun: Callable[..., Any], avals: Sequence[Any], like: Any
) -> tuple[Any, Any, list[Any]]:
    """Traces `fun`, which takes flat arguments and returns a pytree.

    Args:
        fun: the function.
        avals: the types of its arguments.
        like: the jaxpr that it replaces, for its debugging information.

    Returns:
        The closed jaxpr, the structure of its result, and the result's types.
    """
    tree = None

    def flat(*args: Any) -> list[Any]:
        nonlocal tree
        leaves, tree = jax.tree.flatten(fun(*args))
        return leaves

    info = _unnamed(open_jaxpr(like).debug_info)
    if getattr(info, "arg_names", ()) is None:  # 0.9 adds to them
        info = info._replace(arg_names=("",) * len(avals))
    wrapped = lu.wrap_init(flat, debug_info=info)
    jaxpr, out_avals, consts = pe.trace_to_jaxpr_dynamic(wrapped, list(avals))[:3]
    return _noted(jex.ClosedJaxpr(jaxpr, consts)), tree, list(out_avals)


_made_here: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _noted(closed: Any) -> Any:
    _made_here.add(closed)
    return closed


def is_made_here(closed: Any) -> bool:
    """Whether a closed jaxpr was made by lox, in the place of one that logged."""
    return closed in _made_here


def only_effects(closed: Any) -> tuple[Any, list[Any]]:
    """What the effects of a program need: an open jaxpr, and its first inputs."""
    from jax._src.interpreters import partial_eval as internal

    jaxpr, consts = constants_to_inputs(closed)
    unused = [False] * len(jaxpr.outvars)
    return internal.dce_jaxpr(jaxpr, unused, instantiate=True)[0], consts


def without_forwarded(
    closed: Any, inputs: int, outputs: int
) -> tuple[Any, dict[int, int]]:
    """Drops outputs that are inputs, from given positions on.

    Args:
        closed: a closed jaxpr.
        inputs: the first input that may be forwarded.
        outputs: the first output that may be one.

    Returns:
        The smaller jaxpr, and the dropped outputs with the inputs that they are.
    """
    jaxpr = closed.jaxpr
    position = {var: i for i, var in enumerate(jaxpr.invars) if i >= inputs}
    dropped = {
        i: position[var]
        for i, var in enumerate(jaxpr.outvars)
        if i >= outputs and not isinstance(var, jex.Literal) and var in position
    }
    if not dropped:
        return closed, {}
    kept = [var for i, var in enumerate(jaxpr.outvars) if i not in dropped]
    new = jaxpr.replace(outvars=kept, debug_info=_unnamed(jaxpr.debug_info))
    new = new if closed is jaxpr else jex.ClosedJaxpr(new, closed.consts)
    return _noted(new), dropped


def bind(eqn: JaxprEqn, args: Sequence[Any], **changes: Any) -> list[Any]:
    """Binds the primitive of `eqn` again, with some of its parameters changed."""
    params = eqn.primitive.get_bind_params({**eqn.params, **changes})
    if isinstance(params, tuple):  # up to 0.9: functions, and the parameters
        functions, params = params
        outs = eqn.primitive.bind(*functions, *args, **params)
    else:
        outs = eqn.primitive.bind(*args, **params)
    return list(outs) if eqn.primitive.multiple_results else [outs]


# Adds an equation to the program that is being traced, given the values of variables;
# None if that has to be left to `bind`.
Copy = Callable[[JaxprEqn, dict[Any, Any]], list[Any] | None]


def equation_copier() -> Copy | None:
    """A way to add equations as they are, without asking their types again.

    Binding an equation takes five times as long. It is needed wherever something other
    than a plain trace is under way.
    """
    trace = _current_trace()
    if trace is None or type(trace) is not DynamicJaxprTrace:
        return None
    names = source_info_util.current_name_stack()

    def copy(eqn: JaxprEqn, env: dict[Any, Any]) -> list[Any] | None:
        if eqn.effects or _is_high(eqn):
            return None
        info = eqn.source_info
        if names.stack:
            info = info.replace(name_stack=names + info.name_stack)
        tracers = []
        for atom in eqn.invars:
            if isinstance(atom, jex.Literal):
                tracers.append(pe.DynamicJaxprTracer(trace, atom.aval, atom, info))
                continue
            x = env[atom]
            if not isinstance(x, jax.Array):
                return None
            x = trace.to_jaxpr_tracer(x, info)
            if x.aval is not atom.aval and x.aval != atom.aval:
                return None
            tracers.append(x)
        avals = [var.aval for var in eqn.outvars]
        return trace.emit_eqn(
            tracers, avals, eqn.primitive, eqn.params, eqn.effects, info, eqn.ctx
        )

    return copy


def _is_high(eqn: JaxprEqn) -> bool:
    """Whether there are high-level primitives in an equation, which JAX must notice."""
    if eqn.primitive.name.startswith("call_hi_primitive"):
        return True
    inner = jaxprs_in(eqn.params)
    return any(getattr(open_jaxpr(jaxpr), "is_high", False) for jaxpr in inner)


_unknown_p: Any = Primitive("lox_unknown")
_unknown_p.multiple_results = True
_unknown_p.def_abstract_eval(lambda *, aval: [aval])


def unknown_values() -> Callable[[Any], Any] | None:
    """A way to make values of which only the type is known; None where there is none.

    Programs with such values can be looked at, but not run.
    """
    trace = _current_trace()
    if trace is None or type(trace) is not DynamicJaxprTrace:
        return None

    def unknown(aval: Any) -> Any:
        return trace.emit_eqn([], [aval], _unknown_p, {"aval": aval}, frozenset())[0]

    return unknown


class equation_context:
    """What JAX had set when `eqn` was traced: its source line, names and config."""

    __slots__ = ("_eqn", "_managers")

    def __init__(self, eqn: JaxprEqn) -> None:
        self._eqn = eqn

    def __enter__(self) -> None:
        info = self._eqn.source_info
        names = source_info_util.current_name_stack() + info.name_stack
        user = source_info_util.user_context(info.traceback, name_stack=names)
        self._managers = (user, self._eqn.ctx.manager)
        for manager in self._managers:
            manager.__enter__()

    def __exit__(self, *exc: Any) -> None:
        for manager in reversed(self._managers):
            manager.__exit__(*exc)


# --- jaxprs in an equation's parameters --------------------------------------


def hijax(eqn: JaxprEqn) -> Any:
    """The high-level primitive that `eqn` calls, or None."""
    return hijax_of(eqn.primitive, eqn.params)


def hijax_of(primitive: Any, params: dict[str, Any]) -> Any:
    return params.get("_prim") if primitive.name == "call_hi_primitive" else None


def jaxprs_in(params: dict[str, Any]) -> Iterator[Any]:
    """Every jaxpr (closed or open) in an equation's parameters."""
    return _jaxprs_in(params.values())


def _jaxprs_in(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if type(item) in _WITHOUT_JAXPRS:
            continue
        if isinstance(item, tuple | list):
            yield from _jaxprs_in(item)
        elif is_jaxpr(item):
            yield item
        elif isinstance(item, jax.stages.Traced):
            yield item.jaxpr
        elif _is_hijax(item):
            yield from jaxprs_in(item.params)


def jaxprs_of(eqn: JaxprEqn) -> Iterator[Any]:
    """Every jaxpr in an equation; of a high-level primitive without any, its own.

    Such a one runs Python code when it is expanded. Its effects tell whether that may
    log.
    """
    found = False
    for jaxpr in jaxprs_in(eqn.params):
        found = True
        yield jaxpr
    if not found and eqn.effects and hijax(eqn) is not None:
        yield expanded_hijax(eqn)


def map_jaxprs(params: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """`params` with every jaxpr in them changed."""

    def leaf(item: Any) -> Any:
        if is_jaxpr(item):
            return change(item)
        if isinstance(item, jax.stages.Traced):
            new = copy.copy(item)
            new._params = {**item._params, "jaxpr": change(item.jaxpr)}
            for name in ("_lojax", "_closure_converted"):  # caches of the old one
                if hasattr(item, name):
                    setattr(new, name, None)
            return new
        if _is_hijax(item):
            return with_changed_jaxprs(item, change)
        return item

    def value(item: Any) -> Any:
        if isinstance(item, tuple) and hasattr(item, "_fields"):
            return type(item)(*map(leaf, item))
        if isinstance(item, tuple | list):
            return type(item)(map(leaf, item))
        return leaf(item)

    return {name: value(item) for name, item in params.items()}


def _is_hijax(item: Any) -> bool:
    return hasattr(item, "in_avals_flat") and isinstance(
        getattr(item, "params", None), dict
    )


def expanded_hijax(eqn: JaxprEqn) -> Any:
    """The definition of a high-level primitive in lower ones, as a closed jaxpr."""
    avals = [var.aval for var in eqn.invars]
    return jax.make_jaxpr(lambda *args: eqn.primitive.to_lojax(*args, **eqn.params))(
        *avals
    )


# --- jit ---------------------------------------------------------------------

_jit_eqn: Any = jax.make_jaxpr(jax.jit(lambda x: x))(0.0).eqns[0]
_UNSPECIFIED: Any = _jit_eqn.params["out_shardings"][0]
_NO_LAYOUT: Any = _jit_eqn.params["out_layouts"][0]

# The types of nearly all that is in parameters; every equation is searched for jaxprs.
_WITHOUT_JAXPRS = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        np.int64,
        type(_UNSPECIFIED),
        jax.sharding.Mesh,
        *(type(np.dtype(kind)) for kind in "?bBhHiIlLqQefdFD"),
    }
)


def jit_params(params: dict[str, Any], inputs: int, outputs: int) -> dict[str, Any]:
    """Parameters of `jit` for that many more inputs in front and outputs behind."""
    return {
        "in_shardings": (_UNSPECIFIED,) * inputs + tuple(params["in_shardings"]),
        "in_layouts": (_NO_LAYOUT,) * inputs + tuple(params["in_layouts"]),
        "donated_invars": (False,) * inputs + tuple(params["donated_invars"]),
        "out_shardings": tuple(params["out_shardings"]) + (_UNSPECIFIED,) * outputs,
        "out_layouts": tuple(params["out_layouts"]) + (_NO_LAYOUT,) * outputs,
    }


# --- scan --------------------------------------------------------------------

_scan_eqn: Any = jax.make_jaxpr(
    lambda x: lax.scan(lambda c, _: (c + 1, None), x, None, length=1)
)(0.0).eqns[0]
_cond_eqn: Any = jax.make_jaxpr(
    lambda x: lax.cond(x > 0, lambda y: y, lambda y: y + 1, x)
)(0.0).eqns[-1]
_while_eqn: Any = jax.make_jaxpr(
    lambda x: lax.while_loop(lambda y: y < 1, lambda y: y + 1, x)
)(0.0).eqns[0]
try:
    from jax._src.ad_checkpoint import remat_p
except ImportError:  # then with `jax_remat3` on it is not found
    remat_p = jax.make_jaxpr(jax.checkpoint(lambda x: x + 1))(0.0).eqns[0].primitive
checkpoint_p: Any = remat_p
linear_solve_p: Any = (
    jax.make_jaxpr(lambda x: lax.custom_linear_solve(lambda v: v, x, lambda _, b: b))(
        0.0
    )
    .eqns[0]
    .primitive
)
try:
    from jax._src.hijax import call_hi_primitive_p as hijax_p
except ImportError:  # then there are no high-level primitives
    hijax_p = None
scan_p: Any = _scan_eqn.primitive
cond_p: Any = _cond_eqn.primitive
while_p: Any = _while_eqn.primitive
jit_p: Any = _jit_eqn.primitive


# Those that call a jaxpr, and are batched by batching that.
call_primitives: frozenset[Any] = frozenset(
    primitive
    for module in (jex.primitives, core)
    for name in (
        "call_p",
        "closed_call_p",
        "custom_jvp_call_p",
        "custom_vjp_call_p",
        "eval_jaxpr_p",
        "jit_p",
        "remat_p",
    )
    if (primitive := getattr(module, name, None)) is not None
)

# From 0.11 on, the groups of scan's operands are flat trees, of which only the sizes
# matter; before, they are counted.
_FLAT_TREES = "ft_in" in _scan_eqn.params
if _FLAT_TREES:
    _Group: Any = type(_scan_eqn.params["ft_in"])
    _leaf: Any = _scan_eqn.params["ft_in"].unpack()[1].unpack()[0]


def scan_sizes(params: dict[str, Any], operands: int) -> tuple[int, int, int]:
    """How many constants, carries and scanned inputs a scan has."""
    if _FLAT_TREES:
        consts, carry, xs = (len(group) for group in params["ft_in"].unpack())
        return consts, carry, xs
    consts, carry = params["num_consts"], params["num_carry"]
    return consts, carry, operands - consts - carry


def scan_params(
    params: dict[str, Any], consts: int, carry: int, xs: int, ys: int
) -> dict[str, Any]:
    """Parameters of a scan that has these many operands and stacked outputs."""
    if _FLAT_TREES:
        groups = [_Group(*[_leaf] * size) for size in (consts, carry, xs, ys)]
        return {
            "ft_in": _Group(*groups[:3]),
            "ft_out": _Group(groups[1], groups[3]),
        }
    new: dict[str, Any] = {"num_consts": consts, "num_carry": carry}
    if "linear" in params:  # up to 0.9
        new["linear"] = (False,) * (consts + carry + xs)
    return new


def comparable_params(eqn: JaxprEqn) -> dict[str, Any]:
    """The parameters of an equation, without what does not matter to what it does."""
    params = dict(eqn.params)
    if eqn.primitive is scan_p and _FLAT_TREES:
        params["ft_in"] = scan_sizes(params, len(eqn.invars))
        del params["ft_out"]
    return params


# --- shard_map ---------------------------------------------------------------


def partly_manual() -> bool:
    """Whether we are in a `shard_map` over some axes of a mesh, but not over all."""
    mesh = jax.sharding.get_abstract_mesh()
    manual = set(getattr(mesh, "manual_axes", ()))
    return bool(manual) and manual != set(mesh.axis_names)


def in_shard_map() -> int:
    """The number of devices that run the same program at once; 0 outside."""
    mesh = jax.sharding.get_abstract_mesh()
    return int(mesh.size) if getattr(mesh, "manual_axes", ()) else 0


def manual_axes(params: dict[str, Any]) -> frozenset[str]:
    return frozenset(params.get("newly_manual_axes", params.get("manual_axes", ())))


# --- custom derivatives ------------------------------------------------------
# Their rules are hidden in functions of JAX's own calling convention.


def jvp_rule_jaxpr(eqn: JaxprEqn, zeros: Sequence[bool]) -> tuple[Any, list[bool]]:
    """The rule of a `custom_jvp` equation, as a closed jaxpr.

    It takes the primals, then those tangents that are not zero, and gives the primal
    results, then those tangents that are not zero; the flags say which ones are.
    """
    jaxpr, consts, out_zeros = eqn.params["jvp_jaxpr_fun"].call_wrapped(*zeros)
    return _closed(jaxpr, consts), list(out_zeros)


def fwd_rule_jaxpr(eqn: JaxprEqn, perturbed: Sequence[bool]) -> Any:
    """The forward rule of a `custom_vjp` equation: primals to residuals and results."""
    jaxpr, consts = eqn.params["fwd_jaxpr_thunk"].call_wrapped(*perturbed)
    return _closed(jaxpr, consts)


def _closed(jaxpr: Any, consts: Sequence[Any]) -> Any:
    if isinstance(jaxpr, jex.ClosedJaxpr) and not consts:
        return jaxpr
    return jex.ClosedJaxpr(open_jaxpr(jaxpr), consts)


def fwd_rule_residuals(
    eqn: JaxprEqn, args: Sequence[Any], outs: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Splits what the forward rule gave into residuals and results.

    Residuals that are inputs are not among its outputs; JAX keeps their positions.
    """
    _, residual_tree, forwarded = eqn.params["out_trees"]()
    computed = sum(position is None for position in forwarded)
    assert residual_tree.num_leaves == len(forwarded)
    rest = iter(outs[:computed])
    residuals = [
        next(rest) if position is None else args[position] for position in forwarded
    ]
    return residuals, list(outs[computed:])


def bwd_rule(eqn: JaxprEqn) -> Callable[..., tuple[list[Any], Any]]:
    """The backward rule: residuals and cotangents to cotangents, None where zero.

    Beside them come the logs of `defvjp_with_logs`, a feature of JAX's own (0.11.1 on).
    """

    def call(*args: Any) -> tuple[list[Any], Any]:
        outs = eqn.params["bwd"].call_wrapped(*args)
        outs, logs = outs if isinstance(outs, tuple) else (outs, None)
        return [None if type(out) is ad.Zero else out for out in outs], logs

    return call


# whether a backward rule gives a pair
_BWD_WITH_LOGS = hasattr(jax.custom_vjp, "defvjp_with_logs")


def define_vjp(
    fun: Any, fwd: Callable[..., Any], bwd: Callable[..., Any], **options: Any
) -> None:
    """Defines rules; `bwd` gives a pair, as `bwd_rule` does."""
    if _BWD_WITH_LOGS:
        fun.defvjp_with_logs(fwd, bwd, **options)
    else:
        fun.defvjp(fwd, lambda *args: bwd(*args)[0], **options)


def zero_tangent(x: Any) -> Any:
    """The zero tangent of `x`, as an array."""
    return zeros_of_aval(jax.typeof(x).to_tangent_aval())


# --- functions that run under a watch ----------------------------------------


class Watch(Protocol):
    """What looks at the primitives that a function binds, and may change them."""

    def begin(self) -> "Watch":
        """The watch for one run of the function."""
        ...

    def bind(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Binds a primitive, in the trace that is around the watched function."""
        ...

    def inside(self, role: str, name: str) -> "Watch | None":
        """The watch for a function that a primitive is given; None for none.

        Args:
            role: `"call"` for what is called, `"jvp"`, `"fwd"` and `"bwd"` for the
                derivative rules of a custom function.
            name: the places of the custom function and its rule; empty for others.
        """
        ...


class _WatchTrace(core.Trace):
    """Passes everything on to the trace around it, by way of a watch.

    It has no tracers of its own: a watched function sees the values that it would see
    otherwise, so that its Python control flow is what it was.
    """

    __slots__ = ("parent_trace", "watch")

    def __init__(self, parent: Any, watch: Watch) -> None:
        super().__init__()
        self.parent_trace = parent
        self.watch = watch
        self.requires_low = False  # the trace around it expands what it must

    def stage_value(self, value: Any) -> Any:
        return self.parent_trace.stage_value(value)

    def process_primitive(self, primitive: Any, args: Any, params: Any, /) -> Any:
        with core.set_current_trace(self.parent_trace):
            return self.watch.bind(primitive, args, params)

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, args: Any, /, **params: Any
    ) -> Any:
        name = _name_of(fun, jvp)
        fun = self._watched(fun, "call", name)
        jvp = self._watched(jvp, "jvp", name)
        return self.parent_trace.process_custom_jvp_call(
            primitive, fun, jvp, args, **params
        )

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, args: Any, /, **params: Any
    ) -> Any:
        name = _name_of(fun, bwd)
        fun = self._watched(fun, "call", name)
        fwd = self._watched(fwd, "fwd", name)
        bwd = self._watched(bwd, "bwd", name)
        return self.parent_trace.process_custom_vjp_call(
            primitive, fun, fwd, bwd, args, **params
        )

    def __getattr__(self, name: str) -> Any:
        # `shard_map` and the like: each kind of trace has a method for them
        process = getattr(self.parent_trace, name)
        if not name.startswith("process_"):
            return process

        def passed_on(*args: Any, **params: Any) -> Any:
            new = [
                self._watched(x, "call", "") if isinstance(x, lu.WrappedFun) else x
                for x in args
            ]
            return process(*new, **params)

        return passed_on

    def _watched(self, fun: Any, role: str, name: str) -> Any:
        watch = self.watch.inside(role, name)
        return fun if watch is None else watched_rule(fun, watch)


def _pass_on(name: str) -> Any:
    return property(lambda self: self.__getattr__(name))


# up to 0.11, the class above it has some of them, which only raise
for _name in ("process_call", "process_map", "process_custom_transpose"):
    if hasattr(core.Trace, _name):
        setattr(_WatchTrace, _name, _pass_on(_name))


def watched(fun: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    """`fun`, with every primitive that it binds given to `watch`."""

    def run(*args: Any, **kwargs: Any) -> Any:
        around = core.trace_ctx.trace
        with core.set_current_trace(_WatchTrace(around, watch.begin())):
            return fun(*args, **kwargs)

    return run


def watched_rule(fun: Any, watch: Watch) -> Any:
    """The same for a function in JAX's own wrapping."""
    run = watched(fun.call_wrapped, watch)
    kind: Any = getattr(ad_internal, "CustomBwdWithAccums", ())
    if isinstance(fun.f, kind) and not fun.transforms:
        run = _accumulating(fun.f, watch)
    return lu.wrap_init(run, debug_info=fun.debug_info)


def _accumulating(rule: Any, watch: Watch) -> Any:
    """From 0.12 on, a backward rule may add to accumulators, and return nothing."""

    class Watched(ad_internal.CustomBwdWithAccums):  # type: ignore[misc, name-defined]
        def call_with_accums(self, *args: Any) -> Any:
            return watched(rule.call_with_accums, watch)(*args)

        def __call__(self, *args: Any) -> Any:
            return watched(rule, watch)(*args)

    return Watched()


def name_of_custom_jvp(eqn: JaxprEqn) -> str:
    """The name by which a `custom_jvp` function is known to a watch."""
    return _name_of(open_jaxpr(eqn.params["call_jaxpr"]), eqn.params["jvp_jaxpr_fun"])


def placed_like(fun: Callable[..., Any], like: Any) -> Callable[..., Any]:
    """`fun`, but JAX takes it for a function of the same name and place as `like`."""
    found = re.fullmatch(r"(\S+) at (.+):(\d+)", _place_of(open_jaxpr(like)))
    if found is None:
        return fun

    def call(*args: Any) -> Any:
        return fun(*args)

    name, file, line = found.groups()
    code = call.__code__.replace(
        co_name=name, co_filename=file, co_firstlineno=int(line)
    )
    return types.FunctionType(code, call.__globals__, name, None, call.__closure__)


def _name_of(function: Any, rule: Any) -> str:
    return f"{_place_of(function)}, {_place_of(rule)}"


def _place_of(rule: Any) -> str:
    info = getattr(rule, "debug_info", None)
    return getattr(info, "func_src_info", None) or ""


def watch_derivatives(
    of_vjp: Callable[[], tuple[Watch, Watch]], of_jvp: Callable[[str], Watch]
) -> None:
    """Has the rules of custom functions watched wherever JAX differentiates one.

    Args:
        of_vjp: gives the watches for a forward and a backward rule.
        of_jvp: from the name of a custom function, the watch for its rule.
    """
    for kind in (ad_internal.JVPTrace, ad_internal.LinearizeTrace):
        _watch_derivatives_of(kind, of_vjp, of_jvp)


def _watch_derivatives_of(kind: Any, of_vjp: Any, of_jvp: Any) -> None:
    vjp_call, jvp_call = kind.process_custom_vjp_call, kind.process_custom_jvp_call

    def process_custom_vjp_call(
        self: Any, prim: Any, fun: Any, fwd: Any, bwd: Any, args: Any, /, **params: Any
    ) -> Any:
        if not _is_jax_rule(_place_of(bwd), _place_of(fun)):
            forward, backward = of_vjp()
            fwd, bwd = watched_rule(fwd, forward), watched_rule(bwd, backward)
        return vjp_call(self, prim, fun, fwd, bwd, args, **params)

    def process_custom_jvp_call(
        self: Any, prim: Any, fun: Any, jvp: Any, args: Any, /, **params: Any
    ) -> Any:
        if not _is_jax_rule(_place_of(jvp), _place_of(fun)):
            jvp = watched_rule(jvp, of_jvp(_name_of(fun, jvp)))
        return jvp_call(self, prim, fun, jvp, args, **params)

    kind.process_custom_vjp_call = process_custom_vjp_call
    kind.process_custom_jvp_call = process_custom_jvp_call


def watch_jacfwd(watch: Watch) -> bool:
    """Has the function that `jax.jacfwd` differentiates watched; False if it cannot be.

    `jacfwd` is `vmap` of forward mode over the input's dimensions. It shares a function
    with `jax.jvp`, which is told apart by who calls.
    """
    from jax._src import api

    original = getattr(api, "_jvp", None)
    jvp = getattr(inspect.unwrap(api.jvp), "__code__", None)
    if original is None or jvp is None or "_jvp" not in jvp.co_names:
        return False

    @functools.wraps(original)
    def _jvp(fun: Any, *args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_code is not jvp:
            is_rule = isinstance(fun, lu.WrappedFun)
            fun = watched_rule(fun, watch) if is_rule else watched(fun, watch)
        return original(fun, *args, **kwargs)

    api._jvp = _jvp
    return True


def called_by_jacfwd() -> bool:
    """Whether `jax.jacfwd` is among the functions that called us."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        in_jax = code.co_filename.startswith(_JAX)
        if in_jax and code.co_name == "jacfun" and "_jvp" in code.co_names:
            return True
        frame = frame.f_back
    return False


# --- hooks: rules of JAX's that run before any transformation of ours can look


def wrap_rule(table_name: str, primitive: Any, wrap: Callable[[Any], Any]) -> bool:
    """Puts `wrap(rule)` in place of JAX's rule; False where there is none to wrap."""
    table = _rule_table(table_name)
    if table is None or primitive not in table:
        return False
    table[primitive] = wrap(table[primitive])
    return True


def wrap_lowering(primitive: Any, wrap: Callable[[Any], Any]) -> None:
    """The same for the rule by which a primitive is lowered on every platform."""
    from jax._src.interpreters import mlir as mlir_internal

    entry: Any = mlir_internal._lowerings.get(primitive)
    if entry is not None:
        register_lowering(primitive, wrap(entry.rule))


def _rule_table(name: str) -> Any:
    from jax._src.interpreters import partial_eval as pe_internal

    if name == "checkify":
        return sys.modules["jax._src.checkify"].error_checks
    tables: dict[str, Any] = {
        "batching": getattr(batching, "fancy_primitive_batchers", None),
        "dce": getattr(pe_internal, "dce_rules", None),
        "jvp": getattr(ad, "primitive_jvps", None),
        "linearize": getattr(ad_internal, "primitive_linearizations", None),
        "partial_eval": getattr(pe, "custom_partial_eval_rules", None),
        "partial_eval_equation": getattr(
            pe_internal, "partial_eval_jaxpr_custom_rules", None
        ),
    }
    return tables[name]


def batching_rule(primitive: Any) -> Callable[..., Any]:
    """The rule of a primitive, as a function of the axis, values, and their axes."""
    if primitive in batching.fancy_primitive_batchers:
        return batching.fancy_primitive_batchers[primitive]
    # up to 0.9, there are tables of their own for simpler rules
    if primitive in batching.axis_primitive_batchers:
        rule = batching.axis_primitive_batchers[primitive]
        return lambda axis, args, dims, **params: rule(
            axis.size, axis.name, None, args, dims, **params
        )
    rule = batching.primitive_batchers[primitive]
    return lambda axis, args, dims, **params: rule(args, dims, **params)


# The rules after which every result has lanes if any input has, and none otherwise.
_PLAIN_BATCHING = frozenset(
    {
        "_approx_top_k_batch_rule",
        "_broadcast_in_dim_batch_rule",
        "_clamp_batch_rule",
        "_concatenate_batch_rule",
        "_conv_general_dilated_batch_rule",
        "_convert_element_type_batching_rule",
        "_cumred_batch_rule",
        "_dot_batch_rule",
        "_dynamic_slice_batching_rule",
        "_dynamic_update_slice_batching_rule",
        "_fft_batching_rule",
        "_gamma_batching_rule",
        "_gather_batching_rule",
        "_pad_batch_rule",
        "_reshape_batch_rule",
        "_reshard_batcher",
        "_rev_batch_rule",
        "_rng_bit_generator_batching_rule",
        "_scatter_batching_rule",
        "_select_batch_rule",
        "_sharding_constraint_batcher",
        "_slice_batching_rule",
        "_sort_batch_rule",
        "_split_batch_rule",
        "_squeeze_batch_rule",
        "_stack_batch_rule",
        "_stop_gradient_batch_rule",
        "_tile_batch_rule",
        "_top_k_batch_rule",
        "_transpose_batch_rule",
        "_triangular_solve_batching_rule",
        "_unstack_batch_rule",
        "add_batched",
        "broadcast_batcher",
        "expand_dims_batcher",
        "name_batcher",
        "random_wrap_batch_rule",
        "reducer_batcher",
        "vectorized_batcher",
    }
)


def batching_kind(primitive: Any) -> str:
    """What is known of the rule by which a primitive is batched.

    Returns:
        `"plain"`: every result has lanes if any input has, and none otherwise.
        `"nothing without lanes"`: no result has lanes unless an input has.
        `"unknown"`: only the rule itself knows.
    """
    rule = batching.fancy_primitive_batchers.get(primitive)
    if rule is not None:
        return _kind_of_rule(rule)
    # JAX binds it as it is where no input has lanes, and refuses it elsewhere
    ordinary = type(primitive).bind_with_trace is core.Primitive.bind_with_trace
    return "nothing without lanes" if ordinary else "unknown"


@functools.lru_cache(maxsize=1024)
def _kind_of_rule(rule: Any) -> str:
    kind = "unknown"
    while True:
        code = getattr(rule, "__code__", None)
        if isinstance(rule, functools.partial):
            rule = rule.func
        elif code is not None and _is_shim(code):
            # one of these older tables is not asked where there are no lanes
            if "prim" in code.co_freevars:
                kind = "nothing without lanes"
            rule = rule.__closure__[code.co_freevars.index("batcher")].cell_contents
        else:
            break
    # by its code, since whatever wraps a rule may go by the name of that rule
    if code is None or code.co_name not in _PLAIN_BATCHING:
        return kind
    return "plain" if code.co_filename.startswith(_JAX) else kind


def _is_shim(code: CodeType) -> bool:
    """Whether this is what JAX makes of a rule for one of its older tables."""
    is_jax = code.co_filename == batching_internal.__file__
    return is_jax and code.co_freevars in (("batcher",), ("batcher", "prim"))


def set_no_derivative(primitive: Any) -> None:
    """Gives a primitive with one result a derivative that is zero."""

    def jvp(
        primals: Sequence[Any], tangents: Sequence[Any], **params: Any
    ) -> tuple[Any, Any]:
        del tangents
        out = primitive.bind(*primals, **params)
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())

    ad.primitive_jvps[primitive] = jvp


def forget_effect_handles(is_ours: Callable[[Any], bool]) -> None:
    """Lets a partial evaluation that has ended forget its equations with an effect.

    It holds their inputs, which hold it in turn, so that `jax.checking_leaks` takes
    them for leaked tracers.

    Args:
        is_ours: says of an equation whether to forget it.
    """
    from jax._src.interpreters import partial_eval as internal

    kind = internal.JaxprTrace
    original = kind.invalidate

    def invalidate(self: Any) -> None:
        original(self)
        handles = getattr(self, "effect_handles", None)
        if handles:
            self.effect_handles = [
                handle for handle in handles if not is_ours(handle.recipe)
            ]

    kind.invalidate = invalidate


# --- checkify ----------------------------------------------------------------


def when_checkify_is_imported(hook: Callable[[], Any]) -> None:
    """Calls `hook` once JAX's rules for `checkify` can be wrapped."""
    when_imported("jax._src.checkify", lambda module: hook())


def checkify_call(
    args: Sequence[Any],
) -> tuple[Callable[[Any, Sequence[Any]], Any], Sequence[Any]]:
    """Takes the arguments of a `checkify` rule apart.

    Returns:
        What evaluates a jaxpr with its checks, and gives the error and its results; and
        the operands of the equation.
    """
    from jax._src import checkify

    at = _error_position(args)
    context, error, enabled = args[:at], args[at], args[at + 1]

    def call(jaxpr: Any, inputs: Sequence[Any]) -> Any:
        return checkify.checkify_jaxpr(*context, jaxpr, enabled, error, *inputs)

    return call, args[at + 2 :]


def checkify_with_error(front: Sequence[Any], error: Any) -> list[Any]:
    """The arguments of a `checkify` rule before the operands, with another error."""
    at = _error_position(front)
    return [*front[:at], error, *front[at + 1 :]]


def _error_position(args: Sequence[Any]) -> int:
    # from 0.12 on, there is a context before it
    from jax._src import checkify

    return next(i for i, arg in enumerate(args) if isinstance(arg, checkify.Error))


# --- values and types in JAX's rules -----------------------------------------


def anchor_aval(x: Any) -> Any:
    """A number, in the mesh of `x`."""
    replicated = jax.sharding.NamedSharding(
        x.sharding.mesh, jax.sharding.PartitionSpec()
    )
    return jax.core.ShapedArray((), np.dtype("int32"), sharding=replicated)


def batch_jaxpr(closed: Any, axis_data: Any, batched: Sequence[bool]) -> Any:
    """`closed` over one more leading axis, on every output."""
    outs = [True] * len(closed.out_avals)
    return batching_internal.batch_jaxpr(closed, axis_data, list(batched), outs)[0]


def batched_outputs(
    closed: Any, axis_data: Any, batched: Sequence[bool], at_least: Sequence[bool]
) -> Sequence[bool]:
    """Which outputs differ between lanes, if these inputs do, or are to.

    It is asked as JAX's own rule asks for a loop's carry, who remembers the answer.
    """
    return batching_internal.batch_jaxpr(
        closed, axis_data, list(batched), list(at_least)
    )[1]


def batch(
    closed: Any, axis_data: Any, args: Sequence[Any], dims: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Evaluates a closed jaxpr over one more axis, as a batching rule would."""
    front = [
        x if dim is None else jax.numpy.moveaxis(x, dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]
    mapped = [dim is not None for dim in dims]
    new, out = batching_internal.batch_jaxpr(closed, axis_data, mapped, False)
    return evaluate(new, front), [0 if batched else None for batched in out]


def broadcast_lanes(x: Any, axis_data: Any) -> Any:
    """`x` in every lane, split over the mesh as the lanes are."""
    mesh_axis = getattr(axis_data, "explicit_mesh_axis", None)
    if mesh_axis is None:
        return jax.numpy.broadcast_to(x, (axis_data.size, *x.shape))
    return batching_internal.broadcast(x, axis_data.size, 0, mesh_axis)


def broadcast_carry(x: Any, axis_data: Any) -> Any:
    """`x` in every lane, as JAX's own rules for loops do it; `x` may be a number."""
    mesh_axis = axis_data.explicit_mesh_axis
    return batching_internal.broadcast(x, axis_data.size, 0, mesh_axis)


def lane_aval(axis_data: Any, dim: Any, aval: Any) -> Any:
    """The type that one lane has of a batched value."""
    return core.mapped_aval(axis_data.size, dim, aval)


def known(tracer: Any) -> bool:
    """Whether partial evaluation knows the value of `tracer`."""
    return tracer.pval.is_known()


def known_tracer(trace: Any, value: Any) -> Any:
    """A value, as partial evaluation takes one that it knows."""
    return trace.new_const(value)


def symbolic_zero(x: Any) -> Any:
    """The tangent of a value that does not vary, in JAX's own rules."""
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def literal_and_unused(value: Any) -> tuple[Any, Any]:
    """What an equation has for a constant scalar, and for a result nobody uses."""
    from jax._src import core

    aval = jax.typeof(jax.numpy.asarray(value))
    return core.Literal(value, aval), core.DropVar(aval)


def known_value(tracer: Any) -> Any:
    """Its value, or zeros where it is not known."""
    return tracer.pval.get_known() if known(tracer) else zeros_of_aval(tracer.aval)


def known_part(
    closed: Any, unknown: Sequence[bool], instantiate: Any
) -> tuple[Any, Any, list[bool]]:
    """Splits a jaxpr into what the known inputs suffice for, and the rest.

    Returns:
        The two jaxprs, and which outputs are not known.
    """
    from jax._src.interpreters import partial_eval as internal

    known_jaxpr, rest, out = internal.partial_eval_jaxpr_nounits(
        closed, list(unknown), instantiate
    )[:3]
    return known_jaxpr, rest, list(out)


# What JAX raises where Python needs the value of a traced array.
CONCRETE_VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def trace_unknown(fun: Any, values: Sequence[Any]) -> Any:
    """The closed jaxpr of what partial evaluation is about to evaluate.

    Args:
        fun: a wrapped function of flat arguments.
        values: the arguments, none of which is known.
    """
    avals = [value.get_aval() for value in values]
    jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(fun, avals)[:3]
    return jex.ClosedJaxpr(jaxpr, consts)


def jaxpr_function(closed: Any) -> Any:
    """A closed jaxpr as a wrapped function of flat arguments."""
    info = _unnamed(closed.jaxpr.debug_info)
    return lu.wrap_init(jex.jaxpr_as_fun(closed), debug_info=info)


def without_unused(eqn: JaxprEqn, used: Sequence[bool]) -> tuple[list[bool], Any]:
    """An equation of an open jaxpr without what only its unused outputs need.

    Returns:
        Which inputs are used, and the equation.
    """
    from jax._src.interpreters import partial_eval as internal

    jaxpr, inputs = internal.dce_jaxpr(eqn.params["jaxpr"], list(used))
    params = {**eqn.params, "jaxpr": jaxpr}
    if isinstance(params["prevent_cse"], tuple):
        flags = zip(params["prevent_cse"], inputs, strict=True)
        params["prevent_cse"] = tuple(flag for flag, used in flags if used)

    def chosen(variables: Sequence[Any], used: Sequence[bool]) -> list[Any]:
        return [var for var, one in zip(variables, used, strict=True) if one]

    new = eqn.replace(
        invars=chosen(eqn.invars, inputs),
        outvars=chosen(eqn.outvars, used),
        params=params,
        effects=jaxpr.effects,
    )
    return list(inputs), new


def at_effects_barrier(hook: Callable[[], None]) -> None:
    """Runs `hook` at the end of every `jax.effects_barrier()`.

    Without it, an exception of a callback would surface at the next call of lox only.
    """
    from jax._src import dispatch

    tokens = type(dispatch.runtime_tokens)
    original = tokens.block_until_ready

    def block_until_ready(self: Any) -> None:
        try:
            try:
                original(self)
            except jax.errors.JaxRuntimeError as error:
                if STOPPED not in str(error):
                    raise
                _forget_failed(self)
        finally:  # one that raises keeps none of the others from its work
            if not getattr(_quietly, "waiting", False):
                hook()

    tokens.block_until_ready = block_until_ready


_quietly = threading.local()


def wait_for_callbacks() -> None:
    """`jax.effects_barrier()`, without the hook."""
    _quietly.waiting = True
    try:
        jax.effects_barrier()
    finally:
        _quietly.waiting = False


def around_programs(hook: Callable[[Callable[[], Any]], Any]) -> None:
    """Lets `hook` make every call of a program that has effects."""
    from jax._src import dispatch
    from jax._src.interpreters import pxla

    # without it, an interrupt of a jitted program surfaces as an error of XLA's
    program = pxla.ExecuteReplicated
    original = program.__call__

    def call(self: Any, *args: Any) -> Any:
        if not (self.ordered_effects or self.has_unordered_effects):
            return original(self, *args)
        tokens = dispatch.runtime_tokens
        if getattr(tokens, "lox_stopped", 0) != _stopped:
            tokens.lox_stopped = _stopped
            _forget_failed(tokens)
        return hook(lambda: original(self, *args))

    if hasattr(program, "_add_tokens_to_inputs"):  # the class that is meant
        program.__call__ = call


def is_done(outputs: Sequence[Any]) -> bool:
    """Whether a program that has these outputs, and effects, has ended."""
    from jax._src import dispatch

    tokens = (token._buf for token in dispatch.runtime_tokens.current_tokens.values())
    try:
        return all(x.is_ready() for x in (*tokens, *outputs))
    except AttributeError:
        return False


# what the error of a program says that one of our callbacks has ended
STOPPED = "stopped by an interrupt during lox's callback"
_stopped = 0


def program_stopped() -> None:
    """Hears that a callback is about to end a program that runs in a thread of XLA's.

    JAX would hand the error on to the next program with ordered effects.
    """
    global _stopped
    _stopped += 1


def _forget_failed(tokens: Any) -> None:
    """Forgets, of the programs that JAX waits for, those that were stopped."""
    for known in (tokens.current_tokens, tokens.output_runtime_tokens):
        for name, token in list(known.items()):
            try:
                token.block_until_ready()
            except jax.errors.JaxRuntimeError as error:
                if STOPPED not in str(error):
                    raise
                del known[name]


_JAX = os.path.join(os.path.dirname(os.path.abspath(jax.__file__)), "")
_CALLBACK_FILE = os.path.join(_JAX, "_src", "callback.py")
# the code of the functions of ours that XLA calls
_receivers: set[CodeType] = set()


def in_callback() -> bool:
    """Whether a callback of a program is among the functions that called us.

    Waiting for callbacks, one would wait there for oneself.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _receivers or frame.f_code.co_filename == _CALLBACK_FILE:
            return True
        frame = frame.f_back
    return False


def in_receiver(frame: FrameType | None) -> bool:
    """Whether `frame` is in a call that XLA makes of a function of ours."""
    while frame is not None:
        if frame.f_code in _receivers:
            return True
        frame = frame.f_back
    return False


def called_by_xla_thread() -> bool:
    """Whether we run in a callback that no Python code of this thread waits for."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code in _receivers or frame.f_code.co_filename == _CALLBACK_FILE


def to_numpy(x: Any) -> Any:
    """NumPy; by a named transfer where `jax.transfer_guard` forbids all others."""
    try:
        return np.asarray(x)
    except jax.errors.JaxRuntimeError:
        return np.asarray(jax.device_get(x))


def to_array(x: Any) -> Any:
    """The other way: a JAX array of what the host has."""
    try:
        return jax.numpy.asarray(x)
    except jax.errors.JaxRuntimeError:
        return jax.device_put(x)


# Whether no transformation of JAX's is under way around a call. Every call asks, so it
# is JAX's own function.
at_top_level: Callable[[], bool] = _trace_state_clean


def is_staging() -> bool:
    """Whether this call is being traced into a larger program, by `jit` or a loop.

    It is not under an eager `vmap` or `grad`, which evaluate what they trace.
    """
    trace = _current_trace()
    while trace is not None:
        if isinstance(trace, DynamicJaxprTrace):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def trace_reference() -> Callable[[], Any]:
    """A weak reference to the trace that is under way; what it gives may be None."""
    trace = _current_trace()
    return _nothing if trace is None else weakref.ref(trace)


def is_tracer_of(x: Any, trace: Any) -> bool:
    """Whether `x` is a value of a trace."""
    return isinstance(x, jax.core.Tracer) and getattr(x, "_trace", None) is trace


def folds_constants() -> bool:
    """Whether `jax.ensure_compile_time_eval` is in force."""
    return _folding.value


def without_folding() -> Any:
    """Puts it out of force, for as long as this context lasts."""
    return _folding(False)


# --- callbacks ---------------------------------------------------------------


def host_functions_of(eqn: JaxprEqn) -> tuple[Any, ...]:
    """The user's function that an equation calls on the host, if it calls one."""
    if eqn.primitive.name not in _CALLBACK_PRIMITIVES:
        return ()
    callback = eqn.params["callback"]
    if isinstance(callback, types.FunctionType):  # of `jax.debug.callback`
        cells = zip(
            callback.__code__.co_freevars, callback.__closure__ or (), strict=True
        )
        found = [cell.cell_contents for name, cell in cells if name == "callback"]
        return tuple(found)
    return (getattr(callback, "callback_func", callback),)


_CALLBACK_PRIMITIVES = frozenset({"pure_callback", "io_callback", "debug_callback"})


def running_host_functions() -> Iterator[Any]:
    """The same of those callbacks that have called us, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_JAX_CALLBACKS):
            names = frame.f_locals
            if hasattr(names.get("self"), "callback_func"):
                yield names["self"].callback_func
            elif "callback" in names:
                yield names["callback"]
        frame = frame.f_back


_JAX_CALLBACKS = tuple(
    os.path.join(os.path.dirname(os.path.abspath(jax.__file__)), "_src", name)
    for name in ("callback.py", "debugging.py")
)


def emit_callback(
    ctx: Any,
    callback: Callable[..., Any],
    operands: Sequence[Any],
    avals: Sequence[Any],
    effect: Any,
) -> None:
    """Lowers a call of `callback` on NumPy arrays, which returns `()`.

    In a program that XLA splits over devices, it must know where the call is to run: on
    the first device, with whole values. Where only some axes of a mesh are split so,
    `jax.debug.callback` knows how, but keeps no order.

    Args:
        ctx: the lowering context.
        callback: the function.
        operands: its arguments, as values of the lowered program.
        avals: their types.
        effect: the ordered effect in whose order it is to run, or None.
    """
    inner = ctx.replace(avals_in=list(avals), avals_out=[])
    partitioned = is_partitioned(ctx)
    sharding = _first_device_sharding(ctx) if partitioned else None
    if partitioned and sharding is None:

        def call(*args: Any) -> list[Any]:
            jax.debug.callback(lambda *a: callback(*map(np.asarray, a)), *args)
            return []

        mlir.lower_fun(call, multiple_results=True)(inner, *operands)
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
    _receivers.add(callback.__code__)  # type: ignore[attr-defined]
    _call_directly(ctx.module_context.host_callbacks, wrapped, callback, bool(token))


def _call_directly(
    callbacks: list[Any], wrapped: Any, callback: Callable[..., Any], token: bool
) -> None:
    """Lets XLA call a function itself, and not JAX's, which checks its results.

    There are none, and the checks take as long as all that an event costs otherwise.
    """
    if not callbacks or callbacks[-1] is not wrapped:
        return

    def call(token: Any, *operands: Any) -> tuple[Any]:
        callback(*operands)
        return (token,)

    callbacks[-1] = call if token else callback
    _receivers.add(callbacks[-1].__code__)


def inline_calls_without_arguments(effect: Any) -> None:
    """Lowers a `jit` that has an ordered effect, but no argument, without a call.

    XLA's inliner (as of JAX 0.12) ties what it inlines of such a call to its token, and
    then copies a loop in it dozens of times, callbacks and all, or crashes.
    """
    from jax._src import api

    late = getattr(getattr(api, "Inline", None), "JAX_LATE", None)

    def wrap(rule: Any) -> Any:
        def lower(ctx: Any, *args: Any, **params: Any) -> Any:
            if not args and effect in params["jaxpr"].effects:
                params["inline"] = late
            return rule(ctx, *args, **params)

        return lower

    if late is not None:
        wrap_lowering(_jit_eqn.primitive, wrap)


def give_tokens_memory_kinds(effect: Any) -> None:
    """Lets programs that name memories (to offload residuals) have an ordered effect.

    JAX (as of 0.12) lists the memories of a program's results without its tokens, and
    then fails to pair the two.
    """
    from jax._src.interpreters import mlir as mlir_internal

    lower = mlir_internal.lower_jaxpr_to_fun
    name = "propagated_out_mem_kinds"
    if f"*{name}" in inspect.getsource(lower):  # then they are listed
        return

    @functools.wraps(lower)
    def lower_jaxpr_to_fun(
        ctx: Any, fun_name: Any, jaxpr: Any, effects: Any, *args: Any, **params: Any
    ) -> Any:
        if effect in effects and params.get(name) is not None:
            params[name] = ((None,) * len(effects)) + tuple(params[name])
        return lower(ctx, fun_name, jaxpr, effects, *args, **params)

    mlir_internal.lower_jaxpr_to_fun = lower_jaxpr_to_fun


def _first_device_sharding(ctx: Any) -> Any:
    try:
        from jax._src.callback import _callback_op_sharding
    except ImportError:
        return None
    context = ctx.module_context.axis_context
    if getattr(context, "mesh", None) is not None:
        return None
    return _callback_op_sharding(context, None, [])


def physical_aval(aval: Any) -> Any:
    """The type of the arrays that hold `aval`; a PRNG key's is its data's."""
    if not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return aval
    data = jax.eval_shape(
        jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    )
    return aval.update(shape=data.shape, dtype=data.dtype)


def is_partitioned(ctx: Any) -> bool:
    """Whether XLA's partitioner will split this program over devices by itself."""
    context = ctx.module_context.axis_context
    if getattr(context, "num_devices", None) is not None:
        return context.num_devices > 1
    mesh = getattr(context, "mesh", None)
    if mesh is None or mesh.size == 1:
        return False
    manual = getattr(context, "manual_axes", frozenset())
    return set(mesh.axis_names) != set(manual)


def devices_of(ctx: Any) -> tuple[int, bool]:
    """How many devices run a program, and whether each of them makes its own calls."""
    context = ctx.module_context.axis_context
    mesh = getattr(context, "mesh", None)
    if mesh is None:
        return getattr(context, "num_devices", None) or 1, False
    return int(mesh.size), bool(getattr(context, "manual_axes", ()))


register_lowering = mlir.register_lowering


def evaluate(closed: Any, args: Sequence[Any]) -> list[Any]:
    """Runs a closed jaxpr."""
    return jex.jaxpr_as_fun(closed)(*args)


def zeros_of_aval(aval: Any) -> Any:
    """Zeros of a type, sharded and varying as it is; for a key, a key of zeros."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        data = physical_aval(aval)
        zeros = jax.numpy.zeros(data.shape, data.dtype)
        return jax.random.wrap_key_data(zeros, impl=aval.dtype._impl.name)
    if aval.dtype == jax.dtypes.float0:
        return np.zeros(aval.shape, aval.dtype)
    zeros = jax.numpy.zeros(aval.shape, aval.dtype)
    return vary_like(sharded_like(zeros, aval), varying_axes(aval))


def strong_zeros(aval: Any, dtype: Any = None) -> Any:
    """Zeros of a type, but not of a weak one; of another dtype, if one is given."""
    return zeros_of_aval(aval.update(dtype=dtype or aval.dtype, weak_type=False))


def sharded_like(x: Any, aval: Any) -> Any:
    """`x`, whose type says of its sharding what `aval` says."""
    sharding = getattr(aval, "sharding", None)
    if not getattr(getattr(sharding, "mesh", None), "are_all_axes_explicit", False):
        is_same = not is_split(aval)
    else:
        is_same = jax.typeof(x).sharding == sharding
    return x if is_same else jax.sharding.reshard(x, sharding)


def whole(x: Any) -> Any:
    """`x`, no longer split over an explicit mesh."""
    kind = jax.typeof(x)
    if not is_split(kind):
        return x
    spec = jax.sharding.PartitionSpec()
    return jax.sharding.reshard(x, kind.sharding.update(spec=spec))


def plain_type(aval: Any) -> Any:
    """A type without its sharding."""
    return jax.core.ShapedArray(aval.shape, aval.dtype)


def with_lanes(x: Any, like: Any, lanes: int) -> Any:
    """`x` in every lane, of which `like` is the type of an array with such lanes."""
    x = jax.numpy.broadcast_to(x, (*like.shape[:lanes], *x.shape))
    if not is_split(like):
        return x
    spec = (*like.sharding.spec[:lanes], *jax.typeof(x).sharding.spec[lanes:])
    return jax.sharding.reshard(
        x, like.sharding.update(spec=jax.sharding.PartitionSpec(*spec))
    )


def with_lanes_of(x: Any, like: Any, lanes: int) -> Any:
    """`x` with its lanes split over an explicit mesh as those of `like` are."""
    kind = jax.typeof(x)
    if not is_split(like) and not is_split(kind):
        return x
    spec = (*like.sharding.spec[:lanes], *kind.sharding.spec[lanes:])
    if spec == tuple(kind.sharding.spec):
        return x
    # the type of a constant knows no mesh
    known = like if is_split(like) else kind
    return jax.sharding.reshard(
        x, known.sharding.update(spec=jax.sharding.PartitionSpec(*spec))
    )


def row_type(aval: Any) -> Any:
    """A type without its first axis."""
    return _with_first_axes(aval, aval.shape[1:], lambda spec: spec[1:])


def rows_type(aval: Any, length: int) -> Any:
    """A type with one more axis in front."""
    shape = (length, *aval.shape)
    return _with_first_axes(aval, shape, lambda spec: (None, *spec))


def _with_first_axes(aval: Any, shape: Any, change: Callable[[Any], Any]) -> Any:
    changes: dict[str, Any] = {"shape": shape, "weak_type": False}
    if not hasattr(aval, "update"):
        return jax.ShapeDtypeStruct(shape, aval.dtype)
    sharding = getattr(aval, "sharding", None)
    spec = getattr(sharding, "spec", None)
    # also where nothing is split: a spec has a part for every axis
    if spec is not None and len(spec) == len(aval.shape):
        spec = jax.sharding.PartitionSpec(*change(tuple(spec)))
        changes["sharding"] = sharding.update(spec=spec)
    return aval.update(**changes)


def is_split(aval: Any) -> bool:
    """Whether a type says that its axes are split over an explicit mesh."""
    spec = getattr(getattr(aval, "sharding", None), "spec", ())
    return any(part is not None for part in spec)


def varying_axes(aval: Any) -> frozenset[Any]:
    """The manual mesh axes over which a value in a `shard_map` differs."""
    kind = getattr(aval, "manual_axis_type", None)  # from 0.10 on
    if kind is not None:
        return frozenset(kind.varying)
    return frozenset(getattr(aval, "vma", None) or ())


def vary_like(x: Any, axes: frozenset[Any]) -> Any:
    """`x`, as a value that differs over these manual mesh axes."""
    missing = tuple(axes - varying_axes(jax.typeof(x)))
    return lax.pcast(x, missing, to="varying") if missing else x


def changed_jvp_rule(eqn: JaxprEqn, change: Callable[[Any], Any]) -> dict[str, Any]:
    """Parameters of a `custom_jvp` equation whose rule is changed once it is traced."""
    old = eqn.params["jvp_jaxpr_fun"]

    def rule(*zeros: bool) -> tuple[Any, Any, Any]:
        closed, out_zeros = jvp_rule_jaxpr(eqn, zeros)
        new = change(closed)
        return new.jaxpr, new.consts, out_zeros

    return {"jvp_jaxpr_fun": lu.wrap_init(rule, debug_info=old.debug_info)}


def changed_vjp_rules(
    eqn: JaxprEqn,
    change: Callable[[Any], Any],
    bwd: Callable[..., tuple[list[Any], Any]],
) -> dict[str, Any]:
    """Parameters of a `custom_vjp` equation with changed rules.

    Args:
        eqn: the equation.
        change: what to do with the forward rule's closed jaxpr.
        bwd: a backward rule, as `bwd_rule` gives it.
    """
    old = eqn.params["fwd_jaxpr_thunk"]
    arguments = eqn.invars[eqn.params["num_consts"] :]

    def fwd_rule(*perturbed: bool) -> tuple[Any, Any]:
        new = change(fwd_rule_jaxpr(eqn, perturbed))
        return new.jaxpr, new.consts

    def new_bwd(*args: Any) -> Any:
        outs, logs = bwd(*args)
        outs = [
            ad.Zero(_cotangent_aval(var.aval)) if out is None else out
            for var, out in zip(arguments, outs, strict=True)
        ]
        return (outs, logs) if _BWD_WITH_LOGS else outs

    return {
        "fwd_jaxpr_thunk": lu.wrap_init(fwd_rule, debug_info=old.debug_info),
        "bwd": lu.wrap_init(new_bwd, debug_info=eqn.params["bwd"].debug_info),
    }


def _cotangent_aval(aval: Any) -> Any:
    convert = getattr(aval, "to_ct_aval", None) or aval.to_tangent_aval
    return convert()


def rules_of_jax(eqn: JaxprEqn) -> bool:
    """Whether a custom function is one of JAX's own (`relu`, say)."""
    prim = hijax(eqn)
    if prim is not None:  # its rules do not say where they were written
        place = _place_of(open_jaxpr(_innermost(prim).traced.jaxpr))
        return _is_jax_rule(place, place)
    call = next(
        (eqn.params[x] for x in ("call_jaxpr", "call") if x in eqn.params), None
    )
    function = _place_of(call if call is None else open_jaxpr(call))
    rules = (eqn.params.get(name) for name in ("jvp_jaxpr_fun", "bwd", "rule"))
    return any(_is_jax_rule(_place_of(rule), function) for rule in rules)


# Those of JAX's modules whose rules call no function of the user's. Elsewhere they do:
# in `custom_gradient`, `custom_root` and `odeint`.
_WITHOUT_USERS = tuple(
    os.path.join(os.path.dirname(jax.__file__), "_src", *path.split("/"))
    for path in (
        "lax/lax.py",
        "lax/other.py",
        "lax/erf.py",
        "nn/",
        "numpy/",
        "scipy/special.py",
        "third_party/",
        "cudnn/",
    )
)


# the rule that `defjvps` makes, whoever calls it
_DEFJVPS = os.path.join("jax", "_src", "custom_derivatives.py")


@functools.lru_cache(maxsize=4096)
def _is_jax_rule(rule: str, function: str) -> bool:
    place = function if _DEFJVPS in rule else rule
    return any(path in place for path in _WITHOUT_USERS)


def closed_over_error() -> Exception:
    """What JAX raises where a `custom_vjp` function closes over what is varied."""
    return ad_internal.CustomVJPException()


def changed_equation(
    eqn: JaxprEqn, change: Callable[[Any], Any], watch: Watch
) -> Callable[..., list[Any]]:
    """Binds `eqn` with each of its jaxprs changed, as a function of its inputs.

    The Python functions of a high-level primitive are watched instead.
    """
    prim = hijax(eqn)
    if prim is None:
        params = map_jaxprs(eqn.params, change)
        return lambda *args: bind(eqn, args, **params)
    new = watched_hijax(prim, change, watch)
    return lambda *args: bind(eqn, args, _prim=new)


def trace_context() -> Any:
    """What JAX's own caches of traces go by, beside the types."""
    from jax._src import config

    return config.trace_context()


# --- high-level primitives ---------------------------------------------------
# With JAX's flags `jax_remat3` and `jax_custom_vjp3` on (from 0.10 on there are both),
# a checkpoint is one, and so is the call of a `custom_vjp` function; the latter also
# with `generic_batching` (0.12).


def kind_of(eqn: JaxprEqn) -> str:
    """The name by which the rules know an equation."""
    prim = hijax(eqn)
    return eqn.primitive.name if prim is None else _kind_of_hijax(prim)


CHECKPOINT = "high-level checkpoint"
CUSTOM_VJP = "high-level custom_vjp"
_HIGH_KINDS = {"RematTraced": CHECKPOINT, "CustomVJPTraced": CUSTOM_VJP}


def _kind_of_hijax(prim: Any) -> str:
    return _HIGH_KINDS.get(type(_innermost(prim)).__name__, "call_hi_primitive")


def is_checkpoint(prim: Any) -> bool:
    """Whether a high-level primitive is a `jax.checkpoint`."""
    return _kind_of_hijax(prim) == CHECKPOINT


def is_custom_vjp(prim: Any) -> bool:
    """Whether one is a call of a `jax.custom_vjp` function."""
    return _kind_of_hijax(prim) == CUSTOM_VJP


def is_checkpoint_eqn(eqn: JaxprEqn) -> bool:
    """Whether an equation is a checkpoint of either kind."""
    return eqn.primitive is checkpoint_p or kind_of(eqn) == CHECKPOINT


def _innermost(prim: Any) -> Any:
    """What is batched, up to 0.11 by a high-level primitive around it."""
    while type(prim).__name__ == "VmapOf":
        prim = prim.params["prim"]
    return prim


def _with_params(prim: Any, changes: dict[str, Any]) -> Any:
    """A copy of a high-level primitive that has other parameters."""
    new = copy.copy(prim)
    new.params = {**prim.params, **changes}
    new.__dict__.update(new.params)
    jaxprs = list(jaxprs_in(new.params))
    if prim.effects and jaxprs:
        new.effects = frozenset().union(*(open_jaxpr(j).effects for j in jaxprs))
    return new


def with_changed_jaxprs(prim: Any, change: Callable[[Any], Any]) -> Any:
    """A high-level primitive with its jaxprs changed."""
    return _with_params(prim, map_jaxprs(prim.params, change))


def watched_hijax(prim: Any, change: Callable[[Any], Any], watch: Watch) -> Any:
    """A high-level primitive with its jaxprs changed and its functions watched."""

    def watched_param(value: Any) -> Any:
        if _is_hijax(value):
            return watched_hijax(value, lambda jaxpr: jaxpr, watch)
        if isinstance(value, types.FunctionType | functools.partial):
            return watched(value, watch)
        return value

    new = with_changed_jaxprs(prim, change)
    if is_checkpoint(prim):  # all that it does is in its jaxpr
        return new
    if is_custom_vjp(prim):
        return _with_watched_vjp(new, watch.inside("fwd", ""), watch.inside("bwd", ""))
    watched_params = {name: watched_param(x) for name, x in new.params.items()}
    new = _with_params(new, watched_params)
    for name in ("expand", "batch", *_FORWARD_RULES, *_BACKWARD_RULES):
        if hasattr(prim, name):
            setattr(new, name, watched(getattr(new, name), watch))
    return new


def hijax_with_watched_rules(prim: Any, forward: Watch, backward: Watch) -> Any:
    """A high-level primitive whose derivative rules are watched, and nothing else."""
    if is_custom_vjp(prim):
        return _with_watched_vjp(prim, forward, backward)
    new = copy.copy(prim)
    for names, watch in ((_FORWARD_RULES, forward), (_BACKWARD_RULES, backward)):
        for name in names:
            if callable(getattr(prim, name, None)):
                setattr(new, name, watched(getattr(prim, name), watch))
    return new


# the derivative rules of a high-level primitive
_FORWARD_RULES = ("jvp", "lin", "vjp_fwd")
_BACKWARD_RULES = ("linearized", "transpose", "vjp_bwd", "vjp_bwd_retval")


def _with_watched_vjp(prim: Any, forward: Watch | None, backward: Watch | None) -> Any:
    """The call of a `custom_vjp` function whose rules are watched.

    They are parameters, so that whatever JAX makes of the call has the same rules.
    """
    if _innermost(prim) is not prim:
        inner = _with_watched_vjp(prim.params["prim"], forward, backward)
        return _with_params(prim, {"prim": inner})

    def rule(fun: Any, watch: Watch | None) -> Any:
        if fun is None or watch is None:
            return fun
        return functools.wraps(fun)(watched(fun, watch))

    watches = {"fwd": forward, "bwd": backward, "bwd_accums": backward}
    changes = {
        name: rule(prim.params[name], watch)
        for name, watch in watches.items()
        if name in prim.params
    }
    of_remat = prim.params.get("remat_rules")  # from 0.12 on
    if of_remat is not None:
        watches_of_remat = (forward, forward, backward)
        changes["remat_rules"] = tuple(map(rule, of_remat, watches_of_remat))
    return _with_params(prim, changes)


def watch_remat_rules(of_vjp: Callable[[], tuple[Watch, Watch]]) -> None:
    """Has the rules of `defremat` (0.12) watched where there is no checkpoint.

    Then the forward rule is followed by the rule that computes it again.

    Args:
        of_vjp: gives the watches for what runs first and what runs later.
    """
    try:
        from jax._src import hijax
    except ImportError:
        return
    original = getattr(hijax, "_vjp_from_remat_rules", None)
    if original is None:
        return

    def _vjp_from_remat_rules(fwd: Any, rem: Any, *rest: Any) -> Any:
        first, later = of_vjp()
        fwd = functools.wraps(fwd)(watched(fwd, first))
        return original(fwd, watched(rem, later), *rest)

    hijax._vjp_from_remat_rules = _vjp_from_remat_rules


def give_hijax_effects(effects: frozenset[Any]) -> None:
    """Has high-level primitives say which of these effects they have inside.

    From 0.12 on, they do. Before, JAX would drop a `custom_vjp` function of which no
    result is used, or run it twice under a checkpoint.
    """
    try:
        from jax._src import hijax
    except ImportError:
        return
    kind = getattr(hijax, "VJPHiPrimitive", None)
    if kind is None or hasattr(hijax, "HiPrim"):
        return
    original = kind.__init__

    def init(self: Any) -> None:
        original(self)
        for jaxpr in jaxprs_in(self.params):
            self.effects |= effects & open_jaxpr(jaxpr).effects

    kind.__init__ = init


def checkpoint_jaxpr(eqn: JaxprEqn) -> Any:
    """What a checkpoint evaluates."""
    prim = hijax(eqn)
    return eqn.params["jaxpr"] if prim is None else prim.params["jaxpr"]


def checkpoint_params(eqn: JaxprEqn, jaxpr: Any, inputs: int) -> dict[str, Any]:
    """Parameters of a checkpoint of another jaxpr, with more inputs in front."""
    prim = hijax(eqn)
    params = eqn.params if prim is None else prim.params
    changes = {"jaxpr": jaxpr}
    if isinstance(params.get("prevent_cse"), tuple):
        changes["prevent_cse"] = (False,) * inputs + params["prevent_cse"]
    if prim is None:
        return changes
    changes["jaxpr"] = close(jaxpr)
    return {"_prim": type(prim)(**{**params, **changes})}


class CustomVjpCall:
    """A call of a `custom_vjp` function, as an equation.

    Attributes:
        function: what is called, as a jaxpr of the equation's inputs.
    """

    def __init__(self, eqn: JaxprEqn) -> None:
        self._eqn = eqn
        self._closed_over = eqn.params["num_consts"]
        self.function = eqn.params["call_jaxpr"]

    def checked(self, args: Sequence[Any]) -> Sequence[Any]:
        """The inputs of the function that takes the place of this one."""
        return args  # it is told which of them are varied

    def forward(
        self, args: Sequence[Any], varied: Sequence[bool]
    ) -> tuple[Any, Sequence[Any], Callable[[Sequence[Any]], Any]]:
        """The forward rule for these inputs, some of which are varied.

        Returns:
            Its closed jaxpr, the inputs of that, and what splits its outputs into the
            results and the residuals.
        """
        closed_over = self._closed_over
        if any(varied[:closed_over]):
            raise closed_over_error()
        jaxpr = fwd_rule_jaxpr(self._eqn, varied[closed_over:])

        def split(outs: Sequence[Any]) -> tuple[list[Any], Any]:
            residuals, results = fwd_rule_residuals(self._eqn, args, outs)
            return results, residuals

        return jaxpr, args[closed_over:], split

    def backward(
        self, residuals: Any, cotangents: Sequence[Any]
    ) -> tuple[list[Any], Any]:
        """The cotangents of all inputs, None where zero, and what `bwd_rule` logs."""
        if not self._eqn.params["symbolic_zeros"]:
            cotangents = list(map(_without_symbolic_zero, cotangents))
        outs, logs = bwd_rule(self._eqn)(*residuals, *cotangents)
        return [*[None] * self._closed_over, *outs], logs

    def define(
        self, fun: Any, fwd: Callable[..., Any], bwd: Callable[..., Any]
    ) -> None:
        """Gives rules to the function that takes the place of this one.

        Args:
            fun: a `custom_vjp` function.
            fwd: of the arguments and which of them are varied.
            bwd: of the residuals and cotangents; gives a pair, as `backward` does.
        """
        define_vjp(fun, _told_what_is_varied(fwd), bwd, symbolic_zeros=True)


def _told_what_is_varied(fwd: Callable[..., Any]) -> Callable[..., Any]:
    def rule(*primals: Any) -> Any:
        return fwd([x.value for x in primals], [x.perturbed for x in primals])

    return rule


def _without_symbolic_zero(x: Any) -> Any:
    return zeros_of_aval(x.aval) if type(x) is SymbolicZero else x


class _HighCustomVjpCall(CustomVjpCall):
    """The same for a high-level primitive."""

    def __init__(self, eqn: JaxprEqn) -> None:
        self._prim = prim = hijax(eqn)
        self._params = _innermost(prim).params
        self._symbolic_zeros = self._params["symbolic_zeros"]
        # from 0.11 on, the first argument is what the function closes over
        arguments = prim.in_tree.children()
        self._closed_over = (
            arguments[0].num_leaves if "with_logs" in self._params else 0
        )
        traced = self._params["traced"].jaxpr
        same = prim is _innermost(prim) and len(traced.in_avals) == len(eqn.invars)
        self.function = traced if same else expanded_hijax(eqn)

    def checked(self, args: Sequence[Any]) -> Sequence[Any]:
        if self._symbolic_zeros:
            return args
        closed_over = self._closed_over
        return [*map(_never_varied, args[:closed_over]), *args[closed_over:]]

    def forward(
        self, args: Sequence[Any], varied: Sequence[bool]
    ) -> tuple[Any, Sequence[Any], Callable[[Sequence[Any]], Any]]:
        prim, closed_over = self._prim, self._closed_over
        if not self._symbolic_zeros:  # then it makes no difference to the rule
            varied = [i >= closed_over for i in range(len(args))]
        flags = prim.in_tree.unflatten(varied)
        trees = []

        def rule(*flat: Any) -> list[Any]:
            outs, residuals, *_ = prim.vjp_fwd(flags, *prim.in_tree.unflatten(flat))
            leaves, tree = jax.tree.flatten(residuals)
            trees.append(tree)
            return [*prim.out_tree.flatten_up_to(outs), *leaves]

        jaxpr, _, _ = trace(rule, prim.in_avals_flat, self.function)
        results = prim.out_tree.num_leaves

        def split(outs: Sequence[Any]) -> tuple[list[Any], Any]:
            return list(outs[:results]), trees[0].unflatten(outs[results:])

        return jaxpr, args, split

    def backward(
        self, residuals: Any, cotangents: Sequence[Any]
    ) -> tuple[list[Any], Any]:
        prim = self._prim
        zeros = [ad.Zero(x.aval) if type(x) is SymbolicZero else x for x in cotangents]
        given = prim.out_tree.unflatten(zeros)
        with_logs = getattr(prim, "vjp_bwd_retval_logs", False)
        if callable(with_logs):  # from 0.12 on
            outs, logs = with_logs(residuals, given)
        else:
            outs, logs = prim.vjp_bwd_retval(residuals, given), None
            if with_logs:
                outs, logs = outs
        flat = prim.in_tree.flatten_up_to(outs)
        return [None if type(x) in (ad.Zero, SymbolicZero) else x for x in flat], logs

    def define(
        self, fun: Any, fwd: Callable[..., Any], bwd: Callable[..., Any]
    ) -> None:
        def untold(*args: Any) -> Any:
            return fwd(list(args), [True] * len(args))

        rule = _told_what_is_varied(fwd) if self._symbolic_zeros else untold
        options = {
            "symbolic_zeros": self._symbolic_zeros,
            "optimize_remat": self._params["opt_remat"],
        }
        if "generic_batching" in self._params:  # from 0.12 on
            options["generic_batching"] = self._params["generic_batching"]
        define_vjp(fun, rule, bwd, **options)


def custom_vjp_call(eqn: JaxprEqn) -> CustomVjpCall:
    """The call of a `custom_vjp` function that an equation is."""
    return CustomVjpCall(eqn) if hijax(eqn) is None else _HighCustomVjpCall(eqn)


def _never_varied(x: Any) -> Any:
    """`x`, which a `custom_vjp` function closes over: varying it is an error."""
    if not isinstance(x, jax.core.Tracer):
        return x
    inexact = jax.numpy.issubdtype(jax.typeof(x).dtype, jax.numpy.inexact)
    return _refuse_to_vary(x) if inexact else x


@jax.custom_jvp
def _refuse_to_vary(x: Any) -> Any:
    return x


@_refuse_to_vary.defjvp
def _(primals: Any, tangents: Any) -> Any:
    raise closed_over_error()


# --- export and jet ----------------------------------------------------------


def register_export(
    node: type,
    name: str,
    serialize: Callable[[Any], bytes],
    deserialize: Callable[[bytes], Any],
) -> None:
    """Lets an exported program that returns such a pytree node be serialized."""
    from jax import export

    export.register_pytree_node_serialization(
        node,
        serialized_name=name,
        serialize_auxdata=serialize,
        deserialize_auxdata=deserialize,
    )


def register_jet(primitive: Primitive) -> None:
    """Lets `jax.experimental.jet` pass a primitive without results."""
    try:
        from jax.experimental import jet
    except ImportError:  # then there is nothing to pass through
        return

    def rule(primals: Sequence[Any], series: Any, **params: Any) -> tuple[Any, Any]:
        del series
        return primitive.bind(*primals, **params), []

    jet.jet_rules[primitive] = rule
