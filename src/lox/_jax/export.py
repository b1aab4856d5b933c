"""`jax.export` of programs that return lox's pytree nodes."""

from collections.abc import Callable
from typing import Any


def register_node(
    node: type,
    name: str,
    serialize: Callable[[Any], bytes],
    deserialize: Callable[[bytes], Any],
) -> None:
    """Makes exported programs that return a pytree node serializable."""
    from jax import export

    export.register_pytree_node_serialization(
        node,
        serialized_name=name,
        serialize_auxdata=serialize,
        deserialize_auxdata=deserialize,
    )
