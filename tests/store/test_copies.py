"""Copies of stores, which `lox sync` makes."""

import itertools
import os
import pathlib
import shutil

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import lox
from lox._store import segments
from lox._store.copied import Copied
from lox._store.copy_store import StoreCopy
from lox._store.creating import create_run, open_run
from lox._store.format import PLACE, read_json, write_json
from lox._store.local_files import LocalLocation
from lox._store.processes import part_path
from lox._store.writer import Writer
from tests import programs
from tests.store.written_runs import (
    call_of,
    columns_of,
    finished_run,
    plain,
    two_segments,
)
from tests.waiting import wait_until

numbers = itertools.count()


@pytest.fixture(params=["path", "file", "memory", "bucket"])
def target(request, tmp_path):
    """A place for a copy."""
    if request.param == "path":
        return str(tmp_path / "copy")
    if request.param == "file":
        return f"file://{tmp_path}/copy"
    return f"{request.param}://copy-{next(numbers)}"


class Bucket(MemoryFileSystem):
    """An object store: a file can only be written as a whole."""

    protocol = "bucket"
    store, pseudo_dirs = {}, [""]

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.removeprefix("bucket://"))

    def cat_file(self, path, version_id=None, start=None, end=None):  # as in `s3fs`
        assert version_id is None
        return super().cat_file(path, start=start, end=end)

    def _open(self, path, mode="rb", **kwargs):
        assert mode in ("rb", "wb"), "an object store has no other mode"
        return super()._open(path, mode, **kwargs)


fsspec.register_implementation("bucket", Bucket)


def files_of(directory):
    """All files of a local directory or a URL, with their contents."""
    if isinstance(directory, str) and "://" in directory:
        files, path = fsspec.core.url_to_fs(directory)
        return {x.removeprefix(f"{path}/"): files.cat_file(x) for x in files.find(path)}
    paths = [path for path in pathlib.Path(directory).rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def update(source, target, **options):
    report = StoreCopy(source, target, **options).update()
    assert not report.errors and not report.skipped
    return report


class Job:
    """Writes rows of several schemas, so that a writer has several segments."""

    def __init__(self, run, mode="x", process=0, tracked=False):
        self.writer = open_run(part_path(run, process), mode, tracked=tracked)
        self._calls = itertools.count()

    def write(self, count):
        for i in itertools.islice(self._calls, count):
            row = np.int64(i)
            values = {"x": row} if i % 3 else {"x": row, "y": row / 2}
            steps = {"step": dict.fromkeys(values, row)}
            self.writer.write(lox.logdict(values, steps))
        return self

    def finish(self):
        self.writer.finish()
        self.writer.close()


# --- what is sent ----------------------------------------------------------


def test_copy_of_finished_runs_has_the_same_files(tmp_path, target):
    source = tmp_path / "store"
    finished_run(source)
    Job(source / "other").write(20).finish()
    report = update(source, target)
    assert files_of(target) == files_of(source)
    assert report.runs == ["00000000-00000000", "other"] and not report.unfinished
    assert report.byte_count >= sum(map(len, files_of(source).values()))
    again = update(source, target)
    assert (again.files, again.byte_count, again.runs) == (0, 0, [])
    assert [run.load() for run in lox.runs(target)] == [
        run.load() for run in lox.runs(source)
    ]


def test_copy_of_growing_run_gets_only_new_records(tmp_path, target):
    job = Job(tmp_path / "store" / "run").write(30)
    copy = StoreCopy(tmp_path / "store", target)
    assert copy.update().unfinished == ["run"]
    assert lox.load(target) == lox.load(tmp_path / "store")
    job.write(3)  # two records of a step and a value, and one of a step and two values
    report = copy.update()
    assert lox.load(target) == lox.load(tmp_path / "store")
    listed = len(files_of(target)["run/writer-0000/copied.json"])
    places = 2 * PLACE.itemsize
    if not target.startswith("bucket"):
        assert report.byte_count == 2 * 16 + 24 + places + listed
    assert copy.update().files == 0
    job.finish()
    assert copy.update().unfinished == []
    assert files_of(target) == files_of(tmp_path / "store")


def test_copy_has_the_status_and_last_rows_of_its_run(tmp_path, target):
    source = tmp_path / "store"
    job = Job(source / "run", tracked=True).write(30)
    copy = StoreCopy(source, target)

    def summaries():
        for store in (source, target):
            (run,) = lox.runs(store)
            summary = run.summary()
            yield summary.status, summary.rows, summary.keys, summary.last

    copy.update()
    of_run, of_copy = summaries()
    assert of_copy == of_run and of_run[0] == "running"
    job.write(3)
    _, before = summaries()
    assert before == of_copy
    job.finish()
    copy.update()
    of_run, of_copy = summaries()
    assert of_copy == of_run and of_run[0] == "finished"
    assert files_of(target) == files_of(source)


def test_copy_of_run_that_is_finished_without_rows_is_finished(tmp_path, target):
    store = tmp_path / "store"
    writer = open_run(store / "run", "x", tracked=True)
    update(store, target)
    assert [run.status for run in lox.runs(target)] == ["running"]
    writer.finish()
    writer.close()
    update(store, target)
    assert [run.status for run in lox.runs(target)] == ["finished"]
    assert files_of(target) == files_of(store)


def test_copy_from_another_machine_keeps_open_writer_without_rows(tmp_path, target):
    writer = open_run(tmp_path / "first" / "run", "x", tracked=True)
    create_run(part_path(tmp_path / "second" / "run", 1), "x")
    update(tmp_path / "first", target)
    update(tmp_path / "second", target)
    assert [run.status for run in lox.runs(target)] == ["running"]
    writer.close()


def test_copy_keeps_rows_of_writer_that_is_gone(tmp_path, target):
    store = tmp_path / "store"
    lox.save({"x": 1}, store / "run")
    update(store, target)
    shutil.rmtree(store / "run" / "writer-0000")
    update(store, target)
    assert lox.load(target) == {"x": 1}


def test_copy_of_segment_without_records_file_has_lost_nothing(tmp_path, target):
    source = tmp_path / "store"
    job = Job(source / "run").write(6)
    # as if the writer were about to create it
    (source / "run" / "writer-0000" / "0001.npy").unlink()
    (source / "run" / "writer-0000" / "0001.places").write_bytes(b"")
    copy = StoreCopy(source, target)
    copy.update()
    assert lox.load(target) == lox.load(source)
    job.writer.close()


def test_object_store_gets_files_as_a_whole_but_not_at_each_growth(tmp_path):
    target = f"bucket://copy-{next(numbers)}"
    job = Job(tmp_path / "store" / "run").write(300)
    copy = StoreCopy(tmp_path / "store", target, follows=True)
    copy.update()
    total = 0
    for _ in range(60):
        job.write(30)
        report = copy.update()
        total += report.byte_count
        rows = lox.load(target)["x"].tolist()
        assert rows == list(range(len(rows)))
        assert len(rows) >= lox.load(tmp_path / "store")["x"].size / 1.3
    final = sum(map(len, files_of(tmp_path / "store").values()))
    assert total < 6 * final
    # what does not grow any more is sent, too
    copy.update()
    assert lox.load(target) == lox.load(tmp_path / "store")
    assert copy.update().files == 0


def test_copy_can_be_continued_by_another_process(tmp_path, target):
    job = Job(tmp_path / "store" / "run").write(10)
    update(tmp_path / "store", target)
    job.write(10)
    report = update(tmp_path / "store", target)
    assert report.files <= 5
    assert lox.load(target) == lox.load(tmp_path / "store")
    job.finish()


def test_copy_of_single_run_keeps_its_name(tmp_path, target, monkeypatch):
    Job(tmp_path / "store" / "run").write(4).finish()
    monkeypatch.chdir(tmp_path / "store" / "run")
    update(".", target)
    assert files_of(target) == files_of(tmp_path / "store")


def test_store_at_url_is_copied(tmp_path, target):
    Job(tmp_path / "store" / "run").write(4).finish()
    update(f"file://{tmp_path}/store", target)
    update(target, tmp_path / "back")
    assert files_of(tmp_path / "back") == files_of(tmp_path / "store")


def test_copy_of_a_copy_has_what_the_first_one_has(tmp_path, target):
    job = Job(tmp_path / "store" / "run").write(7)
    update(tmp_path / "store", target)
    job.write(5)
    update(target, tmp_path / "second")
    assert lox.load(tmp_path / "second") == lox.load(target)
    assert lox.load(target)["x"].tolist() == list(range(7))
    job.finish()


def test_config_that_changes_is_sent(tmp_path, target):
    Job(tmp_path / "store" / "run").write(4).finish()
    copy = StoreCopy(tmp_path / "store", target)
    copy.update()
    path = tmp_path / "store" / "run" / "run.json"
    write_json(path, {**read_json(path), "config": {"lr": 0.5}})
    report = copy.update()
    assert (report.files, report.byte_count) == (1, path.stat().st_size)
    assert lox.runs(target)[0].config == {"lr": 0.5}


def test_removed_run_stays_in_copy(tmp_path, target):
    Job(tmp_path / "store" / "one").write(4).finish()
    Job(tmp_path / "store" / "two").write(4).finish()
    update(tmp_path / "store", target)
    shutil.rmtree(tmp_path / "store" / "one")
    update(tmp_path / "store", target)
    assert sorted(run.name for run in lox.runs(target)) == ["one", "two"]


def test_parts_of_processes_are_copied(tmp_path, target):
    run = tmp_path / "store" / "run"
    for process in range(3):
        Job(run, process=process).write(4 + process).finish()
    update(tmp_path / "store", target)
    assert files_of(target) == files_of(tmp_path / "store")
    assert lox.load(target) == lox.load(tmp_path / "store")


def test_parts_of_several_machines_are_copied_to_one_run(tmp_path, target):
    whole = tmp_path / "whole"
    for process in range(3):
        machine = tmp_path / f"machine {process}"
        Job(machine / "run", process=process).write(4 + process).finish()
        shutil.copytree(machine, whole, dirs_exist_ok=True)
    for process in (2, 0, 1):
        update(tmp_path / f"machine {process}", target)
    assert files_of(target) == files_of(whole)
    assert lox.load(target) == lox.load(whole)


def test_torn_record_is_not_copied(tmp_path, target):
    job = Job(tmp_path / "store" / "run").write(4)
    for file in (tmp_path / "store").rglob("*.npy"):
        with open(file, "ab") as opened:
            opened.write(b"torn")
    expected = lox.load(tmp_path / "store")
    update(tmp_path / "store", target)
    assert lox.load(target) == expected
    assert not [x for x in files_of(target).values() if x.endswith(b"torn")]
    assert update(tmp_path / "store", target).files == 0
    job.writer.close()


def test_rows_withdrawn_after_failed_write_are_copied_again(tmp_path, target):
    """A write that fails on a full disk is undone, and other rows follow."""
    job = Job(tmp_path / "store" / "run")
    job.writer.write(lox.logdict({"x": np.arange(5.0)}, stacked=True))
    file = tmp_path / "store" / "run" / "writer-0000" / "0000.npy"
    size = file.stat().st_size
    with open(file, "ab") as opened:
        opened.write(np.array([-1.0, -2.0]).tobytes())
    update(tmp_path / "store", target)
    assert lox.load(target)["x"].tolist() == [0, 1, 2, 3, 4, -1, -2]
    os.truncate(file, size)
    job.writer.write(lox.logdict({"x": np.arange(5.0, 9)}, stacked=True))
    update(tmp_path / "store", target)
    assert lox.load(target)["x"].tolist() == list(range(9))
    os.truncate(file, size)
    with open(file, "ab") as opened:
        opened.write(np.array([7.0]).tobytes())
    update(tmp_path / "store", target)
    assert lox.load(target)["x"].tolist() == [0, 1, 2, 3, 4, 7]


def test_copy_of_writer_that_is_closed_while_copying_is_a_prefix(tmp_path, monkeypatch):
    """The file that was read last was closed with more records than are copied."""
    source, target = tmp_path / "store", tmp_path / "copy"
    job = Job(source / "run").write(9)

    class Slow(segments.Segment):
        def __init__(self, *args):
            super().__init__(*args)
            if self.number == 0:
                job.write(9).finish()

    with monkeypatch.context() as patch:
        patch.setattr(segments, "Segment", Slow)
        update(source, target)
    assert lox.load(target)["x"].tolist() == list(range(9))
    update(source, target)
    assert files_of(target) == files_of(source)


def test_copy_of_finished_writer_has_closed_files(tmp_path, target):
    """Also if it is made before the writer closes its own files."""
    job = Job(tmp_path / "store" / "run").write(9)
    job.writer.finish()
    report = update(tmp_path / "store", target)
    assert not report.unfinished
    job.writer.close()
    assert files_of(target) == files_of(tmp_path / "store")
    assert update(tmp_path / "store", target).files == 0


# --- interruptions ---------------------------------------------------------


class Killed(BaseException):
    pass


OPERATIONS = "make_directory replace write truncate remove remove_directory".split()


class KillSwitch:
    """Lets `count` operations on files pass; the next one raises `Killed`."""

    def __init__(self, patch, count, tears):
        self.count, self.tears = count, tears
        for name in OPERATIONS:
            original = getattr(LocalLocation, name)
            patch.setattr(LocalLocation, name, self._counting(name, original))

    def _counting(self, name, original):
        def operation(location, *args):
            self.count -= 1
            if self.count < 0:
                if self.tears and name == "write":
                    chunks, start = args
                    torn = b"".join(chunks)
                    original(location, [torn[: len(torn) // 2]], start)
                raise Killed
            original(location, *args)

        return operation


def kill_after(count, tears, source, target, **options):
    """Updates a copy, and kills it after some operations; whether it was."""
    with pytest.MonkeyPatch.context() as patch:
        KillSwitch(patch, count, tears)
        try:
            update(source, target, **options)
        except Killed:
            return True
    return False


def is_prefix(rows, of):
    assert set(rows) <= set(of)
    events = {}
    for name in rows:
        steps = np.atleast_1d(rows.step[name]).tolist()
        assert steps == np.atleast_1d(of.step[name]).tolist()[: len(steps)]
        assert (
            np.atleast_1d(rows[name]).tolist()
            == (np.atleast_1d(of[name]).tolist()[: len(steps)])
        )
        events[name] = steps
    # up to one event, for all keys
    last = max(itertools.chain([-1], *events.values()))
    for name in of:
        expected = [i for i in np.atleast_1d(of.step[name]).tolist() if i <= last]
        assert events.get(name, []) == expected
    return True


@pytest.mark.parametrize("tears", [False, True])
def test_copy_killed_between_any_two_operations_is_a_prefix(tmp_path, tears):
    """Of the rows of all keys together; the next update completes it."""
    source = tmp_path / "store"
    job = Job(source / "run").write(7)
    states = []
    for finish in (False, False, True):
        states.append(tmp_path / f"state {len(states)}")
        if finish:
            job.finish()
        shutil.copytree(source, states[-1])
        job.write(0 if finish else 8)
    started = tmp_path / "started"
    for i, state in enumerate(states):
        before = lox.load(started / "run") if i else lox.logdict({})
        expected = lox.load(state / "run")
        for count in itertools.count():
            copy = tmp_path / f"copy {i} {count}"
            if i:
                shutil.copytree(started, copy)
            killed = kill_after(count, tears, state, copy)
            if (copy / "run" / "run.json").exists():
                found = lox.load(copy / "run")
                assert is_prefix(found, expected)
                assert len(found.get("x", ())) >= len(before.get("x", ()))
            update(state, copy)
            assert lox.load(copy / "run") == expected
            if i == 2:
                assert files_of(copy) == files_of(state)
            shutil.rmtree(copy)
            if not killed:
                break
        assert count > (3, 4, 3)[i]
        update(state, started)


@pytest.mark.parametrize("kind", ["overwritten", "recreated"])
def test_copy_of_replaced_run_killed_at_any_moment_is_old_or_new(tmp_path, kind):
    source = tmp_path / "store"
    for process in range(3):
        Job(source / "run", process=process).write(6).finish()
    old = lox.load(source)
    started = tmp_path / "started"
    update(source, started)
    if kind == "recreated":
        shutil.rmtree(source)
    for process in range(2):
        mode = "w" if kind == "overwritten" else "x"
        job = Job(source / "run", mode, process)
        job.writer.write(lox.logdict({"new": np.arange(5.0)}, stacked=True))
        job.finish()
    if kind == "overwritten":
        shutil.rmtree(source / "run" / "process-2")
    new = lox.load(source)
    options = {"overwrite": kind == "recreated"}
    for count in itertools.count():
        copy = tmp_path / f"copy {count}"
        shutil.copytree(started, copy)
        killed = kill_after(count, False, source, copy, **options)
        found = lox.load(copy / "run")  # warnings about lost rows are errors
        for name, rows in found.items():
            of = new if name == "new" else old
            assert set(np.atleast_1d(rows)) <= set(of[name])
        update(source, copy, **options)
        assert plain(lox.load(copy)) == plain(new)
        assert files_of(copy) == files_of(source)
        shutil.rmtree(copy)
        if not killed:
            break
    assert count > 10


def write_calls(directory, count):
    """Writes until it is killed, or so many calls."""
    writer = Writer(create_run(pathlib.Path(directory) / "run", "x"))
    for i in range(int(count)):
        writer.write(call_of(0, i))
    writer.finish()
    writer.close()


def test_copy_is_a_prefix_while_another_process_writes(tmp_path):
    source, target = tmp_path / "store", tmp_path / "copy"
    calls = 400
    with programs.start(programs.calling(write_calls), source, calls) as process:
        wait_until(lambda: list(source.glob("run/writer-*/*.npy")))
        copy = StoreCopy(source, target)
        seen, unfinished = 0, True
        while unfinished:
            report = copy.update()
            assert not report.errors
            unfinished = report.unfinished
            found = columns_of(lox.load(target))
            # the calls before the last row of any key, for all keys
            last = max((rows[-1] // 10 for rows in found.values() if rows), default=0)
            for name in ("x", "y", "buffer", "tree"):
                expected = [
                    row
                    for i in range(last + 1)
                    for row in columns_of(call_of(0, i)).get(name, [])
                ]
                rows = found.get(name, [])
                assert rows == expected[: len(rows)]
                assert len(expected) - len(rows) < 4
            assert len(found.get("x", [])) >= seen
            seen = len(found.get("x", []))
    assert process.returncode == 0
    assert files_of(target) == files_of(source)


def test_damaged_list_of_copied_records_is_repaired(tmp_path):
    source, target = tmp_path / "store", tmp_path / "copy"
    job = Job(source / "run").write(6)
    update(source, target)
    (target / "run" / "writer-0000" / "copied.json").write_bytes(b"")
    with pytest.raises(lox.StoreError, match=r"copied\.json.*`lox sync` repairs"):
        lox.load(target)
    job.write(3)
    update(source, target)
    assert lox.load(target) == lox.load(source)
    job.finish()


@pytest.mark.parametrize(
    "content", [None, [[0, 1]], [[0, -1, 0, 0]], [["a", 1, 1, 1]], [[0, 1.5, 1, 1]]]
)
def test_invalid_list_of_copied_records_is_refused(tmp_path, content):
    source, target = tmp_path / "store", tmp_path / "copy"
    Job(source / "run").write(6).writer.close()
    update(source, target)
    path = target / "run" / "writer-0000" / "copied.json"
    write_json(path, {"version": 1, "segments": content})
    with pytest.raises(lox.StoreError, match=r"copied\.json does not list"):
        lox.load(target)


# --- other rows in the copy ------------------------------------------------


def test_replaced_run_replaces_its_copy(tmp_path, target):
    Job(tmp_path / "store" / "run").write(4).finish()
    update(tmp_path / "store", target)
    Job(tmp_path / "store" / "run", "w").write(2).finish()
    update(tmp_path / "store", target)
    assert files_of(target) == files_of(tmp_path / "store")


def test_other_run_of_the_same_name_is_not_replaced(tmp_path, target):
    for machine in ("one", "two"):
        Job(tmp_path / machine / "run").write(4).finish()
        Job(tmp_path / machine / f"run {machine}").write(4).finish()
    update(tmp_path / "one", target)
    report = StoreCopy(tmp_path / "two", target).update()
    assert list(report.errors) == ["run"] and report.runs == ["run two"]
    assert "has rows that" in report.errors["run"]
    assert lox.load(f"{target}/run") == lox.load(tmp_path / "one" / "run")
    update(tmp_path / "two", target, overwrite=True)
    assert lox.load(f"{target}/run") == lox.load(tmp_path / "two" / "run")


def test_rows_written_to_the_copy_are_kept_or_refused(tmp_path):
    source, target = tmp_path / "store", tmp_path / "copy"
    Job(source / "run").write(4).finish()
    update(source, target)
    lox.save({"more": 1.0}, target / "run")
    update(source, target)
    assert lox.load(target)["more"] == 1
    lox.save({"other": 1.0}, source / "run")  # also the second writer
    report = StoreCopy(source, target).update()
    assert "writer-0001 has rows that" in report.errors["run"]
    assert lox.load(target)["more"] == 1
    update(source, target, overwrite=True)
    assert lox.load(target) == lox.load(source)


def test_copy_made_by_another_program_is_continued(tmp_path):
    source, target = tmp_path / "store", tmp_path / "copy"
    job = Job(source / "run").write(50)
    shutil.copytree(source, target)
    job.write(3)
    report = update(source, target)
    assert report.byte_count < 400  # most of it is the list of what was copied
    assert lox.load(target) == lox.load(source)
    job.finish()
    update(source, target)
    assert files_of(target) == files_of(source)


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize(
    "name", ["", "run.json", "writer-0000", "writer-0000/0000.npy"]
)
def test_links_in_the_copy_are_not_followed(tmp_path, name, scheme):
    source, target = tmp_path / "store", tmp_path / "copy"
    job = Job(source / "run").write(4)
    update(source, target)
    job.write(4)
    path = target / "run" / name
    outside = tmp_path / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    before = files_of(outside) if outside.is_dir() else outside.read_bytes()
    report = StoreCopy(source, f"{scheme}{target}").update()
    assert list(report.errors) == ["run"]
    after = files_of(outside) if outside.is_dir() else outside.read_bytes()
    assert after == before
    job.writer.close()


def test_links_in_the_store_are_not_followed(tmp_path):
    source, target = tmp_path / "store", tmp_path / "copy"
    Job(source / "run").write(4).finish()
    Job(tmp_path / "outside").write(4).finish()
    (source / "latest").symlink_to(source / "run")
    (source / "run" / "process-1").symlink_to(tmp_path / "outside")
    report = StoreCopy(source, target).update()
    assert "is a symbolic link" in report.skipped["latest"]
    assert "is a symbolic link" in report.errors["run"]
    (source / "run" / "process-1").unlink()
    assert not StoreCopy(source, target).update().errors
    assert list(files_of(target)) and not (target / "latest").exists()


def test_sparse_records_are_not_copied(tmp_path):
    source = tmp_path / "store"
    two_segments(source / "run")
    os.truncate(source / "run" / "writer-0000" / "0001.npy", 10**12)
    report = StoreCopy(source, tmp_path / "copy").update()
    assert "0001.npy is damaged: its size is" in report.errors["run"]


def test_sparse_places_are_not_read_into_memory_for_a_copy(tmp_path):
    source = tmp_path / "store"
    two_segments(source / "run")
    os.truncate(source / "run" / "writer-0000" / "0001.places", 10**12)
    report = StoreCopy(source, tmp_path / "copy").update()
    assert "0001.places is damaged" in report.errors["run"]


def test_damaged_run_does_not_keep_others_from_being_copied(tmp_path):
    source, target = tmp_path / "store", tmp_path / "copy"
    for name in ("one", "two", "three"):
        Job(source / name).write(4).finish()
    (source / "two" / "run.json").write_text("damaged")
    report = StoreCopy(source, target).update()
    assert report.runs == ["one", "three"] and report.found == 3
    assert "run.json is damaged" in report.errors["two"]


def test_store_is_not_copied_to_itself_or_into_a_run(tmp_path):
    Job(tmp_path / "store" / "run").write(4).finish()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "store")
    others = [link, tmp_path / "other" / ".." / "store"]
    urls = [f"{scheme}://{tmp_path}/store/" for scheme in ("file", "local")]
    for same in (tmp_path / "store", *others, *urls):
        with pytest.raises(lox.StoreError, match="cannot be copied to itself"):
            StoreCopy(tmp_path / "store", same).update()
    with pytest.raises(lox.StoreError, match="is a run, but a copy is a store"):
        StoreCopy(tmp_path / "store", tmp_path / "store" / "run").update()
    with pytest.raises(lox.StoreError, match="there is no store at"):
        StoreCopy(tmp_path / "nothing", tmp_path / "copy").update()


def test_reader_uses_only_what_is_listed_as_copied(tmp_path):
    source, target = tmp_path / "store", tmp_path / "copy"
    Job(source / "run").write(9).writer.close()
    update(source, target)
    directory = LocalLocation(target / "run" / "writer-0000")
    whole = Copied.read(directory)
    assert whole is not None and [x.records for x in whole.values()] == [3, 6]
    Copied({1: whole[1]._replace(records=2)}).write(directory)
    assert plain(lox.load(target)) == {"x": [1, 2]}
    Copied({}).write(directory)
    assert lox.load(target) == {}
    more = whole[1]._replace(records=10)
    Copied({**whole, 1: more}).write(directory)
    with pytest.warns(lox.LoxWarning, match="lost records of 'x': 6 are left of 10"):
        assert len(lox.load(target)["x"]) == 9
