"""Runs lox on hostile input: `python -m tests.fuzz.hostile [--count N] [--seed S]`.

`--count 1 --seed S --only KIND` repeats a case.
"""

import argparse
import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # MLflow writes to the home directory

from tests.fuzz.hostile.kinds import KINDS
from tests.fuzz.hostile.sandbox import run_cases

_CASES_OF_A_PROCESS = 100  # few enough for a slow machine


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.hostile", description=__doc__
    )
    parser.add_argument("--count", type=int, default=2000, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=100_000)
    parser.add_argument("--only", choices=KINDS, action="append")
    options = parser.parse_args()
    failed = 0
    for kind in options.only or KINDS:
        start = time.monotonic()
        found, end = 0, options.seed + options.count
        for first in range(options.seed, end, _CASES_OF_A_PROCESS):
            count = min(_CASES_OF_A_PROCESS, end - first)
            for failure in run_cases(KINDS[kind], first, count):
                found += 1
                print(f"seed {failure.seed}, {kind}:\n{failure.error}", flush=True)
        rate = options.count / (time.monotonic() - start)
        print(
            f"{options.count} cases of {kind} from seed {options.seed} on: "
            f"{found} failed, {rate:.1f}/s",
            flush=True,
        )
        failed += found
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
