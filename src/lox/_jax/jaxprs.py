"""Reading, tracing and rebuilding jaxprs."""

import copy
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex, linear_util as lu
from jax.extend.core import JaxprEqn
from jax.interpreters import partial_eval as pe

from . import compat

_Unspecified = compat.private(
    "sharding_impls.UnspecifiedValue",
    "searching the parameters of `jit` takes longer",
    default=type(None),
)

ClosedJaxpr = jex.ClosedJaxpr
Literal = jex.Literal


def is_jaxpr(x: Any) -> bool:
    return isinstance(x, jex.Jaxpr | jex.ClosedJaxpr)


def open_jaxpr(x: Any) -> Any:
    """The open jaxpr of `x`, closed or not (from 0.11 on, both are one class)."""
    return x.jaxpr if isinstance(x, jex.ClosedJaxpr) else x


def close(x: Any) -> Any:
    """The closed jaxpr of `x`; an open jaxpr must have no constants."""
    return x if isinstance(x, jex.ClosedJaxpr) else jex.ClosedJaxpr(x, ())


def _constants(x: Any) -> tuple[Any, Sequence[Any]]:
    """The variables of the constants of a jaxpr, and their values if it is closed."""
    constvars = open_jaxpr(x).constvars
    values = x.consts if isinstance(x, jex.ClosedJaxpr) else ()
    return constvars, values or ()


def rewritten(like: Any, rewrite: Callable[[Any], Any]) -> Any:
    """Rewrites a jaxpr, closed or not; `rewrite` takes and returns closed ones.

    An open jaxpr may have constants, whose values are stored elsewhere.
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
    """Moves constants into an inner `jit`, for parameters that must not have any."""
    if not closed.consts:
        return closed
    return trace(jax.jit(jex.jaxpr_as_fun(closed)), closed.in_avals, closed)[0]


def constants_to_inputs(x: Any) -> tuple[Any, list[Any]]:
    """An open jaxpr with its constants as first inputs, and the constants."""
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
    # 0.9 has no such method, and does not check the names
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
    return _mark_made_by_lox(jex.ClosedJaxpr(jaxpr, consts)), tree, list(out_avals)


_made_by_lox: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _mark_made_by_lox(closed: Any) -> Any:
    _made_by_lox.add(closed)
    return closed


def is_made_by_lox(closed: Any) -> bool:
    """Whether lox created this closed jaxpr, as a replacement of one that logged."""
    return closed in _made_by_lox


def without_forwarded(
    closed: Any, inputs: int, outputs: int
) -> tuple[Any, dict[int, int]]:
    """Drops outputs that are forwarded inputs.

    Args:
        closed: a closed jaxpr.
        inputs: the first input that may be forwarded.
        outputs: the first output that may be dropped.

    Returns:
        The smaller jaxpr, and the index of the input for each dropped output.
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
    return _mark_made_by_lox(new), dropped


def uses_inputs(closed: Any) -> bool:
    """Whether an equation or a result of a jaxpr is one of its inputs, or uses one."""
    jaxpr = open_jaxpr(closed)
    inputs = set(jaxpr.invars)
    used = (*jaxpr.outvars, *(atom for eqn in jaxpr.eqns for atom in eqn.invars))
    return any(not isinstance(x, Literal) and x in inputs for x in used)


def with_used_input(closed: Any) -> Any:
    """Adds a last input, a scalar, that is used, but changes nothing.

    The first equation with an effect depends on it, since results may not be used.
    """
    jaxpr = open_jaxpr(closed)
    barrier = jax.make_jaxpr(jax.lax.optimization_barrier)(np.float32(0)).eqns[0]
    new = jex.Var(barrier.invars[0].aval)
    eqns = list(jaxpr.eqns)
    for i, eqn in enumerate(eqns):
        if eqn.effects and eqn.invars and _is_array(eqn.invars[0].aval):
            first, *others = eqn.invars
            tied = jex.Var(first.aval)
            both = [tied, jex.Var(new.aval)]
            eqns[i] = eqn.replace(invars=[tied, *others])
            eqns.insert(i, barrier.replace(invars=[first, new], outvars=both))
            break
    changed = jaxpr.replace(
        invars=[*jaxpr.invars, new],
        eqns=eqns,
        debug_info=_unnamed(jaxpr.debug_info),
    )
    return changed if closed is jaxpr else jex.ClosedJaxpr(changed, closed.consts)


def _is_array(aval: Any) -> bool:
    return isinstance(aval, jax.core.ShapedArray)


def hijax(eqn: JaxprEqn) -> Any:
    """The high-level primitive that `eqn` calls, or None."""
    return hijax_of(eqn.primitive, eqn.params)


def hijax_of(primitive: Any, params: dict[str, Any]) -> Any:
    return params.get("_prim") if primitive.name == "call_hi_primitive" else None


def jaxprs_in(params: dict[str, Any]) -> Iterator[Any]:
    """Every jaxpr, closed or open, in the parameters of an equation."""
    return _jaxprs_in(params.values())


def _jaxprs_in(items: Iterable[Any]) -> Iterator[Any]:
    without = _types_without_jaxprs()
    for item in items:
        if type(item) in without:
            continue
        if isinstance(item, tuple | list):
            yield from _jaxprs_in(item)
        elif is_jaxpr(item):
            yield item
        elif isinstance(item, jax.stages.Traced):
            yield item.jaxpr
        elif is_hijax(item):
            yield from jaxprs_in(item.params)


@functools.cache
def _types_without_jaxprs() -> frozenset[type]:
    """The types of nearly all parameters, to make the search for jaxprs fast."""
    numbers = (bool, int, float, complex, str, np.int64)
    dtypes = (type(np.dtype(kind)) for kind in "?bBhHiIlLqQefdFD")
    return frozenset({type(None), *numbers, *dtypes, _Unspecified, jax.sharding.Mesh})


def has_jaxprs(params: dict[str, Any]) -> bool:
    """Whether there is any jaxpr in the parameters of an equation."""
    # asked of every equation, most of which have no parameters that could contain one
    if _types_without_jaxprs().issuperset(map(type, params.values())):
        return False
    return any(True for _ in jaxprs_in(params))


def jaxprs_of(eqn: JaxprEqn) -> Iterator[Any]:
    """Every jaxpr in an equation.

    A high-level primitive without jaxprs is expanded if it has effects: its Python code
    may log.
    """
    found = False
    for jaxpr in jaxprs_in(eqn.params):
        found = True
        yield jaxpr
    if not found and eqn.effects and hijax(eqn) is not None:
        yield expanded_hijax(eqn)


def map_jaxprs(params: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Applies `change` to every jaxpr in the parameters of an equation.

    `change` may call functions of the user. It is called neither in `map` nor in a
    generator, where a `StopIteration` that they raise would look like the end of the
    iteration.
    """

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
        if is_hijax(item):
            return with_changed_jaxprs(item, change)
        return item

    def value(item: Any) -> Any:
        if isinstance(item, tuple) and hasattr(item, "_fields"):
            return type(item)(*[leaf(one) for one in item])
        if isinstance(item, tuple | list):
            return type(item)([leaf(one) for one in item])
        return leaf(item)

    return {name: value(item) for name, item in params.items()}


def is_hijax(item: Any) -> bool:
    return hasattr(item, "in_avals_flat") and isinstance(
        getattr(item, "params", None), dict
    )


def with_changed_jaxprs(prim: Any, change: Callable[[Any], Any]) -> Any:
    """Applies `change` to every jaxpr in a high-level primitive."""
    return with_params(prim, map_jaxprs(prim.params, change))


def with_params(prim: Any, changes: dict[str, Any]) -> Any:
    """A copy of a high-level primitive with some parameters changed."""
    new = copy.copy(prim)
    new.params = {**prim.params, **changes}
    new.__dict__.update(new.params)
    inner = list(jaxprs_in(new.params))
    if prim.effects and inner:
        new.effects = frozenset().union(*(open_jaxpr(j).effects for j in inner))
    return new


def innermost(prim: Any) -> Any:
    """The primitive inside a batched one; up to 0.11, batching wraps the primitive."""
    while type(prim).__name__ == "VmapOf":
        prim = prim.params["prim"]
    return prim


def expanded_hijax(eqn: JaxprEqn) -> Any:
    """The definition of a high-level primitive by lower ones, as a closed jaxpr."""
    avals = [var.aval for var in eqn.invars]
    return jax.make_jaxpr(lambda *args: eqn.primitive.to_lojax(*args, **eqn.params))(
        *avals
    )


def interpret(
    jaxpr: Any,
    inputs: Sequence[Any],
    evaluate: Callable[[JaxprEqn, list[Any]], Sequence[Any]],
    of_literal: Callable[[Any], Any] = lambda literal: literal.val,
) -> list[Any]:
    """Interprets an open jaxpr, equation by equation.

    Args:
        jaxpr: the jaxpr.
        inputs: the values of its constants and inputs, or abstract values in their
            place.
        evaluate: the same for the outputs of an equation, given its inputs.
        of_literal: the same for a literal.
    """
    variables = (*jaxpr.constvars, *jaxpr.invars)
    env: dict[Any, Any] = dict(zip(variables, inputs, strict=True))

    def read(atom: Any) -> Any:
        return of_literal(atom) if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        outs = evaluate(eqn, list(map(read, eqn.invars)))
        env.update(zip(eqn.outvars, outs, strict=True))
    return list(map(read, jaxpr.outvars))


def jaxpr_function(closed: Any) -> Any:
    """A closed jaxpr as a wrapped function of flat arguments."""
    info = _unnamed(closed.jaxpr.debug_info)
    return lu.wrap_init(jex.jaxpr_as_fun(closed), debug_info=info)


def evaluate(closed: Any, args: Sequence[Any]) -> list[Any]:
    """Evaluates a closed jaxpr."""
    return jex.jaxpr_as_fun(closed)(*args)
