"""The page of a store at a URL."""

import collections
import itertools
import pathlib
import zipfile

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import lox
from lox._page import mirror
from lox._page.chart_requests import Request
from lox._page.charts import chart
from lox._page.report import write_report
from lox._page.server import PageServer
from lox._page.source import StoreSource
from tests import waiting

from .stores import logs, open_run, write_run, write_seeds

numbers = itertools.count()


@pytest.fixture(autouse=True)
def temporary_files(tmp_path, monkeypatch):
    """Nothing is left in the directory of temporary files."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    yield directory
    assert not list(directory.iterdir())


def upload(store, url):
    files, to = fsspec.core.url_to_fs(url)
    for file in sorted(store.rglob("*")):
        if file.is_file():
            name = f"{to}/{file.relative_to(store)}"
            content = file.read_bytes()
            if not files.exists(name) or files.cat_file(name) != content:
                files.pipe_file(name, content)
    return url


def url_of(store, protocol, directory):
    if protocol == "file":
        return f"file://{store}"
    if protocol == "zip":
        path = directory / "store.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted(store.rglob("*")):
                if file.is_file():
                    archive.write(file, pathlib.Path("runs") / file.relative_to(store))
        return f"zip://runs::file://{path}"
    return upload(store, f"memory://page-{next(numbers)}/runs")


@pytest.mark.parametrize("protocol", ["memory", "file", "zip"])
def test_report_of_a_url_is_that_of_the_directory(tmp_path, protocol):
    write_seeds(tmp_path / "runs", seeds=2, rows=10)
    url = url_of(tmp_path / "runs", protocol, tmp_path)
    here = write_report(tmp_path / "runs", tmp_path / "here.html").read_text()
    there = write_report(url, tmp_path / "there.html").read_text()
    assert here == there
    assert "lr0.01-seed1" in lox.page(url)._repr_html_()


def test_server_that_cannot_listen_leaves_no_copy(tmp_path):
    write_seeds(tmp_path / "runs", seeds=1, rows=3)
    url = url_of(tmp_path / "runs", "memory", tmp_path)
    with pytest.raises(lox.LoxValueError, match="cannot listen .*`--port`"):
        PageServer(url, port=70_000)


def test_single_run_at_a_url_is_shown(tmp_path):
    write_seeds(tmp_path / "runs", seeds=2, rows=10)
    url = url_of(tmp_path / "runs", "memory", tmp_path)
    source = StoreSource(f"{url}/lr0.1-seed1")
    assert [run.run.name for run in source.runs.values()] == ["lr0.1-seed1"]
    source.close()


@pytest.mark.parametrize(
    "url", ["memory://page-of-nothing", "file:///page-of-nothing", "nothing://x"]
)
def test_url_without_a_store_is_an_error(tmp_path, url):
    with pytest.raises(lox.StoreError, match=url):
        write_report(url, tmp_path / "report.html")
    with pytest.raises(lox.StoreError, match=url):
        PageServer(url, port=0)


def test_invalid_port_or_token_leaves_no_copy(tmp_path):
    write_seeds(tmp_path / "runs", seeds=1, rows=2)
    url = url_of(tmp_path / "runs", "memory", tmp_path)
    with pytest.raises(lox.LoxValueError, match="cannot listen"):
        PageServer(url, port=2**17)
    with pytest.raises(lox.LoxValueError, match="token"):
        PageServer(url, port=0, token="short")


@pytest.fixture
def fetched(monkeypatch):
    """How many bytes of each file were read."""
    found = collections.Counter()
    cat_file = MemoryFileSystem.cat_file

    def counted(self, path, start=None, end=None, **more):
        data = cat_file(self, path, start=start, end=end, **more)
        found[path.rpartition("runs/")[2]] += len(data)
        return data

    monkeypatch.setattr(MemoryFileSystem, "cat_file", counted)
    return found


def test_copy_of_a_url_fetches_only_what_is_new(tmp_path, fetched):
    store = tmp_path / "runs"
    write_seeds(store, seeds=2, rows=2000)
    with open_run(store, "growing") as writer:
        writer.write(logs(np.arange(5000), loss=np.zeros(5000)))
        url = url_of(store, "memory", tmp_path)
        copy = mirror.Mirror(url)
        assert fetched["growing/writer-0000/0000.npy"] > 5000 * 16
        fetched.clear()
        copy.update()
        assert not fetched  # the files were only listed
        writer.write(logs([5000], loss=[7.0]))
        write_run(store, "new", logs([0], loss=[1.0]))
        upload(store, url)
        fetched.clear()
        copy.update()
    assert {path.partition("/")[0] for path in fetched} == {"growing", "new"}
    # the end of what is there is compared
    assert fetched["growing/writer-0000/0000.npy"] < 10_000
    assert lox.load(copy.path / "growing")["loss"][-1] == 7
    files, path = fsspec.core.url_to_fs(f"{url}/new")
    files.rm(path, recursive=True)
    copy.update()
    assert "new" not in {run.name for run in lox.runs(copy.path)}
    copy.close()


def test_served_url_is_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "_MIN_SECONDS", 0.01)
    monkeypatch.setattr(mirror, "_PAUSE", 0.0)
    store = tmp_path / "runs"
    with open_run(store, "a") as writer:
        writer.write(logs(np.arange(5), loss=np.zeros(5)))
        url = url_of(store, "memory", tmp_path)
        server = PageServer(url, port=0)

        def is_shown(end):
            server.source.refresh()
            return chart(server.source, Request("loss"))["extent"] == [0, end]

        assert is_shown(4)
        writer.write(logs([5], loss=[1.0]))
        upload(store, url)
        waiting.wait_until(lambda: is_shown(5))
    # what goes wrong is said, and forgotten when it is over
    files, path = fsspec.core.url_to_fs(f"{url}/a/run.json")
    content = files.cat_file(path)
    files.pipe_file(path, b"{")
    waiting.wait_until(
        lambda: (
            server.source.refresh() and any("damaged" in x for x in problems(server))
        )
    )
    files.pipe_file(path, content)
    waiting.wait_until(lambda: server.source.refresh() and not problems(server))
    server.server_close()


def problems(server):
    return server.source.problems


def test_hostile_names_of_a_server_are_not_used(tmp_path, monkeypatch):
    store = tmp_path / "runs"
    write_run(store, "good", logs([0], loss=[1.0]))
    url = url_of(store, "memory", tmp_path)
    find = MemoryFileSystem.find

    def hostile(self, path, **more):
        found = find(self, path, **more)
        names = ("../../evil/run.json", "a\\..\\b/run.json", "..", "~/run.json")
        for name in names:
            found[f"{path}/{name}"] = {"name": name, "type": "file", "size": 1}
        return found

    monkeypatch.setattr(MemoryFileSystem, "find", hostile)
    source = StoreSource(url)
    assert [run.run.name for run in source.runs.values()] == ["good"]
    assert [path.name for path in source.path.iterdir()] == ["good"]
    source.close()
