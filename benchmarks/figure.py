"""One row of the table."""

from typing import NamedTuple


class Figure(NamedTuple):
    """A ratio (or a count), and the most that it may be; None if nobody promised."""

    what: str
    value: float
    goal: float | None = None

    def __str__(self) -> str:
        row = f"{self.what:<68} {self.value:>7.3f}"
        if self.goal is None:
            return f"{row}       -"
        met = "yes" if self.value <= self.goal else "NO"
        return f"{row} {self.goal:>7.2f}  {met}"


HEADER = f"{'what':<68} {'is':>7} {'goal':>7}  met"
