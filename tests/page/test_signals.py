"""Keys of the page: rows of several dtypes, and sums of many rows."""

import ml_dtypes
import numpy as np
import pytest

from lox._page.chart_requests import Request
from lox._page.charts import chart
from lox._page.report import write_report
from lox._page.signals import signals_of
from lox._page.source import StoreSource
from lox._store.reader import Run, writers_of

from .stores import logs, write_run


def write_parts(store, *parts):
    """Writes a run whose key `x` has one row per part, each with its own dtype."""
    rows = [logs([i], x=part[None]) for i, part in enumerate(parts)]
    write_run(store, "a", rows)


@pytest.mark.parametrize(
    "dtypes",
    [
        ("int64", "bfloat16"),
        ("float8_e4m3fn", "int32"),
        ("bool", "float8_e5m2"),
        ("int4", "float16"),
        ("uint4", "bool", "float32"),
    ],
    ids="-".join,
)
def test_chart_of_key_with_several_dtypes_is_in_float64(tmp_path, dtypes):
    parts = [np.array(1, getattr(ml_dtypes, x, None) or x) for x in dtypes]
    write_parts(tmp_path / "store", *parts)
    data = chart(StoreSource(tmp_path / "store"), Request("x"))
    assert data["lanes"]["first"].dtype == np.float64
    assert data["lanes"]["first"].tolist() == [[1.0] * len(dtypes)]
    write_report(tmp_path / "store", tmp_path / "report.html")


def test_chart_of_bfloat16_and_large_integers_does_not_round(tmp_path):
    values = [np.array(0.5, ml_dtypes.bfloat16), np.array(1001, np.int32)]
    write_parts(tmp_path, *values)
    data = chart(StoreSource(tmp_path), Request("x"))
    assert data["lanes"]["first"].tolist() == [[0.5, 1001.0]]


def test_key_that_becomes_complex_is_not_charted_as_real(tmp_path):
    write_parts(tmp_path, np.array(1.0), np.array(1j))
    write_run(tmp_path, "b", logs([0], x=[1j]))
    for name in "ab":
        assert "x" not in signals_of(writers_of(Run(tmp_path / name)))


def test_means_of_binned_float32_rows_are_summed_in_float64(tmp_path):
    count = 1000
    generator = np.random.default_rng(0)
    for seed in range(4):
        time = np.sort(generator.random(count))  # none in common: rows are binned
        values = np.full(count, 3e38, np.float32)  # their sum is not in float32
        rows = logs(np.arange(count), time=time, x=values)
        write_run(tmp_path, f"r{seed}", rows, {"seed": seed})
    request = Request("x", x="key:time", buckets=8)
    data = chart(StoreSource(tmp_path), request)
    (group,) = data["groups"]
    assert data["binned"]
    np.testing.assert_allclose(group["first"], 3e38, rtol=1e-6)
