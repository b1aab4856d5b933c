"""Compares merged values with their per-lane values, before the program runs.

The merged value decides what a lane runs. If `unvmap_any` merged it, a lane may run
more than it would alone, and these additional events are masked. A lane may also run
less: the merged value of a predicate then excludes a branch or a step that the lane
would run alone, and its events are lost. Which of these may happen is inferred here:
whether a merged value is never below, or never above, the per-lane value.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from lox._jax import jaxprs

from .counters import counters_in_sync, first_iterations
from .deciding_inputs import called_jaxpr

# How a merged value compares with the per-lane value; 0 if that is not known. `SAME` is
# for lanes that run: those that have ended may have another value.
ABOVE, BELOW, SAME = 1, -1, 2


class Value(NamedTuple):
    """What is known about a value.

    Attributes:
        direction: `ABOVE` if it is merged and never below its per-lane value, `BELOW`
            if it is never above, `SAME` if it is the same in lanes that run, 0 if
            none of these is known; None if it is not merged.
        number: the value itself, if it is a constant.
        in_sync: the reductions over lanes that return the value of the lanes that run,
            which is the same in all of them.
    """

    direction: int | None = None
    number: Any = None
    in_sync: tuple[str, ...] = ()


_NOT_MERGED = Value()
_MERGES = {"unvmap_any": ABOVE, "unvmap_max": ABOVE, "unvmap_all": BELOW}
# non-decreasing in each operand
_INCREASING = frozenset(
    {"add", "and", "ceil", "clamp", "copy", "copy_p", "cumsum", "device_put", "exp"}
    | {"convert_element_type", "expand_dims", "floor", "log", "log1p", "logistic"}
    | {"max", "min", "nonbatchable", "or", "reduce_and", "reduce_max", "reduce_min"}
    | {"reduce_or", "reshape", "round", "sign", "sqrt", "squeeze", "stop_gradient"}
    | {"tanh", "broadcast_in_dim"}
)
_DECREASING = frozenset({"neg", "not"})
# non-decreasing in the first operand, non-increasing in the second
_FIRST_MINUS_SECOND = frozenset({"ge", "gt", "sub"})
_SECOND_MINUS_FIRST = frozenset({"le", "lt"})
_CONSTANT = frozenset({"broadcast_in_dim", "convert_element_type", "copy", "copy_p"})


def values_in_sync(jaxpr: Any) -> dict[Any, Value]:
    """What is known about the variables that are the same in all lanes that run."""
    counters = dict.fromkeys(counters_in_sync(jaxpr), Value(in_sync=("unvmap_max",)))
    merges = "unvmap_any", "unvmap_all"
    return counters | dict.fromkeys(first_iterations(jaxpr), Value(in_sync=merges))


def value_of_atom(atom: Any, known: Callable[[Any], Value]) -> Value:
    """What is known about a variable or a literal."""
    if isinstance(atom, jaxprs.Literal):
        return Value(number=atom.val)
    return known(atom)


def values_of_results(eqn: Any, inputs: Sequence[Value]) -> list[Value]:
    """What is known about the results of an equation, given its inputs."""
    called = called_jaxpr(eqn)
    if called is not None:
        return _values_of_jaxpr(called.jaxpr, inputs)
    if len(eqn.outvars) != 1:
        merged = any(x.direction is not None for x in inputs)
        return [Value(0 if merged else None)] * len(eqn.outvars)
    number = inputs[0].number if eqn.primitive.name in _CONSTANT else None
    return [Value(_direction(eqn, inputs), number)]


def _values_of_jaxpr(jaxpr: Any, inputs: Sequence[Value]) -> list[Value]:
    env = dict(zip(jaxpr.invars, inputs, strict=True))

    def known(var: Any) -> Value:
        return env.get(var, _NOT_MERGED)

    for eqn in jaxpr.eqns:
        ins = [value_of_atom(atom, known) for atom in eqn.invars]
        env.update(zip(eqn.outvars, values_of_results(eqn, ins), strict=True))
    return [value_of_atom(atom, known) for atom in jaxpr.outvars]


def _direction(eqn: Any, inputs: Sequence[Value]) -> int | None:
    name = eqn.primitive.name
    directions = [x.direction for x in inputs]
    if name in _MERGES:
        (inner,) = directions
        if name in inputs[0].in_sync:
            return SAME
        return _MERGES[name] if inner in (None, _MERGES[name]) else 0
    if all(one is None for one in directions) or jaxprs.has_jaxprs(eqn.params):
        # the results of a loop or a branch are per-lane values already
        return None
    if all(one in (None, SAME) for one in directions):
        return SAME
    if name in _INCREASING:
        return _common(directions)
    if name in _DECREASING:
        return _common(map(_opposite, directions))
    if name in _FIRST_MINUS_SECOND:
        return _common([directions[0], _opposite(directions[1])])
    if name in _SECOND_MINUS_FIRST:
        return _common([_opposite(directions[0]), directions[1]])
    if name == "select_n":
        return _direction_of_selection(inputs)
    return 0


def _direction_of_selection(inputs: Sequence[Value]) -> int:
    which, *cases = inputs
    of_cases = _common(case.direction for case in cases)
    if which.direction in (None, SAME):
        return of_cases or 0
    numbers = [case.number for case in cases]
    if any(number is None for number in numbers):
        return 0
    pairs = list(itertools.pairwise(numbers))
    if all(x <= y for x, y in pairs):
        return which.direction
    return -which.direction if all(x >= y for x, y in pairs) else 0


def _opposite(direction: int | None) -> int | None:
    return direction if direction in (None, SAME) else -direction


def _common(directions: Iterable[int | None]) -> int | None:
    found = {one for one in directions if one not in (None, SAME)}
    if not found:
        return None
    return found.pop() if len(found) == 1 else 0


def direction_of_predicate(cond: Any) -> int | None:
    """The direction of the condition of a loop whose inputs are not merged."""
    jaxpr = jaxprs.open_jaxpr(cond)
    (predicate,) = _values_of_jaxpr(jaxpr, [_NOT_MERGED] * len(jaxpr.invars))
    return predicate.direction


def may_lose(branch: int, count: int, direction: int) -> bool:
    """Whether a lane that would run a branch alone may run another one instead.

    Args:
        branch: the index of the branch.
        count: the number of branches.
        direction: that of the merged index.
    """
    kept = {ABOVE: count - 1, BELOW: 0, SAME: branch}.get(direction)
    return branch != kept
