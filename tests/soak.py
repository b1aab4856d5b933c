"""The oracles on many random programs: `python -m tests.soak COUNT [FIRST_SEED]`.

A failure is printed with its seed, and can be repeated with
`python -m tests.soak 1 SEED`.
"""

import os
import sys
import time
import traceback

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import lox

from . import oracle
from .interpreter import test_oracle
from .streams import test_oracle as test_streams_oracle

CHECKS = (
    ("spool, tap and nolog", False, test_oracle.check),
    ("unbounded loops", True, test_oracle.check_unbounded),
    ("streams", None, test_streams_oracle.check),
)


def main(count: int, first: int) -> int:
    failed = 0
    start = time.perf_counter()
    for seed in range(first, first + count):
        for name, unbounded, check in CHECKS:
            lox.set_default("silent")  # otherwise untransformed programs print
            try:
                check(seed)
            except Exception:
                failed += 1
                print(f"seed {seed}, {name}:")
                is_unbounded = seed % 4 > 1 if unbounded is None else unbounded
                print(oracle.show(oracle.generate(seed, unbounded=is_unbounded)))
                traceback.print_exc(limit=-6)
        done = seed - first + 1
        if done % 50 == 0:
            jax.clear_caches()  # otherwise compiled programs fill the memory
            rate = done * len(CHECKS) / (time.perf_counter() - start)
            print(f"{done * len(CHECKS)} programs, {failed} failed, {rate:.1f}/s")
    print(f"{len(CHECKS) * count} programs from seed {first} on: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*(numbers + [2000, 100_000][len(numbers) :])))
