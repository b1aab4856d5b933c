"""Calls of `custom_vjp` functions, as ordinary or high-level primitives."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import JaxprEqn
from jax.interpreters import ad

from . import debug_info, hijax, jaxprs
from .ad import instantiated
from .custom_derivatives import (
    bwd_rule,
    closed_over_error,
    define_vjp,
    fwd_rule_jaxpr,
    fwd_rule_residuals,
)


class CustomVjpCall:
    """An equation that calls a `custom_vjp` function.

    Attributes:
        function: the function, as a jaxpr of the equation's inputs.
    """

    def __init__(self, eqn: JaxprEqn) -> None:
        self._eqn = eqn
        self._closed_over = eqn.params["num_consts"]
        self.function = eqn.params["call_jaxpr"]

    def checked(self, args: Sequence[Any]) -> Sequence[Any]:
        """The inputs of the replacement function.

        It is an error to differentiate with respect to a value that the function closes
        over. The forward rule detects it if it gets flags for perturbed inputs.
        """
        return args

    def forward(
        self, args: Sequence[Any], perturbed: Sequence[bool]
    ) -> tuple[Any, Sequence[Any], Callable[[Sequence[Any]], Any]]:
        """The forward rule.

        Args:
            args: the inputs of the equation.
            perturbed: which of them are perturbed (have a nonzero tangent).

        Returns:
            The closed jaxpr of the rule, its inputs, and a function that splits its
            outputs into results and residuals.
        """
        closed_over = self._closed_over
        if any(perturbed[:closed_over]):
            raise closed_over_error()
        jaxpr = fwd_rule_jaxpr(self._eqn, perturbed[closed_over:])

        def split(outs: Sequence[Any]) -> tuple[list[Any], Any]:
            residuals, results = fwd_rule_residuals(self._eqn, args, outs)
            return results, residuals

        return jaxpr, args[closed_over:], split

    def backward(
        self, residuals: Any, cotangents: Sequence[Any]
    ) -> tuple[list[Any], Any]:
        """The cotangents of all inputs, None where zero, and the logs of `bwd_rule`."""
        if not self._eqn.params["symbolic_zeros"]:
            cotangents = list(map(instantiated, cotangents))
        outs, logs = bwd_rule(self._eqn)(*residuals, *cotangents)
        return [*[None] * self._closed_over, *outs], logs

    def define(
        self, fun: Any, fwd: Callable[..., Any], bwd: Callable[..., Any]
    ) -> None:
        """Defines the rules of the replacement function.

        Args:
            fun: the replacement, a `custom_vjp` function.
            fwd: a function of the arguments, and of which of them are perturbed.
            bwd: a function of the residuals and cotangents that returns a pair, as
                `backward` does.
        """
        define_vjp(fun, _with_perturbed_flags(fwd), bwd, symbolic_zeros=True)


def _with_perturbed_flags(fwd: Callable[..., Any]) -> Callable[..., Any]:
    def rule(*primals: Any) -> Any:
        return fwd([x.value for x in primals], [x.perturbed for x in primals])

    return rule


class _HighCustomVjpCall(CustomVjpCall):
    """A call of a `custom_vjp` function as a high-level primitive."""

    def __init__(self, eqn: JaxprEqn) -> None:
        self._prim = prim = jaxprs.hijax(eqn)
        self._params = jaxprs.innermost(prim).params
        self._symbolic_zeros = self._params["symbolic_zeros"]
        # from 0.11 on, the first argument is what the function closes over
        arguments = prim.in_tree.children()
        self._closed_over = (
            arguments[0].num_leaves if "with_logs" in self._params else 0
        )
        called = hijax.called_jaxpr(eqn)
        self.function = jaxprs.expanded_hijax(eqn) if called is None else called

    def checked(self, args: Sequence[Any]) -> Sequence[Any]:
        if self._symbolic_zeros:
            return args
        closed_over = self._closed_over
        return [*map(_never_perturbed, args[:closed_over]), *args[closed_over:]]

    def forward(
        self, args: Sequence[Any], perturbed: Sequence[bool]
    ) -> tuple[Any, Sequence[Any], Callable[[Sequence[Any]], Any]]:
        prim, closed_over = self._prim, self._closed_over
        if not self._symbolic_zeros:  # the rule does not depend on the flags
            perturbed = [i >= closed_over for i in range(len(args))]
        flags = prim.in_tree.unflatten(perturbed)
        trees = []

        def rule(*flat: Any) -> list[Any]:
            outs, residuals, *_ = prim.vjp_fwd(flags, *prim.in_tree.unflatten(flat))
            leaves, tree = jax.tree.flatten(residuals)
            trees.append(tree)
            return [*prim.out_tree.flatten_up_to(outs), *leaves]

        with debug_info.own_lines():
            jaxpr, _, _ = jaxprs.trace(rule, prim.in_avals_flat, self.function)
        results = prim.out_tree.num_leaves

        def split(outs: Sequence[Any]) -> tuple[list[Any], Any]:
            return list(outs[:results]), trees[0].unflatten(outs[results:])

        return jaxpr, args, split

    def backward(
        self, residuals: Any, cotangents: Sequence[Any]
    ) -> tuple[list[Any], Any]:
        prim = self._prim
        zeros = [ad.Zero(x.aval) if type(x) is SymbolicZero else x for x in cotangents]
        given = prim.out_tree.unflatten(zeros)
        with_logs = getattr(prim, "vjp_bwd_retval_logs", False)
        if callable(with_logs):  # from 0.12 on
            outs, logs = with_logs(residuals, given)
        else:
            outs, logs = prim.vjp_bwd_retval(residuals, given), None
            if with_logs:
                outs, logs = outs
        flat = prim.in_tree.flatten_up_to(outs)
        return [None if type(x) in (ad.Zero, SymbolicZero) else x for x in flat], logs

    def define(
        self, fun: Any, fwd: Callable[..., Any], bwd: Callable[..., Any]
    ) -> None:
        def all_perturbed(*args: Any) -> Any:
            return fwd(list(args), [True] * len(args))

        rule = _with_perturbed_flags(fwd) if self._symbolic_zeros else all_perturbed
        options = {
            "symbolic_zeros": self._symbolic_zeros,
            "optimize_remat": self._params["opt_remat"],
        }
        if "generic_batching" in self._params:  # from 0.12 on
            options["generic_batching"] = self._params["generic_batching"]
        # without the rules of `defremat`, a checkpoint runs the forward rule again
        define_vjp(fun, rule, bwd, **options)


def custom_vjp_call(eqn: JaxprEqn) -> CustomVjpCall:
    """The `CustomVjpCall` of an equation."""
    return CustomVjpCall(eqn) if jaxprs.hijax(eqn) is None else _HighCustomVjpCall(eqn)


def _never_perturbed(x: Any) -> Any:
    """Makes it an error to differentiate with respect to a closed-over value."""
    if not isinstance(x, jax.core.Tracer):
        return x
    inexact = jax.numpy.issubdtype(jax.typeof(x).dtype, jax.numpy.inexact)
    return _identity_without_derivative(x) if inexact else x


@jax.custom_jvp
def _identity_without_derivative(x: Any) -> Any:
    return x


@_identity_without_derivative.defjvp
def _(primals: Any, tangents: Any) -> Any:
    raise closed_over_error()
