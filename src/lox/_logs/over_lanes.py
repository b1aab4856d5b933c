"""`logs.over_lanes`: statistics over lanes, such as the seeds of a `vmap`."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lox._arrays import structure_of
from lox._errors import LoxKeyError, LoxValueError
from lox._source import warn

from .key import Key, KeyInfo
from .lane_points import LanePoints, align_lanes, has_lanes
from .lane_statistics import STATISTICS, Sample

if TYPE_CHECKING:
    from .logdict import logdict

DEFAULT = ("mean", "ci", "count")


def over_lanes(
    logs: "logdict", statistics: Sequence[str], step: str | None
) -> Iterable[tuple[str, Key]]:
    """The keys of the result."""
    unknown = [name for name in statistics if name not in STATISTICS]
    if unknown:
        raise LoxValueError(
            f"`over_lanes` got {', '.join(map(repr, unknown))}; the statistics are "
            f"{', '.join(STATISTICS)}."
        )
    compact = logs.compact()
    keys = compact._keys()
    if keys and not any(map(has_lanes, keys.values())):
        raise LoxValueError(
            "`over_lanes` needs logs with lanes, such as those of `jax.vmap` or of "
            "`lox.runs(...).load()`; these have none."
        )
    known = compact._metadata.known_steps
    if keys and step is not None and step not in known:
        raise LoxKeyError(
            f"`over_lanes` got the step {step!r}, but these logs have no such step; "
            f"their steps are {', '.join(map(repr, known)) or 'none'}."
        )
    for name, key in keys.items():
        points = align_lanes(name, key, step if step in key.steps else None)
        samples = samples_of(points)
        warn_of_nonfinite(name, points, samples)
        yield from _reduced(name, key, points, samples, statistics or DEFAULT)


def samples_of(points: LanePoints) -> list[Sample]:
    """The values of each leaf; only finite ones count."""
    samples = []
    for leaf in points.leaves:
        # lanes last
        values = np.moveaxis(leaf, 1, -1)
        present = np.broadcast_to(
            points.present.reshape(
                len(leaf), *[1] * (leaf.ndim - 2), points.present.shape[1]
            ),
            values.shape,
        )
        if values.dtype.kind not in "fiu":  # bool, and the dtypes of `ml_dtypes`
            values = values.astype(np.float64)
        # not left to `reshape`, which cannot infer sizes of empty arrays
        matrix = math.prod(values.shape[:-1]), values.shape[-1]
        flat = values.reshape(matrix)
        valid = present.reshape(matrix) & np.isfinite(flat)
        samples.append(Sample(flat, valid))
    return samples


def nonfinite_lanes(points: LanePoints, samples: list[Sample]) -> tuple[int, Any]:
    """How many lanes have values that are not finite, and the first point with one."""
    found = np.zeros(points.present.shape, bool)
    for sample, leaf in zip(samples, points.leaves, strict=True):
        own = math.prod(leaf.shape[2:])
        valid = sample.valid.reshape(len(found), own, found.shape[1])
        found |= points.present & ~valid.all(1)
    if not found.any():
        return 0, None
    return int(found.any(0).sum()), int(found.any(1).argmax())


def warn_of_nonfinite(name: str, points: LanePoints, samples: list[Sample]) -> None:
    count, first = nonfinite_lanes(points, samples)
    if not count:
        return
    where = ""
    if points.step is not None:
        where = f", from {points.step} {points.steps[points.step][first]}"
    elif len(points.present) > 1:
        where = f", from row {first}"
    warn(
        f"{name!r} has values that are not finite in {count} of "
        f"{points.present.shape[1]} lanes{where}. Statistics over lanes leave these "
        "values out; `count` says how many there are at each point."
    )


def _reduced(
    name: str,
    key: Key,
    points: LanePoints,
    samples: list[Sample],
    statistics: Sequence[str],
) -> Iterable[tuple[str, Key]]:
    stacked, tree = key.info.stacked, structure_of(key.value)
    shapes = [(leaf.shape[0], *leaf.shape[2:]) for leaf in points.leaves]
    steps = {x: at if stacked else at[0] for x, at in points.steps.items()}
    info = KeyInfo(stacked, 0, tuple(len(x) - 1 for x in shapes), key.info.tags)
    for statistic in dict.fromkeys(statistics):
        suffixes, compute = STATISTICS[statistic]
        by_leaf = [compute(sample) for sample in samples]
        for i, suffix in enumerate(suffixes):
            leaves = [
                result[i].reshape(shape)
                for result, shape in zip(by_leaf, shapes, strict=True)
            ]
            value = tree.unflatten([x if stacked else x[0] for x in leaves])
            yield f"{name}/{suffix}", Key(value, dict(steps), None, info)
