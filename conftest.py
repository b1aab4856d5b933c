"""Set-up that must come before JAX is imported."""

import contextlib
import ctypes
import gc
import os
import signal
from importlib import metadata

# Shells start background jobs with an ignored SIGINT, which would be ignored by the
# programs of the tests too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_FLAGS = [os.environ.get("XLA_FLAGS", "")]
# XLA's compiler takes most of the time of the tests. Up to JAX 0.10 it has two code
# generators: the older one, on one thread, fuses a little less and takes a third of the
# time for small programs. The newer one, the only one since JAX 0.11, can be tested
# with `XLA_FLAGS=--xla_cpu_use_fusion_emitters=true`.
if (
    tuple(map(int, metadata.version("jaxlib").split(".")[:2])) < (0, 11)
    and "--xla_cpu_use_fusion_emitters" not in _FLAGS[0]
):
    _FLAGS += ["--xla_cpu_use_fusion_emitters=false"]
    _FLAGS += ["--xla_cpu_parallel_codegen_split_count=1"]
# shard_map and meshes need devices; everything else runs on the first one
_FLAGS += ["--xla_force_host_platform_device_count=8"]
os.environ["XLA_FLAGS"] = " ".join(_FLAGS)
# LLVM's optimizations take up to half of the compiler's time, and hardly matter for
# small programs. XLA's optimized HLO is the same without them. To test with them:
# `JAX_DISABLE_MOST_OPTIMIZATIONS=0`.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Locations in lowered programs have one frame instead of whole tracebacks
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import pytest

import lox

collect_ignore = [
    "tests/typing_of_the_api.py",  # only for the type checker
    "docs/conf.py",  # for Sphinx
    "docs/site",
]


def pytest_collection_finish(session):
    # imported modules are never freed, so garbage collections need not traverse them
    gc.collect()
    gc.freeze()
    # tracing allocates much and leaves little; the memory is limited below
    gc.set_threshold(100_000, 20, 50)


def _resident_bytes():
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:  # only Linux has this file
        return 0


_max_bytes = 1 << 30


@pytest.fixture(autouse=True)
def limit_memory_of_compiled_programs():
    global _max_bytes
    yield
    if _resident_bytes() > _max_bytes:
        jax.clear_caches()
        gc.collect()
        with contextlib.suppress(AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)
        _max_bytes = max(1 << 30, _resident_bytes() + (1 << 29))


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace):
    doctest_namespace.update(jax=jax, jnp=jnp, lox=lox)


@pytest.fixture(autouse=True)
def console_in_documentation_shows_only_the_end(request, monkeypatch):
    """Its intermediate output depends on the speed of the machine."""
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.setattr(
            "lox.loggers._console.logger._Timer._run", lambda timer: None
        )


@pytest.fixture(autouse=True)
def pages_write_to_a_temporary_directory(request, monkeypatch):
    """Their examples write to `"runs"`, as readers do."""
    if isinstance(request.node, pytest.DoctestItem) and request.path.suffix == ".md":
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))


@pytest.fixture(autouse=True)
def default_handler():
    yield
    lox.set_default("print")
