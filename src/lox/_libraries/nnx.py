"""Flax NNX: functions that update the modules passed to them.

Tracing a function copies its arguments, so updates of an NNX module, variable,
optimizer or `Rngs` would be lost with the copy. Here these objects are split into their
arrays, merged again inside the trace, and updated after the call, with the protocol of
NNX's own transformations. Nothing here imports Flax: before the user imports it, there
are no such objects.
"""

import contextlib
import dataclasses
import functools
import operator
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from lox._jax import tracing

from .captured import Captured, defaults_of, global_names, is_searched, items_of

_TAG = "lox"  # the name of lox's update contexts, which nest like its calls
_NODES = "__lox_nnx_nodes__"  # an argument that `StatefulCall` adds
_MAX_DEPTH = 3  # of nested functions that are searched quickly


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Placeholder:
    """A placeholder for the i-th NNX object among the arguments or the results."""

    index: int


@jax.tree_util.register_static
class _ReadOnly:
    """NNX objects that the function uses, but that this call cannot update.

    They are compared by identity, and so are their arrays: a program that was compiled
    with other arrays is not used again.
    """

    def __init__(
        self, nnx: Any, nodes: Sequence[Any], pattern: tuple[int, ...]
    ) -> None:
        self.nodes = tuple(nodes)
        self._pattern = pattern
        self._arrays = jax.tree.leaves(list(map(nnx.state, nodes)))

    def __hash__(self) -> int:
        return hash((self._pattern, *map(id, self.nodes)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _ReadOnly)
            and self._pattern == other._pattern
            and _are_same(self.nodes, other.nodes)
            and _are_same(self._arrays, other._arrays)
        )


def _are_same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(map(operator.is_, first, second))


def find(
    fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> "StatefulCall | None":
    """Returns a call that can update NNX objects; None if there are no such objects."""
    nnx: Any = sys.modules.get("flax.nnx")
    if not hasattr(nnx, "update_context"):  # not imported, or not completely yet
        return None
    call = StatefulCall(nnx, fun, args, kwargs)
    return call if call.nodes or call.read_only else None


# The ids of types whose values neither are NNX objects nor contain any; each has a weak
# reference, which removes the id.
_plain_types: dict[int, Any] = {}


def captures_none(fun: Any, depth: int = _MAX_DEPTH) -> bool:
    """Whether a plain function certainly uses no NNX object except its arguments.

    This is the part of the search in `find` that takes less than a microsecond. False
    means that it may use one.
    """
    if depth == 0 or type(fun) is not types.FunctionType:
        return False
    values = fun.__globals__
    for name in global_names(fun):
        value = values.get(name)
        if id(type(value)) not in _plain_types and not _is_plain(value, depth):
            return False
    if fun.__defaults__ or fun.__kwdefaults__:
        for value in defaults_of(fun):
            if id(type(value)) not in _plain_types and not _is_plain(value, depth):
                return False
    for cell in fun.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if id(type(value)) not in _plain_types and not _is_plain(value, depth):
            return False
    return True


def _is_plain(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind is types.FunctionType:
        return captures_none(value, depth - 1)
    nnx: Any = sys.modules.get("flax.nnx")
    if not hasattr(nnx, "update_context"):  # not imported completely yet
        return False
    if issubclass(kind, (types.MethodType, functools.partial, *_kinds(nnx))):
        return False
    if is_searched(kind):
        return depth > 0 and all(
            id(type(item)) in _plain_types or _is_plain(item, depth - 1)
            for item in items_of(value)
        )
    at = id(kind)
    _plain_types[at] = weakref.ref(kind, lambda _: _plain_types.pop(at, None))
    return True


def is_object(x: Any) -> bool:
    """Whether `x` is an NNX module, variable or other object."""
    nnx: Any = sys.modules.get("flax.nnx")
    return hasattr(nnx, "update_context") and isinstance(x, _kinds(nnx))


def _can_be_updated(part: Any) -> bool:
    """Whether an NNX object was created in the current trace."""
    nnx: Any = sys.modules.get("flax.nnx")
    if isinstance(part, nnx.Variable):
        state = getattr(part, "_trace_state", None)
    else:  # an `Rngs` has attributes of any name, so they are not asked for
        own = getattr(part, "__dict__", {}).get("_pytree__state")
        state = getattr(own, "trace_state", None)
    return state is None or bool(state.is_valid())


def _kinds(nnx: Any) -> tuple[type, ...]:
    names = ("Variable", "Pytree", "Object")
    return tuple(getattr(nnx, name) for name in names if hasattr(nnx, name))


class StatefulCall:
    """One call of a function that can update NNX objects."""

    def __init__(
        self, nnx: Any, fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._nnx = nnx
        self._kinds = _kinds(nnx)
        self._arguments = args, kwargs
        leaves = jax.tree.leaves(self._arguments, is_leaf=self._is_node)
        given = [leaf for leaf in leaves if self._is_node(leaf)]
        others = (leaf for leaf in leaves if not self._is_node(leaf))
        self._captured = captured = Captured(fun, others, self._kinds)
        # without duplicates
        found = {id(node): node for node in (*given, *captured.nodes)}
        self.read_only = self._not_updated(found, captured.hidden)
        fixed = set(map(id, self.read_only))
        self.nodes = [node for at, node in found.items() if at not in fixed]

    def _is_node(self, x: Any) -> bool:
        return isinstance(x, self._kinds)

    def _not_updated(self, found: dict[int, Any], hidden: list[Any]) -> list[Any]:
        """The objects that the function can only read.

        These are objects of an outer trace, which NNX does not allow to be updated, and
        those that cannot be replaced everywhere, with all that have a part in common.
        """
        rest = list(found.values())
        if not tracing.at_top_level():
            hidden = [*hidden, *(x for x in rest if not self._is_of_this_trace(x))]
        if not hidden:
            return []
        parts = {id(part) for node in hidden for part in self._parts(node)}
        shared = [x for x in rest if any(id(y) in parts for y in self._parts(x))]
        return list({id(node): node for node in (*hidden, *shared)}.values())

    def _parts(self, node: Any) -> list[Any]:
        """The modules and variables of an object, with itself."""
        graph = self._nnx.iter_graph(node)
        return [part for _, part in graph if self._is_node(part)]

    def _is_of_this_trace(self, node: Any) -> bool:
        return all(map(_can_be_updated, self._parts(node)))

    def _map(self, change: Callable[[Any], Any], tree: Any) -> Any:
        """Maps a function over the NNX objects in a tree."""
        return jax.tree.map(
            lambda x: change(x) if self._is_node(x) else x, tree, is_leaf=self._is_node
        )

    def run(self, call: Callable[..., Any]) -> Any:
        """Makes the call, and updates the objects.

        Args:
            call: a function of arguments without NNX objects that returns the results
                of a function made by `pure`, and what the transformation adds.
        """
        nnx = self._nnx
        every = (*self.nodes, *self.read_only)
        indices = {id(node): i for i, node in enumerate(every)}
        args, kwargs = self._map(
            lambda node: _Placeholder(indices[id(node)]), self._arguments
        )
        read_only = _ReadOnly(nnx, self.read_only, self._captured.pattern)
        with nnx.update_context(_TAG), _current(self):
            with nnx.split_context(_TAG) as context:
                split = context.split(tuple(self.nodes))
            own = {_NODES: (split, read_only)}
            (out, split), added = call(args, {**kwargs, **own})
            with nnx.merge_context(_TAG, inner=False) as context:
                _, results = context.merge(*split)
        return _fill(out, results), added

    def evaluate(self, fun: Any, split: Any, arguments: Any) -> Any:
        """Calls `fun` inside the trace, with objects of this trace."""
        nnx = self._nnx
        with nnx.merge_context(_TAG, inner=True) as context:
            nodes = context.merge(*split)
        args, kwargs = _fill(arguments, (*nodes, *self.read_only))
        try:
            with self._captured.exchanged(self.nodes, nodes) as function:
                out = function(*args, **kwargs)
        except Exception as error:
            if "trace level" in str(error):
                error.add_note(_CAPTURED)
            raise
        results: list[Any] = []

        def place(node: Any) -> _Placeholder:
            results.append(node)
            return _Placeholder(len(results) - 1)

        out = self._map(place, out)
        with nnx.split_context(_TAG) as context:
            split = context.split((nodes, tuple(results)))
        return out, split


# The current calls, innermost last: a function that is being traced needs to know its
# call. A program that is already compiled does not.
_calls = threading.local()


@contextlib.contextmanager
def _current(call: StatefulCall) -> Iterator[None]:
    stack = _calls.__dict__.setdefault("stack", [])
    stack.append(call)
    try:
        yield
    finally:
        stack.pop()


def pure(fun: Any, kwargs: dict[str, Any]) -> Any:
    """Wraps `fun` to take the arguments that `StatefulCall.run` passes."""
    if _NODES not in kwargs:
        return fun
    call = _calls.stack[-1]

    @functools.wraps(fun, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        split, _ = kwargs.pop(_NODES)
        return call.evaluate(fun, split, (args, kwargs))

    return wrapped


def reads_only(kwargs: dict[str, Any]) -> bool:
    """Whether a call uses objects that it cannot update, given what `run` passes."""
    _, read_only = kwargs[_NODES]
    return bool(read_only.nodes)


_CAPTURED = (
    "A lox transformation traces the function. Pass the modules, variables and "
    "optimizers that it updates as arguments."
)


def _fill(tree: Any, nodes: Sequence[Any]) -> Any:
    def fill(x: Any) -> Any:
        return nodes[x.index] if type(x) is _Placeholder else x

    return jax.tree.map(fill, tree, is_leaf=lambda x: type(x) is _Placeholder)


def as_arrays(value: Any) -> Any:
    """Converts NNX variables to arrays, and modules and states to dicts of arrays."""
    nnx: Any = sys.modules.get("flax.nnx")
    if not hasattr(nnx, "to_pure_dict"):
        return value

    def plain(x: Any) -> Any:
        if isinstance(x, nnx.Module):
            x = nnx.state(x)
        if isinstance(x, nnx.State):
            return nnx.to_pure_dict(x)
        return x[...] if isinstance(x, nnx.Variable) else x

    kinds = (nnx.Module, nnx.State, nnx.Variable)
    return jax.tree.map(plain, value, is_leaf=lambda x: isinstance(x, kinds))
