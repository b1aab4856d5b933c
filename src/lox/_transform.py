"""What all transformations share: how a function is called, traced and remembered.

A transformed function is one `jax.jit` inside, kept by the identity of the user's
function and the transformation's options. An eager call then costs what a jitted one
does, and writing `lox.spool(f)` anew at each call does not trace or compile anew.
"""

import collections
import dataclasses
import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from ._errors import LoxTypeError, describe

# What becomes of a traced function: its closed jaxpr and flat arguments, to the flat
# results and whatever the transformation adds.
Evaluate = Callable[[Any, Sequence[Any]], tuple[list[Any], Any]]


@dataclasses.dataclass(frozen=True)
class Static:
    """Which arguments are static, as in `jax.jit`."""

    argnums: tuple[int, ...]
    argnames: tuple[str, ...]

    @classmethod
    def of(cls, fun: Any, argnums: Any, argnames: Any) -> "Static":
        """Both ways to name an argument, each made whole by the other, as JAX does."""
        nums, names = _tuple(argnums), _tuple(argnames)
        if not nums and not names:
            return cls((), ())
        try:
            parameters = inspect.signature(fun).parameters.values()
        except (TypeError, ValueError):
            return cls(nums, names)
        positional = [
            p.name
            for p in parameters
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        nums = tuple(i + len(positional) if i < 0 else i for i in nums)
        named = {positional[i] for i in nums if i < len(positional)}
        indices = {positional.index(name) for name in names if name in positional}
        return cls(tuple(sorted({*nums, *indices})), tuple(sorted({*names, *named})))

    def after(self, count: int) -> "Static":
        """The same for a function with so many more arguments in front."""
        return Static(tuple(i + count for i in self.argnums), self.argnames)

    def __bool__(self) -> bool:
        return bool(self.argnums or self.argnames)

    def hide(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments with the static ones as leaves that are no arrays."""
        return (
            tuple(_Hidden(x) if i in self.argnums else x for i, x in enumerate(args)),
            {k: _Hidden(x) if k in self.argnames else x for k, x in kwargs.items()},
        )


class _Hidden:
    """A static argument."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int | str) else tuple(value)


# A callback that is written anew at each call makes a new entry each time.
_MOST_KEPT = 64


class _Cache:
    """Compiled functions, for as long as the functions that they come from live.

    Functions are told apart by identity: objects that are equal now may differ later.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: dict[int, tuple[Any, collections.OrderedDict[Any, Any]]] = {}

    def find(self, fun: Any, key: Any) -> Any:
        """What is kept, or None; the fast way, without the lock."""
        entry = self._kept.get(id(fun))
        if entry is None or entry[0]() is not fun:
            return None
        try:
            return entry[1].get(key)
        except TypeError:  # a key that is not hashable
            return None

    def get(self, fun: Any, key: Hashable, make: Callable[[Any], Any]) -> Any:
        """What is kept for a function and a key, or `make` of a way to the function."""
        found = self.find(fun, key)
        if found is not None:
            return found
        # a bound method is a new object each time; its parts are not
        owner = fun.__self__ if inspect.ismethod(fun) else fun
        if inspect.ismethod(fun):
            key = (fun.__func__, key)
        try:
            hash(key)
            reference = weakref.ref(owner, functools.partial(self._drop, id(owner)))
        except TypeError:  # not hashable, or not weakly referable: nothing to keep
            return make(lambda: fun)
        with self._lock:
            _, kept = self._kept.setdefault(
                id(owner), (reference, collections.OrderedDict())
            )
            if key not in kept:
                kept[key] = make(_weak(fun))
                if len(kept) > _MOST_KEPT:
                    kept.popitem(last=False)
            return kept[key]

    def _drop(self, number: int, reference: Any) -> None:
        with self._lock:
            kept = self._kept.get(number)
            if kept is not None and kept[0] is reference:
                del self._kept[number]


def _weak(fun: Any) -> Callable[[], Any]:
    """`fun`, without keeping alive what the cache is keyed by."""
    if not inspect.ismethod(fun):
        return weakref.ref(fun)
    owner, function = weakref.ref(fun.__self__), fun.__func__
    return lambda: function.__get__(owner())


_cache = _Cache()
_shortcuts = _Cache()


class Compiled:
    """A function of the user's, traced, evaluated anew and jitted."""

    def __init__(
        self,
        get_fun: Callable[[], Any],
        evaluate: Evaluate,
        static: Static,
        sink: Any,
    ) -> None:
        self._get_fun = get_fun
        self._evaluate = evaluate
        self._static = static
        # whether arguments or results may hold what is no array; such calls take longer
        self._mixed = False
        # where the events go that the program delivers, if it delivers any
        self.sink = sink
        fun = get_fun()

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._run(args, kwargs)

        def call_mixed(static: "_Static", arrays: list[Any]) -> Any:
            args, kwargs = static.fill(arrays)
            return self._run(args, kwargs)

        for function in (call, call_mixed):
            _name_after(function, fun)
        self._jitted = jax.jit(
            call,
            inline=True,
            static_argnums=static.argnums,
            static_argnames=static.argnames,
        )
        self._jitted_mixed = jax.jit(call_mixed, inline=True, static_argnums=0)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._mixed:
            result, added = self._call_mixed(args, kwargs)
        else:
            try:
                result, added = self._jitted(*args, **kwargs)
            except TypeError:
                if self._static or not _has_static(args, kwargs):
                    raise
                self._mixed = True
                result, added = self._call_mixed(args, kwargs)
        if type(result) is _Partial:
            result = result.fill()
        return result, added

    def _call_mixed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        static, arrays = _split(args, kwargs)
        return self._jitted_mixed(static, arrays)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Traces the user's function and evaluates what it logs."""
        fun = self._get_fun()
        shape: list[Any] = []

        def arrays_of(out: Any) -> list[Any]:
            leaves, tree = jax.tree.flatten(out)
            # results that are no arrays (a string, a function) pass through
            static = {i: x for i, x in enumerate(leaves) if not is_array(x)}
            shape.append((tree, static))
            return [x for x in leaves if is_array(x)]

        leaves, tree = jax.tree.flatten(self._static.hide(args, kwargs))
        traced = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
        arrays = [leaves[i] for i in traced]

        @_named_like(fun)
        def plain(*args: Any, **kwargs: Any) -> list[Any]:
            return arrays_of(fun(*args, **kwargs))

        @_named_like(fun)
        def mixed(*arrays: Any) -> list[Any]:
            filled = [x.value if type(x) is _Hidden else x for x in leaves]
            for i, array in zip(traced, arrays, strict=True):
                filled[i] = array
            inner_args, inner_kwargs = jax.tree.unflatten(tree, filled)
            return arrays_of(fun(*inner_args, **inner_kwargs))

        try:
            if len(arrays) == len(leaves):  # then JAX's errors name the arguments
                closed = jax.make_jaxpr(plain)(*args, **kwargs)
            else:
                closed = jax.make_jaxpr(mixed)(*arrays)
        except ValueError as error:
            if "static arguments" not in str(error):
                raise
            raise LoxTypeError(
                f"{getattr(fun, '__name__', fun)} has static arguments of its own, "
                "which lox traces: name them to lox too, with `static_argnums` or "
                "`static_argnames`."
            ) from error
        outs, added = self._evaluate(closed, arrays)
        out_tree, static = shape[-1]
        if static:
            return _Partial(outs, (out_tree, static)), added
        return jax.tree.unflatten(out_tree, outs), added


def _named_like(fun: Any) -> Callable[[Any], Any]:
    """`functools.wraps`, as far as `fun` has what it wants."""

    def decorate(function: Any) -> Any:
        try:
            return functools.wraps(fun)(function)
        except (AttributeError, TypeError):
            return function

    return decorate


@jax.tree_util.register_pytree_node_class
class _Partial:
    """A result of which some leaves are no arrays; `jit` carries them as structure."""

    def __init__(self, arrays: Any, rest: tuple[Any, dict[int, Any]]) -> None:
        self._arrays = arrays
        self._rest = rest

    def fill(self) -> Any:
        tree, static = self._rest
        arrays = iter(self._arrays)
        return jax.tree.unflatten(
            tree,
            [
                static[i] if i in static else next(arrays)
                for i in range(tree.num_leaves)
            ],
        )

    def tree_flatten(self) -> tuple[Any, Any]:
        return tuple(self._arrays), self._rest

    @classmethod
    def tree_unflatten(cls, rest: Any, arrays: Any) -> "_Partial":
        return cls(arrays, rest)


def _name_after(function: Any, fun: Any) -> None:
    name = getattr(fun, "__name__", None)
    function.__name__ = name if isinstance(name, str) else "fun"
    function.__qualname__ = function.__name__


def is_array(x: Any) -> bool:
    """Whether JAX traces `x`; all else is static."""
    return isinstance(
        x, jax.Array | np.ndarray | np.generic | bool | int | float | complex
    ) or hasattr(x, "__jax_array__")


def _has_static(args: Any, kwargs: Any) -> bool:
    return not all(is_array(leaf) for leaf in jax.tree.leaves((args, kwargs)))


class _Static:
    """The arguments without their arrays: hashable, so that `jit` can compare them."""

    def __init__(self, tree: Any, leaves: list[Any]) -> None:
        self._tree = tree
        self._leaves = leaves
        for leaf in leaves:
            if leaf.__hash__ is None:
                raise LoxTypeError(
                    f"an argument holds {leaf!r} of type {type(leaf).__name__}, which "
                    "is neither an array nor hashable. What is no array is static, as "
                    "in `jax.jit`, and must be hashable: pass a tuple or a frozenset."
                )
        self._hash = hash((tree, *leaves))

    def fill(self, arrays: Sequence[Any]) -> Any:
        rest = iter(arrays)
        leaves = [next(rest) if leaf is _ARRAY else leaf for leaf in self._leaves]
        return jax.tree.unflatten(self._tree, leaves)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Static)
            and self._tree == other._tree
            and all(map(_same, self._leaves, other._leaves))
        )


_ARRAY = object()


def _same(x: Any, y: Any) -> bool:
    if x is y:
        return True
    return type(x) is type(y) and bool(x == y)


def _split(args: Any, kwargs: Any) -> tuple[_Static, list[Any]]:
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = [leaf for leaf in leaves if is_array(leaf)]
    rest = [_ARRAY if is_array(leaf) else leaf for leaf in leaves]
    return _Static(tree, rest), arrays


def compiled(
    fun: Any,
    key: Hashable,
    build: Callable[[], tuple[Evaluate, Any]],
    static: Static,
    wrap: Callable[[Any], Any] | None = None,
) -> Compiled:
    """The compiled form of `fun` for a transformation and options named by `key`.

    Args:
        fun: the function.
        key: what tells this form from others of the same function.
        build: makes the evaluation, and the sink that it delivers to, if it is new.
        static: the static arguments.
        wrap: makes a function with one more argument in front, if there is to be one.
    """

    def make(get_fun: Callable[[], Any]) -> Compiled:
        evaluate, sink = build()
        if wrap is None:
            return Compiled(get_fun, evaluate, static, sink)
        return Compiled(lambda: wrap(get_fun()), evaluate, static.after(1), sink)

    return _cache.get(fun, (key, static), make)


def check_callable(fun: Any, name: str, rest: str = "") -> None:
    """Raises if what a transformation is given is no function.

    Args:
        fun: what it is given.
        name: the transformation, as it is called.
        rest: its other arguments, for example.
    """
    if not callable(fun):
        raise LoxTypeError(
            f"`{name}` transforms a function, but got {describe(fun)}. Pass the "
            f"function itself, not the result of calling it: `{name}(f{rest})(x)`, not "
            f"`{name}(f(x){rest})`."
        )


def remembered(fun: Any, options: Any, make: Callable[[Any, Any], Any]) -> Any:
    """`make(fun, options)`, or what it gave before; it must not hold `fun`.

    This is on the way of every call of a transformation that is written anew each time,
    so it takes the options as they are, and checks nothing.
    """
    found = _shortcuts.find(fun, options)
    if found is None:
        found = _shortcuts.get(fun, options, lambda _: make(fun, options))
    return found


# What a transformation gives back. It is no closure in `functools.wraps`, because
# making one takes a fifth of a call, and `lox.spool(f)(x)` makes one each time.
class Transformed:
    __slots__ = ("__dict__", "__weakref__", "__wrapped__", "_forms")

    def __init__(self, fun: Any, forms: Any) -> None:
        self.__wrapped__ = fun
        self._forms = forms

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __repr__(self) -> str:
        return f"<lox.{type(self).__name__[1:].lower()} of {self.__wrapped__!r}>"

    __doc__ = property(lambda self: self.__wrapped__.__doc__)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)
