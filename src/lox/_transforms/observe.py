"""`lox.observe`: adds events to the loops of code that does not log."""

import dataclasses
import fnmatch
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import jax
import jax.numpy as jnp

from lox._errors import LoxTypeError, LoxValueError, describe
from lox._events.log import log_from
from lox._events.values import arrays_of
from lox._interpreter.contents import events_of
from lox._interpreter.loops import (
    Loop,
    Output,
    Path,
    Site,
    find_sites,
    has_hidden_loops,
    loops_of,
)
from lox._interpreter.observed_loops import ObservedProgram, Observer
from lox._jax import jaxprs
from lox._source import Source, user_line, warn

from .arguments import Argnames, Argnums, Static
from .compiled import OUTERMOST, Compiled, Form, Forms
from .options import decorator
from .transformed import Transformed, check_callable

P = ParamSpec("P")
T = TypeVar("T", covariant=True)

# What to log of a list of values: all of them, or what a function returns for them.
Values = bool | Callable[[list[Any]], Mapping[str, Any]] | None


class Observed(Protocol[P, T]):
    """A function whose loops log; what `lox.observe` returns."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def loops(self, *args: P.args, **kwargs: P.kwargs) -> list[Loop]:
        """Lists the loops that a call with these arguments has, without running it."""
        ...


@overload
def observe(
    fun: Callable[P, T],
    *,
    carry: Values = None,
    ys: Values = None,
    outputs: Mapping[str, Values] | None = None,
    loops: str | Iterable[str] | None = None,
    prefix: str = "",
    tags: str | Iterable[str] = (),
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
) -> Observed[P, T]: ...


@overload
def observe(
    fun: None = None,
    *,
    carry: Values = None,
    ys: Values = None,
    outputs: Mapping[str, Values] | None = None,
    loops: str | Iterable[str] | None = None,
    prefix: str = "",
    tags: str | Iterable[str] = (),
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
) -> Callable[[Callable[P, T]], Observed[P, T]]: ...


def observe(
    fun: Any = None,
    *,
    carry: Values = None,
    ys: Values = None,
    outputs: Mapping[str, Values] | None = None,
    loops: str | Iterable[str] | None = None,
    prefix: str = "",
    tags: str | Iterable[str] = (),
    static_argnums: Argnums = None,
    static_argnames: Argnames = None,
) -> Any:
    """Adds events to the loops of `fun`, without changing its code.

    Each iteration of a `scan`, `fori_loop` or `while_loop` logs, at any depth, with the
    step `iteration`, which counts from 0 each time the loop starts. The events are like
    those of a `lox.log` at the end of the loop's body: `lox.spool`, `lox.tap`, loggers
    and `lox.nolog` apply to them.

    Args:
        fun: the function; if omitted, a decorator with these options is returned.
        carry: what to log of the carry after each iteration. True logs every leaf,
            by the name that it has in the loop's body (`state.loss`, or `carry[0]` if
            JAX does not know it); if several loops are observed, the address of the
            loop comes first (`scan[0]/state.loss`). A function gets the list of leaves
            and returns what to log, by name. JAX removes leaves that no iteration
            changes from the carry.
        ys: the same for what each iteration adds to the outputs of a `scan`.
        outputs: the primitives whose results to log, by name: True, or a function of
            the list of results that returns what to log. The step `iteration` is that
            of the innermost observed loop around the primitive, and 0 outside loops.
        loops: which loops to observe: patterns with `*` and `?` for addresses
            (`"scan[0]/while[*]"`), lines (`"solver.py:*"`) or functions. By default,
            all but those of a backward pass. If given, `outputs` are logged only inside
            these loops.
        prefix: a prefix for every key.
        tags: the tags of the events.
        static_argnums: the positions of static arguments, as in `jax.jit`.
        static_argnames: the names of static arguments, as in `jax.jit`.

    Returns:
        A function with the arguments and the result of `fun`. Its method `loops` takes
        the same arguments and lists the loops.

    Example:
        >>> def halve(x):
        ...     return jax.lax.fori_loop(0, 3, lambda i, value: value / 2, x)
        >>> _, logs = lox.spool(lox.observe(halve, carry=True))(8.0)
        >>> logs
        {'i': [1, 2, 3], 'value': [4.0, 2.0, 1.0]}
        >>> print(logs.iteration["value"])
        [0 1 2]
        >>> [loop.address for loop in lox.observe(halve).loops(8.0)]
        ['scan[0]']
    """
    if fun is None:
        return decorator(observe, locals())
    check_callable(fun, "lox.observe")
    options = _Options(carry, ys, outputs, loops, prefix, tags)
    static = Static.of(fun, static_argnums, static_argnames)

    def evaluate(
        closed: Any, args: Sequence[Any], form: Form
    ) -> tuple[list[Any], None]:
        observer, sites = options.observed(closed)
        return ObservedProgram(observer, sites)(closed, args), None

    forms = Forms.of(fun, ("observe", options.key), evaluate, static)

    def call(_: Any, /, *args: Any, **kwargs: Any) -> Any:
        return forms(*args, **kwargs)[0]

    # a method of `fun` keeps it alive, which the compiled forms do not
    return _Observe("observe", fun, types.MethodType(call, fun), static)


class _Observe(Transformed):
    __slots__ = ()
    __doc__ = Transformed.__doc__

    def loops(self, *args: Any, **kwargs: Any) -> list[Loop]:
        fun, static = self.__wrapped__, self._static
        found: list[Loop] = []

        def evaluate(closed: Any, args: Sequence[Any]) -> tuple[list[Any], None]:
            found.extend(loops_of(closed))
            return jaxprs.evaluate(closed, args), None

        traced = Compiled(lambda: fun, evaluate, OUTERMOST, static, 0, None, False)

        def run() -> None:
            traced(*args, **kwargs)

        jax.eval_shape(run)  # the function is traced, and does not run
        return found


# --- options -----------------------------------------------------------------


class _Options:
    """The checked options of `lox.observe`.

    Attributes:
        carry, ys, outputs, prefix, tags: as in `lox.observe`.
        key: identifies them in a cache.
    """

    def __init__(
        self, carry: Any, ys: Any, outputs: Any, loops: Any, prefix: Any, tags: Any
    ) -> None:
        self.carry = _checked_values(carry, "carry")
        self.ys = _checked_values(ys, "ys")
        if not isinstance(outputs, Mapping | None):
            raise LoxTypeError(
                "`outputs` of `lox.observe` must be a dict by names of primitives, "
                f'such as `{{"cholesky": True}}`, not {describe(outputs)}.'
            )
        self.outputs = {
            name: _checked_values(values, f"outputs[{name!r}]")
            for name, values in (outputs or {}).items()
        }
        self._loops = None
        if loops is not None:
            patterns = 'a pattern or several, such as `"scan[0]/*"` or `"solver.py:*"`'
            self._loops = _checked_names(loops, "loops", patterns)
        if not isinstance(prefix, str):
            raise LoxTypeError(
                f"`prefix` of `lox.observe` must be a string, not {prefix!r}."
            )
        self.prefix = prefix
        self.tags = _checked_names(tags, "tags", "strings")
        named = tuple(self.outputs.items())
        self.key = (self.carry, self.ys, named, self._loops, prefix, self.tags)

    def observed(self, closed: Any) -> tuple[Observer, dict[Path, Site]]:
        """What to log of a program, and where."""
        if not self.carry and not self.ys and not self.outputs:
            raise LoxTypeError(
                "`lox.observe` has nothing to log: give `carry=`, `ys=` or `outputs=`, "
                "such as `lox.observe(f, carry=True)`."
            )
        if any(event.call.api == "progress" for event in events_of(closed)):
            raise LoxValueError(
                f"`lox.observe`, called at {_call_line()}, wraps `lox.progress`, "
                "which runs loops in pieces and counts them in their carries. Write "
                "`lox.progress(lox.observe(f, ...))` instead."
            )
        names = frozenset(name for name, values in self.outputs.items() if values)
        found = dict(find_sites(closed, names))
        targets = {path: site.target for path, site in found.items()}
        loops = {path: t for path, t in targets.items() if isinstance(t, Loop)}
        selected = self._selected(loops)
        outputs = {
            path: t
            for path, t in targets.items()
            if isinstance(t, Output)
            and (self._loops is None or _inside(path, selected))
        }
        missing = names - {output.primitive for output in outputs.values()}
        if missing:
            where = "the function has" if self._loops is None else "these loops have"
            raise LoxValueError(
                f"`outputs` of `lox.observe`, called at {_call_line()}, has "
                f"{_listed(missing)}, but {where} no such primitive. "
                "`jax.make_jaxpr` shows the primitives of a function."
            )
        iterations = self.carry or self.ys
        chosen = selected if iterations else set()
        if iterations and self._loops is None and has_hidden_loops(closed):
            warn(
                "`lox.observe` does not log the loops in functions of `eqxi.noinline`, "
                "which are not part of the traced program. To log them, put `lox.log` "
                "into the function; to observe only the other loops, name them by "
                "`loops=`."
            )
        elif not chosen and not outputs:
            warn(
                "`lox.observe` found no loop in the function, so nothing is logged. "
                "Loops are `lax.scan`, `lax.fori_loop` and `lax.while_loop`; Python "
                "loops are unrolled."
            )
        observer = _Logs(self, frozenset(loops[path].address for path in chosen))
        # the loops that give outputs the number of their iteration
        around = set(loops) if self._loops is None else selected
        sites = {path: found[path] for path in chosen}
        for path, output in outputs.items():
            outer = {loop for loop in around if _inside(path, {loop})}
            sites.update((loop, found[loop]) for loop in outer)
            target = dataclasses.replace(output, in_loop=bool(outer))
            sites[path] = dataclasses.replace(found[path], target=target)
        return observer, {path: sites[path] for path in found if path in sites}

    def _selected(self, loops: dict[Path, Loop]) -> set[Path]:
        if self._loops is None:
            return {path for path, loop in loops.items() if not loop.backward}
        for pattern in self._loops:
            if not any(_matches(loop, pattern) for loop in loops.values()):
                listed = "".join(f"\n  {loop}" for loop in loops.values()) or " none"
                raise LoxValueError(
                    f"`loops` of `lox.observe`, called at {_call_line()}, has "
                    f"{pattern!r}, which matches no loop. A pattern is an address, "
                    "`file.py:line` or the name of a function. The loops of the "
                    f"function are:{listed}"
                )
        return {
            path
            for path, loop in loops.items()
            if any(_matches(loop, pattern) for pattern in self._loops)
        }


def _call_line() -> Source:
    """The user's line that calls the observed function."""
    return Source(*user_line())


def _inside(path: Path, loops: set[Path]) -> bool:
    return any(path[: len(loop)] == loop for loop in loops)


def _matches(loop: Loop, pattern: str) -> bool:
    # brackets belong to addresses
    pattern = pattern.replace("[", "[[]")
    names = (
        loop.address,
        f"{loop.file}:{loop.line}",
        f"{os.path.basename(loop.file)}:{loop.line}",
        loop.function,
        loop.function.rpartition(".")[2],
    )
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def _checked_values(values: Any, option: str) -> Any:
    if values is None or isinstance(values, bool):
        return bool(values)
    if not callable(values):
        raise LoxTypeError(
            f"`{option}` of `lox.observe` must be True or a function from a list of "
            f"arrays to a dict of what to log, not {describe(values)}."
        )
    return values


def _checked_names(given: Any, option: str, kind: str) -> tuple[str, ...]:
    listed = (given,) if isinstance(given, str) else given
    names = tuple(listed) if isinstance(listed, Iterable) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise LoxTypeError(
            f"`{option}` of `lox.observe` must be {kind}, not {describe(given)}."
        )
    return names


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


# --- events ------------------------------------------------------------------


class _Logs(Observer):
    """Logs what the options say.

    Args:
        options: the options.
        observed: the addresses of the loops whose iterations are logged.
    """

    def __init__(self, options: _Options, observed: frozenset[str]) -> None:
        self._options = options
        self._observed = observed

    def iteration(
        self,
        loop: Loop,
        number: Any,
        carry: Sequence[Any],
        ys: Sequence[Any],
        running: Any,
    ) -> None:
        if loop.address not in self._observed:  # it only counts, for `outputs`
            return
        # names that the user did not choose must differ between loops
        front = f"{loop.address}/" if len(self._observed) > 1 else ""
        data: dict[str, Any] = {}
        for option, choice, names, values in (
            ("carry", self._options.carry, loop.carry, carry),
            ("ys", self._options.ys, loop.ys, ys),
        ):
            full = [front + name for name in names]
            # a `while` loop has no `ys`, which a function may rely on
            more = _chosen(choice, full, values, option, loop.source) if values else {}
            same = data.keys() & more.keys()
            if same:
                raise LoxValueError(
                    f"`carry` and `ys` of `lox.observe` both log {_listed(same)} of "
                    f"the loop at {loop.source}. Give one of them another name, by a "
                    f"function: `{option}=lambda leaves: {{...}}`."
                )
            data.update(more)
        self._log(loop.source, data, {"iteration": number}, running)

    def results(self, output: Output, values: Sequence[Any]) -> None:
        name = output.primitive
        one = len(values) == 1
        names = [name] if one else [f"{name}[{i}]" for i in range(len(values))]
        option = f"outputs[{name!r}]"
        choice = self._options.outputs[name]
        data = _chosen(choice, names, values, option, output.source)
        self._log(output.source, data, {"iteration": jnp.zeros((), int)})

    def _log(
        self, source: Source, data: Any, steps: dict[str, Any], when: Any = None
    ) -> None:
        tags, prefix = self._options.tags, self._options.prefix
        if data:
            log_from(source, data, tags, None, prefix, False, steps, when)


def _chosen(
    choice: Any,
    names: Sequence[str],
    values: Sequence[Any],
    option: str,
    source: Source,
) -> dict[str, Any]:
    """What to log of these values."""
    if not choice:
        return {}
    # what is logged has no derivative
    arrays = [jax.lax.stop_gradient(x) for x in values]
    if choice is True:
        return dict(zip(names, arrays, strict=True))
    data = choice(arrays)
    if not isinstance(data, Mapping):
        raise LoxTypeError(
            f"the function in `{option}` of `lox.observe` returned {describe(data)} "
            f"for {source}; it must return a dict of what to log, such as "
            f'`{option}=lambda leaves: {{"x": leaves[0]}}`.'
        )
    for key, value in data.items():
        if not isinstance(key, str):
            raise LoxTypeError(
                f"the function in `{option}` of `lox.observe` returned a dict with the "
                f"key {key!r} for {source}; keys are strings."
            )
        arrays_of(value, key, f"`{option}` of `lox.observe`, for {source},")
    return dict(data)
