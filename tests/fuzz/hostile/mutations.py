"""Damages files: their bytes, the content of files with checksums, and their type."""

import json
import os
import pathlib
import random
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from lox._event_files.event_file import masked_crc
from lox._store.times import ENTRY, TIMES

ODD_NUMBERS = (
    0,
    -1,
    1,
    2**31,
    2**32 - 1,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    10**400,
    -(10**30),
    1.5,
    -0.0,
    1e308,
    5e-324,
    float("nan"),
    float("inf"),
    float("-inf"),
)
ODD_TEXTS = (
    "",
    ".",
    "..",
    "../../secret",
    "a/b",
    "a\\b",
    "\0",
    "\n\r\t\x1b[31m\x07",
    "\ud800",
    "\u202e\u200b\ufeff",
    "é" * 50,
    "x" * 100_000,
    "nan",
    "1e999",
    "__class__",
    "__import__('os').abort()",
    "<script>alert(1)</script>",
    "{}{0.__class__}%s%n",
    "[*?",
    "-k",
    "=1+1",
)
_ODD_BYTES = (
    b"",
    b"\0" * 64,
    b"\xff" * 64,
    b"\xed\xa0\x80\xc0\xaf\xf5\x80",
    b"\xef\xbb\xbf",
    b"NaN",
    b"-1",
    b"9" * 500,
    b"[" * 20_000,
    b"{'a': __import__('os').abort()}",
    struct.pack("<q", -1),
    struct.pack("<Q", 2**63),
    struct.pack("<d", float("nan")),
    b"\x80\x04cos\nabort\n(tR.",  # a pickle that would end the process
)


def odd_value(rng: random.Random, depth: int = 0) -> Any:
    """A JSON value that a program does not expect."""
    kind = rng.randrange(8 if depth < 3 else 4)
    if kind < 2:
        return rng.choice(ODD_NUMBERS)
    if kind == 2:
        return rng.choice(ODD_TEXTS)
    if kind == 3:
        return rng.choice((None, True, False, [], {}))
    if kind == 4:
        return [odd_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 5:
        return {
            rng.choice(ODD_TEXTS): odd_value(rng, depth + 1)
            for _ in range(rng.randrange(3))
        }
    nested: Any = 0
    for _ in range(rng.choice((5, 100, 300))):
        nested = [nested] if kind == 6 else {"a": nested}
    return nested


# --- bytes -----------------------------------------------------------------


def damaged(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """The same bytes with a change at a random place."""
    changed = bytearray(data)
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 4, 8, 100, 10_000)))
    kind = rng.randrange(7)
    if kind == 0:
        for _ in range(rng.choice((1, 1, 3, 50))):
            if changed:
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del changed[at:]
    elif kind == 2:
        del changed[at:end]
    elif kind == 3:
        changed[at:end] = rng.choice(_ODD_BYTES)
    elif kind == 4:
        changed[at:at] = changed[at:end] * rng.choice((1, 3))
    elif kind == 5:
        other = rng.choice(others)
        start = rng.randrange(len(other) + 1)
        changed[at:end] = other[start : start + rng.choice((4, 100, 10_000))]
    else:
        changed[at:end] = rng.randbytes(end - at)
    return bytes(changed)


# --- content, with checksums that match --------------------------------------


def damaged_content(path: pathlib.Path, data: bytes, rng: random.Random) -> bytes:
    """Changes what a file says but not its form; other files are returned as is."""
    if path.suffix == ".json":
        return _damaged_json(data, rng)
    if path.name == TIMES:
        return _damaged_times(data, rng)
    if "tfevents" in path.name:
        return _damaged_events(data, rng)
    if path.suffix == ".wandb":
        return _damaged_wandb(data, rng)
    return data


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All containers in a JSON value, each with one of its keys or indices."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _damaged_json(data: bytes, rng: random.Random) -> bytes:
    try:
        whole = json.loads(data)
    except ValueError:  # already damaged
        return data
    inner = whole.get("content") if isinstance(whole, dict) else None
    content = {"content": whole if inner is None else inner}
    twice = ""
    for _ in range(rng.choice((1, 1, 2))):
        holder, key = rng.choice(list(_places(content)))
        kind = rng.randrange(5)
        if kind == 0 and holder is not content:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict) and holder is not content:
            holder[rng.choice(ODD_TEXTS)] = holder.pop(key)
        elif kind == 2 and isinstance(holder[key], str):
            # also a schema that is text
            text = holder[key].encode("utf-8", "surrogatepass")
            holder[key] = damaged(text, rng, [data]).decode("utf-8", "surrogateescape")
        elif kind == 3:
            twice = f'"{rng.choice(("version", "name", "schema"))}": -1, '
        else:
            holder[key] = odd_value(rng)
    text = json.dumps(content["content"], sort_keys=True)
    checksum = zlib.crc32(text.encode())
    if twice and text.startswith("{") and len(text) > 2:
        text = "{" + twice + text[1:]  # the later one counts
    if inner is None:
        return text.encode()
    return f'{{"crc32": {checksum}, "content": {text}}}'.encode()


def _damaged_times(data: bytes, rng: random.Random) -> bytes:
    size = ENTRY.itemsize
    entries = [data[i : i + size] for i in range(0, len(data) // size * size, size)]
    if not entries:
        return data
    odd = rng.choice((0.0, -1.0, 1e308, -1e308, float("nan"), float("inf"), 4e9))
    number = rng.choice((0, 1, 2**63, 2**64 - 1))
    at = rng.randrange(len(entries))
    checked = entries[at][:16]
    if rng.random() < 0.5:
        checked = checked[:8] + struct.pack("<d", odd)
    else:
        checked = struct.pack("<Q", number) + checked[8:]
    entries[at] = checked + struct.pack("<Q", zlib.crc32(checked))
    if rng.random() < 0.3:
        rng.shuffle(entries)
    return b"".join(entries * rng.choice((1, 1, 50)))


def _message(rng: random.Random, message: bytes) -> bytes:
    """A protocol buffer with another field, or with damaged bytes."""
    if rng.random() < 0.5:
        return damaged(message, rng, [message])
    field = rng.choice((1, 2, 5, 8, 16, 17))
    kind = rng.choice((0, 1, 2, 5))
    value = {
        0: rng.choice((b"\0", b"\xff" * 9 + b"\x01", b"\xff" * 20)),
        1: struct.pack("<d", rng.choice((0.0, 1e300, float("nan"), float("-inf")))),
        2: rng.choice((b"\0", b"\x05hello", b"\xff\xff\xff\xff\x0f", b"\x02\x08\x01")),
        5: struct.pack("<f", float("nan")),
    }[kind]
    tag = field << 3 | kind
    head = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    return head + value + message if rng.random() < 0.5 else message + head + value


def _damaged_events(data: bytes, rng: random.Random) -> bytes:
    records, at = [], 0
    while at + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        records.append(data[at + 12 : at + 12 + size])
        at += 16 + size
    if not records:
        return data
    chosen = rng.randrange(len(records))
    records[chosen] = _message(rng, records[chosen])
    parts = []
    for i, record in enumerate(records):
        wrong = rng.choice((2**62, 2**40, 0)) if rng.random() < 0.3 else len(record)
        length = struct.pack("<Q", wrong if i == chosen else len(record))
        checks = (struct.pack("<I", masked_crc(x)) for x in (length, record))
        parts += [length, next(checks), record, next(checks)]
    return b"".join(parts)


def _damaged_wandb(data: bytes, rng: random.Random) -> bytes:
    records, at = [], 7
    while at + 7 <= len(data):
        _, size, kind = struct.unpack_from("<IHB", data, at)
        records.append((kind, data[at + 7 : at + 7 + size]))
        at += 7 + size
    if not records:
        return data
    chosen = rng.randrange(len(records))
    kind, record = records[chosen]
    kind = rng.choice((kind, kind, 1, 2, 3, 4, 0, 200))
    records[chosen] = kind, _message(rng, record)[:65_535]
    return data[:7] + b"".join(
        struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([k]))), len(part), k)
        + part
        for k, part in records
    )


# --- files -------------------------------------------------------------------


def damage_files(directory: pathlib.Path, rng: random.Random) -> list[str]:
    """Damages a few files of a directory; says which, and how."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    done: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 4)) if files else 0):
        path = rng.choice(files)
        kind = rng.randrange(5)
        name = str(path.relative_to(directory))
        if kind == 0:
            change = rng.choice(_CHANGES)
            change(path, rng.choice(files), rng)
            done.append(f"{name}: {change.__name__[1:]}")
        elif _is_small(path):
            data = path.read_bytes()
            if kind == 1:
                others = [x.read_bytes() for x in files if _is_small(x)]
                data = damaged(data, rng, others)
            else:
                data = damaged_content(path, data, rng)
            path.write_bytes(data)
            done.append(f"{name}: {'bytes' if kind == 1 else 'content'}")
    return done


def _is_small(path: pathlib.Path) -> bool:
    """Whether it is a file, and not one of the sparse ones."""
    is_regular = path.is_file() and not path.is_symlink()
    return is_regular and path.stat().st_size < 2**24


def _remove(path: pathlib.Path, other: pathlib.Path, rng: random.Random) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _rename(path: pathlib.Path, other: pathlib.Path, rng: random.Random) -> None:
    names = (other.name, "writer-0009", "0009.npy", "é\udcff.json", "~", ".hidden")
    target = path.with_name(rng.choice(names))
    if os.path.lexists(path) and not target.is_dir():
        path.rename(target)


def _copy(path: pathlib.Path, other: pathlib.Path, rng: random.Random) -> None:
    if path.is_file() and other.is_file() and not path.samefile(other):
        shutil.copyfile(other, path)


def _directory(path: pathlib.Path, other: pathlib.Path, rng: random.Random) -> None:
    _remove(path, other, rng)
    if path.parent.is_dir():
        path.mkdir(exist_ok=True)


def _pipe(path: pathlib.Path, other: pathlib.Path, rng: random.Random) -> None:
    _remove(path, other, rng)
    if path.parent.is_dir():
        os.mkfifo(path)


def _link(path: pathlib.Path, other: pathlib.Path, rng: random.Random) -> None:
    targets = ("/dev/zero", "/dev/null", "missing", path.name, ".", "..", str(other))
    _remove(path, other, rng)
    if path.parent.is_dir():
        path.symlink_to(rng.choice(targets))


def _linked_directory(
    path: pathlib.Path, other: pathlib.Path, rng: random.Random
) -> None:
    """A directory that contains itself."""
    loop = path.parent / "loop"
    if path.parent.is_dir() and not os.path.lexists(loop):
        loop.symlink_to(rng.choice((".", "..", "../..")))


def _sparse(path: pathlib.Path, other: pathlib.Path, rng: random.Random) -> None:
    """A file of many gigabytes, all zeros after its content, and on disk no larger."""
    if path.is_file() and not path.is_symlink():
        os.truncate(path, rng.choice((2**33, 2**40)))


_CHANGES: tuple[Callable[..., None], ...] = (
    _remove,
    _rename,
    _copy,
    _directory,
    _pipe,
    _link,
    _linked_directory,
    _sparse,
)
