"""Progress bars of a scan, compared with the scan without one."""

import io
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .contender import imported
from .group import Contender, Group, Made

_STEPS = 20_000


class _Nowhere(io.TextIOBase):
    """A file that discards what is written to it."""

    def write(self, text: str) -> int:
        return len(text)


def _body(carry: Any, i: Any) -> Any:
    return jnp.tanh(carry * 1.01 + 0.001 * i), None


def _loop(x: Any) -> Any:
    return lax.scan(_body, x, jnp.arange(_STEPS))[0]


def _made(fun: Any) -> Made:
    x = jnp.linspace(0.0, 1.0, 512)
    call = jax.jit(fun)

    def run() -> Any:
        output = jax.block_until_ready(call(x))
        jax.effects_barrier()
        return output

    return Made(run, lambda: {"result": run()})


def _lox() -> Made:
    lox = imported("lox", "jax-lox")
    return _made(lox.progress(_loop, file=_Nowhere()))


def _jax_tqdm() -> Made:
    jax_tqdm = imported("jax_tqdm", "jax-tqdm")
    body = jax_tqdm.scan_tqdm(_STEPS, tqdm_type="std", file=_Nowhere())(_body)
    return _made(lambda x: lax.scan(body, x, jnp.arange(_STEPS))[0])


def group() -> Group:
    return Group(
        "progress",
        f"progress bar of a scan of {_STEPS:,} steps",
        [
            Contender("no bar", lambda: _made(_loop)),
            Contender("lox.progress", _lox, "jax-lox", streams=True),
            Contender("jax-tqdm", _jax_tqdm, "jax-tqdm", streams=True),
        ],
    )
