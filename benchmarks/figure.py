"""One row of the table."""

from typing import NamedTuple


class Figure(NamedTuple):
    """A ratio (or a count), and the most that it may be."""

    what: str
    value: float
    goal: float

    @property
    def met(self) -> bool:
        return self.value <= self.goal

    def __str__(self) -> str:
        met = "yes" if self.met else "NO"
        return f"{self.what:<68} {self.value:>7.3f} {self.goal:>7.2f}  {met}"


HEADER = f"{'what':<68} {'is':>7} {'goal':>7}  met"
