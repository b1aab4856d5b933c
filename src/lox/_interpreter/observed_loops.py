"""Adds events to the loops of a program.

The program is evaluated again, with the bodies of the observed loops extended. The
result is an ordinary program with `log_p` in it: all other rules of lox, and JAX's own
transformations, treat the new events like those of `lox.log`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._jax import (
    ad,
    custom_derivatives,
    custom_vjp,
    hijax,
    jaxprs,
    partial_eval,
    primitives,
    tracing,
)

from .custom_calls import lines_in
from .handlers import NO_STATE
from .iteration_numbers import bind_unnumbered, evaluate_numbered, next_iteration
from .loops import (
    Loop,
    Output,
    Path,
    Site,
    find_sites,
    is_linear_solve,
    jaxprs_that_run,
)
from .rule_watches import LineRemover
from .walk import Walk, without_events


class Observer:
    """Logs the observed loops and equations.

    Attributes:
        pauses: whether to call `next_pause` and `pause` for a `while_loop`, instead of
            `iteration` in every iteration, where that is possible. The iterations in
            between cost nothing.
    """

    pauses = False

    def iteration(
        self,
        loop: Loop,
        number: Any,
        carry: Sequence[Any],
        ys: Sequence[Any],
        running: Any,
    ) -> None:
        """Logs an iteration, inside the body of the loop.

        Args:
            loop: the loop.
            number: the number of the iteration, starting at 0.
            carry: the carry after the iteration.
            ys: what the iteration adds to the stacked outputs.
            running: whether this lane is still running; None if all lanes are.
        """
        raise NotImplementedError

    def next_pause(self, loop: Loop, count: Any) -> Any:
        """The number of iterations after which to call `pause`.

        Args:
            loop: the loop.
            count: the number of iterations so far, with an axis per `vmap` inside.
        """
        raise NotImplementedError

    def pause(self, loop: Loop, count: Any) -> None:
        """Logs the number of iterations so far, at a pause or at the end of a loop."""

    def end(self, loop: Loop, count: Any) -> None:
        """Logs the end of a loop, after it.

        Args:
            loop: the loop.
            count: the number of iterations, with an axis per `vmap` inside.
        """

    def results(self, output: Output, values: Sequence[Any]) -> None:
        """Logs the results of an equation, with the number of the iteration as step.

        The step is 0 here. If a loop is around the equation, its number replaces it.
        """


class ObservedProgram:
    """Evaluates a program with events in its observed loops.

    Args:
        observer: logs.
        sites: what is observed, by its path in the program.
    """

    def __init__(self, observer: Observer, sites: Mapping[Path, Site]) -> None:
        self._observer = observer
        self._sites = sites
        # every equation and jaxpr that has an observed site inside
        self._paths = _prefixes(sites)
        self._paths_of_outputs = _prefixes(
            path for path, site in sites.items() if isinstance(site.target, Output)
        )

    def __call__(self, closed: Any, args: Sequence[Any], path: Path = ()) -> list[Any]:
        """Evaluates a closed jaxpr, which is at `path` in the program."""
        jaxpr = closed.jaxpr
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        copy = tracing.equation_copier(jaxpr)

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, jaxprs.Literal) else env[atom]

        for i, eqn in enumerate(jaxpr.eqns):
            here = (*path, i)
            outs = copy(eqn, env) if copy and here not in self._paths else None
            if outs is None:
                ins = [read(atom) for atom in eqn.invars]
                with tracing.equation_context(eqn):
                    outs = self._bind(eqn, ins, here)
            env.update(zip(eqn.outvars, outs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _bind(self, eqn: Any, args: list[Any], here: Path) -> list[Any]:
        if here not in self._paths:
            return tracing.bind(eqn, args)
        site = self._sites.get(here)
        target = None if site is None else site.target
        kind = hijax.kind_of(eqn)
        if isinstance(target, Loop):
            bind_loop = (
                self._scan if eqn.primitive is primitives.scan_p else self._while
            )
            return bind_loop(target, eqn, args, here)
        if kind == "custom_jvp_call":
            outs = self._custom_jvp(eqn, args, here)
        elif kind in ("custom_vjp_call", hijax.CUSTOM_VJP):
            outs = self._custom_vjp(eqn, args, here)
        elif kind == "shard_map":
            outs = self._shard_map(eqn, args, here)
        elif is_linear_solve(eqn):
            outs = self._linear_solve(eqn, args, here)
        else:
            outs = tracing.bind(eqn, args, **self._changed(eqn, here))
        if target is not None:
            self._log_results(target, outs)
        return outs

    def _log_results(self, output: Output, values: Sequence[Any]) -> None:
        if output.in_loop:
            bind_unnumbered(lambda: self._observer.results(output, values))
        else:
            self._observer.results(output, values)

    def _changed(self, eqn: Any, here: Path) -> dict[str, Any]:
        """The parameters of an equation, with the observed loops in its jaxprs."""
        number = -1

        def change(jaxpr: Any) -> Any:
            nonlocal number
            number += 1
            return self._rewritten(jaxpr, (*here, number))

        return jaxprs.map_jaxprs(eqn.params, change)

    def _rewritten(self, jaxpr: Any, path: Path) -> Any:
        if path not in self._paths:
            return jaxpr

        def rewrite(closed: Any) -> Any:
            def run(*args: Any) -> list[Any]:
                return self(closed, args, path)

            return jaxprs.trace(run, closed.in_avals, closed)[0]

        return jaxprs.rewritten(jaxpr, rewrite)

    def _shard_map(self, eqn: Any, args: list[Any], here: Path) -> list[Any]:
        """Names of mesh axes are known only inside a `shard_map`."""
        params = eqn.params
        old = jaxprs.close(params["jaxpr"])

        def body(args: list[Any]) -> list[Any]:
            return self(old, args, (*here, 0))

        return jax.shard_map(
            body,
            mesh=params["mesh"],
            in_specs=(list(params["in_specs"]),),
            out_specs=list(params["out_specs"]),
            axis_names=set(primitives.manual_axes(params)),
            check_vma=params["check_vma"],
        )(args)

    # --- loops ---------------------------------------------------------------

    def _scan(self, loop: Loop, eqn: Any, args: list[Any], here: Path) -> list[Any]:
        consts, carry, xs = primitives.scan_sizes(eqn.params, len(args))
        old = eqn.params["jaxpr"]
        start = jnp.zeros((), int)

        def body(*args: Any) -> list[Any]:
            number = args[consts]
            inner = (*args[:consts], *args[consts + 1 :])
            if here in self._paths_of_outputs:
                observed = self._rewritten(old, (*here, 0))
                outs = evaluate_numbered(observed, inner, number)
            else:
                outs = self(old, inner, (*here, 0))
            self._observer.iteration(loop, number, outs[:carry], outs[carry:], None)
            return [next_iteration(number), *outs]

        avals = [*old.in_avals[:consts], jax.typeof(start), *old.in_avals[consts:]]
        ys = len(old.out_avals) - carry
        count, *outs = tracing.bind(
            eqn,
            [*args[:consts], start, *args[consts:]],
            jaxpr=_traced(body, avals, old),
            **primitives.scan_params(eqn.params, consts, carry + 1, xs, ys),
        )
        self._observer.end(loop, count)
        return outs

    def _while(self, loop: Loop, eqn: Any, args: list[Any], here: Path) -> list[Any]:
        params = self._changed(eqn, here)
        cond, body = params["cond_jaxpr"], params["body_jaxpr"]
        cond_consts, body_consts, carry = primitives.split_while(params, args)
        # after a `vmap`, there is one predicate per lane
        lanes = cond.out_avals[0].shape
        predicate = without_events(eqn.params["cond_jaxpr"])
        start = jnp.zeros(lanes, int)

        def new_body(*args: Any) -> list[Any]:
            of_cond, of_body, (number, *old) = primitives.split_while(params, args)
            outs = self._numbered(body, [*of_body, *old], number, here)
            if lanes:
                (running,) = jaxprs.evaluate(predicate, [*of_cond, *old])
                log = _per_lane(self._observer, loop, len(lanes))
                log(number, outs, running)
            else:
                self._observer.iteration(loop, number, outs, [], None)
            return [next_iteration(number), *outs]

        def new_cond(*args: Any) -> list[Any]:
            at = len(cond_consts)
            inner = [*args[:at], *args[at + 1 :]]
            return self._numbered(cond, inner, args[at], here)

        cond_avals = cond.in_avals[: len(cond_consts)]
        body_avals = body.in_avals[: len(body_consts)]
        avals = [jax.typeof(start), *body.in_avals[len(body_consts) :]]

        def run_to_pause(*args: Any) -> list[Any]:
            """The body of a loop around the loop."""
            _, _, (number, *_) = primitives.split_while(params, args)
            pause = self._observer.next_pause(loop, number)

            def not_yet(pause: Any, *args: Any) -> list[Any]:
                (running,) = new_cond(*args)
                # not `<`, which would stay false after an overflow
                return [running & (args[len(cond_consts)] != pause)]

            def count(*args: Any) -> list[Any]:
                number, *old = args[len(body_consts) :]
                inner = [*args[: len(body_consts)], *old]
                return [number + 1, *self._numbered(body, inner, number, here)]

            outs = tracing.bind(
                eqn,
                [pause, *args],
                cond_jaxpr=_traced(not_yet, [avals[0], *cond_avals, *avals], cond),
                body_jaxpr=_traced(count, [*body_avals, *avals], body),
                cond_nconsts=1 + len(cond_consts),
            )
            self._observer.pause(loop, outs[0])
            return outs

        # The condition is evaluated once more at each pause, so it must have no events.
        is_pure = predicate is eqn.params["cond_jaxpr"] and not cond.effects
        if is_pure and self._observer.pauses:
            new_body = run_to_pause
        count, *outs = tracing.bind(
            eqn,
            [*cond_consts, *cond_consts, *body_consts, start, *carry],
            cond_jaxpr=_traced(new_cond, [*cond_avals, *avals], cond),
            body_jaxpr=_traced(new_body, [*cond_avals, *body_avals, *avals], body),
            body_nconsts=len(cond_consts) + len(body_consts),
        )
        self._observer.end(loop, count)
        return outs

    def _numbered(
        self, closed: Any, args: Sequence[Any], number: Any, here: Path
    ) -> list[Any]:
        """Evaluates a jaxpr of the loop at `here`, in the iteration `number`."""
        if here not in self._paths_of_outputs:
            return jaxprs.evaluate(closed, args)
        return evaluate_numbered(closed, args, number)

    # --- functions with custom derivative rules -----------------------------

    def _custom_jvp(self, eqn: Any, args: list[Any], here: Path) -> list[Any]:
        old = eqn.params["call_jaxpr"]
        new = self._rewritten(old, (*here, 0))

        def call(*args: Any) -> list[Any]:
            return jaxprs.evaluate(new, args)

        def evaluate_rule(rule: Any, ins: Sequence[Any], primals: Sequence[Any]) -> Any:
            return self._run_rule(rule, ins, here, old, new, primals), []

        return custom_derivatives.like_custom_jvp(eqn, call, evaluate_rule)(*args)

    def _custom_vjp(self, eqn: Any, args: list[Any], here: Path) -> list[Any]:
        called = custom_vjp.custom_vjp_call(eqn)
        new = self._rewritten(called.function, (*here, 0))

        @jax.custom_vjp
        def fun(*args: Any) -> list[Any]:
            return jaxprs.evaluate(new, args)

        def fwd(values: list[Any], varied: list[bool]) -> Any:
            rule, ins, split = called.forward(values, varied)
            outs = self._run_rule(rule, ins, here, called.function, new, values)
            return split(outs)

        called.define(fun, fwd, called.backward)
        return list(fun(*called.checked(args)))

    def _linear_solve(self, eqn: Any, args: list[Any], here: Path) -> list[Any]:
        """A linear solve of lineax, which keeps its own derivatives."""
        ((number, solution),) = jaxprs_that_run(eqn)
        observed = self._rewritten(solution, (*here, number))

        def solve(*args: Any) -> list[Any]:
            return tracing.bind(eqn, args)

        @jax.custom_jvp
        def fun(*args: Any) -> list[Any]:
            return jaxprs.evaluate(observed, args)

        def jvp(primals: Any, tangents: Any) -> Any:
            _run_only_observed(solution, observed, primals)
            return ad.jvp_of_perturbed(solve, primals, tangents)

        fun.defjvp(jvp, symbolic_zeros=True)
        return fun(*args)

    def _run_rule(
        self,
        rule: Any,
        ins: Sequence[Any],
        here: Path,
        function: Any,
        observed: Any,
        args: Sequence[Any],
    ) -> list[Any]:
        """Evaluates a derivative rule, which runs instead of its function.

        Most rules contain the loops of their function, which are observed there. If a
        rule does not, the function runs as well, only for its events.

        Args:
            rule: the rule, as a closed jaxpr.
            ins: its inputs.
            here: the path of the call.
            function: the function.
            observed: the function with its observed loops.
            args: the inputs of the function.
        """
        wanted = [
            site for path, site in self._sites.items() if path[: len(here)] == here
        ]
        found = _same_sites(wanted, rule)
        if found is not None:
            return ObservedProgram(self._observer, found)(rule, ins)
        outs = jaxprs.evaluate(rule, ins)
        _run_only_observed(function, observed, args)
        return outs


def _run_only_observed(function: Any, observed: Any, args: Sequence[Any]) -> None:
    """Evaluates a function only for the events that observing it has added.

    Args:
        function: the function.
        observed: the function with its observed loops.
        args: its inputs.
    """
    jaxpr, consts = partial_eval.only_effects(jaxprs.close(observed))
    only_observed = Walk(LineRemover(lines_in(function), anchors=True))
    only_observed(jaxprs.close(jaxpr), [*consts, *args], NO_STATE)


def _prefixes(paths: Iterable[Path]) -> set[Path]:
    return {path[:i] for path in paths for i in range(len(path) + 1)}


def _same_sites(wanted: Sequence[Site], rule: Any) -> dict[Path, Site] | None:
    """Where a rule has the sites of its function, None if it lacks one of them."""
    names = {s.target.primitive for s in wanted if isinstance(s.target, Output)}
    available = list(find_sites(rule, frozenset(names)))
    found: dict[Path, Site] = {}
    for site in wanted:
        for path, other in available:
            if path not in found and other.signature == site.signature:
                found[path] = site
                break
        else:
            return None
    return found


def _per_lane(observer: Observer, loop: Loop, axes: int) -> Any:
    """Logs an iteration in each of the lanes that still run."""

    def log(number: Any, carry: list[Any], running: Any) -> None:
        observer.iteration(loop, number, carry, [], running)

    for _ in range(axes):
        log = jax.vmap(log)
    return log


def _traced(fun: Any, avals: Sequence[Any], like: Any) -> Any:
    """A jaxpr without constants, if the one that it replaces has none."""
    return jaxprs.rewritten(like, lambda _: jaxprs.trace(fun, avals, like)[0])
