"""What a chart shows: its scalar, x-axis, groups and range."""

import dataclasses

from .decimation import PER_OCTAVE
from .signals import CLOCK
from .statistics import BANDS

ROW = "#row"  # the x-axis that counts rows
TIME = "#time"  # the x-axis of the seconds since the start of a run
TIMES = TIME, CLOCK
KEY = "key:"  # the prefix of an x-axis that is a logged scalar
AUTO, ALL = "@auto", "@all"  # groupings; others are lists of config keys
DEFAULT_BUCKETS = 480


@dataclasses.dataclass(frozen=True)
class Request:
    """What a chart shows.

    Attributes:
        key: the name of the scalar.
        x: the x-axis: a step, `ROW`, `TIME`, `CLOCK`, or `KEY` and a scalar. Runs
            without a step or scalar use their first step, and runs without times are
            left out.
        by: the config keys to group by, or `AUTO`, or `ALL`.
        bands: the bands to compute.
        runs: the numbers of the runs to include; None for all.
        low: the first `x` to show; None for the beginning.
        high: the last `x` to show; None for the end.
        buckets: the maximum number of points, about the width in pixels.
        per_octave: the number of points per octave, where a logarithmic axis needs
            more.
        after: to extend a chart, the bucket limit to start from.
        width: to extend a chart, the width of its buckets.
    """

    key: str
    x: str = ""
    by: tuple[str, ...] = (AUTO,)
    bands: tuple[str, ...] = BANDS
    runs: frozenset[int] | None = None
    low: float | None = None
    high: float | None = None
    buckets: int = DEFAULT_BUCKETS
    per_octave: int = PER_OCTAVE
    after: float | None = None
    width: float | None = None


class CannotExtendError(Exception):
    """A chart cannot be extended, and must be computed again."""
