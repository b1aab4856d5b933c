"""Finds the loops of a program, and gives each an address.

The address of a loop counts the loops of its kind before it, in program order and in
the same surrounding loop: `scan[0]/while[1]` is the second `while` loop inside the
first `scan`.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from lox._jax import debug_info, hijax, jaxprs, primitives
from lox._source import Source

from .equinox_primitives.expansion import expand, filtered_params
from .rule_table import find_rule, jaxprs_of

# Where an equation is: the numbers of equations and of their jaxprs, from outside in.
Path = tuple[int, ...]

_UNKNOWN = debug_info.Place("<unknown>", 0, "<unknown>")


@dataclasses.dataclass(frozen=True, slots=True)
class Loop:
    """A loop of a program.

    Attributes:
        address: such as `scan[0]/while[1]`.
        kind: `scan` or `while`. A `fori_loop` with static bounds is a `scan`.
        file: the file of the line that calls the loop.
        line: the number of this line.
        function: the function that this line is in.
        carry: the names of the leaves of the carry.
        ys: the names of the leaves of the stacked outputs.
        length: the number of iterations, None for a `while` loop.
        backward: whether the loop is part of a backward pass.
    """

    address: str
    kind: str
    file: str
    line: int
    function: str
    carry: tuple[str, ...]
    ys: tuple[str, ...] = ()
    length: int | None = None
    backward: bool = False

    def __str__(self) -> str:
        length = "" if self.length is None else f", length {self.length}"
        ys = f"; ys: {', '.join(self.ys)}" if self.ys else ""
        where = f"{os.path.basename(self.file)}:{self.line}"
        carry = ", ".join(self.carry) or "nothing"
        backward = ", backward pass" if self.backward else ""
        return (
            f"{self.address} at {where} in {self.function}{length}{backward}; "
            f"carry: {carry}{ys}"
        )

    @property
    def source(self) -> Source:
        return Source(self.file, self.line)

    @property
    def is_outermost(self) -> bool:
        """Whether no other loop is around it."""
        return "/" not in self.address


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """An equation whose results are observed.

    Attributes:
        primitive: the name of its primitive.
        source: the user's line.
        in_loop: whether an observed loop is around it.
    """

    primitive: str
    source: Source
    in_loop: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """A loop or an equation of a program.

    Attributes:
        target: what is there.
        signature: equal for the same code in another program, such as a derivative
            rule of the function that has it.
    """

    target: Loop | Output
    signature: Any


def find_sites(
    jaxpr: Any, outputs: frozenset[str] = frozenset()
) -> Iterator[tuple[Path, Site]]:
    """The loops of a program in program order, each before the loops inside it.

    Args:
        jaxpr: the program.
        outputs: the names of primitives to find as well.
    """
    return _sites_in(jaxpr, (), "", {}, False, outputs, _UNKNOWN)


def loops_of(jaxpr: Any) -> list[Loop]:
    """All loops of a program."""
    return [s.target for _, s in find_sites(jaxpr) if isinstance(s.target, Loop)]


def has_hidden_loops(jaxpr: Any) -> bool:
    """Whether a function of `eqxi.noinline` has loops, which cannot be observed."""
    return any(
        any(map(loops_of, jaxprs_of(eqn)))
        if eqn.primitive.name == "noinline"
        else any(has_hidden_loops(inner) for _, inner in jaxprs_that_run(eqn))
        for eqn in jaxprs.open_jaxpr(jaxpr).eqns
    )


def _sites_in(
    jaxpr: Any,
    path: Path,
    prefix: str,
    counts: dict[str, int],
    backward: bool,
    outputs: frozenset[str],
    outer: debug_info.Place,
) -> Iterator[tuple[Path, Site]]:
    for i, eqn in enumerate(jaxprs.open_jaxpr(jaxpr).eqns):
        here = (*path, i)
        kind = eqn.primitive.name
        # JAX traces some of its own loops separately from the code that calls them
        place = debug_info.place_of(eqn) or outer
        if kind in outputs:
            avals = tuple(var.aval for var in eqn.outvars)
            source = Source(place.file, place.line)
            yield here, Site(Output(kind, source), (kind, source, avals))
        inner_backward = backward or debug_info.is_backward(eqn)
        inner_prefix, inner_counts = prefix, counts
        if is_loop(eqn):
            number = counts.get(kind, 0)
            counts[kind] = number + 1
            address = f"{prefix}{kind}[{number}]"
            yield here, _loop(eqn, address, inner_backward, place)
            inner_prefix, inner_counts = f"{address}/", {}
        for j, inner in jaxprs_that_run(eqn):
            yield from _sites_in(
                inner,
                (*here, j),
                inner_prefix,
                inner_counts,
                inner_backward,
                outputs,
                place,
            )


def is_loop(eqn: Any) -> bool:
    return eqn.primitive is primitives.scan_p or eqn.primitive is primitives.while_p


def is_linear_solve(eqn: Any) -> bool:
    """Whether an equation is a `lineax.linear_solve`."""
    filtered = filtered_params(eqn.params) is not None
    return filtered and eqn.primitive.name.startswith("linear_solve")


def jaxprs_that_run(eqn: Any) -> list[tuple[int, Any]]:
    """The jaxprs that an equation evaluates, with their numbers in its parameters.

    Those in which nothing can be logged, such as the kernels of Pallas, are left out.
    """
    if is_linear_solve(eqn):
        return [(0, expand(eqn))]
    if not jaxprs.has_jaxprs(eqn.params) or find_rule(eqn) is None:
        return []
    found = list(enumerate(jaxprs.jaxprs_in(eqn.params)))
    if hijax.kind_of(eqn) == hijax.CUSTOM_VJP or "call_jaxpr" in eqn.params:
        return found[:1]
    if eqn.primitive is primitives.linear_solve_p:
        # its other jaxprs, not all of which it must have, only describe its derivatives
        solve = eqn.params["jaxprs"].solve
        return [(i, jaxpr) for i, jaxpr in found if jaxpr is solve]
    return found


def _loop(eqn: Any, address: str, backward: bool, place: debug_info.Place) -> Site:
    if eqn.primitive is primitives.scan_p:
        body, length = eqn.params["jaxpr"], eqn.params["length"]
        start, carry, _ = primitives.scan_sizes(eqn.params, len(eqn.invars))
    else:
        body, length = eqn.params["body_jaxpr"], None
        start = eqn.params["body_nconsts"]
        carry = len(body.in_avals) - start
    names = debug_info.argument_names(body)[start : start + carry]
    paths = debug_info.result_paths(body)[carry:]
    stacked = ["" if not path else path.replace("result[1]", "ys", 1) for path in paths]
    loop = Loop(
        address,
        eqn.primitive.name,
        *place,
        _distinct(names, "carry"),
        _distinct(stacked, "ys"),
        length,
        backward,
    )
    signature = loop.kind, place, length, tuple(body.out_avals), carry
    return Site(loop, signature)


def _distinct(names: list[str], kind: str) -> tuple[str, ...]:
    """Distinct names; by position, where JAX knows no name."""
    full = [name or f"{kind}[{i}]" for i, name in enumerate(names)]
    if len(set(full)) < len(full):
        full = [f"{kind}[{i}]" for i in range(len(names))]
    return tuple(full)
