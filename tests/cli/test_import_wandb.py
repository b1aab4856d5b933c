"""`lox import` of W&B's files: media, and runs that consist of several files."""

import json
import shutil
import struct
import zlib

import lox.cli

from .test_ls import output


def field(number, value):
    """One field of a protocol buffer: an integer, text or a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def varint(number):
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def history(step, values):
    """A row; names are keys, or paths of nested keys."""
    items = b""
    for name, value in values.items():
        key = field(1, name) if isinstance(name, str) else b""
        nested = b"" if key else b"".join(field(2, part) for part in name)
        items += field(1, key + nested + field(16, json.dumps(value)))
    return field(2, items + field(2, field(1, step)))


def write_wandb(
    path, rows, started, run="id", project="p", config=None, name="n", metrics=()
):
    """Writes a `.wandb` file whose rows are pairs of a step and its values.

    `metrics` are pairs of a metric, or a pattern, and its step metric.
    """
    items = b"".join(
        field(1, field(1, key) + field(16, json.dumps(value)))
        for key, value in (config or {}).items()
    )
    head = field(1, run) + field(3, project) + field(4, items) + field(8, name)
    records = [field(17, head + field(17, field(1, started)))]
    for metric, step in metrics:
        named = field(2 if metric.endswith("*") else 1, metric)
        records.append(field(12, named + (field(4, step) if step else b"")))
    records += [history(step, values) for step, values in rows]
    records.append(field(18, field(1, 0)))
    data = b":W&B\xe1\xbe\x00"
    for record in records:
        checksum = zlib.crc32(record, zlib.crc32(b"\x01"))
        data += struct.pack("<IHB", checksum, len(record), 1) + record
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_import_skips_media_of_wandb(capsys, tmp_path):
    image = {"_type": "image-file", "width": 4, "size": 90, "path": "media/x.png"}
    nested = {("img", name): value for name, value in image.items()}
    inner = {("a", "b", name): value for name, value in image.items()}
    rows = [
        (0, {"loss": 1.0, **nested}),
        (1, {"loss": 2.0, "img": image, ("a", "c"): 3, **inner}),
    ]
    write_wandb(tmp_path / "run.wandb", rows, started=100)
    command = ["import", str(tmp_path / "run.wandb"), "-o", str(tmp_path / "store")]
    assert lox.cli.main(command) == 0
    assert "not imported, since they are not numbers: 3 values" in (
        capsys.readouterr().err
    )
    (run,) = lox.runs(tmp_path / "store")
    logs = {name: values.tolist() for name, values in run.load().items()}
    assert logs == {"loss": [1.0, 2.0], "a/c": [3]}


def test_import_uses_step_metrics_of_wandb(capsys, tmp_path):
    rows = [
        (0, {"loss": 1.0, "val/loss": 3.0, "step": 0, "epoch": 0.5, "data": 7}),
        (1, {"loss": 2.0, "val/loss": 4.0, "step": 10, "epoch": 1.5, "data": 8}),
        (2, {"only": 5.0, "other": 6.0, "epoch": 2.5, "val/sometimes": 1}),
        (3, {"val/sometimes": 2}),
    ]
    metrics = [
        ("val/*", "epoch"),
        ("loss", "step"),
        ("epoch", ""),
        ("only", "only"),
        ("other", "data"),
        ("val/reserved", "data"),
    ]
    rows[1][1]["val/reserved"] = 9
    path = tmp_path / "run.wandb"
    write_wandb(path, rows, started=100, metrics=metrics)
    output(capsys, "import", path, "-o", tmp_path / "store")
    (run,) = lox.runs(tmp_path / "store")
    logs = run.load()
    steps = {
        (name, key): values.tolist()
        for name, by_key in logs.steps.items()
        for key, values in by_key.items()
    }
    assert steps == {
        ("step", "loss"): [0, 10],
        ("epoch", "val/loss"): [0.5, 1.5],
        # there are rows of these without their step metric
        ("step", "other"): [2],
        ("step", "val/sometimes"): [2, 3],
        ("step", "only"): [2],
        # `logs.data` has another meaning
        ("step", "val/reserved"): [8],
        # these are not only steps of other keys
        ("step", "epoch"): [0, 1, 2],
        ("step", "data"): [0, 1],
    }
    assert logs["val/loss"].tolist() == [3.0, 4.0]


def test_import_joins_wandb_files_of_one_run(capsys, tmp_path):
    # the names are not in the order of the times
    for file, started, first in (("b", 100, 0), ("a", 200, 3), ("c", 300, 5)):
        rows = [(first + i, {"loss": first + i}) for i in range(2)]
        config = {"lr": 0.1, file: started}
        path = tmp_path / "wandb" / file / "run-id.wandb"
        write_wandb(path, rows, started, config=config)
    write_wandb(tmp_path / "wandb" / "other.wandb", [(0, {"x": 1})], 50, run="other")
    store = tmp_path / "store"
    found = json.loads(
        output(capsys, "import", tmp_path / "wandb", "-o", store, "--json")
    )["runs"]
    assert [(run["name"], run["rows"]) for run in found] == [
        ("n-other", 1),
        ("n-id", 6),
    ]
    run = lox.runs(store)[-1]
    assert run.started == 100 and run.status == "finished"
    assert run.config == {"lr": 0.1, "b": 100, "a": 200, "c": 300}
    assert run.load()["loss"].tolist() == [0, 1, 3, 4, 5, 6]
    assert run.load().step["loss"].tolist() == [0, 1, 3, 4, 5, 6]
    # all of it is replaced
    output(capsys, "import", tmp_path / "wandb", "-o", store, "--force")
    assert lox.runs(store)[-1].load()["loss"].tolist() == [0, 1, 3, 4, 5, 6]


def test_import_of_copies_of_a_wandb_file_has_each_row_once(capsys, tmp_path):
    write_wandb(tmp_path / "w" / "run.wandb", [(0, {"loss": 1.0})], 100)
    shutil.copyfile(tmp_path / "w" / "run.wandb", tmp_path / "w" / "copy.wandb")
    (tmp_path / "link").symlink_to(tmp_path / "w")
    paths = tmp_path / "w", tmp_path / "link", tmp_path / "w" / "run.wandb"
    output(capsys, "import", *paths, "-o", tmp_path / "store")
    (run,) = lox.runs(tmp_path / "store")
    assert run.load()["loss"].tolist() == [1.0]


def test_import_does_not_join_wandb_runs_of_different_projects(capsys, tmp_path):
    for project in "pq":
        path = tmp_path / "w" / f"{project}.wandb"
        write_wandb(path, [(0, {"loss": 1.0})], 100, project=project)
    command = ["import", str(tmp_path / "w"), "-o", str(tmp_path / "store")]
    for options in [], ["--force"]:
        assert lox.cli.main([*command, *options]) == 1
        message = capsys.readouterr().err
        assert "q.wandb is another run of the name 'n-id'" in message
        assert len(lox.runs(tmp_path / "store")) == 1


def test_import_reports_unreadable_wandb_file_beside_others(capsys, tmp_path):
    write_wandb(tmp_path / "w" / "run.wandb", [(0, {"loss": 1.0})], 100)
    (tmp_path / "w" / "other.wandb").write_bytes(b"other")
    command = ["import", str(tmp_path / "w"), "-o", str(tmp_path / "store")]
    assert lox.cli.main(command) == 1
    assert "is not a file of an offline run" in capsys.readouterr().err
    assert len(lox.runs(tmp_path / "store")) == 1
