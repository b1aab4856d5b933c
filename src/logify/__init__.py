"""Imperative logging for JAX, on the core of `lox`.

Write `logify.log("loss", loss, reduction="mean")` anywhere; `logify.logify(fun)` gives
the logs beside the result. Without it, `logify.log` does nothing.
"""

from ._log import log as log
from ._logify import logify as logify
from ._logs import Logs as Logs
