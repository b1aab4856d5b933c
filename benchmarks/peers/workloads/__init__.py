"""The workloads, one file per kind."""

from .derivatives import CHECKPOINTED, COTANGENTS, DERIVATIVE, TRANSFORMER
from .loops import LONG_SCAN, NESTED, SHORT_SCAN, WHILE, scan_workload
from .reinforcement import PPO

# In the order of the page.
WORKLOADS = {
    "scan-10": SHORT_SCAN,
    "scan-100000": LONG_SCAN,
    "nested": NESTED,
    "while": WHILE,
    "derivative": DERIVATIVE,
    "transformer": TRANSFORMER,
    "checkpointed": CHECKPOINTED,
    "ppo": PPO,
    "cotangents": COTANGENTS,
}

__all__ = ["WORKLOADS", "scan_workload"]
