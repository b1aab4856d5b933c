"""The oracle on many random programs: `python -m tests.soak COUNT [FIRST_SEED]`."""

import os
import sys
import time
import traceback

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from . import oracle
from .test_oracle import check, check_loose


def main(count: int, first: int) -> int:
    failed = 0
    start = time.perf_counter()
    for seed in range(first, first + count):
        for loose, test in ((False, check), (True, check_loose)):
            try:
                test(seed)
            except Exception:
                failed += 1
                print(f"seed {seed}, loose={loose}:")
                print(oracle.show(oracle.generate(seed, loose=loose)))
                traceback.print_exc(limit=-6)
        if (seed - first) % 50 == 49:
            rate = (seed - first + 1) / (time.perf_counter() - start)
            print(f"{seed - first + 1} programs, {failed} failed, {rate:.1f}/s")
    print(f"{2 * count} programs from seed {first} on: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*(numbers + [2000, 100_000][len(numbers) :])))
