"""Infers the shapes and dtypes of everything a program logs, before it is evaluated.

An accumulator or a buffer must exist before its first event, so its shapes and dtypes
must be known by then. The traversal that later evaluates the program first evaluates
its types alone, and returns the types of all rows.
"""

import functools
import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lox._events.event import Event
from lox._events.primitive import log_p
from lox._events.selection import Selection
from lox._jax import jaxprs

from .contents import equations_with_events
from .handlers import NO_STATE, State
from .rows import Record, Reductions, rows_of
from .rule_table import jaxprs_of
from .selecting_collector import SelectingCollector
from .walk import Walk


class _TypeInferrer(SelectingCollector):
    """Returns each event as a row, of which only the type is used."""

    def __init__(self, selection: Selection, reductions: Reductions) -> None:
        super().__init__(selection, keep_logs=False, outermost=True)
        self._reductions = reductions

    def collect(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        return rows_of(event, operands, self._reductions), state


def infer_rows(closed: Any, selection: Selection, reductions: Reductions) -> Record:
    """Infers the types of the rows of a program.

    Args:
        closed: the program.
        selection: the events and keys to include.
        reductions: the reduction of each key.
    """
    walk = Walk(_TypeInferrer(selection, reductions), types_only=True)
    return walk.row_types(closed)


def infer_rows_of_equation(
    eqn: Any, selection: Selection, reductions: Reductions
) -> Record:
    """Infers the types of the rows of a single equation."""
    walk = Walk(_TypeInferrer(selection, reductions), types_only=True)

    def rows(*args: Any) -> Record:
        return walk.rule_for(eqn)(walk, eqn, list(args), NO_STATE)[1]

    avals = [var.aval for var in eqn.invars]
    like = jaxprs_of(eqn)[0]
    new, tree, _ = jaxprs.trace(rows, avals, like)
    record: Record = tree.unflatten(new.out_avals)
    return record


def multi_row_keys(closed: Any, selection: Selection) -> frozenset[str]:
    """The keys that a program may log more than once."""
    known: dict[Any, Counter[str]] = {}

    def count_in_jaxpr(jaxpr: Any) -> Counter[str]:
        """How often each key may be logged, where any number above one means many."""
        jaxpr = jaxprs.open_jaxpr(jaxpr)
        counts = known.get(jaxpr)
        if counts is None:
            counts = Counter[str]()
            for eqn in equations_with_events(jaxpr):
                counts += count_in_equation(eqn)
            known[jaxpr] = counts
        return counts

    def count_in_equation(eqn: Any) -> Counter[str]:
        if eqn.primitive is log_p:
            event = eqn.params["event"]
            keys = event.call.keys if selection.selects_event(event) else ()
            counts = Counter(filter(selection.selects_key, keys))
            return counts + counts if event.layout.elements else counts
        # one branch of a conditional runs, and one function of a linear solve
        runs_one = eqn.primitive.name in ("cond", "custom_linear_solve")
        join = operator.or_ if runs_one else operator.add
        inside = map(count_in_jaxpr, jaxprs_of(eqn))
        counts = functools.reduce(join, inside, Counter[str]())
        is_loop = eqn.primitive.name in ("scan", "while")
        return counts + counts if is_loop else counts

    return frozenset(key for key, count in count_in_jaxpr(closed).items() if count > 1)
