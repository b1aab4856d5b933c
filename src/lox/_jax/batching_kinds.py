"""Classifies batching rules without running them."""

import functools
from types import CodeType
from typing import Any

from jax.interpreters import batching

from . import compat, primitives, tracebacks

_batch_jaxpr = compat.private(
    "interpreters.batching.batch_jaxpr", "find the lanes of a `while_loop` that log"
)

# The rules with which all results are batched if any input is, and none otherwise.
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


# the primitives whose rule lox has wrapped by one of the same kind
_wrapped: set[Any] = set()


def keep_kind(primitive: Any) -> None:
    """Classifies a primitive by the rule that the current one has wrapped."""
    _wrapped.add(primitive)


def batching_kind(primitive: Any) -> str:
    """The kind of the batching rule of a primitive.

    Returns:
        `"plain"`: all results are batched if any input is, and none otherwise.
        `"only with batched inputs"`: no result is batched unless an input is.
        `"unknown"`: the rule has to be run to find out.
    """
    rule = batching.fancy_primitive_batchers.get(primitive)
    if rule is not None:
        return _kind_of_rule(rule.__wrapped__ if primitive in _wrapped else rule)
    # without a rule, JAX binds it unchanged, and raises if an input is batched
    ordinary = type(primitive).bind_with_trace is primitives.Primitive.bind_with_trace
    return "only with batched inputs" if ordinary else "unknown"


@functools.lru_cache(maxsize=1024)
def _kind_of_rule(rule: Any) -> str:
    kind = "unknown"
    while True:
        code = getattr(rule, "__code__", None)
        if isinstance(rule, functools.partial):
            rule = rule.func
        elif code is not None and _is_shim(code):
            # one of the older tables is used only if an input is batched
            if "prim" in code.co_freevars:
                kind = "only with batched inputs"
            rule = rule.__closure__[code.co_freevars.index("batcher")].cell_contents
        else:
            break
    # compared by code, because a wrapper may have the name of the rule
    if code is None or code.co_name not in _PLAIN_BATCHING:
        return kind
    return "plain" if code.co_filename.startswith(tracebacks.JAX_DIRECTORY) else kind


def _is_shim(code: CodeType) -> bool:
    """Whether this is JAX's adapter for a rule of one of its older tables."""
    is_jax = code.co_filename == _batch_jaxpr.__code__.co_filename
    return is_jax and code.co_freevars in (("batcher",), ("batcher", "prim"))
