"""Some cases of each kind of hostile input; the harness must notice failures."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.fuzz.hostile import sandbox
from tests.fuzz.hostile.kinds import KINDS, OF_TRACKERS

COUNTS = {
    "files": 20,
    "requests": 30,
    "arguments": 30,
    "command": 30,
    "environment": 20,
    "urls": 20,
    "following": 15,
}


@pytest.mark.skipif(sys.platform != "linux", reason="uses Linux' limits and pipes")
@pytest.mark.parametrize("kind", [x for x in KINDS if x not in OF_TRACKERS])
def test_hostile_input_gives_a_result_or_an_error_of_lox(kind):
    failures = sandbox.run_cases(KINDS[kind], 0, COUNTS[kind])
    assert not failures, "\n".join(f"seed {x.seed}:\n{x.error}" for x in failures)


def misbehave(seed):
    """What `run_cases` must notice; the last case is fine."""
    if seed == 0:
        raise KeyError("unexpected")
    if seed == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if seed == 2:
        subprocess.run(["true"], check=True)
    if seed == 3:
        with open("/dev/full", "w"):
            pass
    if seed == 4:
        bytearray(2**40)
    if seed == 5:
        sandbox.command("show")  # which needs a run
    if seed == 6:
        sandbox.faulthandler.dump_traceback_later(0.01, exit=True)
        time.sleep(sandbox.HANG)


@pytest.mark.skipif(sys.platform != "linux", reason="uses Linux' limits")
def test_sandbox_notices_errors_crashes_hangs_memory_code_and_writes():
    failures = {x.seed: x.error for x in sandbox.run_cases(misbehave, 0, 8)}
    expected = {
        0: "KeyError",
        1: f"exit code {-signal.SIGSEGV}",
        2: "subprocess.Popen",
        3: "wrote /dev/full",
        4: "MemoryError",
        6: "Timeout",
    }
    assert failures.keys() == expected.keys()
    for seed, text in expected.items():
        assert text in failures[seed]
