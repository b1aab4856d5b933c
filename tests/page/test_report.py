"""Reports and notebook outputs: complete, self-contained, and safe to open."""

import base64
import json
import re
import zlib

import numpy as np
import pytest

import lox
from lox._page.document import asset, script, styles, to_json
from lox._page.report import static_content, write_report
from lox._page.source import StoreSource
from tests import programs

from .stores import logs, write_run, write_seeds, write_timed
from .test_charts import unpacked

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"`${1}\u2028"


def test_report_is_one_file_that_loads_nothing(tmp_path):
    write_seeds(tmp_path / "store", seeds=2)
    path = write_report(tmp_path / "store", tmp_path / "report.html")
    text = path.read_text()
    assert "default-src 'none'" in text and "connect-src 'none'" in text
    # nothing in the markup refers to another file; names of namespaces are not loaded
    markup = re.sub(r"<script[^>]*>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"\b(src|srcset|action)\s*=|@import|url\(", markup)
    assert re.findall(r'href="([^"]*)"', markup) == ["data:,"]
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", text))
    assert addresses == {
        "https://github.com/leeoniya/uPlot",  # in a comment
        "http://www.w3.org/2000/svg",  # a namespace
    }


def test_policy_of_a_report_allows_its_own_code_only(tmp_path):
    write_seeds(tmp_path / "store", seeds=1)
    text = write_report(tmp_path / "store", tmp_path / "r.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "unsafe" not in policy and "http" not in policy
    assert policy.count("'sha256-") == 2


def test_names_from_runs_cannot_inject_html(tmp_path):
    store = tmp_path / HOSTILE.replace("/", "_")
    rows = lox.logdict({HOSTILE: np.arange(3.0)}, stacked=True)
    write_run(store, "a", rows, {HOSTILE: HOSTILE, "seed": HOSTILE})
    write_run(store, "b", rows, {HOSTILE: 1})
    text = write_report(store, tmp_path / "r.html").read_text()
    assert "<script>alert" not in text and "<img" not in text
    embedded = re.search(r'id="lox-content">(.*?)</script>', text, re.DOTALL)[1]
    index = json.loads(embedded)["index"]
    assert index["keys"][0]["name"] == HOSTILE
    page = lox.page(store)._repr_html_()
    assert "<script>alert" not in page and "<img" not in page


def test_json_cannot_end_its_script_element():
    text = to_json({"a": "</script>&<!--", "b": float("nan"), "\ud800": None})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": "</script>&<!--", "b": "nan", "\ud800": None}


def test_existing_file_is_not_overwritten_by_default(tmp_path):
    write_seeds(tmp_path / "store", seeds=1)
    path = tmp_path / "r.html"
    path.write_text("mine")
    with pytest.raises(lox.LoxValueError, match=r"exists.*overwrite=True"):
        write_report(tmp_path / "store", path)
    assert path.read_text() == "mine"
    write_report(tmp_path / "store", path, overwrite=True)
    assert path.read_text().startswith("<!doctype html>")


def test_report_that_cannot_be_written_leaves_nothing(tmp_path):
    write_seeds(tmp_path / "store", seeds=1)
    with pytest.raises(lox.StoreError, match="cannot be written"):
        write_report(tmp_path / "store", tmp_path / "missing" / "r.html")


def test_report_of_empty_store_has_no_runs_and_of_missing_one_is_an_error(tmp_path):
    (tmp_path / "empty").mkdir()
    text = write_report(tmp_path / "empty", tmp_path / "r.html").read_text()
    assert "empty: 0 runs" in text
    with pytest.raises(lox.StoreError, match="there is no store at"):
        write_report(tmp_path / "none", tmp_path / "r2.html")


def test_report_of_a_large_store_stays_small(tmp_path):
    keys = [f"k{i}" for i in range(4)]
    write_seeds(tmp_path / "store", seeds=8, rows=4000, keys=keys)
    size = 300_000
    path = write_report(tmp_path / "store", tmp_path / "r.html", max_bytes=size)
    code = len(script("")) + len(styles())
    assert size / 3 < path.stat().st_size - code < size * 1.1


def test_report_of_many_runs_says_what_it_leaves_out(tmp_path):
    curves = write_seeds(tmp_path, seeds=12, rows=300, lrs=(0.1, 0.01))
    source = StoreSource(tmp_path)
    sizes, said = [], []
    for limit in (2_000_000, 300_000, 60_000, 30_000, 16_000):
        content, blocks = static_content(source, [], limit)
        sizes.append(len(to_json(content)) + sum(len(text) for _, text in blocks))
        said.append(" ".join(content["index"].get("notes", [])))
        assert sizes[-1] <= limit
        charts = content["blocks"]["charts"]
        # statistics are of all runs, however few are drawn
        data = dict(blocks)
        (groups,) = {axes["groups"]["@auto"] for axes in [charts["loss"]["step"]]}
        found = unpacked(zlib.decompress(base64.b64decode(data[groups])))
        assert [group["n2"].max() for group in found["groups"]] == [12, 12]
        lowest = min(group["bands"]["minmax"][0].min() for group in found["groups"])
        assert lowest == min(columns["loss"].min() for columns in curves.values())
    assert said[0] == ""
    assert "points" in said[1] and "single runs" not in said[1]
    assert 'grouped by "all but seed"' in said[2]
    assert "one in" in said[3] or "none of the single runs" in said[3]
    assert "none of the single runs" in said[4] and "last values of 0" in said[4]
    offered = [grouping["id"] for grouping in content["index"]["groupings"]]
    assert offered == ["@auto", "@run"]


def test_unknown_axis_is_an_error_that_lists_what_exists(tmp_path):
    write_seeds(tmp_path / "store", seeds=1)
    with pytest.raises(lox.LoxValueError, match="no scalar 'tokens'.*'accuracy'"):
        write_report(tmp_path / "store", tmp_path / "r.html", x=["tokens"])


def test_report_has_the_time_as_axis_if_it_fits_or_is_named(tmp_path):
    for seed in range(4):
        noise = np.random.default_rng(seed).normal(size=400)
        times = np.arange(400.0) + seed
        write_timed(tmp_path, f"r{seed}", times, {"seed": seed}, loss=noise)
    source = StoreSource(tmp_path)

    def axes(names, limit):
        content, _ = static_content(source, names, limit)
        return list(content["blocks"]["charts"]["loss"])

    assert axes([], 10**7) == ["step", "#time"]
    assert axes([], 30_000) == ["step"]
    assert axes(["#clock", "#time"], 30_000) == ["step", "#clock", "#time"]
    write_seeds(tmp_path / "short", seeds=1)
    with pytest.raises(lox.LoxValueError, match="no times for '#time'"):
        write_report(tmp_path / "short", tmp_path / "r.html", x=["#time"])


def test_notebook_output_is_inline_and_complete(tmp_path):
    write_seeds(tmp_path, seeds=2)
    html = lox.page(tmp_path)._repr_html_()
    assert "<iframe" not in html.replace("<iframe>", "")
    assert "<caption>" in html  # a table, where scripts do not run
    assert "startNotebook(" in html
    first, second = (lox.page(tmp_path)._repr_html_() for _ in range(2))
    assert first[:40] != second[:40]  # two outputs do not share their place


def test_code_of_the_page_is_small():
    size = len(script("").encode()) + len(styles().encode())
    assert size <= 150_000


def test_license_of_the_plotting_library_is_included():
    assert "MIT" in asset("uplot/LICENSE") and "Permission is hereby granted" in asset(
        "uplot/LICENSE"
    )


def test_page_does_not_import_jax(tmp_path):
    write_run(tmp_path / "store", "a", logs([0, 1], loss=[1.0, 2.0]))
    program = f"""
        import sys
        import lox
        from lox._page.report import write_report
        from lox._page.server import PageServer
        write_report({str(tmp_path / "store")!r}, {str(tmp_path / "r.html")!r})
        PageServer({str(tmp_path / "store")!r}, port=0).server_close()
        lox.page({str(tmp_path / "store")!r})
        assert "jax" not in sys.modules
    """
    assert not programs.run(program, fresh=True).stderr


@pytest.mark.parametrize("size", [np.nan, np.inf, 0, -1, True, "9", None])
def test_size_that_is_not_a_positive_number_is_refused(tmp_path, size):
    write_seeds(tmp_path, seeds=1, rows=2)
    with pytest.raises(lox.LoxValueError, match="`max_bytes` is"):
        lox.page(tmp_path, max_bytes=size)
