"""Jobs of several local processes that JAX connects (`jax.distributed`)."""

import socket
import textwrap

from . import programs
from .waiting import in_threads

# what each process runs first: it has two devices, and its index and the number of
# processes are `process` and `processes`
_CONNECT = """
import json, os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import lox, lox.loggers

process, processes, port = map(int, sys.argv[1:4])
arguments = sys.argv[4:]

def connect():
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)

def global_mesh():
    devices = jax.device_count()
    return jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))

def global_array(mesh, local):
    sharding = NamedSharding(mesh, P("data"))
    shape = (len(local) * processes, *local.shape[1:])
    return jax.make_array_from_process_local_data(sharding, local, shape)
"""


def start(program, count, *arguments):
    """Starts the processes of a job; `program` calls `connect()` itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = _CONNECT + textwrap.dedent(program)
    return [
        programs.start(code, index, count, port, *arguments) for index in range(count)
    ]


def run(program, count, *arguments):
    """Runs a job whose processes must all succeed; returns what each printed."""
    processes = start(program, count, *arguments)
    printed = {}
    in_threads(
        lambda process: printed.update({process: process.communicate()}),
        [(process,) for process in processes],
    )
    for process in processes:
        assert process.returncode == 0, printed[process][1]
    return [printed[process][0] for process in processes]
