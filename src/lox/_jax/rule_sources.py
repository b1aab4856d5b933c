"""Where derivative rules are defined: by the user, or in JAX."""

import functools
import re
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from jax.extend.core import JaxprEqn

from . import compat, jaxprs


class CustomFunction(NamedTuple):
    """A custom function, as far as it can be recognized when it is called again.

    Attributes:
        place: the source locations of the function and of a rule. Functions that were
            defined in the same place, such as by a decorator, have the same one.
        function: the function itself, or its jaxpr if JAX has traced it; None if it is
            unknown.
    """

    place: str = ""
    function: Any = None


NO_FUNCTION = CustomFunction()


def function_of_custom_jvp(eqn: JaxprEqn) -> CustomFunction:
    """The function of an equation of `custom_jvp`."""
    function = eqn.params["call_jaxpr"]
    place = _place_of(jaxprs.open_jaxpr(function), eqn.params["jvp_jaxpr_fun"])
    return CustomFunction(place, function)


def custom_function(fun: Any, rule: Any) -> CustomFunction:
    """The function that JAX calls, given as a `lu.WrappedFun` with one of its rules."""
    function = original(fun.f)
    if isinstance(function, functools.partial):
        if function.args and jaxprs.is_jaxpr(function.args[0]):  # `jaxpr_as_fun`
            function = function.args[0]
        elif str(getattr(function.func, "__module__", "")).startswith("jax."):
            function = None
    return CustomFunction(_place_of(fun, rule), function)


def original(function: Any) -> Any:
    """The function that a watch has wrapped; others as they are."""
    return getattr(function, "watched_function", function)


def with_source_location_of(fun: Callable[..., Any], like: Any) -> Callable[..., Any]:
    """A copy of `fun` with the name and source location of `like`."""
    found = re.fullmatch(
        r"(\S+) at (.+):(\d+)", source_location(jaxprs.open_jaxpr(like))
    )
    if found is None:
        return fun

    def call(*args: Any) -> Any:
        return fun(*args)

    name, file, line = found.groups()
    code = call.__code__.replace(
        co_name=name, co_filename=file, co_firstlineno=int(line)
    )
    return types.FunctionType(code, call.__globals__, name, None, call.__closure__)


def _place_of(function: Any, rule: Any) -> str:
    return f"{source_location(function)}, {source_location(rule)}"


def source_location(rule: Any) -> str:
    """The name, file and line of a function that JAX has traced, if known."""
    info = getattr(rule, "debug_info", None)
    return getattr(info, "func_src_info", None) or ""


def rules_of_jax(eqn: JaxprEqn) -> bool:
    """Whether a custom function is one of JAX's own, such as `relu`."""
    prim = jaxprs.hijax(eqn)
    if prim is not None:  # its rules have no source location
        place = source_location(jaxprs.open_jaxpr(jaxprs.innermost(prim).traced.jaxpr))
        return is_jax_rule(place, place)
    call = next(
        (eqn.params[x] for x in ("call_jaxpr", "call") if x in eqn.params), None
    )
    function = source_location(call if call is None else jaxprs.open_jaxpr(call))
    rules = (eqn.params.get(name) for name in ("jvp_jaxpr_fun", "bwd", "rule"))
    return any(is_jax_rule(source_location(rule), function) for rule in rules)


# JAX's modules whose rules never call functions of the user, unlike those of
# `custom_gradient`, `custom_root` and `odeint`.
_SELF_CONTAINED_MODULES = compat.private_files(
    "lax/lax.py",
    "lax/other.py",
    "lax/erf.py",
    "nn/",
    "numpy/",
    "scipy/special.py",
    "third_party/",
    "cudnn/",
)

# where `defjvps` defines its rules, for JAX's own functions and for the user's
(CUSTOM_DERIVATIVES,) = compat.private_files("custom_derivatives.py")


@functools.lru_cache(maxsize=4096)
def is_jax_rule(rule: str, function: str) -> bool:
    place = function if CUSTOM_DERIVATIVES in rule else rule
    return any(path in place for path in _SELF_CONTAINED_MODULES)
