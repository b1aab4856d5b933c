"""What all transformations share: how a function is called, traced and remembered.

A transformed function is one `jax.jit` inside, kept by the identity of the user's
function and the transformation's options. An eager call then costs what a jitted one
does, and writing `lox.spool(f)` anew at each call does not trace or compile anew.
"""

import collections
import dataclasses
import enum
import functools
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from lox._arrays import is_array
from lox._errors import LoxTypeError, describe
from lox._events.not_traced import note_host_functions, while_tracing
from lox._interpreter.contents import host_functions_in
from lox._jax import tracing
from lox._libraries import nnx
from lox._libraries.modules import check_modules

from .arguments import (
    NO_STATIC,
    Static,
    StaticLeaves,
    all_traced,
    hide_settings,
    revealed,
    split,
    traced_attribute,
)

# whether no other transformation, of lox or of JAX, is under way
is_outermost = tracing.at_top_level

# What becomes of a traced function: its closed jaxpr and flat arguments, to the flat
# results and whatever the transformation adds.
Evaluate = Callable[[Any, Sequence[Any]], tuple[list[Any], Any]]


# A callback that is written anew at each call makes a new entry each time.
_MOST_KEPT = 64


class _Cache:
    """Compiled functions, for as long as the functions that they come from live.

    Functions are told apart by identity: objects that are equal now may differ later.
    So are bound methods, as in `jax.jit`: `trainer.step` is a new object each time that
    it is written, because `trainer` may have changed.
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
        try:
            hash(key)
            reference = weakref.ref(fun, functools.partial(self._drop, id(fun)))
        except TypeError:  # not hashable, or not weakly referable: nothing to keep
            return make(lambda: fun)
        with self._lock:
            _, kept = self._kept.setdefault(
                id(fun), (reference, collections.OrderedDict())
            )
            if key not in kept:
                kept[key] = make(weakref.ref(fun))
                if len(kept) > _MOST_KEPT:
                    kept.popitem(last=False)
            return kept[key]

    def _drop(self, number: int, reference: Any) -> None:
        with self._lock:
            kept = self._kept.get(number)
            if kept is not None and kept[0] is reference:
                del self._kept[number]


_cache = _Cache()
_shortcuts = _Cache()


class Compiled:
    """A user's function: traced, evaluated anew, and jitted where nobody else does."""

    def __init__(
        self,
        get_fun: Callable[[], Any],
        evaluate: Evaluate,
        form: "Form",
        static: Static,
        front: int,
        sink: Any,
    ) -> None:
        self._get_fun = get_fun
        self._evaluate = evaluate
        self._form = form
        self.static = static
        # so many leading arguments are the transformation's own, and always traced
        self._front = front
        # where the events go that the program delivers, if it delivers any
        self.sink = sink
        fun = get_fun()

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._run(args, kwargs, inline=False)

        def call_mixed(static: StaticLeaves, arrays: list[Any]) -> Any:
            args, kwargs = static.fill(arrays)
            return self._run(args, kwargs, inline=False)

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
        if "flax.nnx" in sys.modules:
            stateful = nnx.find(self._get_fun(), args, kwargs)
            if stateful is not None:
                return stateful.run(self._call)
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        form = self._form
        if not form.outermost and tracing.is_staging():
            # The function becomes part of a larger program, so that there is nothing
            # to compile here. It sees everything that is not traced as it is.
            return self._run(args, kwargs, inline=True)
        hidden = given = self.static.hide(args, kwargs)
        if form.numbers:
            hidden = hide_settings(given)
        if hidden is given and all_traced(
            *self.static.traced(args, kwargs), form.numbers
        ):
            result, added = self._jitted(*args, **kwargs)
        else:
            static, arrays = split(*hidden, form.numbers)
            result, added = self._jitted_mixed(static, arrays)
        if type(result) is _Partial:
            result = result.fill()
        return result, added

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], inline: bool) -> Any:
        """Traces the user's function and evaluates what it logs."""
        user_fun = self._get_fun()
        fun = nnx.pure(user_fun, kwargs)
        shape: list[Any] = []
        traces: list[Callable[[], Any]] = []

        def arrays_of(out: Any) -> list[Any]:
            traces.append(tracing.trace_reference())
            if not inline and self._form.numbers:
                out = hide_settings(out, _runs_later)
            leaves, tree = jax.tree.flatten(out, is_leaf=_runs_later)
            # results that are no arrays (a string, a function) pass through
            is_traced = [self._is_result(leaf, inline) for leaf in leaves]
            pairs = list(zip(leaves, is_traced, strict=True))
            rest = {i: revealed(x) for i, (x, own) in enumerate(pairs) if not own}
            shape.append((tree, rest))
            return [x for x, own in pairs if own]

        leaves, tree = jax.tree.flatten(self.static.hide(args, kwargs))
        traced = [
            i
            for i, leaf in enumerate(leaves)
            if i < self._front or isinstance(leaf, jax.core.Tracer)
        ]
        arrays = [leaves[i] for i in traced]

        @_named_like(user_fun)
        def plain(*args: Any, **kwargs: Any) -> list[Any]:
            return arrays_of(fun(*args, **kwargs))

        @_named_like(user_fun)
        def mixed(*arrays: Any) -> list[Any]:
            filled = list(map(revealed, leaves))
            for i, array in zip(traced, arrays, strict=True):
                filled[i] = array
            inner_args, inner_kwargs = jax.tree.unflatten(tree, filled)
            return arrays_of(fun(*inner_args, **inner_kwargs))

        try:
            with while_tracing():
                if len(arrays) == len(leaves):  # then JAX's errors name the arguments
                    closed = jax.make_jaxpr(plain)(*args, **kwargs)
                else:
                    closed = jax.make_jaxpr(mixed)(*arrays)
        except ValueError as error:
            if "static arguments" not in str(error):
                raise
            raise LoxTypeError(
                f"{getattr(user_fun, '__name__', user_fun)} has static arguments of "
                "its own, which lox traces: name them to lox too, with "
                "`static_argnums` or `static_argnames`."
            ) from error
        trace = traces[-1]()
        if trace is not None:  # then somebody holds what was traced
            check_modules(user_fun, trace)
        if self._form.outermost:
            owner = getattr(inspect.unwrap(user_fun), "__self__", None)
            _check_objects(user_fun, [owner, *leaves])
        note_host_functions(host_functions_in(closed))
        outs, added = self._evaluate(closed, arrays)
        out_tree, rest = shape[-1]
        if not rest:
            return jax.tree.unflatten(out_tree, outs), added
        result = _Partial(outs, (out_tree, rest))
        return (result.fill() if inline else result), added

    def _is_result(self, x: Any, inline: bool) -> bool:
        """Whether a leaf of the result is an array; others are left as they are."""
        if _runs_later(x):
            raise LoxTypeError(
                f"{getattr(self._get_fun(), '__name__', 'the function')} returns a "
                f"{type(x).__name__}, whose body runs later, outside of the "
                "transformation, so that its logs would be missed. Return a list of "
                "what it yields, or transform the function that iterates over it."
            )
        if inline:
            return isinstance(x, jax.Array)
        if isinstance(x, bool | enum.Enum):
            return False
        if isinstance(x, int | float | complex):
            return self._form.numbers
        return is_array(x)


def _runs_later(x: Any) -> bool:
    return inspect.isgenerator(x) or inspect.iscoroutine(x) or inspect.isasyncgen(x)


def _check_objects(fun: Any, leaves: Sequence[Any]) -> None:
    """Raises if tracing has left a traced value in an argument."""
    for leaf in map(revealed, leaves):
        name = traced_attribute(leaf)
        if name is not None:
            raise LoxTypeError(
                f"{getattr(fun, '__name__', fun)} writes a traced value to the "
                f"attribute {name!r} of an object of type {type(leaf).__name__}, where "
                "it would stay when the trace has ended. Return the value instead, or "
                "log it."
            )


@dataclasses.dataclass(frozen=True)
class Form:
    """In which surroundings a transformed function is called.

    Attributes:
        outermost: whether no transformation is under way around it.
        numbers: whether Python numbers are traced, as `jax.jit` does.
    """

    outermost: bool
    numbers: bool


OUTERMOST = Form(outermost=True, numbers=True)
INSIDE = Form(outermost=False, numbers=False)


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


def compiled(
    fun: Any,
    key: Hashable,
    build: Callable[[], tuple[Evaluate, Any]],
    form: Form,
    static: Static,
    wrap: Callable[[Any], Any] | None = None,
) -> Compiled:
    """The compiled form of `fun` for a transformation and options named by `key`.

    Args:
        fun: the function.
        key: what tells this form from others of the same function.
        build: makes the evaluation, and the sink that it delivers to, if it is new.
        form: where it is called.
        static: the static arguments.
        wrap: makes a function with one more argument in front, if there is to be one.
    """

    def make(get_fun: Callable[[], Any]) -> Compiled:
        evaluate, sink = build()
        if wrap is None:
            return Compiled(get_fun, evaluate, form, static, 0, sink)
        return Compiled(
            lambda: wrap(get_fun()), evaluate, form, static.after(1), 1, sink
        )

    return _cache.get(fun, (key, form, static), make)


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


_STAGES = ("clear_cache", "eval_shape", "lower", "trace")


# What a transformation gives back. It is no closure in `functools.wraps`, because
# making one takes a fifth of a call, and `lox.spool(f)(x)` makes one each time.
class Transformed:
    __slots__ = ("__dict__", "__weakref__", "__wrapped__", "_forms", "_static")

    def __init__(self, fun: Any, forms: Any, static: Static = NO_STATIC) -> None:
        self.__wrapped__ = fun
        self._forms = forms
        self._static = static

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._forms(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__wrapped__, name)
        if name not in _STAGES:
            return found
        # those of a jitted function would be stages of the function without lox
        names, numbers = self._static.argnames, self._static.argnums
        jitted = jax.jit(self, static_argnums=numbers, static_argnames=names)
        return getattr(jitted, name)

    def __repr__(self) -> str:
        return f"<lox.{type(self).__name__[1:].lower()} of {self.__wrapped__!r}>"

    __doc__ = property(lambda self: self.__wrapped__.__doc__)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)
