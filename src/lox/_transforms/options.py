"""`Options`: the checked options of a transformation."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lox._errors import LoxTypeError, LoxValueError
from lox._events.selection import Selection
from lox._interpreter.contents import cotangents_of, events_of
from lox._interpreter.rows import Record
from lox._reduce import reductions
from lox._reduce.protocol import AnyReduction
from lox._source import warn

Names = str | Iterable[str] | None


@dataclasses.dataclass(frozen=True)
class Options:
    """Which events a transformation selects, and what it does with them.

    Every transformation has some of these options, which `lox.spool` and `lox.tap`
    document; the others have their defaults. They are checked here; errors name the
    transformation. Compiled programs are cached by them.
    """

    name: dataclasses.InitVar[str]
    selection: Selection
    keep_logs: bool = False
    interval: int | None = None
    reduce: Any = (
        None  # the user's argument; replaced by the result of `reductions.check`
    )
    prefix: str = ""
    window: int | None = None
    capacity: int | None = None
    buffer: int | None = None
    ordered: bool = True
    batched: bool = False

    def __post_init__(self, name: str) -> None:
        if not isinstance(self.prefix, str):
            raise LoxTypeError(
                f"`prefix` of `{name}` must be a string, not {self.prefix!r}."
            )
        checked: dict[str, Any] = {
            option: _checked_number(getattr(self, option), option, name)
            for option in _MEANING
        }
        checked["reduce"] = reductions.check(self.reduce, f" of `{name}`")
        for flag in ("keep_logs", "ordered", "batched"):
            checked[flag] = bool(getattr(self, flag))
        for option, value in checked.items():
            object.__setattr__(self, option, value)

    def reduction(self, key: str, at_call: reductions.Checked) -> AnyReduction | None:
        """The reduction of a key, given that of its `lox.log` call."""
        return reductions.choose(self.reduce, key) or reductions.choose(at_call, key)

    @property
    def every_row(self) -> bool:
        """Whether every row is kept unchanged, unless a `lox.log` call reduces it."""
        others = self.interval, self.window, self.capacity, self.buffer
        return not self.reduce and not any(others)

    def check_window(self, types: Record, name: str) -> None:
        """Raises if there is a window, but no key has a reduction."""
        if self.window is None or any(rows.reduction for rows in types.values()):
            return
        keys = ", ".join(f"{key!r} (at {rows.source})" for key, rows in types.items())
        if keys:
            have = "has" if len(types) == 1 else "have"
            raise LoxValueError(
                f"`window` of `{name}` needs a reduction to one row, but {keys} {have} "
                f'none. Add `reduce="mean"`, or another one, to `{name}` or to the '
                f"`lox.log`; to keep one event out of {self.window}, write "
                f"`interval={self.window}`."
            )

    def warn_unmatched(self, closed: Any, name: str) -> None:
        """Warns about names that no event of the program has."""
        events = [
            event
            for event in events_of(closed)
            if event.route.sink is None and event.call.api == self.selection.api
        ]
        keys = list(dict.fromkeys(key for event in events for key in event.call.keys))
        tags = dict.fromkeys(tag for event in events for tag in event.call.tags)
        later = any(map(self.selection.keys_of, cotangents_of(closed)))
        _warn(name, "argnames", self.selection.unmatched(keys), keys, later)
        _warn(name, "tags", self.selection.unmatched_tags(events), tags, later)
        _warn(name, "reduce", reductions.unmatched(self.reduce, keys), keys)


def _warn(
    name: str,
    what: str,
    missing: list[str],
    known_names: Iterable[str],
    in_derivative: bool = False,
) -> None:
    known = ", ".join(map(repr, known_names))
    if missing:
        others = f"available: {known}" if known else "it logs none"
        hint = (
            f" Cotangents are logged by the derivative: `{name}(jax.grad(f))`."
            if in_derivative
            else ""
        )
        warn(
            f"`{what}` of `{name}` has {', '.join(map(repr, missing))}, which no "
            f"`lox.log` in the function matches; {others}.{hint}"
        )


_MEANING = {
    "interval": "1 keeps every event, 10 every tenth",
    "window": "10 means one row per ten events",
    "capacity": "it is the maximum number of rows to keep",
    "buffer": "it is the number of rows that the callback gets at a time",
}


def _checked_number(number: Any, option: str, name: str) -> int | None:
    """Checks that an option is None or an integer of at least 1."""
    if number is None:
        return None
    try:
        whole = int(number.__index__())
    except (AttributeError, TypeError):
        raise LoxTypeError(
            f"`{option}` of `{name}` must be a whole number, not {number!r}."
        ) from None
    if isinstance(number, bool) or whole < 1:
        raise LoxValueError(
            f"`{option}` of `{name}` must be at least 1, not {number!r}: "
            f"{_MEANING[option]}."
        )
    return whole


# --- calls of transformations ------------------------------------------------


def decorator(transformation: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """A decorator that applies a transformation with these options.

    Args:
        transformation: the transformation.
        given: all of its arguments by name, including the function.
    """
    options = {k: v for k, v in given.items() if k not in ("fun", "others")}
    return lambda fun: transformation(fun, **options)


# what to say about an option of another transformation
_HINTS = {
    "lox.spool": {
        "buffer": "`capacity=` is the number of rows that `lox.spool` keeps of a loop "
        "without a static length; `buffer=` is an option of `lox.tap`",
        "callback": "`lox.tap` delivers to a callback",
        "ordered": "it is an option of `lox.tap`; spooled rows are always in order",
        "batched": "it is an option of `lox.tap`",
    },
    "lox.tap": {
        "capacity": "a callback gets every row; `buffer=` is the number of rows it "
        "gets at a time",
    },
}


def refuse_unknown(name: str, others: Mapping[str, Any], transformation: Any) -> None:
    """Raises an error about options that a transformation does not have."""
    for option in others:
        hint = _HINTS[name].get(option)
        if hint is None:
            parameters = inspect.signature(transformation).parameters
            known = [f"`{one}`" for one in parameters if one not in ("fun", "others")]
            hint = f"its options are {', '.join(known)}"
        raise LoxTypeError(f"`{name}` has no option `{option}`: {hint}.")
