"""The peers, one file per kind. The first is what the others are compared with."""

from benchmarks.peers.contender import Peer

from . import of_flax, of_jax, of_jax_tap, of_lox, of_oryx

BY_HAND = of_jax.BY_HAND
PEERS: list[Peer] = [
    BY_HAND,
    *of_lox.PEERS,
    *of_jax.PEERS,
    *of_jax_tap.PEERS,
    *of_flax.PEERS,
    *of_oryx.PEERS,
]
