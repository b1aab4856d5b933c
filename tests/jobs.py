"""Jobs of several local processes that JAX connects (`jax.distributed`)."""

import functools
import signal
import socket
import textwrap
from collections.abc import Callable
from typing import Any

from . import programs
from .waiting import in_threads

# what each process runs first: it has two devices, and its index and the number of
# processes are `process` and `processes`
_CONNECT = """
import json, os, sys, traceback
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import lox, lox.loggers

process, processes, port = map(int, sys.argv[1:4])
arguments = sys.argv[4:]

def end_at_once(*error):  # else JAX waits for the other processes first
    traceback.print_exception(*error)
    os._exit(1)

sys.excepthook = end_at_once

def connect(**options):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process, **options)

def global_mesh():
    devices = jax.device_count()
    return jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))

def global_array(mesh, local):
    sharding = NamedSharding(mesh, P("data"))
    shape = (len(local) * processes, *local.shape[1:])
    return jax.make_array_from_process_local_data(sharding, local, shape)
"""


def start(program, count, *arguments, **options):
    """Starts the processes of a job; `program` calls `connect()` itself.

    The options are those of `programs.start`.
    """
    return [start() for start in starters(program, count, *arguments, **options)]


def starters(program, count, *arguments, **options) -> list[Callable[[], Any]]:
    """A function per process of a job that starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = _CONNECT + textwrap.dedent(program)
    return [
        functools.partial(
            programs.start, code, index, count, port, *arguments, **options
        )
        for index in range(count)
    ]


def run(program, count, *arguments):
    """Runs a job whose processes must all succeed; returns what each printed."""
    processes = start(program, count, *arguments)
    printed = {}

    def wait(process):
        printed[process] = process.communicate()
        if process.returncode:  # the others may wait for it
            for other in processes:
                other.kill()

    in_threads(wait, [(process,) for process in processes])
    failed = [process for process in processes if process.returncode]
    failed.sort(key=lambda process: process.returncode == -signal.SIGKILL)
    assert not failed, printed[failed[0]][1]
    return [printed[process][0] for process in processes]
