"""The table of patches: which rule of JAX, which wrapper, and what it is good for.

Patches of the same rule are installed in this order: the last one is called first.
"""

from collections.abc import Callable
from typing import Any

from lox._events.primitive import LOG_EFFECT, ORDERED_LOG_EFFECT, log_p
from lox._interpreter import derivatives, library_loops
from lox._interpreter.contents import events_inside
from lox._jax import checkify, hijax, partial_eval, patches, primitives, rule_tables
from lox._jax.patches import Patch
from lox._jax.primitives import (
    checkpoint_p,
    cond_p,
    hijax_p,
    jit_p,
    linear_solve_p,
    scan_p,
    while_p,
)

from . import batched_scan, batched_while
from .batched_cond import guarded_cond
from .missing import (
    Needs,
    events_and_cotangents_in,
    events_in,
    events_in_condition,
    refuse,
)
from .repeated_while import once_while, once_while_equation
from .scan_derivatives import (
    anchored_jvp,
    anchored_scan,
    still_anchored_equation,
    still_anchored_scan,
)
from .unused_checkpoint import kept_checkpoint, kept_hijax
from .while_conditions import checked_once, lowered_condition


def patch_of_rule(
    kind: str,
    primitive: Any,
    wrapper: Callable[..., Any],
    without: str,
    instead: str,
    needs: Needs = events_in,
    purpose: str = "",
    applies: rule_tables.Applies | None = None,
) -> Patch:
    """A patch of one of JAX's rules for a primitive.

    Args:
        kind: which of its rules (see `rule_tables.wrap_rule`).
        primitive: the primitive.
        wrapper: what is called in place of the rule, for equations that log.
        without: what goes wrong without it.
        instead: what to write instead.
        needs: which events of an equation need it.
        purpose: tells it from another patch of the same rule.
        applies: to which equations the wrapper applies, if not just to these.
    """

    def install() -> None:
        if kind == "lowering":
            rule_tables.wrap_lowering(primitive, wrapper, needs)
        else:
            rule_tables.wrap_rule(kind, primitive, wrapper, applies or needs)

    return Patch(
        f"the {kind} rule of `{primitives.public_name(primitive)}`{purpose}",
        without,
        instead,
        install,
        lambda patch: refuse(patch, primitive, needs),
    )


_HOISTED = (
    "JAX moves constant events out of a differentiated `scan`: they are logged once"
)
_TWICE = "JAX runs a differentiated `while_loop` twice, and logs its events twice"

patches.add(
    patch_of_rule("JVP", scan_p, anchored_jvp, _HOISTED, "log outside of `scan`"),
    patch_of_rule(
        "linearization", scan_p, anchored_scan, _HOISTED, "log outside of `scan`"
    ),
    patch_of_rule(
        "partial evaluation",
        scan_p,
        still_anchored_scan,
        _HOISTED,
        "log outside of `scan`",
    ),
    patch_of_rule(
        "checkpoint", scan_p, still_anchored_equation, _HOISTED, "log outside of `scan`"
    ),
    patch_of_rule(
        "lowering",
        while_p,
        lowered_condition,
        "XLA removes the condition of a loop whose length it knows, and its events",
        "log in the body of the `while_loop`",
        events_in_condition,
    ),
    patch_of_rule(
        "dead code",
        checkpoint_p,
        kept_checkpoint,
        "JAX removes a `checkpoint` whose results are not used, and its events",
        "log outside of `jax.checkpoint`",
    ),
    *(
        patch_of_rule(
            "dead code",
            primitive,
            kept_hijax,
            "JAX removes a high-level primitive whose results are not used, and its "
            "events",
            "log outside of high-level primitives",
        )
        for primitive in (hijax_p,)
        if primitive is not None
    ),
    patch_of_rule(
        "batching",
        scan_p,
        batched_scan.with_known_carries,
        "`vmap` of a `scan` with loops inside takes long to trace",
        "wait",
        needs=lambda params: (),  # it only saves time
        purpose=", once instead of several times",
        applies=batched_scan.logs_or_is_made_here,
    ),
    patch_of_rule(
        "batching",
        cond_p,
        guarded_cond,
        "under `vmap`, all lanes log the events of all branches",
        "log outside of `cond` and `switch`",
        events_and_cotangents_in,
    ),
    patch_of_rule(
        "batching",
        while_p,
        batched_while.guarded_while,
        "under `vmap`, lanes go on logging when their loop has ended",
        "log outside of `while_loop`",
        applies=batched_while.logs_or_is_made_here,
    ),
    patch_of_rule(
        "partial evaluation", while_p, once_while, _TWICE, "log outside of `while_loop`"
    ),
    patch_of_rule(
        "checkpoint",
        while_p,
        once_while_equation,
        _TWICE,
        "log outside of `while_loop`",
    ),
    patch_of_rule(
        "JVP",
        linear_solve_p,
        derivatives.watched_solve,
        "the solution of a linear system is logged again for each tangent",
        "log outside of `custom_linear_solve`",
    ),
    Patch(
        "the effects of high-level primitives",
        without="JAX drops a high-level primitive whose results are not used, and its "
        "events",
        instead="log outside of high-level primitives",
        install=lambda: hijax.give_effects(frozenset({LOG_EFFECT, ORDERED_LOG_EFFECT})),
    ),
    Patch(
        "the end of a partial evaluation",
        without="`jax.checking_leaks` reports the operands of events as leaked tracers",
        instead="do not check for leaks",
        install=lambda: partial_eval.forget_effect_handles(
            lambda eqn: eqn.primitive is log_p or bool(events_inside(eqn))
        ),
    ),
    *(
        patch_of_rule(
            "batching",
            primitive,
            library_loops.guarded_while
            if primitive is while_p
            else library_loops.guarded_jaxprs,
            "under `vmap`, lanes go on logging when their loop of Equinox has ended",
            "log outside of `eqxi.while_loop` and what is built on it",
            library_loops.events_with_lanes_merged,
            " for loops of Equinox",
        )
        for primitive in (scan_p, cond_p, jit_p, checkpoint_p, hijax_p, while_p)
        if primitive is not None
    ),
)
checkify.when_rules_exist(
    lambda: patches.add(
        patch_of_rule(
            "checkify",
            while_p,
            checked_once,
            "`checkify` evaluates the condition of a loop twice, events and all",
            "log in the body of the `while_loop`",
            events_in_condition,
        )
    )
)
