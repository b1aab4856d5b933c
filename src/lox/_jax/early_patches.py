"""Patches that must be installed before the first event of a process.

The derivative rules of custom functions and of high-level primitives are Python
functions, and so is the function that `jax.jacfwd` differentiates. The first event may
be inside one of them, when JAX's rule that calls it is already running. So these
patches are installed as soon as both lox and JAX are imported. Until the first event,
they bind everything unchanged (`Dormant`).
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Protocol

import jax
from jax.extend import linear_util as lu

from . import compat, hijax, patches, primitives, rule_sources, rule_tables, tracebacks
from .patches import Patch, UnavailableError
from .rule_sources import CustomFunction
from .watches import Dormant, Watch, watched, watched_rule


class Watches(Protocol):
    """Creates watches."""

    def of_custom_vjp(self) -> tuple[Watch, Watch]:
        """Watches for the forward and the backward rule of a custom function."""
        ...

    def of_custom_jvp(self, function: CustomFunction) -> Watch:
        """A watch for the rule of a custom function."""
        ...

    def of_hijax(self, prim: Any) -> tuple[Watch | None, Watch]:
        """Watches for the forward and backward rules of a high-level primitive."""
        ...

    def of_jacfwd(self) -> Watch:
        """A watch for the function that `jax.jacfwd` differentiates."""
        ...


class _Source:
    """Where watches come from: `load` imports the traversal, which sets `watches`."""

    load: Callable[[], Any]
    watches: Watches | None = None


source = _Source()


def _watches() -> Watches:
    if source.watches is None:
        source.load()
    assert source.watches is not None
    return source.watches


def _dormant_pair(
    make: Callable[[], tuple[Watch | None, Watch | None]],
) -> tuple[Dormant, Dormant]:
    made = functools.cache(make)
    return Dormant(lambda: made()[0]), Dormant(lambda: made()[1])


# --- custom functions --------------------------------------------------------


_JVPTrace = compat.private(
    "interpreters.ad.JVPTrace", "watch the rules of custom functions"
)
_LinearizeTrace = compat.private(
    "interpreters.ad.LinearizeTrace", "watch the rules of custom functions"
)


def _watch_custom_functions() -> None:
    for trace in (_JVPTrace, _LinearizeTrace):
        for method, functions in (
            ("process_custom_vjp_call", 3),
            ("process_custom_jvp_call", 2),
        ):
            _check_method(trace, method, functions)
        trace.process_custom_vjp_call = _vjp_call(trace.process_custom_vjp_call)
        trace.process_custom_jvp_call = _jvp_call(trace.process_custom_jvp_call)


def _check_method(trace: Any, name: str, functions: int) -> None:
    """Checks that a method takes a primitive, a number of functions, and arguments."""
    if name not in vars(trace):  # the method of its base class only raises
        raise UnavailableError(f"`{trace.__name__}` has no `{name}`")
    named = list(inspect.signature(getattr(trace, name)).parameters)
    if len(named) < functions + 3 or named[2] != "fun":
        raise UnavailableError(f"`{trace.__name__}.{name}` takes other arguments")


def _vjp_call(call: Any) -> Any:
    @functools.wraps(call)
    def process_custom_vjp_call(
        self: Any, prim: Any, fun: Any, fwd: Any, bwd: Any, *args: Any, **params: Any
    ) -> Any:
        if not _is_rule_of_jax(bwd, fun):
            forward, backward = _dormant_pair(lambda: _watches().of_custom_vjp())
            fwd, bwd = watched_rule(fwd, forward), watched_rule(bwd, backward)
        return call(self, prim, fun, fwd, bwd, *args, **params)

    return process_custom_vjp_call


def _jvp_call(call: Any) -> Any:
    @functools.wraps(call)
    def process_custom_jvp_call(
        self: Any, prim: Any, fun: Any, jvp: Any, *args: Any, **params: Any
    ) -> Any:
        if not _is_rule_of_jax(jvp, fun):
            own = rule_sources.custom_function(fun, jvp)
            jvp = watched_rule(jvp, Dormant(lambda: _watches().of_custom_jvp(own)))
        return call(self, prim, fun, jvp, *args, **params)

    return process_custom_jvp_call


def _is_rule_of_jax(rule: Any, fun: Any) -> bool:
    return rule_sources.is_jax_rule(
        rule_sources.source_location(rule), rule_sources.source_location(fun)
    )


CUSTOM_FUNCTIONS = Patch(
    "how JAX differentiates `custom_jvp` and `custom_vjp` functions",
    without="each derivative rule that reaches an event logs it again",
    instead="log outside custom functions",
    install=_watch_custom_functions,
)


def in_custom_function() -> bool:
    """Whether a custom function, or one of its rules, is on the call stack."""
    return any(
        frame.f_code.co_filename == rule_sources.CUSTOM_DERIVATIVES
        for frame in tracebacks.frames(sys._getframe(1))
    )


# --- high-level primitives ---------------------------------------------------


def _watch_hijax(kind: str) -> None:
    rule_tables.wrap_rule(kind, primitives.hijax_p, _watched_hijax, lambda params: True)


def _watched_hijax(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    name = "_prim" if "_prim" in params else "prim"  # up to 0.9
    old = params[name]
    pair = _dormant_pair(lambda: _watches().of_hijax(old))
    new = hijax.with_watched_rules(old, *pair)
    return rule(*args, **{**params, name: new})


HIJAX = tuple(
    Patch(
        f"the {kind} rule of `{primitives.hijax_p}`",
        without="the solution of a linear or nonlinear system is logged again for "
        "each tangent",
        instead="log outside `custom_root`, `custom_linear_solve` and other "
        "high-level primitives",
        install=functools.partial(_watch_hijax, kind),
    )
    for kind in ("JVP", "linearization")
    if primitives.hijax_p is not None
)


def _watch_remat_rules() -> None:
    """Watches the rules of `defremat` outside checkpoints.

    There, JAX calls the forward rule and then the rule that recomputes it.
    """

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def _vjp_from_remat_rules(fwd: Any, rem: Any, *rest: Any) -> Any:
            first, later = _dormant_pair(lambda: _watches().of_custom_vjp())
            fwd = functools.wraps(fwd)(watched(fwd, first))
            return original(fwd, watched(rem, later), *rest)

        return _vjp_from_remat_rules

    compat.replace(
        "hijax._vjp_from_remat_rules", "log once what `defremat` recomputes", wrap
    )


_HAS_REMAT_RULES = compat.private(
    "hijax._vjp_from_remat_rules", "up to 0.11, there is no `defremat`", default=None
)
_REMAT_RULES = Patch(
    "the rules of `defremat`",
    without="recomputed events are logged again",
    instead="log outside functions with `defremat`",
    install=_watch_remat_rules,
)
REMAT_RULES = () if _HAS_REMAT_RULES is None else (_REMAT_RULES,)

# --- jacfwd ------------------------------------------------------------------


def _watch_jacfwd() -> None:
    """Watches the function that `jax.jacfwd` differentiates.

    `jacfwd` is `vmap` of forward mode over the dimensions of the input. It calls the
    same private function as `jax.jvp`; the caller distinguishes them.
    """
    jvp = getattr(inspect.unwrap(jax.jvp), "__code__", None)
    if jvp is None or "_jvp" not in jvp.co_names:
        raise UnavailableError("`jax.jvp` does not call a function `_jvp`")

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def _jvp(fun: Any, *args: Any, **kwargs: Any) -> Any:
            if sys._getframe(1).f_code is not jvp:
                watch = Dormant(lambda: _watches().of_jacfwd())
                is_rule = isinstance(fun, lu.WrappedFun)
                fun = watched_rule(fun, watch) if is_rule else watched(fun, watch)
            return original(fun, *args, **kwargs)

        return _jvp

    compat.replace("api._jvp", "tell `jax.jacfwd` from `jax.jvp`", wrap)


JACFWD = Patch(
    "how `jax.jacfwd` calls forward mode",
    without="`jax.jacfwd` and `jax.hessian` log an event once for each dimension of "
    "the input",
    instead="use `jax.jacrev`, or apply `lox.nolog` to the function",
    install=_watch_jacfwd,
)


def called_by_jacfwd() -> bool:
    """Whether `jax.jacfwd` is on the call stack."""
    codes = (frame.f_code for frame in tracebacks.frames(sys._getframe(1)))
    return any(
        code.co_filename.startswith(tracebacks.JAX_DIRECTORY)
        and code.co_qualname.startswith("jacfwd.")
        for code in codes
    )


patches.add_early(CUSTOM_FUNCTIONS, *HIJAX, *REMAT_RULES, JACFWD)
