"""Logging for JAX.

Write `lox.log({"loss": loss}, step=i)` anywhere in jitted, scanned, vmapped or
differentiated code, and decide outside what happens to it: `lox.spool` returns the logs
along with the result, `lox.tap` streams them to a callback, `lox.nolog` removes them.
"""

from typing import TYPE_CHECKING, Any

from . import _old_pickles as _old_pickles
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
    UnsupportedJaxError as UnsupportedJaxError,
    UnsupportedPrimitiveError as UnsupportedPrimitiveError,
)
from ._imports import load as _load_module, when_imported as _when_imported
from ._settings import set_default as set_default
from ._version import __version__ as __version__

if TYPE_CHECKING:
    from . import loggers as loggers, neptune as neptune, wandb as wandb
    from ._logs.logdict import logdict as logdict
    from ._page.notebook import page as page
    from ._reduce.reductions import Reduction as Reduction
    from ._runtime import (
        log as log,
        log_grad as log_grad,
        nolog as nolog,
        observe as observe,
        progress as progress,
        save as save,
        spool as spool,
        stats as stats,
        tap as tap,
        watch as watch,
    )
    from ._store.runs import load as load, runs as runs
else:
    # Names are loaded at their first use, so that stores can be read without JAX.
    _MODULE_OF = {
        "logdict": "_logs.logdict",
        "Reduction": "_reduce.reductions",
        "load": "_store.runs",
        "page": "_page.notebook",
        "runs": "_store.runs",
        **dict.fromkeys(
            (
                "log",
                "log_grad",
                "nolog",
                "observe",
                "progress",
                "save",
                "spool",
                "stats",
                "tap",
                "watch",
            ),
            "_runtime",
        ),
    }
    _OLDEST_JAX = (0, 9)  # as in pyproject.toml
    _SUBMODULES = ("loggers", "neptune", "wandb")

    def __getattr__(name: str) -> Any:
        if name in _SUBMODULES:
            return _load_module(f"{__name__}.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = _load_module(f"{__name__}.{_MODULE_OF[name]}")
        found = globals()[name] = getattr(module, name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULE_OF, *_SUBMODULES})

    def _prepare_jax(jax: Any) -> None:
        # absent while JAX is being imported
        if getattr(jax, "__version_info__", _OLDEST_JAX) < _OLDEST_JAX:
            oldest = ".".join(map(str, _OLDEST_JAX))
            raise UnsupportedJaxError(
                f"lox needs JAX {oldest} or later, but JAX {jax.__version__} is "
                "installed. Update it: `pip install --upgrade jax`."
            )
        # the first event may be inside a function that JAX or Flax is already running
        early = _load_module(f"{__name__}._jax.early_patches")
        early.source.load = lambda: _load_module(f"{__name__}._runtime")

    def _prepare_flax(axes_scan: Any) -> None:
        _load_module(f"{__name__}._libraries.linen").prepare(axes_scan)

    _when_imported("jax", _prepare_jax)
    _when_imported("flax.core.axes_scan", _prepare_flax)
