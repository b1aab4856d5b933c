"""Compares two runs: their configs and the last values of their keys.

The runs are given one after the other, or by a pattern that matches two.
"""

import argparse
import decimal
from typing import Any

from lox._arrays import leaves_with_names
from lox._store.configs import flat_config, hashable
from lox._store.reader import Run

from ._find import add_runs, find_count
from ._output import print_json
from ._terminal import Column, print_table, styled
from ._values import to_json, to_text

HELP = "compare two runs"

_DIGITS = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser, "+")
    parser.add_argument(
        "--precision",
        type=_digits,
        metavar="DIGITS",
        help="numbers that agree in this many significant digits count as equal",
    )
    parser.add_argument(
        "--all", action="store_true", help="also show what is equal in both"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Any) -> int:
    a, b = find_count(arguments.runs, 2)
    digits = arguments.precision
    config = _compared(flat_config(a.config), flat_config(b.config), digits)
    last = _compared(_last_values(a), _last_values(b), digits)
    status = _compared({"status": a.status}, {"status": b.status}, digits)
    if arguments.json:
        parts = {"status": status["status"], "config": config, "last": last}
        names = {"a": a.name, "b": b.name}
        print_json({**names, **to_json(parts)})
        return 0
    parts = {"config": config, "last value": last}
    shown = {"": status, **parts}
    titles = _titles(a, b)
    printed = False
    for title, pairs in shown.items():
        kept = {
            name: pair
            for name, pair in pairs.items()
            if arguments.all or not pair["equal"]
        }
        if kept:
            _print(title, titles, kept, digits or _DIGITS, blank=printed)
            printed = True
    equal = sum(pair["equal"] for pairs in parts.values() for pair in pairs.values())
    total = sum(map(len, parts.values()))
    if equal == total:
        print(f"no differences: {total} configs and last values are equal")
    elif not arguments.all and equal:
        print(styled(f"equal: {equal} of {total} configs and last values", "dim"))
    return 0


def _titles(a: Run, b: Run) -> tuple[str, str]:
    """The names of the runs; their paths, if the names are the same."""
    return (a.name, b.name) if a.name != b.name else (str(a.path), str(b.path))


def _last_values(run: Run) -> dict[str, Any]:
    return {
        name + path: leaf
        for name, value in run.last.items()
        for path, leaf in leaves_with_names(value)
    }


_MISSING = object()


def _compared(
    a: dict[str, Any], b: dict[str, Any], digits: int | None
) -> dict[str, dict[str, Any]]:
    """Both values by name, and whether they are equal; None if there is none."""
    return {
        name: {
            "a": a.get(name),
            "b": b.get(name),
            "equal": _equal(a.get(name, _MISSING), b.get(name, _MISSING), digits),
        }
        for name in dict.fromkeys((*a, *b))
    }


def _equal(a: Any, b: Any, digits: int | None) -> bool:
    if a is _MISSING or b is _MISSING:
        return False
    if digits is not None and _is_number(a) and _is_number(b):
        return _rounded(a, digits) == _rounded(b, digits)
    first, second = hashable(a), hashable(b)
    return bool(first == second or (first != first and second != second))  # NaN


def _rounded(value: Any, digits: int) -> str:
    try:
        return to_text(float(value), digits)
    except OverflowError:  # an integer
        return f"{decimal.Decimal(value):.{digits - 1}e}"


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        return True
    return hasattr(value, "dtype") and value.ndim == 0 and value.dtype.kind not in "bcO"


def _print(
    title: str,
    runs: tuple[str, str],
    pairs: dict[str, dict[str, Any]],
    digits: int,
    blank: bool,
) -> None:
    if blank:
        print()
    columns = [Column(title, list(pairs))]
    for side, name in zip("ab", runs, strict=True):
        cells = [to_text(pair[side], digits) for pair in pairs.values()]
        columns.append(Column(name, cells, right=True))
    if title == "last value":
        changes = [_change(pair["a"], pair["b"]) for pair in pairs.values()]
        columns.append(Column("change", changes, right=True, priority=1))
    print_table(columns)


def _change(a: Any, b: Any) -> str:
    if a is None or b is None or not (_is_number(a) and _is_number(b)):
        return ""
    change = float(b) - float(a)
    relative = f" ({change / abs(float(a)):+.1%})" if float(a) and change else ""
    return f"{change:+.4g}{relative}"


def _digits(text: str) -> int:
    try:
        digits = int(text)
    except ValueError:
        digits = 0
    if not 1 <= digits <= 17:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to 17")
    return digits
