"""The peers, one file per kind. The first is what the others are compared with."""

from benchmarks.peers.contender import Peer

from . import flax_sow, jax_callbacks, jax_tap, lox_transformations, oryx_harvest

BY_HAND = jax_callbacks.BY_HAND
PEERS: list[Peer] = [
    BY_HAND,
    *lox_transformations.PEERS,
    *jax_callbacks.PEERS,
    *jax_tap.PEERS,
    *flax_sow.PEERS,
    *oryx_harvest.PEERS,
]
