"""The table of patches: each JAX rule, its wrapper, and what goes wrong without it.

Patches of the same rule are installed in this order, so the last one is called first.
"""

from collections.abc import Callable
from typing import Any

from lox._events.primitive import LOG_EFFECT, ORDERED_LOG_EFFECT, log_p
from lox._interpreter import recomputation
from lox._interpreter.contents import events_inside
from lox._interpreter.library_loops import (
    batching as library_batching,
    differentiating as library_derivatives,
)
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

from . import batched_scan, batched_while, differing_devices, ordered_in_shard_map
from .batched_cond import batch_cond
from .missing import (
    Needs,
    events_and_cotangents_in,
    events_in,
    events_in_condition,
    may_log,
    reject,
)
from .repeated_while import partial_eval_while, partial_eval_while_equation
from .scan_derivatives import (
    jvp_of_scan,
    linearize_scan,
    partial_eval_scan,
    partial_eval_scan_equation,
)
from .unmapped import batches_itself, patch_of_unmapped
from .unused_checkpoint import dce_checkpoint, dce_hijax
from .while_conditions import checkify_while, lower_while


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
        kind: the kind of the rule (see `rule_tables.wrap_rule`).
        primitive: the primitive.
        wrapper: called instead of the rule, for equations that log.
        without: what goes wrong without the patch.
        instead: the remedy, for the error message.
        needs: returns the events of an equation that need the patch.
        purpose: distinguishes patches of the same rule.
        applies: whether to call the wrapper for an equation; by default, if it has
            events that need the patch.
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
        lambda patch: reject(patch, primitive, needs),
    )


_HOISTED = (
    "JAX moves constant events out of a differentiated `scan`: they are logged once"
)
_TWICE = "JAX runs a differentiated `while_loop` twice, and logs its events twice"

patches.add(
    *(
        patch_of_rule(kind, scan_p, wrapper, _HOISTED, "log outside `scan`")
        for kind, wrapper in (
            ("JVP", jvp_of_scan),
            ("linearization", linearize_scan),
            ("partial evaluation", partial_eval_scan),
            ("checkpoint", partial_eval_scan_equation),
        )
    ),
    patch_of_rule(
        "lowering",
        while_p,
        lower_while,
        "XLA removes the condition of a loop whose length it knows, and its events",
        "log in the body of the `while_loop`",
        events_in_condition,
    ),
    patch_of_rule(
        "dead code",
        checkpoint_p,
        dce_checkpoint,
        "JAX removes a `checkpoint` whose results are not used, and its events",
        "log outside `jax.checkpoint`",
    ),
    *(
        patch_of_rule(
            "dead code",
            primitive,
            dce_hijax,
            "JAX removes a high-level primitive whose results are not used, and its "
            "events",
            "log outside high-level primitives",
        )
        for primitive in (hijax_p,)
        if primitive is not None
    ),
    patch_of_rule(
        "batching",
        scan_p,
        batched_scan.batch_scan,
        "`vmap` of a `scan` with loops inside is slow to trace",
        "nest fewer loops",
        needs=lambda params: (),  # it only saves time
        purpose=", once instead of several times",
        applies=batched_scan.logs_or_made_by_lox,
    ),
    patch_of_rule(
        "batching",
        cond_p,
        batch_cond,
        "under `vmap`, all lanes log the events of all branches",
        "log outside `cond` and `switch`",
        events_and_cotangents_in,
        applies=may_log,
    ),
    patch_of_rule(
        "batching",
        while_p,
        batched_while.batch_while,
        "under `vmap`, lanes continue to log after their loop has ended",
        "log outside `while_loop`",
        applies=batched_while.logs_or_made_by_lox,
    ),
    *(
        patch_of_rule(kind, while_p, wrapper, _TWICE, "log outside `while_loop`")
        for kind, wrapper in (
            ("partial evaluation", partial_eval_while),
            ("checkpoint", partial_eval_while_equation),
        )
    ),
    patch_of_unmapped(primitives.custom_vmap_p),
    *(
        patch_of_unmapped(primitive, batches_itself)
        for primitive in (hijax_p,)
        if primitive is not None
    ),
    patch_of_rule(
        "JVP",
        linear_solve_p,
        recomputation.jvp_of_linear_solve,
        "the solution of a linear system is logged again for each tangent",
        "log outside `custom_linear_solve`",
    ),
    Patch(
        "the lowering rule of `shard_map`",
        without="devices may wait forever for others that take another branch",
        instead="log with `over` outside branches and loops",
        install=differing_devices.install,
        refuse=differing_devices.refuse,
    ),
    Patch(
        "the lowering rule of `shard_map`, for events in program order",
        without="XLA aborts if they are in a `shard_map` inside another one",
        instead="log outside `shard_map`",
        install=ordered_in_shard_map.install,
        refuse=ordered_in_shard_map.refuse,
    ),
    Patch(
        "the effects of high-level primitives",
        without="JAX removes a high-level primitive whose results are not used, and "
        "its events",
        instead="log outside high-level primitives",
        install=lambda: hijax.propagate_effects(
            frozenset({LOG_EFFECT, ORDERED_LOG_EFFECT})
        ),
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
            library_batching.batch_while
            if primitive is while_p
            else library_batching.batch_inner_jaxprs,
            "under `vmap`, lanes continue to log after their Equinox loop has ended",
            "log outside `eqxi.while_loop` and outside functions that use it",
            library_batching.events_with_merged_lanes,
            " for Equinox loops",
            library_batching.may_log_with_merged_lanes,
        )
        for primitive in (scan_p, cond_p, jit_p, checkpoint_p, hijax_p, while_p)
        if primitive is not None
    ),
    *(
        patch_of_rule(
            kind,
            scan_p,
            library_derivatives.differentiate_scan,
            "under `vmap`, lanes log cotangents of zero after their Equinox loop "
            "has ended",
            "use `log_grad` outside `eqxi.while_loop`",
            library_batching.events_with_merged_lanes,
            " for Equinox loops",
            library_derivatives.may_log_with_merged_lanes,
        )
        for kind in ("JVP", "linearization")
    ),
)
checkify.when_rules_exist(
    lambda: patches.add(
        patch_of_rule(
            "checkify",
            while_p,
            checkify_while,
            "`checkify` evaluates the condition of a loop twice, including its events",
            "log in the body of the `while_loop`",
            events_in_condition,
        )
    )
)
