"""Logging for JAX.

Write `lox.log({"loss": loss}, step=i)` anywhere in jitted, scanned, vmapped or
differentiated code, and decide outside what happens to it: `lox.spool` returns the logs
beside the result, `lox.tap` streams them to a callback, `lox.nolog` removes them.
"""

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
from ._events.log import log as log
from ._interpreter import (
    derivatives as derivatives,
    foreign as foreign,
    library_loops as library_loops,
    linen as linen,
    patches as patches,
)
from ._logs.logdict import logdict as logdict
from ._reduce.reductions import Reduction as Reduction
from ._settings import set_default as set_default
from ._transforms.nolog import nolog as nolog
from ._transforms.saving import load as load, runs as runs, save as save
from ._transforms.spool import spool as spool
from ._transforms.tap import tap as tap

# loggers build on all of the above; what they need else is imported when they are made
from . import loggers as loggers, neptune as neptune, wandb as wandb  # isort: skip

__version__ = "0.1.0"
