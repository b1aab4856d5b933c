"""The comparison with other libraries: checks, statistics, tables, missing peers."""

import json
import pathlib

import numpy as np
import pytest

from benchmarks.peers import command, contender, results, table
from benchmarks.peers.checking import joined, problem
from benchmarks.peers.contender import MissingError, Peer, imported
from benchmarks.peers.contenders import BY_HAND, PEERS
from benchmarks.peers.group import (
    Contender,
    Group,
    Made,
    measure,
    measure_sizes,
    of_workload,
)
from benchmarks.peers.plan import NAMES, Plan
from benchmarks.peers.results import Measurement, Result, with_ratios
from benchmarks.peers.rounds import time_in_rounds
from benchmarks.peers.spread import exponent, spread
from benchmarks.peers.workloads import scan_workload
from docs.site import peer_pictures, peer_results

DOCS = pathlib.Path(__file__).parents[1] / "docs"


def counter():
    """A clock that advances by one second with each call."""
    now = iter(range(1_000_000))
    return lambda: float(next(now))


def made(value, fails=False):
    def values():
        if fails:
            raise ZeroDivisionError("in the peer\nand more")
        return {"x": value}

    return lambda: Made(lambda: None, values)


def measurement(rows, jax="0.10.2"):
    versions = {"python": "3.11", "jax": jax}
    return Measurement("2026-01-02", "a processor", 0.5, versions, False, rows)


# --- statistics ----------------------------------------------------------------------


def test_spread_has_median_quartiles_and_best():
    assert spread([5.0, 1.0, 2.0, 3.0, 4.0]) == (1, 2, 3, 4, 5)
    with pytest.raises(ValueError, match="no times"):
        spread([])


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_exponent_is_the_power_of_the_cost(power):
    sizes = [10, 100, 1_000]
    assert exponent(sizes, [3 * n**power for n in sizes]) == pytest.approx(power)


def test_exponent_needs_three_sizes():
    assert exponent([10, 100, 100], [1, 2, 3]) is None


def test_slow_contender_has_fewer_rounds_but_at_least_three():
    calls = []
    runs = [lambda: calls.append("fast"), lambda: calls.append("slow")]
    fast, slow = time_in_rounds(runs, [1.0, 4.0], 20.0, counter())
    assert (len(fast), len(slow)) == (10, 3)
    assert calls.index("slow") < len(calls) / 2  # spread over the rounds


# --- checks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"x": [1.0, 2.0, 3.0]}, None),
        ({"x": [1.0, 3.0, 2.0]}, "another order"),
        ({"x": [1.0, 2.0, 4.0]}, "other values"),
        ({"x": [1.0, 2.0, 3.0, 3.0]}, "4 values of `x` instead of 3"),
        ({}, "nothing of `x`"),
        ({"x": [1.0, 2.0, 3.0], "y": 1}, "also `y`"),
    ],
)
def test_check_says_what_is_wrong(found, said):
    expected = {"x": np.array([1.0, 2.0, 3.0])}
    wrong = problem(found, expected)
    assert wrong is None if said is None else said in wrong


def test_check_joins_what_the_host_received():
    assert joined([{"x": 1}, {"x": [2, 3], "y": 0}])["x"].tolist() == [1, 2, 3]


# --- groups --------------------------------------------------------------------------


def test_group_reports_missing_wrong_and_failing_contenders_and_times_the_others():
    def missing():
        raise MissingError("not installed")

    contenders = [
        Contender("by hand", made(1.0)),
        Contender("right", made(1.0)),
        Contender("wrong", made(2.0)),
        Contender("fails", made(1.0, fails=True)),
        Contender("missing", missing),
    ]
    tried = []
    rows = measure(Group("g", "work", contenders), 0.01, trying=tried.append)
    found = {row.peer: (row.status, row.note) for row in rows}
    assert found == {
        "by hand": ("measured", ""),
        "right": ("measured", ""),
        "wrong": ("wrong", "other values of `x`"),
        "fails": ("error", "ZeroDivisionError: in the peer"),
        "missing": ("missing", "not installed"),
    }
    assert tried == [*(contender.name for contender in contenders), ""]


def test_sizes_that_would_take_too_long_are_not_tried():
    now = 0.0

    def group(size):
        def run():
            nonlocal now
            now += 1.0 + 0.1 * size

        def make():
            return Made(run, lambda: {"x": 1})

        contenders = [Contender("a", make)]
        return Group("g", str(size), contenders, size, clock=lambda: now)

    rows = list(
        measure_sizes(map(group, (10, 100, 1_000, 10_000)), 1, longest=lambda _: 15)
    )
    assert [row.status for row in rows] == ["measured", "measured", "slow"]
    assert rows[-1].note == "about 101 s, from the time of 100"


def test_package_that_is_not_installed_is_missing():
    with pytest.raises(MissingError, match="not installed"):
        imported("no_such_module", "no-such-package")
    with pytest.raises(MissingError, match="cannot be imported with JAX"):
        imported("numpy.no_such_module", "numpy")


def test_notes_have_no_paths_of_the_machine():
    error = ImportError("no name 'a' from 'b' (/home/me/b/__init__.py)\nmore")
    assert contender.described(error) == "ImportError: no name 'a' from 'b'"
    assert contender.described(KeyError()) == "KeyError"


def test_lox_and_callbacks_log_the_values_that_are_returned_by_hand():
    def absent(work):
        return contender.imported("no_such_module", "no-such-package")

    names = ("lox.spool", "lox.tap", "jax.debug.callback")
    peers = [BY_HAND, *(p for p in PEERS if p.name in names), Peer("absent", absent)]
    rows = measure(of_workload("g", scan_workload(3), peers, None), 0.01)
    assert [row.status for row in rows] == ["measured"] * 4 + ["missing"]


def test_plan_of_every_group_begins_with_the_program_by_hand():
    for name in NAMES:
        assert Plan().taking_part(name)[0] is BY_HAND
    assert len(Plan(peers=("oryx",)).taking_part("nested")) == 2


# --- results -------------------------------------------------------------------------

ROWS = [
    Result("g", "work", "by hand", median=1.0, best=1.0, low=1.0, high=1.0),
    Result("g", "work", "lox.tap", median=3.0, best=2.0, low=2.5, high=4.0),
    Result("g", "work", "callback", status="wrong", note="2 values of `x`"),
    Result("g", "work", "oryx", status="missing", note="not installed"),
]
for row in ROWS[:2]:
    row.status = "measured"
SIZES = [
    Result(
        "steps",
        "work",
        peer,
        size=n,
        status="measured",
        median=float(f"{n * cost:.3g}"),
    )
    for n in (1, 10, 100)
    for peer, cost in (("by hand", 1e-6), ("lox.tap", 1e-3))
]


@pytest.mark.parametrize(
    ("time", "shown"), [(2, "2 s"), (0.99999e-3, "1 ms"), (3.14159e-5, "31.4 µs")]
)
def test_table_rounds_times(time, shown):
    assert table.seconds(time) == shown


def test_table_has_ratios_and_reasons():
    text = "\n".join(table.lines(with_ratios(ROWS)))
    assert "lox.tap                             3       3 s       2 s" in text
    assert "callback                     wrong: 2 values of `x`" in text
    assert "oryx                         not installed" in text


def test_results_are_the_same_after_they_were_written(tmp_path):
    path = tmp_path / "results.json"
    written = [measurement(with_ratios(ROWS) + SIZES), measurement(ROWS[:1], "0.12")]
    results.write(path, written)
    assert json.loads(path.read_text())[0]["machine"] == "a processor"
    assert results.read(path) == written


def test_new_results_replace_those_of_the_same_group_and_jax():
    old = [measurement(ROWS[:1] + SIZES), measurement(ROWS[:1], "0.12")]
    merged = command.merged(old, measurement(ROWS[:2]))
    assert {one.versions["jax"]: len(one.results) for one in merged} == {
        "0.10.2": len(SIZES) + 2,
        "0.12": 1,
    }


def test_markdown_takes_a_missing_peer_from_another_version_of_jax():
    other = with_ratios([ROWS[0], Result(**{**vars(ROWS[1]), "peer": "oryx"})])
    both = [measurement(with_ratios(ROWS) + SIZES), measurement(other, "0.4.38")]
    text = peer_results.as_markdown(both).replace("\N{NO-BREAK SPACE}", " ")
    assert "| oryx (JAX 0.4.38) | 3 | 3 s |" in text
    assert "| callback | wrong | | | | |" in text
    assert "\n- callback: wrong: 2 values of `x`\n" in text
    assert "| `lox.tap` | 1.00 | 1 ms | 10 ms | 100 ms |" in text


def test_pages_include_parts_that_exist():
    measurements = results.read(peer_results.SOURCE)
    parts = peer_results.parts(measurements)
    page = (DOCS / "peers.md").read_text()
    for name in set(parts) | set(NAMES):
        assert f"<!-- {name} -->" in page, name
        assert parts[name], name
    for name in peer_pictures.pictures(measurements):
        assert f"```{{picture}} {name}\n" in page
    assert peer_results.PATH.read_text() == peer_results.as_markdown(measurements)
