"""Many processes that write one run, as in a job of many hosts.

`python -m benchmarks.cluster_writers STORE PROCESSES ROWS` prints the CPU time per row,
in seconds. The processes are forked, since each would import JAX, and write rows as
programs deliver them.
"""

import os
import pathlib
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import lox
from lox._store.creating import create_run
from lox._store.processes import part_path
from lox._store.writer import Writer

KEYS = tuple("abcdefghij")
ROW_BYTES = 4 * (len(KEYS) + 1)  # scalars of 32 bits, and a step


def _to_logs(arrays: Sequence[Any]) -> lox.logdict:
    *values, step = arrays
    steps = {"step": dict.fromkeys(KEYS, step)}
    return lox.logdict(dict(zip(KEYS, values, strict=True)), steps)


def _write(run: pathlib.Path, process: int, rows: int) -> float:
    """Writes the rows of one process; returns the CPU time per row."""
    writer = Writer(create_run(part_path(run, process), "x", [0, 0]))
    values = [np.array(process + i, np.float32) for i in range(len(KEYS))]
    start = time.process_time()
    for step in range(rows):
        writer.write_row(_to_logs, [*values, np.array(step, np.int32)])
    seconds = time.process_time() - start
    writer.finish()
    writer.close()
    return seconds / rows


def main(store: str, processes: int, rows: int) -> float:
    run = pathlib.Path(store) / "00000000-00000000"
    read, write = os.pipe()
    start, begin = os.pipe()
    children = []
    for process in range(processes):
        child = os.fork()
        if not child:
            os.close(begin)
            os.read(start, 1)  # until all are there
            os.write(write, struct.pack("<d", _write(run, process, rows)))
            os._exit(0)
        children.append(child)
    os.close(begin)
    times = [struct.unpack("<d", os.read(read, 8))[0] for _ in children]
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    return float(np.median(times))


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
