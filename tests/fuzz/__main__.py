"""Compares random programs with plain Python: `python -m tests.fuzz COUNT [SEED]`.

A program that fails is shrunk and printed, to be added to
`tests/fuzz/found_programs.py`. `python -m tests.fuzz 1 SEED` repeats it. Most programs
are evaluated with NumPy instead of compiled, which takes a fifth of the time.
"""

import argparse
import contextlib
import datetime
import gc
import json
import os
import pathlib
import sys
import time
import traceback
import warnings
from typing import NamedTuple

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
from tests.fuzz.evaluation import without_compiling
from tests.fuzz.orders import fails_alike
from tests.interpreter.test_mixed_oracle import Program, X

RECORD = pathlib.Path(__file__).parents[2] / "docs" / "fuzz.jsonl"
FLAGS = [flag for flag in ("JAX_REMAT3", "JAX_CUSTOM_VJP3") if os.environ.get(flag)]


_CLEAR = 1000  # programs after which compiled ones are dropped from the memory
_COLLECT = 100  # programs after which garbage is collected; tracing makes much of it
_SLICE = 500  # programs per recorded line


class Case(NamedTuple):
    """What is compared for a seed, and whether its program is compiled."""

    seed: int
    name: str
    compiled: bool

    def error(self, program: oracle.Program | None = None) -> str | None:
        """The error of the check, or None if it passes."""
        lox.set_default("silent")  # otherwise untransformed programs print
        oracle.close_calls.clear()
        context = contextlib.nullcontext() if self.compiled else without_compiling()
        try:
            with context:
                CHECKS[self.name](self.seed, program)
        except Exception as error:
            if oracle.close_calls:  # a rounding error may decide
                return None
            if FLAGS and self._fails_without_lox(program, error):
                return None
            return traceback.format_exc(limit=-6)
        return None

    def _fails_without_lox(
        self, program: oracle.Program | None, error: Exception
    ) -> bool:
        """Whether JAX itself fails.

        With both flags, JAX 0.12 cannot differentiate a checkpoint of a `custom_vjp`
        function that calls a `custom_jvp` function: "Store occupied".
        """
        statements = program or program_of(self.name, self.seed)
        plain = Program(self.seed, statements).without_lox
        return fails_alike(jax.grad(jax.checkpoint(plain)), X, error)


def case_of(seed: int, names: list[str], every: int) -> Case:
    compiled = seed % every == 0
    possible = names if compiled else [name for name in names if name != "devices"]
    if not possible:
        return Case(seed, "devices", compiled=True)
    return Case(seed, possible[seed % len(possible)], compiled)


def report(case: Case, error: str) -> None:
    program = shrinking.shrink(
        program_of(case.name, case.seed), lambda p: case.error(p) is not None
    )
    print(f"seed {case.seed}, {case.name!r}:")
    print(oracle.show(program))
    print(f"    ({case.name!r}, {case.seed}, {program!r}),")
    print(case.error(program) or error, flush=True)


def record(cases: list[Case], failed: int) -> None:
    line = {
        "jax": jax.__version__,
        "flags": FLAGS,
        "date": datetime.date.today().isoformat(),
        "first": cases[0].seed,
        "count": len(cases),
        "compiled": sum(case.compiled for case in cases),
        "failed": failed,
        "checks": sorted({case.name for case in cases}),
    }
    with RECORD.open("a") as file:
        file.write(json.dumps(line) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=2000)
    parser.add_argument("first", type=int, nargs="?", default=100_000)
    parser.add_argument("--only", choices=CHECKS, action="append")
    parser.add_argument(
        "--compile-every",
        type=int,
        default=20,
        metavar="N",
        help="compile every N-th program (default: %(default)s)",
    )
    parser.add_argument(
        "--record", action="store_true", help=f"append to {RECORD.name}"
    )
    options = parser.parse_args()
    # what is logged only by a derivative rule, or a program without loops, is expected
    warnings.simplefilter("ignore")
    gc.freeze()  # the modules are not garbage
    gc.disable()
    names = options.only or list(CHECKS)
    done, failed = 0, 0
    start = time.monotonic()
    for first in range(options.first, options.first + options.count, _SLICE):
        end = min(first + _SLICE, options.first + options.count)
        cases = [
            case_of(seed, names, options.compile_every) for seed in range(first, end)
        ]
        before = failed
        for case in cases:
            if error := case.error():
                failed += 1
                report(case, error)
            done += 1
            if done % _COLLECT == 0:
                gc.collect()
            if done % _CLEAR == 0:
                jax.clear_caches()
                rate = done / (time.monotonic() - start)
                print(f"{done} programs, {failed} failed, {rate:.1f}/s", flush=True)
        if options.record:
            record(cases, failed - before)
    programs = "program" if done == 1 else "programs"
    print(f"{done} {programs} from seed {options.first} on: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
