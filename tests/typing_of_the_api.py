"""What a type checker sees of the public API; run by `make types`, never imported."""

from collections.abc import Callable
from typing import Any, Literal, assert_type

import logify
import lox
import lox.loggers


def f(x: float, flag: bool = False) -> int:
    assert_type(lox.log({"x": x}, step=1, tags=["a"]), lox.logdict)
    assert_type(lox.log({"x": x}, over="data", reduce="max"), lox.logdict)
    assert_type(lox.log_grad("dx", x, step=1, when=flag), float)
    assert_type(lox.log_grad("dx", x, over=("data", "model")), float)
    lox.log({"x": x}, over=3)  # type: ignore[arg-type]
    return int(x) + flag


assert_type(lox.spool(f)(1.0), tuple[int, lox.logdict])
assert_type(lox.spool(f, argnames="x", reduce="mean")(1.0, flag=True)[0], int)
assert_type(lox.tap(f, print)(1.0), int)
assert_type(lox.spool(f)(1.0)[1].sort("step"), lox.logdict)
assert_type(lox.nolog(f)(1.0), int)
assert_type(lox.stats({"x": 1.0}, "rms"), dict[str, Any])
assert_type(lox.watch("x", {"x": 1.0}, stats=["rms"], split=0), dict[str, float])
assert_type(lox.observe(f, carry=True)(1.0), int)
assert_type(lox.observe(f).loops(1.0)[0].address, str)
assert_type(lox.progress(f, total=3)(1.0), int)

runs = lox.runs("store")
assert_type(runs[1:] == runs.where(lr=0.1), bool)
assert_type(runs.where(lambda run: run.rows > 3, lr=0.1).load("loss"), lox.logdict)
assert_type(runs[0].load(), lox.logdict)
assert_type(runs[:2][0].last, lox.logdict)
assert_type(runs[0].status == "running", bool)
assert_type([len(group) for group in runs.group_by("lr", "net").values()], list[int])
assert_type(runs[0].load().over_lanes("mean", "ci", step="step"), lox.logdict)
runs.plot("loss", by="lr", band="ci", logy=True)
runs.plot("loss", band="sd")  # type: ignore[arg-type]
runs[0].load().plot(band="std")


assert_type(lox.page("store", x=["tokens"])._repr_html_(), str)


@lox.spool(interval=2)
def g(x: float) -> str:
    return str(x)


@lox.tap(callback=lambda logs: None, batched=True)
def h(x: float) -> str:
    return str(x)


assert_type(g(1.0), tuple[str, lox.logdict])
assert_type(h(1.0), str)
handler: Callable[[lox.logdict], None] = lambda logs: None  # noqa: E731
lox.set_default(handler)
error: type[Exception] = lox.LoxError


smooth = lox.Reduction(0.0, lambda state, x: 0.9 * state + 0.1 * x)
assert_type(lox.spool(f, reduce=smooth, window=2)(1.0), tuple[int, lox.logdict])
assert_type(lox.tap(f, print, reduce="mean", buffer=3)(1.0), int)
assert_type(logify.logify(f)(1.0), tuple[int, logify.Logs])


@logify.logify(capacity=3)
def logified(x: float) -> int:
    logify.log("x", x, reduction=smooth)
    logify.log("x", x, "sum", over="data")
    return int(x)


assert_type(logified(1.0), tuple[int, logify.Logs])


class SlowLogger(lox.loggers.Logger):
    background = True
    full = "spill"


assert_type(lox.loggers.Logger().full, Literal["wait", "spill"])
lox.loggers.WandbLogger("project", full="spill")
lox.loggers.TrackioLogger("project", full="wait")
lox.loggers.MLflowLogger(full="spill")
lox.loggers.NeptuneLogger("project", full="drop")  # type: ignore[arg-type]
