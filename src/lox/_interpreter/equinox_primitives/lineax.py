"""Derivatives of `lineax.linear_solve`: only the solution logs."""

import functools
from collections.abc import Callable
from typing import Any

from lox._imports import when_imported
from lox._interpreter.patches.missing import events_in, reject
from lox._interpreter.rule_watches import DerivativeRuleWatch, lines_of
from lox._jax import patches, rule_tables, watches
from lox._jax.patches import Patch

from .expansion import equinox_module, filtered_params


def _watched_jvp(rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """Wraps the JVP rule, as for `custom_linear_solve`."""

    def is_own(primitive: Any, params: Any) -> bool:
        return filtered_params(params) is not None and primitive.name != "noinline"

    events = events_in(params)
    if not events:
        return rule(*args, **params)
    watch = DerivativeRuleWatch(is_own, lines=lines_of(events))
    return watches.watched(rule, watch)(*args, **params)


def _patch_of_lineax(module: Any) -> Patch:
    primitive = module.linear_solve_p

    def install() -> None:
        rules = getattr(equinox_module("_primitive"), "_vprim_jvp_registry", {})
        if primitive in rules:  # the primitive after a `vmap`
            rules[primitive] = functools.partial(_watched_jvp, rules[primitive])
        rule_tables.wrap_rule("JVP", primitive, _watched_jvp, events_in)

    return Patch(
        "the JVP rule of `lineax.linear_solve`",
        without="the solution of a linear system is logged again for each tangent",
        instead="log outside `lineax.linear_solve`",
        install=install,
        refuse=lambda patch: reject(patch, primitive),
    )


when_imported("lineax._solve", lambda module: patches.add(_patch_of_lineax(module)))
