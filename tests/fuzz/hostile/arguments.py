"""Wrong arguments for every public function, and for the command line."""

import contextlib
import functools
import inspect
import os
import pathlib
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import logify
import lox
import lox.loggers
from lox import _settings
from lox.cli import command_modules
from tests.fuzz.hostile.mutations import ODD_NUMBERS, ODD_TEXTS
from tests.fuzz.hostile.sandbox import command
from tests.page.stores import write_seeds


class _Odd:
    """An object of an unknown type."""

    def __repr__(self) -> str:
        return "odd"


class _Raising:
    """An object whose methods all raise."""

    def __len__(self) -> int:
        raise TypeError("no length")

    def __iter__(self) -> Any:
        raise TypeError("no items")

    def __eq__(self, other: object) -> bool:
        raise TypeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


def _logs_a_scan(x: Any = 1.0) -> Any:
    def body(carry: Any, i: Any) -> Any:
        lox.log({"carry": carry}, step=i)
        logify.log("carry", carry)
        return carry + 1, carry

    return jax.lax.scan(body, jnp.asarray(x, float), jnp.arange(3))[0]


def _deep(kind: int, depth: int) -> Any:
    value: Any = 1.0
    for _ in range(depth):
        value = [value] if kind else {"a": value}
    return value


_VALUES: tuple[Callable[[], Any], ...] = (
    *((lambda x=x: x) for x in ODD_NUMBERS),
    *((lambda x=x: x) for x in ODD_TEXTS),
    *((lambda x=x: x) for x in (None, True, ..., b"bytes", 1j, range(3), print, int)),
    *(lambda x=x: x for x in ((), [], {}, {""}, frozenset({1}), [[]], {"": {}})),
    lambda: {1: 2.0, "a": 1.0},
    lambda: {"x": np.arange(3.0), 3: None},
    lambda: {"x": {"y": [1, (2, {"z": 3})]}},
    lambda: ["a", "a", 3],
    lambda: _deep(0, 20),
    lambda: _deep(1, 200),
    lambda: np.array([object(), None]),
    lambda: np.array(["text"]),
    lambda: np.array([], float),
    lambda: np.zeros((0, 3)),
    lambda: np.array([np.nan, np.inf, -np.inf]),
    lambda: np.array("2020-01-01", "datetime64[D]"),
    lambda: np.zeros(2, [("a", "f8")]),
    lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
    lambda: np.arange(6).reshape(2, 3)[:, ::-1],
    lambda: np.float16(1),
    lambda: jnp.arange(3),
    lambda: jnp.bfloat16(1),
    lambda: jax.random.key(0),
    lambda: jax.random.split(jax.random.key(0), 2),
    lambda: jax.ShapeDtypeStruct((2,), "float32"),
    lambda: (x for x in range(2)),
    lambda: lox.logdict({"x": np.arange(2.0)}, stacked=True),
    lambda: lox.logdict({}),
    lambda: pathlib.Path("store"),
    lambda: slice(None, None, 0),
    lambda: lambda: None,
    lambda: lambda *args, **options: args,
    lambda: inspect,
    _Odd,
    _Raising,
    lambda: _Odd,
)

_GOOD: dict[str, tuple[Any, ...]] = {
    "argnames": (None, "carry", ["carry", "x"]),
    "batched": (False, True),
    "by": ("optimizer.lr", None),
    "callback": (lambda logs: None, print),
    "capacity": (None, 4),
    "config": ({"lr": 0.1},),
    "data": ({"x": 1.0}, {"x": np.arange(3.0)}),
    "fun": (_logs_a_scan,),
    "interval": (None, 2),
    "key": (None, 0),
    "logs": ({"x": 1.0},),
    "mode": ("mean", "a"),
    "name": ("x",),
    "path": ("store", "new"),
    "prefix": ("", "p/"),
    "predicate": (lambda name, value: True,),
    "reduce": (None, "mean", {"carry": "sum"}),
    "reduction": ("mean", "append"),
    "seed": (0,),
    "steps": ({}, {"step": {"x": 1}}),
    "store": ("store",),
    "tags": ((), "a", ["a"]),
    "tree": ({"w": np.ones(2)},),
    "value": (1.0,),
    "when": (None, True),
    "window": (None, 2),
    "x": (1.0, np.ones(2)),
}


def _save_logger() -> Any:
    return lox.loggers.SaveLogger("runs")


def _csv_logger() -> Any:
    return lox.loggers.CSVLogger("csv")


def _json_logger() -> Any:
    return lox.loggers.JSONLinesLogger("json")


def _tensorboard_logger() -> Any:
    return lox.loggers.TensorBoardLogger("events")


def _logs() -> Any:
    rows = np.arange(4.0)
    steps = {"step": {"x": np.arange(4), "y": np.arange(4)}}
    return lox.logdict({"x": rows, "y": np.ones((4, 2))}, steps, stacked=True)


def _method(make: Callable[[], Any], name: str) -> Callable[[], Any]:
    return lambda: getattr(make(), name)


def _methods(make: Callable[[], Any], *names: str) -> dict[str, Callable[[], Any]]:
    return {f"{make.__name__[1:]}.{name}": _method(make, name) for name in names}


def _functions() -> dict[str, Callable[[], Any]]:
    """Everything public that can be called, by name."""
    found: dict[str, Callable[[], Any]] = {}
    for module in (lox, lox.loggers, logify):
        for name in dir(module):
            value = getattr(module, name)
            is_error = isinstance(value, type) and issubclass(value, Exception)
            if not name.startswith("_") and callable(value) and not is_error:
                found[f"{module.__name__}.{name}"] = lambda value=value: value
    for tracker in ("MLflow", "Neptune", "Trackio", "Wandb"):  # start their clients
        found.pop(f"lox.loggers.{tracker}Logger", None)
    public = [
        name
        for name in dir(lox.logdict)
        if not name.startswith("_") and callable(getattr(lox.logdict, name))
    ]
    # those of `dict` are Python's
    inherited = {*dir(dict)} - {"copy", "update", "setdefault"}
    found |= _methods(_logs, *(name for name in public if name not in inherited))
    for make in (_save_logger, _csv_logger, _json_logger, _tensorboard_logger):
        found |= _methods(make, "init", "log", "spool", "tap", "finish")
    found |= _methods(_runs, "where", "group_by", "load", "to_pandas", "__getitem__")
    found |= _methods(_runs, "plot")
    found |= _methods(_logified, "asdict", "lanes", "__repr__")
    return found


def _runs() -> Any:
    return lox.runs("store")


def _logified() -> Any:
    return logify.logify(_logs_a_scan)(1.0)[1]


# what adds events to a program, and what a program with events may be in
_LOGGING = ("lox.log", "lox.log_grad", "lox.watch", "logify.log")
_AROUND: tuple[Callable[[Any], Any], ...] = (
    jax.jit,
    jax.grad,
    lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x])),
    lox.spool,
    functools.partial(lox.spool, reduce="mean"),
    functools.partial(lox.spool, interval=2),
    functools.partial(lox.tap, callback=repr),
    lox.nolog,
    logify.logify,
    lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, 2)[0],
)


def _inside(function: Any, rng: random.Random) -> Callable[..., Any]:
    """Calls a function that logs inside transformations."""
    around = rng.sample(_AROUND, rng.choice((1, 2)))

    def call(*args: Any, **named: Any) -> None:
        def program(x: Any) -> Any:
            function(*args, **named)
            return x * 2

        run = program
        for wrap in around:
            run = _first(wrap(run))
        repr(run(1.0))

    return call


def _first(function: Any) -> Callable[[Any], Any]:
    """What comes with the result is printed, and then left out."""

    def call(x: Any) -> Any:
        result = function(x)
        repr(result)
        return result[0] if isinstance(result, tuple) else result

    return call


def _value(rng: random.Random) -> Any:
    value = rng.choice(_VALUES)()
    kind = rng.randrange(12)
    if kind == 0:
        return {"x": value}
    if kind == 1:
        return [value, value]
    return value


def call_arguments(
    function: Any, rng: random.Random
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of which one or several are wrong."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return [_value(rng) for _ in range(rng.randrange(3))], {}
    positional: list[Any] = []
    named: dict[str, Any] = {}
    wrong = rng.choice((0.15, 0.4, 1.0))
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [_value(rng) for _ in range(rng.choice((0, 0, 1, 2)))]
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            if rng.random() < 0.3:
                name = rng.choice(("step", "episode", "keys", "x", "lr", ""))
                named[name] = _value(rng)
            continue
        required = parameter.default is parameter.empty
        if not required and rng.random() < 0.6:
            continue
        known = _GOOD.get(parameter.name)
        if parameter.name == "state" and hasattr(function, "__self__"):
            known = (function.__self__.init(0),)
        is_wrong = rng.random() < wrong or known is None
        value = _value(rng) if is_wrong else rng.choice(known or ())
        if parameter.kind is parameter.KEYWORD_ONLY or not required:
            named[parameter.name] = value
        else:
            positional.append(value)
    return positional, named


@functools.cache
def _store() -> pathlib.Path:
    root = pathlib.Path(tempfile.mkdtemp(dir=".", prefix="original-")).resolve()
    write_seeds(root, seeds=1, rows=5)
    return root


def prepare() -> None:
    _store()
    os.environ["MPLBACKEND"] = "agg"
    lox.set_default("silent")
    _logs().plot()  # imports what draws
    plt.close("all")


ALLOWED = (lox.LoxError, TypeError, ValueError)


def check(seed: int) -> None:
    """Calls a public function; then what it has returned, if that is a function."""
    rng = random.Random(f"arguments {seed}")
    shutil.copytree(_store(), "store")
    functions = _functions()
    name = rng.choice(list(functions))
    function = functions[name]()
    positional, named = call_arguments(function, rng)
    text = f"{name}(*{positional!r:.300}, **{named!r:.600})"
    if name in _LOGGING and rng.random() < 0.7:
        function, text = _inside(function, rng), f"inside a program: {text}"
    # JAX's own, about a generator
    warnings.filterwarnings("ignore", "Python iterable type", DeprecationWarning)
    try:
        result = function(*positional, **named)
        if name.endswith((".spool", ".tap", ".nolog", ".observe", ".progress")) or (
            name == "logify.logify"
        ):
            text += f"({1.0})"
            result(1.0)
        if name == "lox.set_default":
            lox.log({"x": 1.0})
        jax.effects_barrier()
    except ALLOWED as error:
        assert str(error), f"{text}: an error without a message"
    except IndexError:
        assert name == "runs.__getitem__", text  # as for any sequence
    except BaseException as error:
        error.add_note(text)
        raise
    finally:
        lox.set_default("silent")
        plt.close("all")
        if "_logger." in name:  # before its directory is removed
            with contextlib.suppress(lox.LoxError):
                function.__self__.finish(function.__self__.init(0))
                jax.effects_barrier()


# --- the command line ----------------------------------------------------------

_OPTIONS = (
    "--json",
    "--force",
    "-k",
    "-x",
    "-n",
    "-o",
    "-y",
    "--to",
    "--by",
    "--band",
    "--sort",
    "--status",
    "--smooth",
    "--height",
    "--precision",
    "--interval",
    "--overwrite",
    "--logx",
    "--logy",
    "--all",
    "--dry-run",
    "--nonsense",
    "--",
    "-",
    "store",
    "store/*",
    "store/lr0.1-seed0",
    "loss",
    "csv",
    "jsonl",
    "tensorboard",
    "parquet",
    "out.csv",
    "std",
    "step",
    "0",
    "-1",
    "1e9",
    "nan",
    "file://store",
    "bash",
)


def check_command(seed: int) -> None:
    """Runs the `lox` command with arguments that it may not expect."""
    rng = random.Random(f"command {seed}")
    shutil.copytree(_store(), "store")
    # `serve` and following would not end
    names = [name for name in command_modules() if name != "serve"]
    # what the arguments of a process cannot contain is left out
    odd = ["\udcff", *(text for text in ODD_TEXTS if not {*text} & {"\0", "\ud800"})]
    words = [
        rng.choice(_OPTIONS) if rng.random() < 0.8 else rng.choice(odd)
        for _ in range(rng.randrange(7))
    ]
    command(rng.choice((*names, "nonsense")), *words)


# --- the environment -----------------------------------------------------------

_VARIABLES = (
    "COLUMNS",
    "HOME",
    "JAX_DEFAULT_PRNG_IMPL",
    "JAX_ENABLE_X64",
    "LINES",
    "LOX_DEFAULT",
    "LOX_STORE",
    "NO_COLOR",
    "TERM",
    "TMPDIR",
    "TZ",
)
_COMMANDS = (
    "ls",
    "ls store",
    "show lr0.1-seed0",
    "plot",
    "plot store --by optimizer.lr",
    "tail -n 2",
    "diff",
    "export store --to csv -o out.csv",
    "report store -o report.html",
    "sync store --to copy",
)


def check_environment(seed: int) -> None:
    """Runs a command, or logs an event, with invalid environment variables."""
    rng = random.Random(f"environment {seed}")
    shutil.copytree(_store(), "store")
    odd = [text for text in ODD_TEXTS if not {*text} & {"\0", "\ud800"}]
    values = (
        *odd,
        *map(str, ODD_NUMBERS),
        "store",
        "store/*",
        "file://store",
        "\udcff",
    )
    before = dict(os.environ)
    chosen = {name: rng.choice(values) for name in rng.sample(_VARIABLES, 3)}
    os.environ.update(chosen)
    try:
        if rng.random() < 0.8:
            command(*rng.choice(_COMMANDS).split())
        else:
            _settings._handler = None  # as in a new process
            lox.log({"x": 1.0})
            lox.save({"x": 1.0}, "new", key=0)
            assert lox.load("new", key=0) == {"x": 1.0}
    except ALLOWED as error:
        assert str(error), "an error without a message"
    except BaseException as error:
        error.add_note(f"{chosen}")
        raise
    finally:
        os.environ.clear()
        os.environ.update(before)
        lox.set_default("silent")
