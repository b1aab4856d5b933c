"""The table of rules, one per higher-order primitive."""

from collections.abc import Callable, Sequence
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
        walk: the traversal, which evaluates the jaxprs inside.
        eqn: the equation; the handler wants at least one event inside.
        args: the values of its inputs.
        state: the state before the equation.

    Returns:
        The equation's results, its rows, and the state after it.
    """

    def __call__(
        self, walk: "Walk", eqn: Any, args: list[Any], state: State
    ) -> Result: ...


_rules: dict[str, Rule] = {}
_type_rules: dict[str, Rule] = {}
_rule_finders: list[Callable[[Any], Rule | None]] = []


def _entry(table: dict[str, F], names: Sequence[str]) -> Callable[[F], F]:
    """A decorator that enters a function into a table."""

    def register(function: F) -> F:
        table.update(dict.fromkeys(names, function))
        return function

    return register


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the rule for the primitives with these names."""
    return _entry(_rules, names)


def type_rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the rule that traversals with `types_only` use."""
    return _entry(_type_rules, names)


def rule_finder(find: F) -> F:
    """Registers a function that returns the rule of an equation, or None."""
    _rule_finders.append(find)
    return find


def has_rule(primitive: Any) -> bool:
    return primitive.name in _rules


def find_rule(eqn: Any, types_only: bool = False) -> Rule | None:
    kind = hijax.kind_of(eqn)
    if types_only and kind in _type_rules:
        return _type_rules[kind]
    if kind in _rules:
        return _rules[kind]
    found = (find(eqn) for find in _rule_finders)
    return next((rule for rule in found if rule is not None), None)


# --- jaxprs that are not among an equation's parameters ----------------------

FindJaxprs = Callable[[Any], list[Any]]
_other_jaxprs: dict[str, FindJaxprs] = {}


def other_jaxprs(name: str) -> Callable[[FindJaxprs], FindJaxprs]:
    """Registers a function that returns the jaxprs that an equation runs."""
    return _entry(_other_jaxprs, [name])


def jaxprs_of(eqn: Any) -> list[Any]:
    """Every jaxpr that an equation may run."""
    if eqn.primitive.name in _other_jaxprs:
        return _other_jaxprs[eqn.primitive.name](eqn)
    return list(jaxprs.jaxprs_of(eqn))


# --- derivative and batching rules, which are traced only when JAX calls them ------

ChangedParams = Callable[["Walk", Any], dict[str, Any]]
_hidden_rules: dict[str, ChangedParams] = {}


def hidden_rules(name: str) -> Callable[[ChangedParams], ChangedParams]:
    """Registers a function that returns changed parameters for an equation.

    The equation itself does not log. With the changed parameters, the handler receives
    the events of its derivative or batching rules when JAX calls them.
    """
    return _entry(_hidden_rules, [name])


def has_other_jaxprs(primitive: Any) -> bool:
    """Whether equations of a primitive run jaxprs that they do not hold."""
    return primitive.name in _other_jaxprs


def may_log_elsewhere(primitive: Any) -> bool:
    """Whether equations of a primitive may log outside the jaxprs they hold."""
    return has_other_jaxprs(primitive) or primitive.name in _hidden_rules


def change_of_hidden_rules(eqn: Any) -> ChangedParams | None:
    return _hidden_rules.get(hijax.kind_of(eqn))


# --- preparations ------------------------------------------------------------

preparations: list[Callable[[Any], Any]] = []


def before_walk(prepare: F) -> F:
    """Registers a function that is applied to every closed jaxpr before traversal."""
    preparations.append(prepare)
    return prepare
