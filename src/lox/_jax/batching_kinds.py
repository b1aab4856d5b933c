"""What is known of batching rules without running them."""

import functools
from types import CodeType
from typing import Any

from jax.interpreters import batching

from . import compat, primitives, tracebacks

_batch_jaxpr = compat.private(
    "interpreters.batching.batch_jaxpr", "tell which lanes of a `while_loop` log"
)

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
    ordinary = type(primitive).bind_with_trace is primitives.Primitive.bind_with_trace
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
    return "plain" if code.co_filename.startswith(tracebacks.JAX_DIRECTORY) else kind


def _is_shim(code: CodeType) -> bool:
    """Whether this is what JAX makes of a rule for one of its older tables."""
    is_jax = code.co_filename == _batch_jaxpr.__code__.co_filename
    return is_jax and code.co_freevars in (("batcher",), ("batcher", "prim"))
