"""The NNX objects that a function uses without getting them as arguments.

While a function is traced, other objects take their places. A function can be copied
with other objects instead of those that it closes over, is bound to, or finds in its
globals. In dicts, lists and attributes of objects, they are exchanged for as long as
the function is traced. Objects elsewhere, such as in a tuple, are out of reach: they
are *hidden*.
"""

import argparse
import contextlib
import dis
import functools
import itertools
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax

from lox._objects import attributes_of

# The globals of these packages hold no objects of users.
_PACKAGES = {
    *sys.stdlib_module_names,
    *("chex", "flax", "jax", "jaxlib", "logify", "lox", "numpy", "optax", "scipy"),
}
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_MAX_SEARCHED = 1000  # objects, and items of a container
_CALLABLES = (types.FunctionType, types.MethodType, functools.partial)


def is_searched(kind: type) -> bool:
    """Whether an object of this type may lead to NNX objects."""
    if issubclass(kind, (*_CALLABLES, *_CONTAINERS, *_NAMESPACES)):
        return True
    if issubclass(kind, type | types.ModuleType):
        return False
    is_own = str(kind.__module__).partition(".")[0] not in _PACKAGES
    return is_own or hasattr(kind, "__wrapped__")  # a function of `lox.spool`


class Captured:
    """Searches a function and its arguments for NNX objects.

    Args:
        fun: the function.
        arguments: the leaves of its arguments that are not NNX objects.
        kinds: the types of NNX objects.

    Attributes:
        nodes: the objects that can be replaced.
        hidden: those that cannot.
        pattern: where the objects were found; it tells aliases apart.
    """

    def __init__(
        self, fun: Any, arguments: Iterable[Any], kinds: tuple[type, ...]
    ) -> None:
        self._kinds = kinds
        self._fun = fun
        self._inside: dict[int, tuple[Any, list[tuple[Any, Any]]]] = {}
        self._seen: dict[int, Any] = {}
        self.nodes: list[Any] = []
        self.hidden: list[Any] = []
        self._places: list[tuple[Any, Any, Any]] = []
        indices: list[int] = []
        self._visit(fun, indices)
        for leaf in arguments:
            self._visit_owner(leaf, indices)
        self.pattern = tuple(indices)

    def _visit(self, value: Any, indices: list[int]) -> None:
        """Finds the objects that a value is, or that it leads to."""
        if isinstance(value, self._kinds):
            indices.append(_index(value, self.nodes))
        elif not isinstance(value, _CALLABLES):
            self._visit_owner(value, indices)
        elif id(value) not in self._inside:
            inside = list(_inside(value))
            self._inside[id(value)] = value, inside
            for _, item in inside:
                self._visit(item, indices)

    def _visit_owner(self, owner: Any, indices: list[int]) -> None:
        """Finds the objects in a container or in the attributes of an object."""
        waiting = [owner]
        while waiting and len(self._seen) < _MAX_SEARCHED:
            owner = waiting.pop()
            if id(owner) in self._seen or not is_searched(type(owner)):
                continue
            self._seen[id(owner)] = owner
            for place, item in _places_in(owner):
                if not isinstance(item, self._kinds):
                    waiting.append(item)
                elif place is None:
                    _index(item, self.hidden)
                else:
                    self._places.append((owner, place, item))
                    indices.append(_index(item, self.nodes))

    @contextlib.contextmanager
    def exchanged(self, nodes: Sequence[Any], others: Sequence[Any]) -> Iterator[Any]:
        """Gives the function with other objects instead of `nodes`."""
        new = {id(node): other for node, other in zip(nodes, others, strict=True)}
        old = {id(other): node for node, other in zip(nodes, others, strict=True)}
        places = [entry for entry in self._places if id(entry[2]) in new]
        for owner, place, node in places:
            _set(owner, place, new[id(node)])
        try:
            yield self._replaced(new)
        finally:
            for owner, place, _ in places:
                found = id(_get(owner, place))  # the function may have set another one
                if found in old:
                    _set(owner, place, old[found])

    def _replaced(self, new: dict[int, Any]) -> Any:
        """The function, copied with other objects."""
        changed = self._leading_to(new)
        copies: dict[int, Any] = dict(new)
        functions = []
        # functions first, because they may refer to each other
        for at in changed:
            value, inside = self._inside[at]
            if isinstance(value, types.FunctionType):
                copies[at] = _copy(value, {name for name, _ in inside})
                functions.append((copies[at], inside))

        def copied(value: Any) -> Any:
            if id(value) in copies or id(value) not in changed:
                return copies.get(id(value), value)
            made: Any
            if isinstance(value, types.MethodType):
                made = types.MethodType(copied(value.__func__), copied(value.__self__))
            else:
                made = functools.partial(
                    copied(value.func),
                    *jax.tree.map(copied, value.args, is_leaf=_is_leaf),
                    **jax.tree.map(copied, value.keywords, is_leaf=_is_leaf),
                )
            copies[id(value)] = made
            return made

        for function, inside in functions:
            cells = dict(
                zip(
                    function.__code__.co_freevars,
                    function.__closure__ or (),
                    strict=True,
                )
            )
            for name, value in inside:
                if name in cells:
                    cells[name].cell_contents = copied(value)
                elif name is not None and copied(value) is not value:
                    function.__globals__[name] = copied(value)
            function.__defaults__ = tuple(map(copied, function.__defaults__ or ()))
            by_name = function.__kwdefaults__ or {}
            function.__kwdefaults__ = {name: copied(x) for name, x in by_name.items()}
        return copied(self._fun)

    def _leading_to(self, new: dict[int, Any]) -> set[int]:
        """The functions, methods and partials through which the objects are found."""
        users: dict[int, list[int]] = {}
        for at, (_, inside) in self._inside.items():
            for _, item in inside:
                users.setdefault(id(item), []).append(at)
        found: set[int] = set()
        waiting = list(new)
        while waiting:
            for at in users.get(waiting.pop(), ()):
                if at not in found:
                    found.add(at)
                    waiting.append(at)
        return found


def _index(value: Any, values: list[Any]) -> int:
    for i, one in enumerate(values):
        if one is value:
            return i
    values.append(value)
    return len(values) - 1


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    """What can be replaced in a function, method or partial, with the names of it."""
    if isinstance(value, types.MethodType):
        yield "__self__", value.__self__
        yield "__func__", value.__func__
    elif isinstance(value, functools.partial):
        yield "func", value.func
        for leaf in jax.tree.leaves((value.args, value.keywords), is_leaf=_is_leaf):
            yield None, leaf
    else:
        for name in global_names(value):
            if name in value.__globals__:
                yield name, value.__globals__[name]
        yield from _cells(value)
        for default in defaults_of(value):
            yield None, default


def defaults_of(fun: types.FunctionType) -> Iterator[Any]:
    """The default values of the arguments of a function."""
    yield from fun.__defaults__ or ()
    yield from (fun.__kwdefaults__ or {}).values()


def _cells(fun: types.FunctionType) -> Iterator[tuple[str, Any]]:
    names = fun.__code__.co_freevars
    for name, cell in zip(names, fun.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _copy(fun: types.FunctionType, names: set[Any]) -> types.FunctionType:
    """A function with its own cells and globals."""
    cells = []
    for cell in fun.__closure__ or ():
        try:
            cells.append(types.CellType(cell.cell_contents))
        except ValueError:
            cells.append(cell)
    uses_globals = bool(names - {None, *fun.__code__.co_freevars})
    values = dict(fun.__globals__) if uses_globals else fun.__globals__
    new = types.FunctionType(
        fun.__code__, values, fun.__name__, None, tuple(cells) or None
    )
    new.__defaults__, new.__kwdefaults__ = fun.__defaults__, fun.__kwdefaults__
    new.__dict__ = fun.__dict__  # what the function writes there is kept
    return new


def items_of(value: Any) -> Iterable[Any]:
    """Everything that is directly inside a value."""
    return (item for _, item in _places_in(value))


def _places_in(owner: Any) -> Iterator[tuple[Any, Any]]:
    """The items of a container or object, each with its place; None if it is fixed."""
    if isinstance(owner, dict):
        is_plain = type(owner) in (dict, OrderedDict, defaultdict)
        for key, item in list(itertools.islice(owner.items(), _MAX_SEARCHED)):
            yield key if is_plain else None, item
    elif isinstance(owner, _CONTAINERS):
        is_plain = type(owner) is list
        for i, item in enumerate(list(itertools.islice(owner, _MAX_SEARCHED))):
            yield i if is_plain else None, item
    elif isinstance(owner, _CALLABLES):
        for _, item in _inside(owner):
            yield None, item
    else:
        yield from attributes_of(owner).items()


def _get(owner: Any, place: Any) -> Any:
    try:
        return owner[place] if isinstance(owner, dict | list) else getattr(owner, place)
    except (AttributeError, LookupError):  # the function has removed it
        return None


def _set(owner: Any, place: Any, value: Any) -> None:
    if isinstance(owner, dict | list):
        owner[place] = value
    else:
        object.__setattr__(owner, place, value)  # also of a frozen dataclass


def _is_leaf(x: Any) -> bool:
    return not isinstance(x, tuple | list | dict)


# By the id of a code: a weak reference to it, and the names.
_names: dict[int, tuple[Any, tuple[str, ...]]] = {}


def global_names(fun: types.FunctionType) -> tuple[str, ...]:
    """The globals that a function uses, and the functions that are defined in it."""
    code = fun.__code__
    entry = _names.get(id(code))
    if entry is not None and entry[0]() is code:
        return entry[1]
    found: tuple[str, ...] = ()
    if str(fun.__module__).partition(".")[0] not in _PACKAGES:
        found = tuple(dict.fromkeys(_loaded(code)))
    at = id(code)
    _names[at] = weakref.ref(code, lambda _: _names.pop(at, None)), found
    return found


def _loaded(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _loaded(inner)
