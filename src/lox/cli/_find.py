"""Finds runs by their names, paths and patterns, and checks names of keys."""

import argparse
import glob
import os
from collections.abc import Iterable, Sequence

from lox._errors import LoxValueError, StoreError
from lox._patterns import matches
from lox._store.locations import is_url, location_of
from lox._store.reader import Run
from lox._store.run_set import Runs
from lox._store.runs import is_run as is_run_at, runs as runs_of
from lox._text_curves import printable

# the store of runs that are given by name; by default the working directory
_STORE = "LOX_STORE"
_MAX_NAMES = 8

_HELP_RUNS = (
    "a store (a directory of runs), or runs by path, name or pattern. Names are looked "
    f"up in the store that comes first, else in ${_STORE}, else in this directory"
)


def add_runs(parser: argparse.ArgumentParser, nargs: str = "*") -> None:
    """Adds the positional arguments that `find_runs` takes."""
    parser.add_argument("runs", nargs=nargs, metavar="RUN", help=_HELP_RUNS)


def add_store(parser: argparse.ArgumentParser) -> None:
    """Adds the positional argument for one store or run."""
    parser.add_argument(
        "store",
        nargs="?",
        default=default_store(),
        help="a directory or URL: a store, or one of its runs (default: the store in "
        f"${_STORE}, else this directory)",
    )


def find_runs(given: Sequence[str], whole_stores: bool = True) -> Runs:
    """The runs that arguments of the command line name; raises if there are none.

    Args:
        given: stores, runs or patterns. If the first one is a store and there are
            others, these are looked up in it.
        whole_stores: whether a store stands for all its runs; otherwise it raises.
    """
    base, names = default_store(), list(given)
    has_store = bool(names) and _is_store(names[0])
    if has_store:
        base = names.pop(0)
    if not names:
        _check_whole(base, whole_stores)
        return runs_in(base)
    found: dict[str, Run] = {}
    from_base = False
    for name in names:
        selected = _in_store(base, name)
        from_base = from_base or bool(selected)
        if not selected and _is_store(name):
            _check_whole(name, whole_stores)
        selected = selected or _at_path(name)
        if not selected:
            raise _not_found(base, name)
        found |= {identity(run): run for run in selected}
    parent = absolute(base)
    from_base = from_base or any(os.path.dirname(path) == parent for path in found)
    if has_store and not from_base:
        # the arguments are several stores, or a store and runs of others
        _check_whole(base, whole_stores)
        found = {identity(run): run for run in runs_in(base)} | found
    return Runs(found.values())


def _check_whole(store: str, allowed: bool) -> None:
    if not allowed:
        raise StoreError(
            f"{_named(store)} is a store. To name all its runs, add a pattern: "
            f"{store} '*'."
        )


def find_count(given: Sequence[str], count: int) -> Runs:
    """The runs that arguments of the command line name; raises unless `count` match."""
    found = find_runs(given)
    if len(found) != count:
        raise StoreError(
            f"{' '.join(given)} matches {_counted(len(found))}, but the command needs "
            f"{_counted(count)}: {_listed(found)}."
        )
    return found


def _counted(count: int) -> str:
    return "one run" if count == 1 else f"{count} runs"


def check_keys(keys: Iterable[str] | None, known: Iterable[str]) -> None:
    """Raises if a name or pattern of a key matches none of those that are known."""
    for pattern in keys or ():
        if not any(matches(name, pattern) for name in known):
            there = ", ".join(map(repr, known)) or "none"
            raise LoxValueError(f"no key matches {pattern!r}; available: {there}.")


def runs_in(store: str) -> Runs:
    """All runs of a store; raises if there are none."""
    found = runs_of(store)
    if not found:
        raise StoreError(f"there are no runs in {_named(store)}{_inner_stores(store)}.")
    return found


def stores_in(given: Sequence[str]) -> list[str]:
    """The stores that arguments name, if they name all runs of these stores."""
    paths = list(given) or [default_store()]
    return paths if all(map(_is_store, paths)) else []


def default_store() -> str:
    return os.environ.get(_STORE) or "."


def is_run(path: str) -> bool:
    """Whether a directory or URL is a run, even if its description is missing."""
    return is_run_at(location_of(path))


def directory_name(run: Run) -> str:
    """The name of the directory of a run, which is local or at a URL."""
    return run._location.name


def identity(run: Run) -> str:
    """A value that distinguishes runs of different stores."""
    return absolute(str(run.path))


def absolute(path: str) -> str:
    """The absolute path of a directory; a URL as it is."""
    return path if is_url(path) else os.path.abspath(path)


def _is_store(path: str) -> bool:
    return (is_url(path) or os.path.isdir(path)) and not is_run(path)


def _in_store(store: str, name: str) -> list[Run]:
    path = location_of(store) / name
    if not os.path.isabs(name) and is_run_at(path):
        return [Run(path)]
    if not _is_store(store) or os.sep in name:
        return []
    return [
        run
        for run in runs_of(store)
        if matches(run.name, name) or matches(directory_name(run), name)
    ]


def _at_path(path: str) -> list[Run]:
    there = is_url(path) or os.path.lexists(path)
    paths = [path] if there else sorted(glob.glob(path))
    found: list[Run] = []
    for each in paths:
        if is_run(each):
            found.append(Run(each))
        elif os.path.isdir(each):
            found += runs_in(each)
    return found


def _not_found(store: str, name: str) -> StoreError:
    if not _is_store(store):
        return StoreError(f"there is no store at {store}.")
    if os.path.lexists(name) and not os.path.isdir(name):
        return StoreError(f"{name} is a file, and not a store or a run.")
    if os.sep in name and not glob.has_magic(name):
        return StoreError(
            f"there is no store and no run at {name}{_runs_in_parent(name)}."
        )
    found = runs_of(store)
    if not found:
        return StoreError(
            f"there is no run or store {name!r}, and there are no runs in "
            f"{_named(store)}{_inner_stores(store)}."
        )
    begin = [run for run in found if run.name.startswith(name)]
    known = f"'{name}*' matches" if begin else "available:"
    return StoreError(
        f"no run in {_named(store)} matches {name!r}; {known} "
        f"{_listed(begin or found)}."
    )


def _runs_in_parent(path: str) -> str:
    """Names the runs in the parent directory of a path, for messages."""
    parent = os.path.dirname(path)
    found = runs_of(parent) if _is_store(parent) else ()
    return f"; in {parent}, there are {_listed(found)}" if found else ""


def _listed(found: Iterable[Run]) -> str:
    names = [printable(run.name) for run in found]
    more = len(names) - _MAX_NAMES
    shown = ", ".join(names[:_MAX_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def _named(store: str) -> str:
    return "this directory" if store == "." else store


def _inner_stores(path: str) -> str:
    """Names directories of a directory that are stores, for messages."""
    found: list[str] = []
    if is_url(path):
        return ""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir() and not entry.name.startswith("."):
                try:
                    names = os.listdir(entry.path)
                except OSError:
                    continue
                if any(is_run(os.path.join(entry.path, name)) for name in names[:20]):
                    found.append(os.path.normpath(entry.path))
    if not found:
        return ""
    more = " and others" if len(found) > _MAX_NAMES else ""
    shown = ", ".join(f"'{path}'" for path in sorted(found)[:_MAX_NAMES])
    return f"; stores in it: {shown}{more}"
