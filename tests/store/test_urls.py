"""Stores at URLs, which are read by `fsspec`."""

import collections
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import sys
import threading
import types

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import lox
import lox.cli
import lox.loggers
from lox._store import remote_files
from lox._store.creating import create_run
from lox._store.processes import part_path
from lox._store.writer import Writer
from tests import programs
from tests.store.test_untrusted_files import bomb, peak_memory
from tests.store.written_runs import finished_run, plain, two_segments
from tests.waiting import HANG

numbers = itertools.count()


def uploaded(path, protocol):
    """The URL of a local directory, or of a copy of it in another file system."""
    if protocol == "file":
        return f"file://{path}"
    url = f"{protocol}://store-{next(numbers)}"
    files, to = fsspec.core.url_to_fs(url)
    for file in sorted(pathlib.Path(path).rglob("*")):
        if file.is_file():
            files.pipe_file(f"{to}/{file.relative_to(path)}", file.read_bytes())
    return url


def write_process(run, process, rows):
    writer = Writer(create_run(part_path(run, process), "x"))
    for i in rows:
        steps = {"step": {"x": np.int32(i)}}
        writer.write(lox.logdict({"x": np.float32(i)}, steps))
    writer.finish()
    writer.close()


# --- reading ---------------------------------------------------------------


@pytest.fixture(params=["file", "memory"])
def protocol(request):
    return request.param


def test_runs_and_load_read_urls(tmp_path, protocol):
    for seed in range(3):
        logs = lox.logdict({"loss": np.arange(4.0) + seed}, stacked=True)
        lox.save(logs, tmp_path, key=seed)
    url = uploaded(tmp_path, protocol)
    runs = lox.runs(url)
    assert [run.name for run in runs] == [run.name for run in lox.runs(tmp_path)]
    assert [run.path for run in runs] == [f"{url}/{run.name}" for run in runs]
    assert [run.load() for run in runs] == [run.load() for run in lox.runs(tmp_path)]
    assert lox.load(url, key=2) == lox.load(tmp_path, key=2)
    assert lox.load(runs[1].path) == lox.load(tmp_path, key=1)
    assert lox.load(f"{url}/", key=1) == lox.load(tmp_path, key=1)


def test_keys_of_several_segments_and_dtypes_are_read_from_urls(tmp_path, protocol):
    two_segments(tmp_path / "run")
    logs = {"b": np.arange(3).astype("bfloat16"), "tree": {"a": (np.int8(1),)}}
    lox.save(logs, tmp_path / "run")
    url = uploaded(tmp_path, protocol)
    assert plain(lox.load(url)) == plain(lox.load(tmp_path))
    assert lox.load(url)["b"].dtype == "bfloat16"


def test_parts_of_processes_are_read_from_urls(tmp_path, protocol):
    for process in range(3):
        write_process(tmp_path / "run", process, range(process + 1))
    (run,) = lox.runs(uploaded(tmp_path, protocol))
    assert run.load() == lox.load(tmp_path)
    assert run.load().process["x"].tolist() == [0, 1, 1, 2, 2, 2]
    assert run.unfinished_processes == []


def test_run_at_url_grows_between_loads(tmp_path):
    writer = Writer(create_run(tmp_path / "run", "x"))
    writer.write(lox.logdict({"x": np.float32(0)}))
    (run,) = lox.runs(f"file://{tmp_path}")
    assert run.load() == {"x": 0.0}
    writer.write(lox.logdict({"x": np.float32(1)}))
    assert run.load()["x"].tolist() == [0.0, 1.0]
    writer.close()


def test_lost_records_at_url_are_reported(tmp_path, protocol):
    directory = finished_run(tmp_path)
    os.truncate(directory / "0000.npy", (directory / "0000.npy").stat().st_size - 40)
    url = uploaded(tmp_path, protocol)
    with pytest.warns(lox.LoxWarning, match=rf"{url}.*0000\.npy has lost records"):
        lox.load(url)


def test_large_records_at_url_are_memory_mapped(tmp_path, protocol, monkeypatch):
    monkeypatch.setattr(remote_files, "_MAX_IN_MEMORY", 2**22)
    two_segments(tmp_path / "run")
    rows = np.arange(2**22, dtype=np.float64)
    lox.save(lox.logdict({"large": rows}, stacked=True), tmp_path / "run")
    url = uploaded(tmp_path, protocol)
    found = lox.load(url)
    assert plain(found) == plain(lox.load(tmp_path))
    assert not found["large"].flags.owndata and not found["large"].flags.writeable


@pytest.mark.parametrize(
    ("url", "of_run"),
    [
        ("zip://::{file}", "zip://{name}::{file}"),
        ("zip::file://{file}", "zip://{name}::file://{file}"),
        ("zip://a/b::{inner}", "zip://a/b/{name}::{inner}"),
        ("zip://a/b/::file://{inner}", "zip://a/b/{name}::file://{inner}"),
        ("simplecache::zip://a/b::{inner}", "simplecache::zip://a/b/{name}::{inner}"),
        ("simplecache::file://{store}", "simplecache::file://{store}/{name}"),
        ("file://{store}/", "file://{store}/{name}"),
    ],
)
def test_path_of_run_in_a_chain_of_urls_can_be_loaded(tmp_path, url, of_run, capsys):
    """An archive has the path; a cache has the paths of what it caches."""
    store = tmp_path / "a" / "b"
    for seed in range(2):
        lox.save({"x": np.float64(seed)}, store, key=seed)
    places = {
        "store": store,
        "file": shutil.make_archive(str(tmp_path / "runs"), "zip", store),
        "inner": shutil.make_archive(str(tmp_path / "inner"), "zip", tmp_path, "a"),
    }
    url, name = url.format(**places), f"{0:08x}-{1:08x}"
    run = lox.runs(url)[1]
    assert run.path == of_run.format(name=name, **places)
    assert lox.load(run.path) == lox.load(url, key=1) == {"x": 1.0}
    missing = run._location / "missing.json"
    assert str(missing.with_suffix(".npy")) == str(run._location / "missing.npy")
    # also in the command
    assert lox.cli.main(["ls", url, name, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    assert found["path"] == run.path and found["last"] == {"x": 1.0}


def test_paths_do_not_import_fsspec(tmp_path):
    lox.save({"x": 1.5}, tmp_path, key=1)
    program = f"""
        import sys
        import lox
        print(lox.load({str(tmp_path)!r}), lox.runs({str(tmp_path)!r})[0].load())
        assert "fsspec" not in sys.modules and "jax" not in sys.modules
        print(lox.load("file://" + {str(tmp_path)!r}))
        assert "fsspec" in sys.modules and "jax" not in sys.modules
    """
    done = programs.run(program, fresh=True)
    assert not done.stderr
    assert done.stdout == "{'x': 1.5} {'x': 1.5}\n{'x': 1.5}\n"


bytes_read = collections.Counter()


class Counting(MemoryFileSystem):
    """Counts the bytes that are read from each file."""

    protocol = "counting"
    store, pseudo_dirs = {}, [""]

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.removeprefix("counting://"))

    def cat_file(self, path, start=None, end=None, **kwargs):
        data = super().cat_file(path, start, end, **kwargs)
        name = path.rpartition("/")[2]
        bytes_read[name] += len(data)
        return data


fsspec.register_implementation("counting", Counting)


def test_only_segments_of_selected_keys_are_read_from_urls(tmp_path):
    writer = Writer(create_run(tmp_path / "run", "x"))
    for _ in range(3):  # interleaved, so that each segment has several places
        for name in ("a", "b", "c"):
            writer.write(lox.logdict({name: np.zeros(1000)}))
    writer.finish()
    writer.close()
    url = uploaded(tmp_path, "counting")
    bytes_read.clear()
    assert lox.load(url, "b")["b"].shape == (3, 1000)
    headers = 256
    assert bytes_read["0001.npy"] >= 24_000
    assert bytes_read["0000.npy"] <= headers >= bytes_read["0002.npy"]
    # all columns of a segment are in the same records, which are read once
    lox.save({"d": np.zeros(1000), "e": np.zeros(1000)}, tmp_path / "run 2")
    url = uploaded(tmp_path / "run 2", "counting")
    bytes_read.clear()
    assert set(lox.load(url)) == {"d", "e"}
    assert bytes_read["0000.npy"] <= 16_000 + 2 * headers


class Waiting(MemoryFileSystem):
    """Answers when all threads have asked."""

    protocol = "waiting"
    store, pseudo_dirs = {}, [""]
    suffix, barrier = None, None

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.removeprefix("waiting://"))

    def cat_file(self, path, **kwargs):
        if self.suffix and path.endswith(self.suffix):
            self.barrier.wait(HANG)
        return super().cat_file(path, **kwargs)


fsspec.register_implementation("waiting", Waiting)


@pytest.mark.parametrize("suffix", ["run.json", "0000.json", "0000.npy"])
def test_parts_and_runs_at_urls_are_read_in_parallel(tmp_path, suffix, monkeypatch):
    for process in range(4):
        write_process(tmp_path / "run", process, range(3))
        write_process(tmp_path / f"run {process}", 0, range(3))
    url = uploaded(tmp_path, "waiting")
    monkeypatch.setattr(Waiting, "barrier", threading.Barrier(4))
    if suffix == "run.json":
        monkeypatch.setattr(Waiting, "suffix", suffix)
        monkeypatch.setattr(Waiting, "barrier", threading.Barrier(5))
        assert len(lox.runs(url)) == 5
        return
    run = next(run for run in lox.runs(url) if run.path.endswith("/run"))
    monkeypatch.setattr(Waiting, "suffix", suffix)
    assert run.load() == lox.load(tmp_path / "run")


def test_warning_about_part_at_url_names_the_users_line(tmp_path, protocol):
    for process in range(3):
        write_process(tmp_path / "run", process, range(3))
    part = tmp_path / "run" / "process-2" / "writer-0000" / "0000.npy"
    os.truncate(part, part.stat().st_size - 1)
    url = uploaded(tmp_path, protocol)
    with pytest.warns(lox.LoxWarning, match="lost records of 'x': 2 are left") as found:
        lox.load(url)
    assert [warning.filename for warning in found] == [__file__]


# --- bad input -------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nothing", "there is no store at memory://nothing"),
        ("nonsense://x", "nonsense://x cannot be opened: .*nonsense"),
        ("abfs://bucket/x", "abfs://bucket/x cannot be opened: .*adlfs"),
        ("file://", "not a run, but a store of 0 runs"),
    ],
)
def test_url_that_cannot_be_read_is_an_error(url, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if url == "file://":
        url = f"file://{tmp_path}"
    with pytest.raises(lox.StoreError, match=message):
        lox.load(url)


def test_missing_fsspec_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(lox.StoreError, match=r"pip install 'jax-lox\[fsspec\]'"):
        lox.runs("s3://bucket/store")


def test_url_as_path_object_is_a_local_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(lox.StoreError, match="there is no store at memory:/x"):
        lox.runs(pathlib.Path("memory://x"))


@pytest.mark.parametrize(
    "save",
    [
        lambda url: lox.save({"x": 1}, url, key=1),
        lambda url: lox.loggers.SaveLogger(url),
    ],
)
def test_saving_to_url_is_refused(save, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(lox.StoreError, match="is a URL.*copy it with `lox sync`"):
        save("s3://bucket/store")
    assert not list(tmp_path.iterdir())


# --- untrusted servers -----------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["run.json", "writer-0000", *(f"0000.{x}" for x in ("json", "npy", "places"))],
)
@pytest.mark.parametrize("kind", ["link", "loop", "pipe", "directory", "device"])
def test_symlinks_and_pipes_are_not_followed_at_urls(tmp_path, name, kind):
    two_segments(tmp_path / "run")
    (path,) = (tmp_path / "run").rglob(name)
    outside = tmp_path / "outside"
    path.rename(outside)
    if kind == "link":
        path.symlink_to(outside)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif name == "writer-0000":
        path.write_text("no directory")
    else:
        path.mkdir()
    with pytest.raises(lox.StoreError, match=name):
        lox.load(f"file://{tmp_path}/run")


def test_part_that_is_a_symlink_is_not_followed_at_url(tmp_path):
    write_process(tmp_path / "run", 0, range(2))
    write_process(tmp_path / "outside", 0, range(2))
    (tmp_path / "run" / "process-1").symlink_to(tmp_path / "outside")
    with pytest.raises(lox.StoreError, match="process-1 is a symbolic link"):
        lox.load(f"file://{tmp_path}/run")


@pytest.mark.parametrize("kind", ["lists", "depth"])
def test_json_at_url_that_would_fill_memory_is_refused(tmp_path, kind):
    finished_run(tmp_path)
    url = uploaded(tmp_path, "memory")
    files, path = fsspec.core.url_to_fs(url)
    (file,) = [x for x in files.find(path) if x.endswith("run.json")]
    files.pipe_file(file, f'{{"crc32": 1, "content": {bomb(kind)}}}'.encode())

    def load():
        with pytest.raises(lox.StoreError, match=r"run\.json is damaged"):
            lox.load(url, key=0)

    assert peak_memory(load) < 2**28


class Hostile(MemoryFileSystem):
    """Claims names, sizes and contents that are not there."""

    protocol = "hostile"
    store, pseudo_dirs = {}, [""]
    names = ()
    sizes = types.MappingProxyType({})
    sends_more = False
    error = None
    untyped = ()
    gone = False

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.removeprefix("hostile://"))

    def ls(self, path, detail=True, **kwargs):
        if self.gone:
            raise FileNotFoundError("removed meanwhile")
        found = super().ls(path, detail=True, **kwargs)
        for name in self.names:
            found.append({"name": f"{path}/{name}", "size": 0, "type": "directory"})
        return found

    def info(self, path, **kwargs):
        if self.error is not None:
            raise self.error
        found = super().info(path, **kwargs)
        name = path.rpartition("/")[2]
        if name in self.untyped:
            del found["type"]
        return {**found, "size": self.sizes.get(name, found["size"])}

    def cat_file(self, path, start=None, end=None, **kwargs):
        if self.sends_more:
            start, end = None, None
        return super().cat_file(path, start, end, **kwargs)


fsspec.register_implementation("hostile", Hostile)


@contextlib.contextmanager
def server(**behaviour):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in behaviour.items():
            patch.setattr(Hostile, name, value)
        yield


@pytest.mark.parametrize("size", [10**9, 10**12, 10**18])
@pytest.mark.parametrize("keys", [["odd"], ["x"], None])
def test_size_that_server_only_claims_does_not_fill_memory(tmp_path, size, keys):
    two_segments(tmp_path / "run")
    url = uploaded(tmp_path / "run", "hostile")
    names = [f"000{i}.{suffix}" for i in (0, 1) for suffix in ("npy", "places")]

    def load():
        with pytest.raises(lox.StoreError, match=r"000\d\.(npy|places) cannot be read"):
            lox.load(url, keys)

    with server(sizes=dict.fromkeys(names, size)):
        assert peak_memory(load) < 2**22


def test_size_that_server_does_not_know_is_an_error(tmp_path):
    two_segments(tmp_path / "run")
    url = uploaded(tmp_path / "run", "hostile")
    with (
        server(sizes={"0000.npy": None}),
        pytest.raises(lox.StoreError, match=r"0000\.npy.*its size is unknown"),
    ):
        lox.load(url)


@pytest.mark.parametrize("size", [-1, 1.5, "12"])
def test_impossible_size_of_server_is_an_error(tmp_path, size):
    two_segments(tmp_path / "run")
    url = uploaded(tmp_path / "run", "hostile")
    with (
        server(sizes={"0000.npy": size}),
        pytest.raises(lox.StoreError, match=r"0000\.npy.*its size is unknown"),
    ):
        lox.load(url)


def test_file_of_unknown_type_is_not_read(tmp_path):
    two_segments(tmp_path / "run")
    url = uploaded(tmp_path / "run", "hostile")
    with (
        server(untyped=["0000.npy"]),
        pytest.raises(lox.StoreError, match=r"0000\.npy is not a regular file"),
    ):
        lox.load(url)


def test_store_that_is_removed_while_it_is_listed_is_an_error(tmp_path):
    two_segments(tmp_path / "run")
    url = uploaded(tmp_path, "hostile")
    with (
        server(gone=True),
        pytest.raises(lox.StoreError, match=f"store at {url} cannot be read: removed"),
    ):
        lox.runs(url)


def test_server_that_ignores_ranges_is_an_error(tmp_path):
    two_segments(tmp_path / "run")
    url = uploaded(tmp_path / "run", "hostile")
    with (
        server(sends_more=True),
        pytest.raises(
            lox.StoreError, match=r"0001\.npy cannot be read: the server.* instead of"
        ),
    ):
        lox.load(url, "odd")


def test_names_of_server_do_not_lead_outside_store(tmp_path):
    two_segments(tmp_path / "run")
    url = uploaded(tmp_path, "hostile")
    names = ("..", ".", "../..", "a\\..\\b", "a\0b", "../../etc")
    with server(names=names):
        assert [run.name for run in lox.runs(url)] == ["run"]


@pytest.mark.parametrize("error", [PermissionError("no access"), KeyError("x"), 0])
def test_errors_of_server_name_the_url(tmp_path, error):
    two_segments(tmp_path / "run")
    url = uploaded(tmp_path / "run", "hostile")
    error = error or RuntimeError()
    expected = str(error) or "RuntimeError"
    with (
        server(error=error),
        pytest.raises(lox.StoreError, match=rf"{url}.* cannot be read: {expected}"),
    ):
        lox.load(url)
