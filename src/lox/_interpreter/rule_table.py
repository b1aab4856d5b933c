"""The table of rules: how each higher-order primitive is evaluated with its events."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lox._jax import hijax, jaxprs

from .handlers import State
from .rows import Record

if TYPE_CHECKING:
    from .walk import Walk

F = TypeVar("F", bound=Callable[..., Any])
Result = tuple[list[Any], Record, State]


class Rule(Protocol):
    """Evaluates an equation of one higher-order primitive with its events.

    Args:
        walk: the traversal, to evaluate the jaxprs inside.
        eqn: the equation; at least one event inside is wanted.
        args: the values of its inputs.
        state: the state before the equation.

    Returns:
        The equation's results, its rows, and the state after it.
    """

    def __call__(
        self, walk: "Walk", eqn: Any, args: list[Any], state: State
    ) -> Result: ...


_rules: dict[str, Rule] = {}
_rule_finders: list[Callable[[Any], Rule | None]] = []


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the rule for the primitives with these names."""

    def register(function: Rule) -> Rule:
        _rules.update(dict.fromkeys(names, function))
        return function

    return register


def rule_finder(find: F) -> F:
    """Registers a function that finds the rule of an equation by its parameters."""
    _rule_finders.append(find)
    return find


def has_rule(primitive: Any) -> bool:
    return primitive.name in _rules


def find_rule(eqn: Any) -> Rule | None:
    kind = hijax.kind_of(eqn)
    if kind in _rules:
        return _rules[kind]
    found = (find(eqn) for find in _rule_finders)
    return next((rule for rule in found if rule is not None), None)


# --- jaxprs that are not among an equation's parameters ----------------------

_other_jaxprs: dict[str, Callable[[Any], list[Any]]] = {}


def other_jaxprs(name: str) -> Callable[[F], F]:
    """Registers a function that returns the jaxprs that a primitive's equation runs."""

    def register(function: F) -> F:
        _other_jaxprs[name] = function
        return function

    return register


def jaxprs_of(eqn: Any) -> list[Any]:
    """Every jaxpr that an equation may run."""
    if eqn.primitive.name in _other_jaxprs:
        return _other_jaxprs[eqn.primitive.name](eqn)
    return list(jaxprs.jaxprs_of(eqn))


# --- derivative and batching rules that cannot be traced before JAX calls them -----

ChangedParams = Callable[["Walk", Any], dict[str, Any]]
_hidden_rules: dict[str, ChangedParams] = {}


def hidden_rules(name: str) -> Callable[[ChangedParams], ChangedParams]:
    """Registers how to change the parameters of an equation that does not log itself,
    so that the traversal sees the events of its derivative or batching rules.
    """

    def register(function: ChangedParams) -> ChangedParams:
        _hidden_rules[name] = function
        return function

    return register


def may_log_elsewhere(primitive: Any) -> bool:
    """Whether equations of a primitive may log other than by their jaxprs."""
    return primitive.name in _other_jaxprs or primitive.name in _hidden_rules


def change_of_hidden_rules(eqn: Any) -> ChangedParams | None:
    return _hidden_rules.get(hijax.kind_of(eqn))


# --- preparations ------------------------------------------------------------

preparations: list[Callable[[Any], Any]] = []


def before_walk(prepare: F) -> F:
    """Registers a function that changes every closed jaxpr before its traversal."""
    preparations.append(prepare)
    return prepare
