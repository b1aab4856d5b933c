"""Imperative logging for JAX, built on `lox`.

Call `logify.log("loss", loss, reduction="mean")` anywhere; `logify.logify(fun)` returns
the logs along with the result. Without it, `logify.log` does nothing.
"""

from ._log import log as log
from ._logify import logify as logify
from ._logs import Logs as Logs
