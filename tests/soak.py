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
from .interpreter import test_mixed_oracle, test_oracle
from .streams import test_oracle as test_streams_oracle

CHECKS = (
    ("spool, tap and nolog", test_oracle.check),
    ("unbounded loops", test_oracle.check_unbounded),
    ("streams", test_streams_oracle.check),
    ("every kind of event", test_mixed_oracle.check),
)


def program(name: str, seed: int) -> oracle.Program:
    if name == "every kind of event":
        return test_mixed_oracle.Program(seed).statements
    unbounded = seed % 4 > 1 if name == "streams" else name == "unbounded loops"
    return oracle.generate(seed, unbounded=unbounded)


def main(count: int, first: int) -> int:
    failed = 0
    start = time.perf_counter()
    for seed in range(first, first + count):
        for name, check in CHECKS:
            lox.set_default("silent")  # otherwise untransformed programs print
            try:
                check(seed)
            except Exception:
                failed += 1
                print(f"seed {seed}, {name}:")
                print(oracle.show(program(name, seed)))
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
