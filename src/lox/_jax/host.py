"""Running programs: barriers, calls, callbacks and transfers."""

import contextlib
import functools
import secrets
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

import jax

from lox._flag import Flag
from lox._serialized import call_all

from . import compat, patches, tracebacks
from .patches import Patch, UnavailableError

_runtime_tokens = compat.private(
    "dispatch.runtime_tokens", "raise the exceptions of callbacks at a barrier"
)
_ExecuteReplicated = compat.private(
    "interpreters.pxla.ExecuteReplicated", "raise interrupts of jitted programs"
)
_backend_started = compat.private(
    "xla_bridge.backends_are_initialized",
    "`lox.save` starts JAX's backend, so `jax.distributed.initialize` must come first",
    default=None,
)
_distributed = compat.private(
    "distributed.global_state",
    "a multi-process job does not notice that another one writes the same run",
    default=None,
)

# --- barriers ----------------------------------------------------------------

_barrier_hooks: list[Callable[[], None]] = []


def at_effects_barrier(hook: Callable[[], None]) -> None:
    """Runs `hook` at the end of every `jax.effects_barrier()`."""
    _barrier_hooks.append(hook)


def _watch_barrier() -> None:
    tokens = type(_runtime_tokens)
    original = tokens.block_until_ready

    @functools.wraps(original)
    def block_until_ready(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except jax.errors.JaxRuntimeError as error:
            if STOPPED not in str(error):
                raise
            _forget_failed(self)
        finally:
            if not _without_hooks:
                call_all(_barrier_hooks)

    tokens.block_until_ready = block_until_ready


BARRIER = Patch(
    "`jax.effects_barrier`",
    without="an exception in a callback is raised by a later call of lox, or never",
    instead="catch exceptions in the callback",
    install=_watch_barrier,
)
_without_hooks = Flag()


def wait_for_callbacks() -> None:
    """`jax.effects_barrier()`, without the hooks."""
    with _without_hooks:
        jax.effects_barrier()


# --- calls of programs -------------------------------------------------------


_call_program: Callable[[Callable[[], Any]], Any] = lambda call: call()  # noqa: E731


def around_programs(hook: Callable[[Callable[[], Any]], Any]) -> None:
    """Routes every call of a program with effects through `hook(call)`."""
    global _call_program
    _call_program = hook


def _watch_programs() -> None:
    program = _ExecuteReplicated
    if not hasattr(program, "_add_tokens_to_inputs"):  # not the expected class
        raise UnavailableError("JAX calls programs with effects in another way")
    original = program.__call__

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self.ordered_effects or self.has_unordered_effects):
            return original(self, *args, **kwargs)
        tokens = _runtime_tokens
        if getattr(tokens, "lox_stopped", 0) != _stopped:
            tokens.lox_stopped = _stopped
            _forget_failed(tokens)
        return _call_program(lambda: original(self, *args, **kwargs))

    program.__call__ = call


PROGRAMS = Patch(
    "the call of compiled programs with effects",
    without="an interrupt of a jitted program is raised as an XLA error",
    instead="catch `jax.errors.JaxRuntimeError`",
    install=_watch_programs,
)


def is_done(outputs: Sequence[Any]) -> bool:
    """Whether a program with these outputs and with effects has ended."""
    tokens = (token._buf for token in _runtime_tokens.current_tokens.values())
    try:
        return all(x.is_ready() for x in (*tokens, *outputs))
    except AttributeError:
        return False


# the message in the error of a program that one of lox's callbacks has ended
STOPPED = "stopped by an interrupt during lox's callback"
_stopped = 0


def program_stopped() -> None:
    """Records that a callback is about to end its program.

    JAX would pass the error on to the next program with ordered effects.
    """
    global _stopped
    _stopped += 1


def _forget_failed(tokens: Any) -> None:
    """Makes JAX no longer wait for programs that were stopped."""
    for known in (tokens.current_tokens, tokens.output_runtime_tokens):
        for name, token in list(known.items()):
            try:
                token.block_until_ready()
            except jax.errors.JaxRuntimeError as error:
                if STOPPED not in str(error):
                    raise
                del known[name]


# --- running callbacks -------------------------------------------------------

_JAX_CALLBACKS = compat.private_files("callback.py")
# the code of lox's functions that XLA calls
receivers: set[CodeType] = set()


def in_callback() -> bool:
    """Whether a callback of a program is on the call stack.

    There, waiting for callbacks would be a deadlock.
    """
    return any(map(_is_callback, tracebacks.frames(sys._getframe(1))))


def _is_callback(frame: FrameType) -> bool:
    return frame.f_code in receivers or frame.f_code.co_filename in _JAX_CALLBACKS


def in_receiver(frame: FrameType | None) -> bool:
    """Whether `frame` is inside one of lox's functions that XLA calls."""
    return any(outer.f_code in receivers for outer in tracebacks.frames(frame))


def called_by_xla_thread() -> bool:
    """Whether this is a callback in a thread that XLA started."""
    *_, outermost = tracebacks.frames(sys._getframe(1))
    return _is_callback(outermost)


# --- processes ---------------------------------------------------------------


def process_index() -> int:
    """The index of this process in a multi-process job; starts JAX's backend."""
    return jax.process_index()


def process_count() -> int:
    return jax.process_count()


def known_process_index() -> int:
    """The index of this process, if JAX knows it by now; 0 otherwise.

    Unlike `process_index`, it does not start JAX's backend, after which
    `jax.distributed.initialize` would fail.
    """
    if _backend_started is None or _backend_started():
        return jax.process_index()
    return getattr(_distributed, "process_id", 0)


_jobs: dict[int, str] = {}
_JOB_KEY = "lox/job"
_JOB_TIMEOUT = 10_000  # milliseconds; the key exists when it is read


def job() -> str | None:
    """An identifier shared by the processes of this job only; None if it is unknown.

    The first process that asks chooses it. It is kept by JAX's coordination service, so
    that no process waits for another.
    """
    client = getattr(_distributed, "client", None)
    if client is None or (_distributed.num_processes or 1) < 2:
        return None
    if id(client) not in _jobs:
        try:
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # it exists
                client.key_value_set(_JOB_KEY, secrets.token_hex(8))
            found = client.blocking_key_value_get(_JOB_KEY, _JOB_TIMEOUT)
        except Exception:  # the service is gone, or has another interface
            return None
        _jobs[id(client)] = str(found)
    return _jobs[id(client)]


# --- transfers ---------------------------------------------------------------

_put = compat.private(
    "interpreters.pxla.batched_device_put",
    "removing rows that did not happen takes longer",
    default=None,
)
_WIDE = 8  # bytes; JAX narrows such values, unless `jax_enable_x64` is set


def put_rows(rows: Sequence[Any], of: Sequence[Any]) -> list[Any]:
    """`jax.device_put` of rows of arrays, which are on the host.

    For arrays on the default device, this takes a quarter of the time.

    Args:
        rows: NumPy arrays.
        of: the JAX arrays that they are rows of.
    """
    config = jax.config
    if (
        _put is None
        or config.jax_default_device is not None
        or config.jax_transfer_guard is not None
        or config.jax_transfer_guard_host_to_device is not None
        or (not config.jax_enable_x64 and any(x.itemsize >= _WIDE for x in rows))
        or any(array.committed for array in of)
        or not jax.sharding.get_abstract_mesh().empty
    ):
        return list(jax.device_put(list(rows)))
    kind = jax.core.ShapedArray
    return [
        _put(kind(x.shape, x.dtype), like.sharding, [x], list(like.devices()), False)
        for x, like in zip(rows, of, strict=True)
    ]


def to_array(x: Any) -> Any:
    """Converts `x` to a JAX array, also under `jax.transfer_guard`."""
    try:
        return jax.numpy.asarray(x)
    except jax.errors.JaxRuntimeError:
        return jax.device_put(x)


patches.add(BARRIER, PROGRAMS)
