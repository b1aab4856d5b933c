"""The comparisons that random programs must pass."""

from collections.abc import Callable
from functools import partial

from tests import oracle
from tests.fuzz import devices, orders, stores
from tests.interpreter import test_mixed_oracle, test_oracle
from tests.streams import test_oracle as test_streams_oracle

# Each is given a seed, and a program if it is not that of the seed. More programs find
# more than more transformations of each.
CHECKS: dict[str, Callable[[int, oracle.Program | None], None]] = {
    "spool, tap and nolog": partial(test_oracle.check, comparisons=1),
    "orders": orders.check,
    "unbounded loops": test_oracle.check_unbounded,
    "every kind of event": partial(test_mixed_oracle.check, comparisons=1),
    "streams": partial(test_streams_oracle.check, comparisons=1),
    "stores": stores.check,
    "devices": devices.check,
}


def program_of(name: str, seed: int) -> oracle.Program:
    """The program that a check makes of a seed."""
    if name in ("orders", "every kind of event", "stores", "devices"):
        return test_mixed_oracle.Program(seed).statements
    unbounded = seed % 4 > 1 if name == "streams" else name == "unbounded loops"
    return oracle.generate(seed, unbounded=unbounded)
