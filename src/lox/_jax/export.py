"""Programs that return nodes of ours, exported."""

from collections.abc import Callable
from typing import Any


def register_node(
    node: type,
    name: str,
    serialize: Callable[[Any], bytes],
    deserialize: Callable[[bytes], Any],
) -> None:
    """Lets an exported program that returns such a pytree node be serialized."""
    from jax import export

    export.register_pytree_node_serialization(
        node,
        serialized_name=name,
        serialize_auxdata=serialize,
        deserialize_auxdata=deserialize,
    )
