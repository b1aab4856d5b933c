"""Logging for JAX.

Write `lox.log({"loss": loss}, step=i)` anywhere in jitted, scanned, vmapped or
differentiated code, and decide outside what happens to it: `lox.spool` returns the logs
beside the result, `lox.tap` streams them to a callback, `lox.nolog` removes them.
"""

from . import (
    _derivatives as _derivatives,
    _foreign as _foreign,
    _hooks as _hooks,
    _lanes as _lanes,
    _linen as _linen,
)
from ._errors import (
    DtypeError as DtypeError,
    LoxError as LoxError,
    LoxKeyError as LoxKeyError,
    LoxTypeError as LoxTypeError,
    LoxValueError as LoxValueError,
    LoxWarning as LoxWarning,
    RangeError as RangeError,
    ShapeError as ShapeError,
    StepError as StepError,
    StoreError as StoreError,
    UnboundedLoopError as UnboundedLoopError,
    UnsupportedPrimitiveError as UnsupportedPrimitiveError,
)
from ._log import log as log
from ._logdict import logdict as logdict
from ._nolog import nolog as nolog
from ._reduce import Reduction as Reduction
from ._saving import load as load, runs as runs, save as save
from ._settings import set_default as set_default
from ._spool import spool as spool
from ._tap import tap as tap

# loggers build on all of the above; what they need else is imported when they are made
from . import loggers as loggers, neptune as neptune, wandb as wandb  # isort: skip

__version__ = "0.1.0"
