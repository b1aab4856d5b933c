"""When rows were written, which is known to about a second."""

import numpy as np
import pytest

import lox
import lox.loggers
from lox._store import times as store_times
from lox._store.copy_store import StoreCopy
from lox._store.creating import create_run
from lox._store.imported import Curve, ImportedRun, write_imported
from lox._store.reader import Run, writers_of
from lox._store.writer import Writer

START = 1.7e9


class Clock:
    """The clocks of a process, which a test moves."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.offset = START
        clock = self

        class Time:
            @staticmethod
            def monotonic():
                return 1000.0 + clock.now

            @staticmethod
            def time():
                return clock.offset + clock.now

        monkeypatch.setattr(store_times, "time", Time)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def row(i, **values):
    names = values or {"x": float(i)}
    steps = {"step": dict.fromkeys(names, i)}
    return lox.logdict(names, steps)


def times_of(run, key="x"):
    """The seconds since the start at which the rows of a key were written."""
    found = [
        writer.times(segment) - START
        for writer in writers_of(Run(run))
        for segment in writer.segments
        if key in segment.keys
    ]
    return np.concatenate(found)


@pytest.mark.parametrize("apart", [0.001, 0.3, 1.0, 7.0, 3600.0])
def test_times_of_rows_are_known_to_the_interval(tmp_path, clock, apart):
    writer = Writer(create_run(tmp_path / "run", "x"))
    generator = np.random.default_rng(0)
    written = np.cumsum(generator.exponential(apart, 500))
    written[300:] += 600  # nothing is logged for ten minutes
    for i, clock.now in enumerate(written):
        writer.write(row(i))
    allowed = np.maximum(1.0, 1e-3 * (written - written[0])) + 1e-6
    for close in (False, True):
        if close:
            writer.close()
        found = times_of(tmp_path / "run")
        assert (np.abs(found - written) <= allowed).all()
        assert (np.diff(found) >= 0).all()
    if apart >= 1.0:  # most rows have an entry
        assert np.median(np.abs(found - written)) < 0.02 * apart


def test_file_of_times_stays_small(tmp_path, clock):
    writer = Writer(create_run(tmp_path / "run", "x"))
    for i in range(20_000):
        clock.now = 10.0 * i  # more than two days
        writer.write(row(i))
    writer.close()
    (file,) = (tmp_path / "run").rglob("times")
    entries = file.stat().st_size // store_times.ENTRY.itemsize
    assert entries < 1000 + 1000 * np.log(200_000 / 1000)


def test_rows_written_together_have_the_same_time(tmp_path, clock):
    writer = Writer(create_run(tmp_path / "run", "x"))
    for clock.now in (5.0, 65.0):
        values = {"x": np.arange(100.0)}
        writer.write(lox.logdict(values, stacked=True))
    writer.close()
    found = times_of(tmp_path / "run")
    assert found[0] == 5 and (found[100:] == 65).all()
    assert (found[:100] <= 6).all()


def test_times_of_keys_in_several_segments_are_those_of_their_events(tmp_path, clock):
    writer = Writer(create_run(tmp_path / "run", "x"))
    for i in range(10):
        clock.now = 10.0 * i
        writer.write(row(i, x=1.0) if i % 3 else row(i, y=1.0))
    writer.close()
    assert times_of(tmp_path / "run", "x").tolist() == [10, 20, 40, 50, 70, 80]
    assert times_of(tmp_path / "run", "y").tolist() == [0, 30, 60, 90]


def test_clock_that_is_set_back_does_not_disturb_times(tmp_path, clock):
    writer = Writer(create_run(tmp_path / "run", "x"))
    for i in range(4):
        clock.now = 5.0 * i
        clock.offset = START - 3600 * (i > 1)
        writer.write(row(i))
    writer.close()
    assert times_of(tmp_path / "run").tolist() == [0, 5, 10, 15]


def test_time_in_which_the_machine_sleeps_counts(tmp_path, clock):
    writer = Writer(create_run(tmp_path / "run", "x"))
    for i in range(4):
        clock.now = 5.0 * i
        clock.offset = START + 3600 * (i > 1)
        writer.write(row(i))
    writer.close()
    assert times_of(tmp_path / "run").tolist() == [0, 5, 3610, 3615]


def test_loggers_and_save_record_times(tmp_path, clock):
    logger = lox.loggers.SaveLogger(tmp_path / "logger")
    state = logger.init(0)
    for i in range(3):
        clock.now = 2.0 * i
        logger.log(state, {"x": 1.0 * i}, step=i)
    logger.finish(state)
    (run,) = (tmp_path / "logger").iterdir()
    assert times_of(run).tolist() == [0, 2, 4]
    for clock.now in (7.0, 9.0):
        lox.save({"x": 1.0}, tmp_path / "saved")
    assert times_of(tmp_path / "saved").tolist() == [7, 9]


def test_resumed_run_has_the_times_of_all_writers(tmp_path, clock):
    for start in (1.0, 100.0):
        writer = Writer(create_run(tmp_path / "run", "a"))
        for clock.now in (start, start + 2):
            writer.write(row(0))
        writer.close()
    assert times_of(tmp_path / "run").tolist() == [1, 3, 100, 102]


def test_writer_of_less_than_a_second_has_no_times(tmp_path, clock):
    writer = Writer(create_run(tmp_path / "run", "a"))
    for clock.now in (0.0, 0.2, 0.9):
        writer.write(row(0))
    writer.finish()
    writer.close()
    assert not list((tmp_path / "run").rglob("times"))
    (writer,) = writers_of(Run(tmp_path / "run"))
    assert not writer.has_times and writer.times(writer.segments[0]) is None
    assert len(lox.load(tmp_path / "run")["x"]) == 3


def test_imported_run_has_no_times(tmp_path):
    curves = {"x": Curve([0, 1], [1.0, 2.0])}
    write_imported(
        ImportedRun("run", {}, START, START + 9, "finished", curves), tmp_path, False
    )
    (writer,) = writers_of(Run(tmp_path / "run"))
    assert not writer.has_times


def test_rows_are_written_if_their_times_cannot_be(tmp_path, monkeypatch, clock):
    class Full(store_times.GrowingFile):
        def append(self, data):
            if clock.now > 5:
                super().append(data[:7])
                raise OSError(28, "No space left on device")
            super().append(data)

    monkeypatch.setattr(store_times, "GrowingFile", Full)
    writer = Writer(create_run(tmp_path / "run", "x"))
    for clock.now in (0.0, 5.0, 10.0, 15.0):
        writer.write(row(0))
    writer.finish()
    writer.close()
    assert len(lox.load(tmp_path / "run")["x"]) == 4
    # the incomplete entry is ignored, and nothing follows it
    assert times_of(tmp_path / "run").tolist() == [0, 5, 6, 6]


@pytest.mark.parametrize("damage", ["flip", "order", "nan"])
def test_damaged_times_are_an_error_that_names_the_file(tmp_path, clock, damage):
    writer = Writer(create_run(tmp_path / "run", "x"))
    for clock.now in (0.0, 5.0, 10.0):
        writer.write(row(0))
    writer.close()
    (file,) = (tmp_path / "run").rglob("times")
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[9] ^= 1
    else:
        entries = np.frombuffer(content, store_times.ENTRY).copy()
        entries["time"][1] = np.nan if damage == "nan" else 0
        checked = [entry.tobytes()[:16] for entry in entries]
        entries["crc32"] = list(map(store_times.zlib.crc32, checked))
        content = entries.tobytes()
    file.write_bytes(content)
    assert len(lox.load(tmp_path / "run")["x"]) == 3  # rows do not need them
    with pytest.raises(lox.StoreError, match=r"times is damaged"):
        times_of(tmp_path / "run")


def test_copy_of_a_growing_run_has_its_times(tmp_path, clock):
    writer = Writer(create_run(tmp_path / "store" / "run", "x"))
    copy = StoreCopy(tmp_path / "store", tmp_path / "copy", follows=True)
    (source,) = [tmp_path / "store" / "run" / "writer-0000" / "times"]
    target = tmp_path / "copy" / "run" / "writer-0000" / "times"
    for i in range(5):
        clock.now = 10.0 * i
        writer.write(row(i))
        if not i:  # there is no file yet
            continue
        copy.update()
        assert target.read_bytes() == source.read_bytes()
        assert times_of(tmp_path / "copy" / "run")[-1] == 10 * i
    writer.finish()
    writer.close()
    copy.update()
    assert target.read_bytes() == source.read_bytes()
    assert copy.update().files == 0
    # a copy that was made by an older version
    target.unlink()
    assert StoreCopy(tmp_path / "store", tmp_path / "copy").update().files
    assert target.read_bytes() == source.read_bytes()
    assert StoreCopy(tmp_path / "store", tmp_path / "copy").update().files == 0


def test_copy_of_times_with_a_torn_entry_is_complete(tmp_path, clock):
    writer = Writer(create_run(tmp_path / "store" / "run", "x"))
    for i in range(3):
        clock.now = 10.0 * i
        writer.write(row(i))
    writer.finish()
    writer.close()
    source = tmp_path / "store" / "run" / "writer-0000" / "times"
    complete = source.read_bytes()
    source.write_bytes(complete + b"torn")  # the disk was full
    assert StoreCopy(tmp_path / "store", tmp_path / "copy").update().files
    target = tmp_path / "copy" / "run" / "writer-0000" / "times"
    assert target.read_bytes() == complete
    assert StoreCopy(tmp_path / "store", tmp_path / "copy").update().files == 0


def test_replaced_run_leaves_no_times(tmp_path, clock):
    for mode in ("w", "a", "w", "a"):
        clock.now += 2
        lox.save({"x": 1.0}, tmp_path / "run", mode=mode)
    (file,) = (tmp_path / "run").rglob("times")
    assert file.parent.name == "writer-0001"
