"""Intercepts the primitives that a function binds while it runs."""

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
from jax.extend import linear_util as lu

from . import compat, patches, primitives, rule_sources
from .rule_sources import NO_FUNCTION, CustomFunction

_Trace = compat.private("core.Trace", "functions cannot be watched", default=object)
_trace_ctx = compat.private("core.trace_ctx", "watch functions that JAX calls")
_set_current_trace = compat.private(
    "core.set_current_trace", "watch functions that JAX calls"
)
_BwdWithAccums = compat.private(
    "interpreters.ad.CustomBwdWithAccums",
    "up to 0.11, backward rules have no accumulators",
    default=None,
)


class Watch(Protocol):
    """Receives the primitives that a function binds, and may change them."""

    def begin(self) -> "Watch":
        """The watch for one run of the function."""
        ...

    def passes(self, primitive: Any, params: dict[str, Any]) -> bool:
        """Whether a primitive can be bound unchanged; called after the first event."""
        ...

    def bind(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Binds a primitive in the trace around the watched function."""
        ...

    def inside(
        self, role: str, function: CustomFunction = NO_FUNCTION
    ) -> "Watch | None":
        """The watch for a function that is an argument of a primitive, or None.

        Args:
            role: `"call"` for a function that is called; `"jvp"`, `"fwd"` and `"bwd"`
                for the derivative rules of a custom function; `"batch"` for the
                batching rule of a high-level primitive.
            function: the custom function, if it is one.
        """
        ...


class _WatchTrace(_Trace):  # type: ignore[misc, valid-type]
    """Passes primitives to the trace around it, through a watch.

    It has no tracers: a watched function sees the same values as without the watch, so
    its Python control flow does not change.
    """

    __slots__ = ("parent_trace", "watch")

    def __init__(self, parent: Any, watch: Watch) -> None:
        super().__init__()
        self.parent_trace = parent
        self.watch = watch
        # the trace around it expands high-level primitives
        self.requires_low = False  # type: ignore[misc]

    def stage_value(self, value: Any) -> Any:
        return self.parent_trace.stage_value(value)

    def process_primitive(self, primitive: Any, args: Any, params: Any, /) -> Any:
        if (primitive in _never_high or not _is_high(primitive, args, params)) and (
            not patches.installed or self.watch.passes(primitive, params)
        ):
            # what `bind` does in the trace around this one
            return self.parent_trace.process_primitive(primitive, args, params)
        with _set_current_trace(self.parent_trace):
            return self.watch.bind(primitive, args, params)

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, args: Any, /, **params: Any
    ) -> Any:
        own = rule_sources.custom_function(fun, jvp)
        fun = self._watched(fun, "call", own)
        jvp = self._watched(jvp, "jvp", own)
        return self.parent_trace.process_custom_jvp_call(
            primitive, fun, jvp, args, **params
        )

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, args: Any, /, **params: Any
    ) -> Any:
        own = rule_sources.custom_function(fun, bwd)
        fun = self._watched(fun, "call", own)
        fwd = self._watched(fwd, "fwd", own)
        bwd = self._watched(bwd, "bwd", own)
        return self.parent_trace.process_custom_vjp_call(
            primitive, fun, fwd, bwd, args, **params
        )

    def __getattr__(self, name: str) -> Any:
        # traces have one method per kind of call, such as `process_shard_map`
        process = getattr(self.parent_trace, name)
        if not name.startswith("process_"):
            return process

        def passed_on(*args: Any, **params: Any) -> Any:
            # from 0.10 on, the function of a `shard_map` is not wrapped
            functions = (lu.WrappedFun, types.FunctionType)
            new = [
                self._watched(x, "call") if isinstance(x, functions) else x
                for x in args
            ]
            return process(*new, **params)

        return passed_on

    def _watched(
        self, fun: Any, role: str, function: CustomFunction = NO_FUNCTION
    ) -> Any:
        watch = self.watch.inside(role, function)
        if watch is None:
            return fun
        is_rule = isinstance(fun, lu.WrappedFun)
        return watched_rule(fun, watch) if is_rule else watched(fun, watch)


def _is_high(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether a trace may have to expand a primitive before it processes it."""
    if primitive is primitives.jit_p:  # the most frequent case
        return getattr(params["jaxpr"], "is_high", True)
    ask = primitive.is_high
    if getattr(ask, "__func__", None) is primitives.Primitive.is_high:
        _never_high.add(primitive)
        return False
    return bool(ask(*map(jax.typeof, args), **params))


_never_high: set[Any] = set()


def _pass_on(name: str) -> Any:
    return property(lambda self: self.__getattr__(name))


# up to 0.11, the base class has methods that only raise
for _name in ("process_call", "process_map", "process_custom_transpose"):
    if hasattr(_Trace, _name):
        setattr(_WatchTrace, _name, _pass_on(_name))


def watched(fun: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    """Wraps `fun` so that `watch` receives every primitive that it binds."""

    def run(*args: Any, **kwargs: Any) -> Any:
        around = _trace_ctx.trace
        with _set_current_trace(_WatchTrace(around, watch.begin())):
            return fun(*args, **kwargs)

    # JAX 0.11.2 prints functions of `custom_root` with the jaxpr
    run.__qualname__ = getattr(fun, "__qualname__", run.__qualname__)
    return run


def watched_rule(fun: Any, watch: Watch) -> Any:
    """Wraps a `lu.WrappedFun` as `watched` does."""
    run = watched(fun.call_wrapped, watch)
    if (
        _BwdWithAccums is not None
        and isinstance(fun.f, _BwdWithAccums)
        and not fun.transforms
    ):
        run = _accumulating(fun.f, watch)
    if isinstance(run, types.FunctionType):
        run.watched_function = rule_sources.original(fun.f)  # type: ignore[attr-defined]
    return lu.wrap_init(run, debug_info=fun.debug_info)


def _accumulating(rule: Any, watch: Watch) -> Any:
    """Wraps a backward rule that adds to accumulators (from 0.12 on)."""

    class Watched(_BwdWithAccums):  # type: ignore[misc, valid-type]
        def call_with_accums(self, *args: Any) -> Any:
            return watched(rule.call_with_accums, watch)(*args)

        def __call__(self, *args: Any) -> Any:
            return watched(rule, watch)(*args)

    return Watched()


class Dormant:
    """A watch that is created when it is needed.

    Until the process binds its first event, primitives are bound unchanged, except for
    high-level ones: these run Python code, which may log.

    Args:
        make: creates the watch; may return None.
    """

    def __init__(self, make: Callable[[], Watch | None]) -> None:
        self._make = make
        self._awake = False
        self._watch: Watch | None = None
        # the watches that `inside` returned while this one was dormant
        self._children: list[tuple[str, CustomFunction, Dormant]] = []

    def _wake(self) -> Watch | None:
        if not self._awake:
            self._watch, self._awake = self._make(), True
            for role, function, child in self._children:
                inner = self._watch and self._watch.inside(role, function)
                child._make = functools.partial(_given, inner)
        return self._watch

    def begin(self) -> "Dormant":
        def make() -> Watch | None:
            watch = self._wake()
            return None if watch is None else watch.begin()

        return Dormant(make)

    def passes(self, primitive: Any, params: dict[str, Any]) -> bool:
        watch = self._wake()
        return watch is None or watch.passes(primitive, params)

    def bind(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if not patches.installed and primitive is not primitives.hijax_p:
            return primitive.bind(*args, **params)  # it contains a high-level one
        watch = self._wake()
        if watch is None:
            return primitive.bind(*args, **params)
        return watch.bind(primitive, args, params)

    def inside(self, role: str, function: CustomFunction = NO_FUNCTION) -> Watch | None:
        if self._awake or patches.installed:
            watch = self._wake()
            return None if watch is None else watch.inside(role, function)

        def make() -> Watch | None:
            self._wake()
            return child._make()

        child = Dormant(make)
        self._children.append((role, function, child))
        return child


def _given(watch: Watch | None) -> Watch | None:
    return watch
