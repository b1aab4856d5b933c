"""The survey: what a program will log, found before it is evaluated.

An accumulator or a buffer must exist before the first event that goes into it, so its
shapes must be known by then. The survey evaluates the program's types alone, by the
very traversal that will evaluate its values later, and gives the types of all rows.
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
from .rows import Record, rows_of
from .rule_table import jaxprs_of
from .taker import Taker
from .walk import Walk


class _Surveyor(Taker):
    """Gives each event back as a row, of which only the type is ever looked at."""

    def __init__(self, selection: Selection, reductions: Any) -> None:
        super().__init__(selection, keep_logs=False, outermost=True)
        self._reductions = reductions

    def take(
        self, event: Event, operands: Sequence[Any], state: State
    ) -> tuple[Record, State]:
        return rows_of(event, operands, self._reductions), state


def survey(closed: Any, selection: Selection, reductions: Any) -> Record:
    """The rows that a program gives, as types.

    Args:
        closed: the program.
        selection: which events count.
        reductions: from a key and what its `lox.log` asked for, the reduction it gets.
    """
    new, tree = Walk(_Surveyor(selection, reductions), types_only=True).rebuilt(
        closed, NO_STATE
    )
    record: Record = tree.unflatten(new.out_avals)[1]
    return record


def survey_equation(walk: Walk, eqn: Any, selection: Selection, reductions: Any) -> Any:
    """The same of a single equation."""
    surveying = Walk(_Surveyor(selection, reductions), types_only=True)

    def rows(*args: Any) -> Record:
        return surveying.rule_for(eqn)(surveying, eqn, list(args), NO_STATE)[1]

    avals = [var.aval for var in eqn.invars]
    like = jaxprs_of(eqn)[0]
    new, tree, _ = jaxprs.trace(rows, avals, like)
    return tree.unflatten(new.out_avals)


def repeated(closed: Any, selection: Selection) -> frozenset[str]:
    """The keys that one run of a program may log several times."""
    known: dict[Any, Counter[str]] = {}

    def counts_of(jaxpr: Any) -> Counter[str]:
        """How often each key is logged; more than once is many."""
        jaxpr = jaxprs.open_jaxpr(jaxpr)
        counts = known.get(jaxpr)
        if counts is None:
            counts = Counter[str]()
            for eqn in equations_with_events(jaxpr):
                counts += counts_in(eqn)
            known[jaxpr] = counts
        return counts

    def counts_in(eqn: Any) -> Counter[str]:
        if eqn.primitive is log_p:
            event = eqn.params["event"]
            taken = event.call.keys if selection.selects_event(event) else ()
            return Counter(filter(selection.selects_key, taken))
        # of the branches of a conditional, one is taken; what a linear solve has beside
        # its solution are other ways to the same
        one_of = eqn.primitive.name in ("cond", "custom_linear_solve")
        join = operator.or_ if one_of else operator.add
        inside = map(counts_of, jaxprs_of(eqn))
        counts = functools.reduce(join, inside, Counter[str]())
        many = eqn.primitive.name in ("scan", "while")
        return counts + counts if many else counts

    return frozenset(key for key, count in counts_of(closed).items() if count > 1)
