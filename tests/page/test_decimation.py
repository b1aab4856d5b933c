"""No extreme is ever lost: global and per bucket, with and without gaps."""

import numpy as np
import pytest

from lox._page.decimation import (
    bucket_limits,
    bucket_starts,
    bucket_width,
    extremes,
)

SEED = 20261117


def random_lanes(generator, kind):
    count = int(generator.integers(1, 400))
    lanes = generator.normal(size=(int(generator.integers(1, 5)), count))
    lanes = lanes.astype(generator.choice([np.float32, np.float64]))
    if kind == "spikes":
        where = generator.integers(0, count, 3)
        lanes[0, where] = [1e30, -1e30, 1e-30]
    if kind == "gaps":
        lanes[generator.random(lanes.shape) < 0.4] = np.inf
        lanes[generator.random(lanes.shape) < 0.4] = np.nan
    return lanes


def random_steps(generator, count):
    if generator.random() < 0.3:
        return np.arange(count) * 1.0
    steps = np.cumsum(generator.exponential(size=count) + 1e-9)
    return steps - (steps[-1] / 2 if generator.random() < 0.5 else 0)


@pytest.mark.parametrize("kind", ["plain", "spikes", "gaps"])
def test_decimation_keeps_extremes_of_every_bucket(kind):
    generator = np.random.default_rng(SEED)
    for _ in range(150):
        lanes = random_lanes(generator, kind)
        x = random_steps(generator, lanes.shape[1])
        buckets = int(generator.integers(1, 60))
        width = bucket_width(x[0], x[-1], buckets) or 1.0
        starts = bucket_starts(x, bucket_limits(x[0], x[-1], width))
        finite = np.isfinite(lanes)
        found = extremes(lanes, None if finite.all() else finite, starts)
        assert found.first.dtype == lanes.dtype
        pairs = np.stack([found.first, found.second])
        for i, part in enumerate(np.split(np.arange(len(x)), starts[1:])):
            for lane in range(len(lanes)):
                rows = lanes[lane, part]
                kept = rows[np.isfinite(rows)]
                pair = pairs[:, lane, i]
                if len(kept):
                    assert pair.min() == kept.min() and pair.max() == kept.max()
                    order = found.first_row[lane, i], found.second_row[lane, i]
                    assert order[0] <= order[1]
                    assert lanes[lane, order[0]] == pair[0]
                elif np.isnan(rows).all():
                    assert np.isnan(pair).all()
                else:
                    assert (pair == np.inf).all()


def test_decimation_bounds_the_number_of_buckets():
    for count in (10, 1000, 100_000):
        x = np.arange(count) * 1.0
        width = bucket_width(x[0], x[-1], 100)
        linear = int(x[-1] // width) + 1
        assert linear <= 101
        starts = bucket_starts(x, bucket_limits(x[0], x[-1], width))
        assert len(starts) <= min(linear + 150, count)


def test_decimation_has_short_buckets_near_zero_for_logarithmic_axes():
    x = np.arange(100_000) * 1.0
    width = bucket_width(x[0], x[-1], 100)
    starts = x[bucket_starts(x, bucket_limits(x[0], x[-1], width))]
    for low in (1, 10, 100, 1000, 10_000):
        assert ((starts >= low) & (starts < 10 * low)).sum() >= 9


def test_bucket_limits_do_not_depend_on_the_range():
    short, long = bucket_limits(0.0, 1000.0, 16.0), bucket_limits(0.0, 5000.0, 16.0)
    assert long[: len(short)].tolist() == short.tolist()


@pytest.mark.parametrize("low, high", [(3.0, 3.0), (0.0, np.inf), (5.0, 1.0)])
def test_bucket_width_of_an_empty_range_is_zero(low, high):
    assert bucket_width(low, high, 10) == 0
