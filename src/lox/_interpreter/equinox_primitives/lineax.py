"""`lineax.linear_solve`: its derivatives, and `vmap` of a solve without lanes."""

import functools
from collections.abc import Callable
from typing import Any

from lox._imports import when_imported
from lox._interpreter.contents import events_of
from lox._interpreter.patches.missing import reject
from lox._interpreter.patches.unmapped import patch_of_unmapped
from lox._interpreter.rule_watches import DerivativeRuleWatch, lines_of
from lox._jax import patches, rule_tables, tracing, watches
from lox._jax.patches import Patch

from .expansion import equinox_module, filtered_params


def _watched_jvp(
    primitive: Any, rule: Callable[..., Any], primals: Any, tangents: Any, **params: Any
) -> Any:
    """Wraps the JVP rule, as for `custom_linear_solve`: only the solution logs."""

    def is_own(primitive: Any, params: Any) -> bool:
        return filtered_params(params) is not None and primitive.name != "noinline"

    events = events_of(tracing.traced_equation(primitive, primals, params)[0])
    if not events:
        return rule(primals, tangents, **params)
    watch = DerivativeRuleWatch(is_own, lines=lines_of(events))
    return watches.watched(rule, watch)(primals, tangents, **params)


def _patch_of_lineax(module: Any) -> Patch:
    primitive = module.linear_solve_p
    watched_jvp = functools.partial(_watched_jvp, primitive)

    def install() -> None:
        rules = getattr(equinox_module("_primitive"), "_vprim_jvp_registry", {})
        if primitive in rules:  # the primitive after a `vmap`
            rules[primitive] = functools.partial(watched_jvp, rules[primitive])
        rule_tables.wrap_rule("JVP", primitive, watched_jvp, lambda params: True)

    return Patch(
        "the JVP rule of `lineax.linear_solve`",
        without="the solution of a linear system is logged again for each tangent",
        instead="log outside `lineax.linear_solve`",
        install=install,
        refuse=lambda patch: reject(patch, primitive),
    )


def _add_patches(module: Any) -> None:
    # after a `vmap`, a solve is another primitive
    batched = equinox_module("_primitive")._vprim_p
    unmapped = map(patch_of_unmapped, (module.linear_solve_p, batched))
    patches.add(_patch_of_lineax(module), *unmapped)


when_imported("lineax._solve", _add_patches)
