"""Invalid options of tracker loggers, and damaged logs that they could not send."""

import importlib.util
import sys

import pytest

from tests.fuzz.hostile import sandbox
from tests.fuzz.hostile.kinds import KINDS, OF_TRACKERS

for package in ("mlflow", "neptune", "trackio", "wandb"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)


@pytest.mark.skipif(sys.platform != "linux", reason="uses Linux' limits and pipes")
@pytest.mark.parametrize("kind", OF_TRACKERS)
def test_hostile_input_gives_a_result_or_an_error_of_lox(kind):
    failures = sandbox.run_cases(KINDS[kind], 0, 15)
    assert not failures, "\n".join(f"seed {x.seed}:\n{x.error}" for x in failures)
