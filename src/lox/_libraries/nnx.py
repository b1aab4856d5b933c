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
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

_TAG = "lox"  # the name of lox's update contexts, which nest like its calls
_NODES = "__lox_nnx_nodes__"  # an argument that `StatefulCall` adds
_MAX_DEPTH = 3  # of nested functions that are searched for captured objects


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Placeholder:
    """A placeholder for the i-th NNX object among the arguments or the results."""

    index: int


def find(
    fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> "StatefulCall | None":
    """Returns a call that can update NNX objects; None if there are no such objects."""
    nnx: Any = sys.modules.get("flax.nnx")
    if not hasattr(nnx, "update_context"):  # not imported, or not completely yet
        return None
    call = StatefulCall(nnx, fun, args, kwargs)
    return call if call.nodes else None


# The ids of types whose values neither are NNX objects nor contain any; each has a weak
# reference, which removes the id.
_plain_types: dict[int, Any] = {}


def captures_none(fun: Any, depth: int = _MAX_DEPTH) -> bool:
    """Whether a plain function certainly uses no NNX object except its arguments.

    This is the part of the search in `find` that takes less than a microsecond. False
    means that it may use one.
    """
    if depth == 0:
        return True
    if type(fun) is not types.FunctionType:
        return False
    names, values = fun.__code__.co_names, fun.__globals__
    for name in names:
        value = values.get(name)
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
    at = id(kind)
    _plain_types[at] = weakref.ref(kind, lambda _: _plain_types.pop(at, None))
    return True


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
        found = [leaf for leaf in leaves if self._is_node(leaf)]
        found += _nodes_of_function(fun, self._kinds, depth=_MAX_DEPTH)
        # without duplicates
        self.nodes = list({id(node): node for node in found}.values())

    def _is_node(self, x: Any) -> bool:
        return isinstance(x, self._kinds)

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
        indices = {id(node): i for i, node in enumerate(self.nodes)}
        args, kwargs = self._map(
            lambda node: _Placeholder(indices[id(node)]), self._arguments
        )
        with nnx.update_context(_TAG), _current(self):
            with nnx.split_context(_TAG) as context:
                split = context.split(tuple(self.nodes))
            (out, split), added = call(args, {**kwargs, _NODES: split})
            with nnx.merge_context(_TAG, inner=False) as context:
                _, results = context.merge(*split)
        return _fill(out, results), added

    def evaluate(self, fun: Any, split: Any, arguments: Any) -> Any:
        """Calls `fun` inside the trace, with objects of this trace."""
        nnx = self._nnx
        with nnx.merge_context(_TAG, inner=True) as context:
            nodes = context.merge(*split)
        args, kwargs = _fill(arguments, nodes)
        new = {id(old): node for old, node in zip(self.nodes, nodes, strict=True)}
        try:
            out = _with_nodes(fun, new, depth=_MAX_DEPTH)(*args, **kwargs)
        except Exception as error:
            if type(error).__name__ == "TraceContextError":
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
        split = kwargs.pop(_NODES)
        return call.evaluate(fun, split, (args, kwargs))

    return wrapped


_CAPTURED = (
    "A lox transformation traces the function. Pass the modules, variables and "
    "optimizers that it updates as arguments instead of capturing them."
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


# --- captured objects --------------------------------------------------------


def _nodes_of_function(fun: Any, kinds: Any, depth: int) -> list[Any]:
    """The NNX objects that a callable is, is bound to, or closes over."""
    if isinstance(fun, kinds):
        return [fun]
    if depth == 0:
        return []
    inside: list[Any] = []
    if isinstance(fun, types.MethodType):
        inside = [fun.__self__, fun.__func__]
    elif isinstance(fun, functools.partial):
        arguments = fun.args, fun.keywords
        inside = [fun.func, *jax.tree.leaves(arguments, is_leaf=_is_leaf)]
    elif isinstance(fun, types.FunctionType):
        inside = [*_captured(fun).values()]
    return [node for x in inside for node in _nodes_of_function(x, kinds, depth - 1)]


def _is_leaf(x: Any) -> bool:
    return not isinstance(x, tuple | list | dict)


def _captured(fun: types.FunctionType) -> dict[str, Any]:
    """The variables that a function closes over, and the globals that it uses."""
    found = {
        name: fun.__globals__[name]
        for name in fun.__code__.co_names
        if name in fun.__globals__
    }
    cells = zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _with_nodes(fun: Any, new: dict[int, Any], depth: int) -> Any:
    """Replaces the NNX objects that `fun` is, is bound to, or closes over."""
    if id(fun) in new:
        return new[id(fun)]
    if depth == 0:
        return fun
    if isinstance(fun, types.MethodType):
        owner = _with_nodes(fun.__self__, new, depth - 1)
        return fun if owner is fun.__self__ else fun.__func__.__get__(owner)
    if isinstance(fun, functools.partial):
        return functools.partial(
            _with_nodes(fun.func, new, depth - 1),
            *(jax.tree.map(_replaced(new), fun.args, is_leaf=_is_leaf)),
            **(jax.tree.map(_replaced(new), fun.keywords, is_leaf=_is_leaf)),
        )
    if not isinstance(fun, types.FunctionType):
        return fun
    captured = {
        name: (value, _with_nodes(value, new, depth - 1))
        for name, value in _captured(fun).items()
    }
    changed = {name: y for name, (x, y) in captured.items() if x is not y}
    if not changed:
        return fun
    cells = tuple(
        types.CellType(changed[name]) if name in changed else cell
        for name, cell in zip(
            fun.__code__.co_freevars, fun.__closure__ or (), strict=True
        )
    )
    has_globals = changed.keys() - set(fun.__code__.co_freevars)
    names = {**fun.__globals__, **changed} if has_globals else fun.__globals__
    copied = types.FunctionType(fun.__code__, names, fun.__name__, None, cells or None)
    copied.__defaults__, copied.__kwdefaults__ = fun.__defaults__, fun.__kwdefaults__
    return copied


def _replaced(new: dict[int, Any]) -> Callable[[Any], Any]:
    return lambda x: new.get(id(x), x)
