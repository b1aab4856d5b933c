"""One row of the table."""

from typing import NamedTuple


class Figure(NamedTuple):
    """A ratio or a count, and its maximum; None if there is no goal."""

    what: str
    value: float
    goal: float | None = None

    def __str__(self) -> str:
        digits = 5 if 0 < self.value < 0.01 else 3
        row = f"{self.what:<68} {self.value:>7.{digits}f}"
        if self.goal is None:
            return f"{row}       -"
        met = "yes" if self.value <= self.goal else "NO"
        digits = 3 if 0 < self.goal < 0.01 else 2
        return f"{row} {self.goal:>7.{digits}f}  {met}"


HEADER = f"{'figure':<68} {'value':>7} {'goal':>7}  met"
