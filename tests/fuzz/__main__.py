"""Compares random programs with plain Python: `python -m tests.fuzz COUNT [SEED]`.

A program that fails is made small and printed, to be put into
`tests/fuzz/found_programs.py`. `python -m tests.fuzz 1 SEED` repeats it.
"""

import argparse
import datetime
import json
import os
import pathlib
import sys
import time
import traceback
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compile quickly
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax

import lox
from tests import oracle
from tests.fuzz import shrinking
from tests.fuzz.checks import CHECKS, program_of

RECORD = pathlib.Path(__file__).parents[2] / "docs" / "fuzz.jsonl"
FLAGS = [flag for flag in ("JAX_REMAT3", "JAX_CUSTOM_VJP3") if os.environ.get(flag)]


def error_of(name: str, seed: int, program: oracle.Program | None = None) -> str | None:
    """The error of a check, or None if it passes."""
    lox.set_default("silent")  # otherwise untransformed programs print
    try:
        CHECKS[name](seed, program)
    except Exception:
        return traceback.format_exc(limit=-6)
    return None


def report(name: str, seed: int, error: str) -> None:
    program = shrinking.shrink(
        program_of(name, seed), lambda p: error_of(name, seed, p) is not None
    )
    print(f"seed {seed}, {name!r}:")
    print(oracle.show(program))
    print(f"    ({name!r}, {seed}, {program!r}),")
    print(error_of(name, seed, program) or error, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=2000)
    parser.add_argument("first", type=int, nargs="?", default=100_000)
    parser.add_argument("--only", choices=CHECKS, action="append")
    parser.add_argument(
        "--record", action="store_true", help=f"append to {RECORD.name}"
    )
    options = parser.parse_args()
    # what is logged only by a derivative rule, or a program without loops, is expected
    warnings.simplefilter("ignore")
    names = options.only or list(CHECKS)
    done = failed = 0
    start = time.monotonic()
    for seed in range(options.first, options.first + options.count):
        name = names[seed % len(names)]
        if error := error_of(name, seed):
            failed += 1
            report(name, seed, error)
        done += 1
        if done % 100 == 0:
            jax.clear_caches()  # otherwise compiled programs fill the memory
            rate = done / (time.monotonic() - start)
            print(f"{done} programs, {failed} failed, {rate:.1f}/s", flush=True)
    print(f"{done} programs from seed {options.first} on: {failed} failed")
    if options.record:
        line = {
            "jax": jax.__version__,
            "flags": FLAGS,
            "date": datetime.date.today().isoformat(),
            "first": options.first,
            "count": done,
            "failed": failed,
            "checks": names,
        }
        with RECORD.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
