"""Compiled programs of transformed functions.

A transformed function has one internal `jax.jit`, cached by the identity of the user's
function and by the options of the transformation. An eager call therefore costs as much
as a jitted one, and creating `lox.spool(f)` for each call neither traces nor compiles
again.
"""

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from lox._errors import LoxTypeError
from lox._events.not_traced import remember_host_functions, while_tracing
from lox._interpreter.contents import host_functions_in
from lox._jax import patches, tracing
from lox._libraries import nnx
from lox._libraries.modules import check_modules
from lox._logs.packing import Packing

from .arguments import (
    Static,
    StaticLeaves,
    all_arrays,
    all_traced,
    array_types,
    hide_settings,
    revealed,
    split,
    traced_attribute,
)
from .cache import FunctionCache
from .results import MixedResult, check_runs_now, is_array_result, runs_later

_modules = sys.modules
# whether no other transformation, of lox or of JAX, encloses a call
is_outermost = tracing.at_top_level

# Evaluates a traced function: from its closed jaxpr and flat arguments to its flat
# results and what the transformation adds to them.
Evaluate = Callable[[Any, Sequence[Any]], tuple[list[Any], Any]]


@dataclasses.dataclass(frozen=True)
class Form:
    """The context in which a transformed function is called.

    Attributes:
        outermost: whether no other transformation encloses the call.
        numbers: whether Python numbers are traced, as `jax.jit` does.
    """

    outermost: bool
    numbers: bool


OUTERMOST = Form(outermost=True, numbers=True)
INSIDE = Form(outermost=False, numbers=False)


class Compiled:
    """A user's function, traced and evaluated; jitted, unless an outer trace is active.

    Args:
        get_fun: returns the user's function, which is not kept alive.
        evaluate: evaluates the traced function.
        form: where it is called.
        static: the static arguments.
        own_args: how many leading arguments belong to the transformation; they are
            always traced.
        sink: the destination of the events that the program delivers, if it has one.
        collects: whether the transformation collects events.
        packing: packs the logs that the transformation adds, if it adds logs.
    """

    def __init__(
        self,
        get_fun: Callable[[], Any],
        evaluate: Evaluate,
        form: Form,
        static: Static,
        own_args: int,
        sink: Any,
        collects: bool = True,
        packing: Packing | None = None,
    ) -> None:
        self._get_fun = get_fun
        self._evaluate = evaluate
        self._form = form
        self._own_args = own_args
        self._collects = collects
        # whether arrays and numbers are traced, wherever they are in the arguments
        self.all_traced = form.outermost and form.numbers and not static
        self.static = static
        self.sink = sink
        self._packing = packing
        # from what the program returns to its result and what the transformation adds
        self.finish = _filled if packing is None else packing.unpacker(_filled)
        fun = get_fun()

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._run(args, kwargs, inline=False)

        def call_mixed(static: StaticLeaves, arrays: list[Any]) -> Any:
            args, kwargs = static.fill(arrays)
            return self._run(args, kwargs, inline=False)

        for function in (call, call_mixed):
            _name_after(function, fun)
        self.jitted = jax.jit(
            call,
            inline=True,
            static_argnums=static.argnums,
            static_argnames=static.argnames,
        )
        self._jitted_mixed = jax.jit(call_mixed, inline=True, static_argnums=0)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of the function, and what the transformation adds."""
        return self.call(args, kwargs)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """As `__call__`, given a tuple and a dict, which saves time."""
        has_nnx = "flax.nnx" in _modules
        if self.all_traced:
            known = not kwargs and array_types.issuperset(map(type, args))
            if has_nnx:
                known = known and nnx.captures_none(self._get_fun())
            if known or (not has_nnx and all_arrays(args, kwargs)):
                # most eager calls do nothing else
                return self.finish(self.jitted(*args, **kwargs))
        if has_nnx:
            stateful = nnx.find(self._get_fun(), args, kwargs)
            if stateful is not None:
                return stateful.run(self._call_with_nodes)
        return self._call(args, kwargs)

    def _call_with_nodes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._form.outermost and nnx.reads_only(kwargs):
            # a program that is kept would hold arrays of the enclosing trace
            return self._run(args, kwargs, inline=True)
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        form = self._form
        if not form.outermost and tracing.is_staging():
            # The function becomes part of a larger program, so there is nothing to
            # compile here. It sees everything that is not traced unchanged.
            return self._run(args, kwargs, inline=True)
        hidden = given = self.static.hide(args, kwargs)
        if form.numbers:
            hidden = hide_settings(given)
        if hidden is given and all_traced(
            *self.static.traced(args, kwargs), form.numbers
        ):
            out = self.jitted(*args, **kwargs)
        else:
            static, arrays = split(*hidden, form.numbers)
            out = self._jitted_mixed(static, arrays)
        return self.finish(out)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], inline: bool) -> Any:
        """Traces the user's function and evaluates the program.

        Args:
            args: the positional arguments.
            kwargs: the keyword arguments.
            inline: whether the program becomes part of a larger one that is being
                traced; otherwise the internal `jit` is tracing it.
        """
        if self._collects:  # a derivative rule would install them too late
            patches.install()
        user_fun = self._get_fun()
        fun = nnx.pure(user_fun, kwargs)
        # lists, because they are filled while the function is traced
        structures: list[Any] = []
        traces: list[Callable[[], Any]] = []

        def arrays_of(out: Any) -> list[Any]:
            traces.append(tracing.trace_reference())
            if not inline and self._form.numbers:
                out = hide_settings(out, runs_later)
            leaves, tree = jax.tree.flatten(out, is_leaf=runs_later)
            # leaves that are not arrays (a string, a function) are returned unchanged
            is_traced = [self._is_result(leaf, inline) for leaf in leaves]
            pairs = list(zip(leaves, is_traced, strict=True))
            others = {i: revealed(x) for i, (x, own) in enumerate(pairs) if not own}
            structures.append((tree, others))
            return [x for x, own in pairs if own]

        leaves, tree = jax.tree.flatten(self.static.hide(args, kwargs))
        traced = [
            i
            for i, leaf in enumerate(leaves)
            if i < self._own_args or isinstance(leaf, jax.core.Tracer)
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
            with while_tracing:
                if len(arrays) == len(leaves):  # JAX's errors name the arguments
                    closed = jax.make_jaxpr(plain)(*args, **kwargs)
                else:
                    closed = jax.make_jaxpr(mixed)(*arrays)
        except _NEEDS_VALUE as error:
            if not inline and self._form.numbers:
                _add_remedy(error, user_fun)
            raise
        except ValueError as error:
            if "static arguments" not in str(error):
                raise
            raise LoxTypeError(
                f"{getattr(user_fun, '__name__', user_fun)} has static arguments, "
                "which lox would trace: pass `static_argnums` or `static_argnames` to "
                "lox too."
            ) from error
        trace = traces[-1]()
        if trace is not None:  # something still holds one of its tracers
            check_modules(user_fun, trace)
        if self._form.outermost:
            owner = getattr(inspect.unwrap(user_fun), "__self__", None)
            _check_objects(user_fun, [owner, *leaves])
        remember_host_functions(host_functions_in(closed))
        outs, added = self._evaluate(closed, arrays)
        out_tree, others = structures[-1]
        if not others:
            out = jax.tree.unflatten(out_tree, outs)
            if self._packing is None or inline:
                return out, added
            return self._packing.pack(out, added)
        result = MixedResult(outs, (out_tree, others))
        return (result.fill() if inline else result), added

    def _is_result(self, x: Any, inline: bool) -> bool:
        check_runs_now(x, self._get_fun())
        if inline:
            return isinstance(x, jax.Array)
        return is_array_result(x, self._form.numbers)


def _filled(out: tuple[Any, ...]) -> tuple[Any, Any]:
    """Puts leaves that are not arrays into the result, if there are any."""
    result, added = out
    return (result.fill() if type(result) is MixedResult else result), added


# JAX's errors about a traced value where a Python number is needed
_NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def _add_remedy(error: Exception, fun: Any) -> None:
    """Says how to pass an argument that must not be traced."""
    name = getattr(fun, "__name__", "f")
    argument = re.search(r"the value of the argument (\w+)", str(error))
    example = argument[1] if argument else "n"
    error.add_note(
        f"lox traces the arguments of `{name}`, as `jax.jit` does. If `{example}` must "
        "stay a Python value, give the lox transformation "
        f'`static_argnames="{example}"`.'
    )


def _check_objects(fun: Any, leaves: Sequence[Any]) -> None:
    """Raises if tracing has left a traced value in an argument."""
    for leaf in map(revealed, leaves):
        name = traced_attribute(leaf)
        if name is not None:
            raise LoxTypeError(
                f"{getattr(fun, '__name__', fun)} writes a traced value to the "
                f"attribute {name!r} of an object of type {type(leaf).__name__}, where "
                "it would stay after the trace has ended. Return the value instead, or "
                "log it."
            )


def _named_like(fun: Any) -> Callable[[Any], Any]:
    """`functools.wraps`, for functions that may lack the attributes it copies."""

    def decorate(function: Any) -> Any:
        try:
            return functools.wraps(fun)(function)
        except (AttributeError, TypeError):
            return function

    return decorate


def _name_after(function: Any, fun: Any) -> None:
    name = getattr(fun, "__name__", None)
    function.__name__ = name if isinstance(name, str) else "fun"
    function.__qualname__ = function.__name__


# --- the cache ---------------------------------------------------------------

_programs = FunctionCache()
_forms = FunctionCache()


def compiled(
    fun: Any,
    key: Hashable,
    build: Callable[[], tuple[Evaluate, Any]],
    form: Form,
    static: Static,
    wrap: Callable[[Any], Any] | None = None,
    collects: bool = True,
    packs: bool = False,
) -> Compiled:
    """Compiles `fun` for one form, or returns the cached program.

    Args:
        fun: the function.
        key: the transformation and its options.
        build: creates the evaluation, and the sink that it delivers to, if any.
        form: where it is called.
        static: the static arguments.
        wrap: adds an argument of the transformation in front of those of the function.
        collects: whether the transformation collects events.
        packs: whether it adds logs, which are packed.
    """

    def make(get_fun: Callable[[], Any]) -> Compiled:
        evaluate, sink = build()
        if wrap is None:
            packing = Packing() if packs else None
            return Compiled(get_fun, evaluate, form, static, 0, sink, collects, packing)
        return Compiled(
            lambda: wrap(get_fun()), evaluate, form, static.after(1), 1, sink
        )

    return _programs.get(fun, (key, form, static), make)


@dataclasses.dataclass(frozen=True, slots=True)
class Forms:
    """A function compiled for both forms; a call uses the one that applies."""

    inside: Compiled
    outermost: Compiled

    @classmethod
    def of(
        cls,
        fun: Any,
        key: Hashable,
        evaluate: Callable[[Any, Sequence[Any], Form], tuple[list[Any], Any]],
        static: Static,
        outermost: Form = OUTERMOST,
        collects: bool = True,
        packs: bool = False,
    ) -> "Forms":
        """Compiles `fun` for both forms.

        Args:
            fun: the function.
            key: the transformation and its options.
            evaluate: `Evaluate`, with the form as the last argument.
            static: the static arguments.
            outermost: the form of calls that no other transformation encloses.
            collects: whether the transformation collects events.
            packs: whether it adds logs, which are packed in the outermost form.
        """

        def form(where: Form) -> Compiled:
            def build() -> tuple[Evaluate, None]:
                return lambda closed, args: evaluate(closed, args, where), None

            pack = packs and where.outermost
            return compiled(
                fun, key, build, where, static, collects=collects, packs=pack
            )

        return cls(form(INSIDE), form(outermost))

    @property
    def static(self) -> Static:
        return self.inside.static

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of the function, and what the transformation adds."""
        form = self.outermost if is_outermost() else self.inside
        return form(*args, **kwargs)


def cached(fun: Any, options: Any, make: Callable[[Any, Any], Any]) -> Any:
    """`make(fun, options)`, or the cached value; it must not hold `fun`.

    If the transformation is applied for each call, as in `lox.spool(f)(x)`, each call
    goes through here. So the options are used as given, without checks.
    """
    found = _forms.find(fun, options)
    if found is None:
        found = _forms.get(fun, options, lambda _: make(fun, options))
    return found
