"""JAX's higher-order primitives, and their parameters by version."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core as jex
from jax.extend.core import JaxprEqn

from . import compat

Primitive = jex.Primitive


@functools.cache
def _unspecified() -> tuple[Any, Any]:
    """The unspecified sharding and layout in the parameters of `jit`."""
    params = compat.example(jax.jit(lambda x: x), 0.0).eqns[0].params
    return params["out_shardings"][0], params["out_layouts"][0]


def jit_inline_is_bool() -> bool:
    """Whether the parameter `inline` of `jit` is a bool, as it is before 0.11."""
    params = compat.example(jax.jit(lambda x: x), 0.0).eqns[0].params
    return isinstance(params["inline"], bool)


def jit_params(params: dict[str, Any], inputs: int, outputs: int) -> dict[str, Any]:
    """Parameters of `jit` for more inputs in front, and more outputs at the end."""
    sharding, layout = _unspecified()
    return {
        "in_shardings": (sharding,) * inputs + tuple(params["in_shardings"]),
        "in_layouts": (layout,) * inputs + tuple(params["in_layouts"]),
        "donated_invars": (False,) * inputs + tuple(params["donated_invars"]),
        "out_shardings": tuple(params["out_shardings"]) + (sharding,) * outputs,
        "out_layouts": tuple(params["out_layouts"]) + (layout,) * outputs,
    }


jit_p: Any = jex.primitives.jit_p
scan_p: Any = jex.primitives.scan_p
cond_p: Any = jex.primitives.cond_p
while_p: Any = jex.primitives.while_p
checkpoint_p: Any = jex.primitives.remat_p
linear_solve_p: Any = jex.primitives.linear_solve_p
hijax_p: Any = compat.private(
    "hijax.call_hi_primitive_p", "there are no high-level primitives", default=None
)
shard_map_p: Any = compat.private(
    "shard_map.shard_map_p", "find events with `over` that only some devices reach"
)
custom_vmap_p: Any = compat.private(
    "custom_batching.custom_vmap_p", "log in all lanes of a `custom_vmap` function"
)

# primitives whose public functions have other names
_PUBLIC_NAMES = {
    "custom_vmap_call": "custom_vmap",
    "linear_solve": "lineax.linear_solve",
    "noinline": "eqxi.noinline",
    "remat2": "checkpoint",
    "vprim": "eqxi.create_vprim",
    "while": "while_loop",
}


def public_name(primitive: Any) -> str:
    """The name of the public function of a primitive."""
    return _PUBLIC_NAMES.get(primitive.name, primitive.name)


# the primitives of control flow and calls
HIGHER_ORDER = (jit_p, scan_p, cond_p, while_p, checkpoint_p, linear_solve_p)

# primitives that call one jaxpr, and are batched by batching it
CALLS: frozenset[Any] = frozenset(
    primitive
    for primitive in (
        jit_p,
        checkpoint_p,
        jex.primitives.call_p,
        jex.primitives.closed_call_p,
        jex.primitives.custom_jvp_call_p,
        jex.primitives.custom_vjp_call_p,
        compat.private(
            "core.eval_jaxpr_p", "no primitive only evaluates a jaxpr", default=None
        ),
    )
    if primitive is not None
)

# From 0.11 on, the operands of scan are grouped by flat trees, of which only the sizes
# matter; before, by numbers.


@functools.cache
def _flat_trees() -> tuple[Any, Any]:
    """The class of flat trees, and a leaf."""
    scan = compat.example(
        lambda x: lax.scan(lambda c, _: (c + 1, None), x, None, length=1), 0.0
    ).eqns[0]
    groups = scan.params["ft_in"]
    return type(groups), groups.unpack()[1].unpack()[0]


def scan_sizes(params: dict[str, Any], operands: int) -> tuple[int, int, int]:
    """The number of constants, carries and scanned inputs of a scan."""
    if "ft_in" in params:
        consts, carry, xs = (len(group) for group in params["ft_in"].unpack())
        return consts, carry, xs
    consts, carry = params["num_consts"], params["num_carry"]
    return consts, carry, operands - consts - carry


def scan_params(
    params: dict[str, Any], consts: int, carry: int, xs: int, ys: int
) -> dict[str, Any]:
    """Parameters of a scan with these numbers of operands and stacked outputs."""
    if "ft_in" in params:
        group, leaf = _flat_trees()
        groups = [group(*[leaf] * size) for size in (consts, carry, xs, ys)]
        return {"ft_in": group(*groups[:3]), "ft_out": group(groups[1], groups[3])}
    new: dict[str, Any] = {"num_consts": consts, "num_carry": carry}
    if "linear" in params:  # up to 0.9
        new["linear"] = (False,) * (consts + carry + xs)
    return new


def split_while(
    params: dict[str, Any], inputs: Sequence[Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    """The inputs of a `while_loop`, or what belongs to each of them, in groups.

    These are the constants of the condition, those of the body, and the carries.
    """
    body = params["cond_nconsts"]
    carry = body + params["body_nconsts"]
    return list(inputs[:body]), list(inputs[body:carry]), list(inputs[carry:])


def called_jaxpr(params: dict[str, Any]) -> Any:
    """The jaxpr that a call, such as `closed_call` or `eval_jaxpr`, evaluates."""
    # up to 0.10, the parameter of `eval_jaxpr` has another name
    return params["call_jaxpr"] if "call_jaxpr" in params else params["jaxpr"]


def comparable_params(eqn: JaxprEqn) -> dict[str, Any]:
    """The parameters of an equation that determine what it computes."""
    params = dict(eqn.params)
    if eqn.primitive is scan_p and "ft_in" in params:
        params["ft_in"] = scan_sizes(params, len(eqn.invars))
        del params["ft_out"]
    return params


def manual_axes(params: dict[str, Any]) -> frozenset[str]:
    return frozenset(params.get("newly_manual_axes", params.get("manual_axes", ())))
