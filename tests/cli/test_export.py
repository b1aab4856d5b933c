"""`lox export` and `lox import`."""

import csv
import io
import itertools
import json
import os
import pathlib
import struct
import sys

import jax
import ml_dtypes
import numpy as np
import pytest

import lox.cli
from lox._event_files import event_file
from lox._event_files.event_file import EventFile
from lox._event_files.protobuf import grouped, to_signed

from .stores import name, save_run, sweep
from .test_ls import error, output

DATA = pathlib.Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return sweep(tmp_path_factory.mktemp("export") / "store", 2)


@pytest.fixture
def mixed(tmp_path):
    """A run with scalars, arrays and numbers that are not finite."""
    logger = lox.loggers.SaveLogger(tmp_path / "mixed")
    state = logger.init(0)
    logger.log(state, {"x": float("nan"), "n": 2**60}, step=0)
    logger.log(state, {"w": np.array([1.5, -float("inf")]), "step": 3}, step=1)
    logger.finish(state)
    return tmp_path / "mixed"


def test_export_csv(capsys, store, tmp_path):
    path = tmp_path / "runs.csv"
    assert output(capsys, "export", store, "--to", "csv", "-o", path) == f"{path}\n"
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert rows[5] == {"run": name(1), "step": "1", "loss": "1.5", "acc": "1.5"}


def test_export_csv_of_arrays_and_gaps(capsys, mixed, tmp_path):
    path = tmp_path / "runs.csv"
    output(capsys, "export", mixed, "--to", "csv", "-o", path)
    with open(path, newline="") as file:
        first, second = csv.DictReader(file)
    assert first["x"] == "NaN" and first["n"] == str(2**60) and first["w"] == ""
    assert second["w"] == '[1.5, "-Infinity"]' and second["x"] == ""
    assert second["step"] == "1" and second["step.value"] == "3"


def test_exported_columns_with_the_same_name_are_all_kept(capsys, tmp_path):
    lox.save(
        lox.logdict(
            {"step": np.array([1.5]), "step.value": np.array([2.5])},
            {"step": dict.fromkeys(("step", "step.value"), np.array([7]))},
            stacked=True,
        ),
        tmp_path / "a",
    )
    output(capsys, "export", tmp_path / "a", "--to", "jsonl", "-o", tmp_path / "x")
    row = json.loads((tmp_path / "x").read_text())
    assert row.pop("run") == "a" and sorted(row.values()) == [1.5, 2.5, 7]
    assert row["step"] == 7


def test_export_jsonl(capsys, mixed, tmp_path):
    path = tmp_path / "runs.jsonl"
    output(capsys, "export", mixed, "--to", "jsonl", "-o", path, "-k", "[xn]")
    (line,) = path.read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "run": name(0),
        "step": 0,
        "x": "NaN",
        "n": 2**60,
    }


def test_export_parquet(capsys, store, mixed, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "runs.parquet"
    output(capsys, "export", store, "--to", "parquet", "-o", path)
    table = parquet.read_table(path)
    assert table.column_names == ["run", "step", "loss", "acc"]
    assert str(table.schema.field("loss").type) == "float"
    assert table.column("loss").to_pylist()[4:] == [2.0, 1.5, np.float32(4 / 3), 1.25]
    output(capsys, "export", mixed, "--to", "parquet", "-o", path, "--force")
    table = parquet.read_table(path)
    assert table.column("n").to_pylist() == [2**60, None]
    assert table.column("w").to_pylist() == [None, [1.5, -float("inf")]]


def test_export_parquet_without_pyarrow_says_what_to_install(
    capsys, store, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "x.parquet"
    message = error(capsys, "export", store, "--to", "parquet", "-o", path)
    assert "needs pyarrow, which is not installed: `pip install pyarrow`" in message


def test_export_replaces_a_file_only_with_force(capsys, store, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("mine")
    command = "export", store, "--to", "csv", "-o", path
    assert f"{path} exists; `--force` replaces it." in error(capsys, *command)
    assert path.read_text() == "mine"
    output(capsys, *command, "--force")
    assert path.read_text().startswith("run,step")
    command = "export", store, "--to", "csv", "-o", tmp_path, "--force"
    assert "is a directory" in error(capsys, *command)
    assert [x.name for x in tmp_path.iterdir()] == ["x.csv"]


def test_export_of_unknown_key_says_what_exists(capsys, store, tmp_path):
    for kind in "csv", "tensorboard":
        command = "export", store, "--to", kind, "-o", tmp_path / "x", "-k", "y"
        assert "no key matches 'y'; available: 'loss', 'acc'" in error(capsys, *command)


# --- TensorBoard -------------------------------------------------------------


def test_tensorboard_round_trip(capsys, store, tmp_path):
    events, copy = tmp_path / "events", tmp_path / "copy"
    output(capsys, "export", store, "--to", "tensorboard", "-o", events)
    text = output(capsys, "import", events, "-o", copy)
    assert text.splitlines()[0] == f"{copy / name(0)}  2 keys, up to 4 rows"
    for i in range(2):
        before, after = (lox.load(path / name(i)) for path in (store, copy))
        assert before == after
        for key in before:
            np.testing.assert_array_equal(before.step[key], after.step[key])
    run = lox.runs(copy)[0]
    assert run.config == {"lr": 0.1, "seed": 0, "net/width": 64}
    assert run.status == "finished" and run.rows == 4
    assert not list(copy.glob(".*"))


def test_export_to_existing_tensorboard_directory_needs_force(capsys, store, tmp_path):
    command = "export", store, "--to", "tensorboard", "-o", tmp_path
    output(capsys, *command)
    assert "`--force` adds another file" in error(capsys, *command)
    output(capsys, *command, "--force")
    assert len(list((tmp_path / name(0)).iterdir())) == 2


def test_export_to_tensorboard_says_what_is_not_exported(capsys, mixed, tmp_path):
    command = ["export", mixed, "--to", "tensorboard", "-o", tmp_path / "events"]
    assert lox.cli.main([*map(str, command)]) == 0
    assert "not scalars: w\n" in capsys.readouterr().err


def test_lanes_of_a_run_are_exported_as_curves(capsys, tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path / "store")
    state = logger.init(0)
    steps = {"step": {"x": np.arange(4)}, "lane": {"x": np.array([0, 1, 0, 1])}}
    logger.log(state, lox.logdict({"x": np.arange(4.0)}, steps, stacked=True))
    logger.finish(state)
    events = tmp_path / "events"
    output(capsys, "export", tmp_path / "store", "--to", "tensorboard", "-o", events)
    output(capsys, "import", events, "-o", tmp_path / "copy")
    logs = lox.load(tmp_path / "copy")
    assert {key: x.tolist() for key, x in logs.items()} == {
        "x/lane_0": [0.0, 2.0],
        "x/lane_1": [1.0, 3.0],
    }
    assert logs.step["x/lane_1"].tolist() == [1, 3]


def test_import_of_event_files_of_other_programs(capsys, tmp_path):
    """Values in tensors, as TensorFlow 2 and `tf.summary` write them."""
    file = EventFile(tmp_path / "events" / "train")
    pack = event_file._message
    tensors = {
        "float": pack((1, 1), (2, b""), (5, struct.pack("<f", 1.5))),
        "content": pack((1, 2), (4, struct.pack("<d", 2.5))),
        "int": pack((1, 9), (10, b"\x07")),
        "vector": pack((1, 1), (2, pack((2, pack((1, 3))))), (4, bytes(12))),
    }
    for tag, tensor in tensors.items():
        summary = pack((1, pack((1, tag), (8, tensor))))
        file._write(event_file._event(10.5, 3, (5, summary)))
    file.images({"picture": np.zeros((1, 2, 2))}, np.array([0]))
    file.close()
    command = ["import", str(tmp_path / "events"), "-o", str(tmp_path / "store")]
    assert lox.cli.main(command) == 0
    note = capsys.readouterr().err
    assert "not imported, since they are not numbers: 1 tensors, 1 images" in note
    run = lox.runs(tmp_path / "store")[0]
    logs = run.load()
    assert run.name == "train" and run.started == 10.5
    found = {key: x.tolist() for key, x in logs.items()}
    assert found == {"float": [1.5], "content": [2.5], "int": [7.0]}
    assert logs.step["float"].tolist() == [3]


def test_import_of_torn_event_file_keeps_what_is_complete(capsys, store, tmp_path):
    events = tmp_path / "events"
    command = "export", store, "*1", "-k", "loss"
    output(capsys, *command, "--to", "tensorboard", "-o", events)
    (path,) = events.rglob("*tfevents*")
    whole = path.read_bytes()
    path.write_bytes(whole[:-150])
    assert lox.cli.main(["import", str(events), "-o", str(tmp_path / "store")]) == 0
    assert "was read only in part: its last record" in capsys.readouterr().err
    assert 0 < len(lox.load(tmp_path / "store")["loss"]) <= 4
    path.write_bytes(b"no event file at all")
    message = error(capsys, "import", events, "-o", tmp_path / "other")
    assert "is not an event file of TensorBoard" in message
    assert not (tmp_path / "other").exists()


# --- W&B -----------------------------------------------------------------------


def test_import_of_wandb_offline_run(capsys, tmp_path):
    """A file that W&B 0.31 has written."""
    command = ["import", str(DATA / "offline.wandb"), "-o", str(tmp_path), "--json"]
    assert lox.cli.main(command) == 0
    captured = capsys.readouterr()
    (found,) = json.loads(captured.out)["runs"]
    assert found["name"] == "trial one-gtxoi58m" and found["keys"] == 4
    assert "3 values" in captured.err  # text, and a histogram
    (run,) = lox.runs(tmp_path)
    assert run.config == {"lr": 0.2, "net": {"width": 64}, "tags": ["a", "b"]}
    assert run.status == "finished" and 1 < run.duration < 100
    assert run.started == pytest.approx(1794921979, abs=1)
    logs = run.load()
    np.testing.assert_array_equal(logs["loss"], [*(1 / np.arange(1, 13)), 0.01])
    assert logs.step["loss"].tolist() == [*range(0, 24, 2), 30]
    assert logs["nest/deep"].tolist() == list(range(12))
    np.testing.assert_array_equal(logs["eval"], [np.nan, 0.5])


def test_import_of_damaged_wandb_file_keeps_what_is_complete(capsys, tmp_path):
    whole = (DATA / "offline.wandb").read_bytes()
    path = tmp_path / "run-x.wandb"
    lengths = []
    for i, end in enumerate((len(whole) - 1, 4000, 3000)):
        path.write_bytes(whole[:end])
        target = tmp_path / f"store-{i}"
        assert lox.cli.main(["import", str(path), "-o", str(target)]) == 0
        assert "was read only in part" in capsys.readouterr().err
        (run,) = lox.runs(target)
        assert run.status == "killed"
        lengths.append(len(run.load("loss")["loss"]))
    assert lengths[0] == 13 and 13 > lengths[1] > lengths[2] > 0
    damaged = bytearray(whole)
    damaged[3000] ^= 1
    path.write_bytes(damaged)
    assert lox.cli.main(["import", str(path), "-o", str(tmp_path / "d")]) == 0
    assert "does not match its checksum" in capsys.readouterr().err
    for content in b"", b"other", whole[:7], whole[:60]:
        path.write_bytes(content)
        message = error(capsys, "import", path, "-o", tmp_path / "none")
        assert "is not a file of an offline run" in message or "describe" in message


@pytest.mark.parametrize("name", ["run.wandb", "events.out.tfevents.1"])
def test_import_of_pipes_and_devices_is_refused(capsys, tmp_path, name):
    os.mkfifo(tmp_path / name)
    message = error(capsys, "import", tmp_path / name, "-o", tmp_path / "store")
    assert "is not a regular file" in message
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    message = error(capsys, "import", tmp_path / name, "-o", tmp_path / "store")
    assert "is not a regular file" in message


def test_import_of_event_file_with_impossible_length_takes_no_memory(capsys, tmp_path):
    EventFile(tmp_path / "events").close()
    (path,) = (tmp_path / "events").iterdir()
    length = struct.pack("<Q", 2**62)
    with path.open("ab") as file:
        file.write(length + struct.pack("<I", event_file.masked_crc(length)))
    command = ["import", str(path), "-o", str(tmp_path / "store")]
    assert lox.cli.main(command) == 0
    assert "its last record is incomplete" in capsys.readouterr().err


def test_show_and_export_of_prng_keys_use_their_data(capsys, tmp_path):
    lox.save({"key": jax.random.key(3), "x": 1.0}, tmp_path / "store" / "run")
    assert "key" in output(capsys, "show", tmp_path / "store" / "run", "--json")
    command = ["export", str(tmp_path / "store"), "--to", "tensorboard", "-o"]
    assert lox.cli.main([*command, str(tmp_path / "events")]) == 0
    assert "not exported, since they are not scalars: key" in capsys.readouterr().err


def test_export_to_tensorboard_of_unsupported_names_and_numbers(capsys, tmp_path):
    config = {"large": 10**400, "odd": "\udc80"}
    save_run(tmp_path / "store", 0, config, keys=("loss\udc80",))
    command = ["export", str(tmp_path / "store"), "--to", "tensorboard", "-o"]
    output(capsys, *command, tmp_path / "events")
    output(capsys, "import", tmp_path / "events", "-o", tmp_path / "copy")
    (run,) = lox.runs(tmp_path / "copy")
    assert list(run.load()) == ["loss\\udc80"]
    assert run.config["large"] == str(10**400)


def test_records_longer_than_a_block_are_joined():
    import zlib

    from lox._event_files.wandb_file import _records

    record = bytes(range(256)) * 300  # three blocks
    data, at = bytearray(b":W&B\xe1\xbe\x00"), 0
    while at < len(record):
        room = 32768 - len(data) % 32768 - 7
        part = record[at : at + room]
        kind = 2 if not at else 4 if at + room >= len(record) else 3
        checksum = zlib.crc32(bytes([kind]) + part)
        data += struct.pack("<IHB", checksum, len(part), kind) + part
        at += room
    assert list(_records(io.BytesIO(data))) == [record]


def test_import_does_not_replace_runs(capsys, tmp_path):
    command = ["import", str(DATA / "offline.wandb"), "-o", str(tmp_path)]
    assert lox.cli.main(command) == 0
    (run,) = lox.runs(tmp_path)
    (run.path / "mine.txt").write_text("mine")
    capsys.readouterr()
    assert lox.cli.main(command) == 1
    assert "already exists" in capsys.readouterr().err
    assert (run.path / "mine.txt").exists()
    assert lox.cli.main([*command, "--force"]) == 0
    assert not (run.path / "mine.txt").exists() and len(lox.runs(tmp_path)) == 1
    assert [x.name for x in tmp_path.iterdir()] == [run.name]


def test_import_of_directory_without_runs_is_an_error(capsys, tmp_path):
    message = error(capsys, "import", tmp_path, "-o", tmp_path / "store")
    assert "has no `.wandb` files, and no event files" in message
    message = error(capsys, "import", tmp_path / "x", "-o", tmp_path / "store")
    assert "there is nothing at" in message


def test_names_of_imported_runs_stay_in_the_store(capsys, tmp_path):
    from lox.cli.import_ import _run_name

    assert _run_name("../../x") == "x" and _run_name("a/b\\c\0d") == "a-b-c-d"
    assert _run_name("..") == _run_name("") == "run"
    assert _run_name("~") == "run" and len(_run_name("x" * 999)) == 120


def test_malformed_protocol_buffers_are_errors():
    for message in b"\x08", b"\x0a\x05ab", b"\x0b", b"\x08" + b"\xff" * 11:
        with pytest.raises(ValueError):
            grouped(message)
    assert to_signed(grouped(b"\x10" + b"\xff" * 9 + b"\x01")[2][0]) == -1


def test_exported_runs_keep_rows_of_a_resumed_run(capsys, tmp_path):
    save_run(tmp_path / "s", 0, rows=2)
    logger = lox.loggers.SaveLogger(tmp_path / "s", exists="resume")
    state = logger.init(0)
    logger.log(state, {"loss": 7.0}, step=1)
    logger.finish(state)
    path = tmp_path / "x.jsonl"
    output(capsys, "export", tmp_path / "s", "--to", "jsonl", "-o", path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows] == [(0, 1), (1, 0.5), (1, 7)]


def test_tensorboard_export_has_a_curve_per_lane_and_process(capsys, tmp_path):
    """Processes of a job may log the same key, and the same lanes."""
    for process, where in enumerate(("run", "run/process-1")):
        for step in range(2):
            value = 10.0 * process + step
            lox.save(lox.logdict({"y": value}, {"step": {"y": step}}), tmp_path / where)
            for lane in range(2):
                steps = {"step": {"x": step}, "lane": {"x": lane}}
                logs = lox.logdict({"x": value + 100 * lane}, steps)
                lox.save(logs, tmp_path / where)
    target = tmp_path / "events"
    output(capsys, "export", tmp_path / "run", "--to", "tensorboard", "-o", target)
    output(capsys, "import", target, "-o", tmp_path / "imported")
    logs = lox.load(tmp_path / "imported" / "run")
    expected = {f"y/process_{p}": [10 * p, 10 * p + 1] for p in range(2)}
    for p, lane in itertools.product(range(2), range(2)):
        first = 10 * p + 100 * lane
        expected[f"x/process_{p}/lane_{lane}"] = [first, first + 1]
    assert {name: value.tolist() for name, value in logs.items()} == expected


# --- columns of several dtypes, and names ------------------------------------------


def export_runs(tmp_path, *values):
    """Saves a run per value of the key `k`; the arguments that export them."""
    for i, value in enumerate(values):
        lox.save({"k": value}, tmp_path / "store" / f"run-{i}")
    return "export", tmp_path / "store", "--to", "parquet", "-o", tmp_path / "x"


@pytest.mark.parametrize(
    "values, dtype",
    [
        ((np.int64(2), np.float32(0.5)), "double"),
        ((np.int64(2**53 + 1), np.bool_(True)), "int64"),
        ((np.int64(2**62 + 1), np.uint64(7)), "int64"),
        ((np.int64(7), np.uint64(2**64 - 1)), "uint64"),
        ((np.bool_(True), ml_dtypes.bfloat16(0.5)), "double"),
        ((np.bool_(True), ml_dtypes.int4(3)), "int64"),
        ((ml_dtypes.float8_e5m2(0.5), ml_dtypes.bfloat16(float("inf"))), "double"),
        ((np.float16(0.5), np.float32(0.1)), "float"),
        ((1j, 2j), "string"),
    ],
    ids=str,
)
def test_export_parquet_of_several_dtypes_is_exact(capsys, tmp_path, values, dtype):
    parquet = pytest.importorskip("pyarrow.parquet")
    output(capsys, *export_runs(tmp_path, *values))
    column = parquet.read_table(tmp_path / "x").column("k")
    assert str(column.type) == dtype
    if dtype != "string":
        expected = [x.item() if x.dtype.isbuiltin == 1 else float(x) for x in values]
        assert column.to_pylist() == expected


@pytest.mark.parametrize(
    "values, why",
    [
        ((np.int64(2**53 + 1), 0.5), "integers that a float64 rounds"),
        ((np.int64(-1), np.uint64(2**64 - 1)), "integers of no common dtype"),
        ((1.0, np.arange(3)), "scalars and arrays"),
        ((1.0, 1j), "real and complex numbers"),
        ((np.ones(2), np.full(2, 1j)), "real and complex numbers"),
        ((np.ones(2), np.ones((2, 2))), "cannot mix list and non-list"),
        ((np.array([2**53 + 1]), np.array([0.5])), "9007199254740993"),
    ],
    ids=str,
)
def test_export_parquet_refuses_what_one_column_cannot_hold(
    capsys, tmp_path, values, why
):
    pytest.importorskip("pyarrow")
    message = error(capsys, *export_runs(tmp_path, *values))
    assert "'k' cannot be one column of a Parquet file" in message and why in message
    assert "Export the runs separately" in message and "csv or jsonl" in message
    assert not (tmp_path / "x").exists()


def test_export_parquet_of_narrow_and_masked_arrays_keeps_nan(capsys, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    narrow = np.array([0.5, np.inf], ml_dtypes.bfloat16)
    lox.save({"narrow": narrow}, tmp_path / "store" / "a")

    def program(x):
        lox.log({"lanes": jax.numpy.log(x)}, when=x != 1)

    logs = lox.spool(jax.vmap(program))(jax.numpy.arange(3.0))[1]
    lox.save(logs, tmp_path / "store" / "b")
    path = tmp_path / "x"
    output(capsys, "export", tmp_path / "store", "--to", "parquet", "-o", path)
    table = parquet.read_table(path)
    assert table.column("narrow").to_pylist() == [[0.5, np.inf], None]
    (lanes,) = filter(None, table.column("lanes").to_pylist())
    assert lanes == [-np.inf, None, 0.6931472]


@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_export_escapes_names_that_are_not_valid_unicode(capsys, tmp_path, to):
    if to == "parquet":
        pytest.importorskip("pyarrow")
    logs = {"a\ud800": 1.0, "a\\ud800": 2.0}
    lox.save(logs, tmp_path / "store" / "run")
    output(capsys, "export", tmp_path / "store", "--to", to, "-o", tmp_path / "x")
    if to == "csv":
        (row,) = csv.DictReader((tmp_path / "x").read_text().splitlines())
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        (row,) = parquet.read_table(tmp_path / "x").to_pylist()
    assert list(row) == ["run", "a\\ud800", "a\\ud800.2"]
    assert [float(x) for x in list(row.values())[1:]] == [1, 2]


def test_export_to_a_dash_writes_to_stdout(capsys, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for to in "csv", "jsonl":
        output(capsys, "export", store, "--to", to, "-o", "x", "--force")
        text = output(capsys, "export", store, "--to", to, "-o", "-")
        assert text == (tmp_path / "x").read_text()
    for to in "parquet", "tensorboard":
        message = error(capsys, "export", store, "--to", to, "-o", "-")
        assert "`-o -` is stdout, which is only for csv and jsonl" in message
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
