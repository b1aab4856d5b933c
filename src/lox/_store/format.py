"""The store: runs on disk that survive anything, and that NumPy can read.

The format is specified in `docs/store.md`. In short: a run is a directory with a JSON
file about it and a directory for each writer. A writer has a segment for each schema:
records of one size that are only ever appended, and a JSON file that says what they
mean, written before the first of them. How many records there are follows from the
file's size. So nothing that was written once can be lost by what comes later, and a
record that was cut off is not counted.
"""

import contextlib
import json
import os
import pathlib
import re
import stat
import threading
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from lox._arrays import imported_jax, leaves_of, structure_of
from lox._errors import StoreError

VERSION = 1
RUN_FILE = "run.json"
WRITER = re.compile(r"writer-(\d{4,})")
FINISHED = re.compile(r"writer-(\d{4,})\.json")  # what a writer says at its end
SEGMENT = re.compile(r"(\d{4,})\.json")
TEMPORARY = "~"  # how the name of a file ends that is not whole yet
# More than any description of a run or of records. A few bytes of JSON can become a
# hundred of Python's objects, so what is in the text is counted before it is parsed.
_MAX_JSON_BYTES = 2**25
_MAX_JSON_CONTAINERS = 2**20
_MAX_JSON_STRINGS = 2**22
_MAX_JSON_VALUES = 2**21
_MAX_JSON_DEPTH = 2000
# a position in a segment, the number of the event there in its writer, and a checksum
PLACE = np.dtype([("row", "<u8"), ("number", "<u8"), ("crc32", "<u8")])


# --- files -------------------------------------------------------------------


def file_size(path: pathlib.Path) -> int:
    """Of a file such as lox makes: a link could lead anywhere, a pipe never ends."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path} is no plain file, and is not read.")
    return status.st_size


def shown(path: pathlib.Path) -> str:
    """A path as a person reads it: from where they are, if it is below."""
    with contextlib.suppress(OSError, ValueError):
        return str(path.relative_to(pathlib.Path.cwd()))
    return str(path)


def write_json(path: pathlib.Path, content: Any, new: bool = False) -> None:
    """Writes a file that is there as a whole, or not at all.

    Args:
        path: where.
        content: what.
        new: whether to raise `FileExistsError` if there is such a file.
    """
    # as it will be read: numbers that are keys become text, which sorts differently
    content = json.loads(json.dumps(content))
    whole = json.dumps({"crc32": _checksum(content), "content": content})
    excess = _excess(whole.encode())
    if excess:  # nobody could read it
        raise StoreError(
            f"{shown(path)} cannot be written: it would have {excess}. Keep large "
            "arrays in files of their own, and not in a config."
        )
    temporary = path.with_name(
        f"{path.name}.{os.getpid()}.{threading.get_ident()}{TEMPORARY}"
    )
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())
        if new:
            _rename_new(temporary, path)
        else:
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _rename_new(old: pathlib.Path, new: pathlib.Path) -> None:
    try:
        os.link(old, new)  # which alone of all ways replaces nothing
    except FileExistsError:
        raise
    except OSError:  # there are file systems without
        os.replace(old, new)
    else:
        old.unlink()


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads what `write_json` wrote; `FileNotFoundError` if there is nothing."""
    try:
        size = min(file_size(path), _MAX_JSON_BYTES + 1)
        with open(path, "rb") as file:
            raw = file.read(size)
        excess = _excess(raw)
        if excess:
            raise _damaged(path, f"it has {excess}, and none of lox's files has")
        whole = json.loads(raw.decode("utf-8"))
        content, crc = whole["content"], whole["crc32"]
        fits = _checksum(content) == crc
    except (FileNotFoundError, StoreError):
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error
    except (
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
        MemoryError,
    ) as error:
        raise _damaged(path, f"it cannot be read: {error!r:.200}") from None
    if not fits:
        raise _damaged(path, "its checksum does not fit")
    version = content.get("version") if type(content) is dict else None
    if type(version) is not int or version < 1:
        raise _damaged(path, "it does not say its format")
    if version > VERSION:
        raise StoreError(
            f"{path} has the format {version}, and this lox knows those up to "
            f"{VERSION}. Update jax-lox to read it."
        )
    return content


def _excess(text: bytes) -> str:
    """What JSON has more of than any of lox's files; empty if there is no such thing.

    It takes memory in proportion to the text, whatever is in it.
    """
    if len(text) > _MAX_JSON_BYTES:
        return f"more than {_MAX_JSON_BYTES} bytes"
    if text.count(b'"') > 2 * _MAX_JSON_STRINGS:
        return f"more than {_MAX_JSON_STRINGS} strings"
    marks = _STRING.sub(b"", text).translate(None, _NO_MARKS)
    if marks.count(b",") > _MAX_JSON_VALUES:
        return f"more than {_MAX_JSON_VALUES} values"
    brackets = np.frombuffer(marks.replace(b",", b""), np.uint8)
    if len(brackets) > 2 * _MAX_JSON_CONTAINERS:
        return f"more than {_MAX_JSON_CONTAINERS} lists and dicts"
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    depth = np.cumsum(np.where(opening, 1, -1).astype(np.int32))
    if depth.size and depth.max() > _MAX_JSON_DEPTH:
        return f"lists and dicts more than {_MAX_JSON_DEPTH} deep"
    return ""


# A string, or the beginning of one at the end. Possessive, and never without a match,
# so that no text takes longer than its length.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NO_MARKS = bytes(set(range(256)) - set(b"[]{},"))


def _damaged(path: pathlib.Path, why: str) -> StoreError:
    remedy = ""
    if path.name == RUN_FILE:
        remedy = " Restore it, or remove it: appending makes another, and rows stay."
    return StoreError(f"{path} is damaged: {why}.{remedy}")


def _checksum(content: Any) -> int:
    return zlib.crc32(json.dumps(content, ensure_ascii=True, sort_keys=True).encode())


def place_of(row: int, number: int) -> bytes:
    """An entry of a `.places` file."""
    place = np.array([(row, number, 0)], PLACE)
    place["crc32"] = zlib.crc32(place.tobytes()[:_CHECKED])
    return place.tobytes()


def read_places(
    path: pathlib.Path, last: bool = False, limit: int | None = None
) -> Any:
    """The whole entries of a `.places` file, in their order.

    Args:
        path: the file; there is nothing in one that does not exist.
        last: whether to read the last entry alone.
        limit: how many to read at most, whatever the size of the file.
    """
    try:
        count = file_size(path) // PLACE.itemsize
        count = count if limit is None else min(count, limit)
        first = max(count - 1, 0) if last else 0
        with open(path, "rb") as file:
            file.seek(first * PLACE.itemsize)
            raw = file.read((count - first) * PLACE.itemsize)
    except FileNotFoundError:
        raw = b""
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error
    places = np.frombuffer(raw, PLACE)
    starts = range(0, len(raw), PLACE.itemsize)
    checksums = [zlib.crc32(raw[i : i + _CHECKED]) for i in starts]
    rows = places["row"]
    if places["crc32"].tolist() != checksums or (rows[1:] < rows[:-1]).any():
        raise StoreError(f"{path} is damaged: its checksums do not fit.")
    return places


_CHECKED = 16  # bytes of a place: all but the checksum itself


# --- structures --------------------------------------------------------------


def describe_tree(value: Any) -> str:
    """The structure of a value as JSON, with the numbers of its leaves.

    Dicts, lists, tuples and None come back as they are; of every other kind of node,
    its children do, by name.
    """
    tree = structure_of(value)
    return json.dumps(_describe(tree.unflatten(list(range(tree.num_leaves)))))


def _describe(node: Any) -> Any:
    if node is None or type(node) is int:
        return node
    if type(node) is dict:
        return {"dict": [[_name(key), _describe(x)] for key, x in node.items()]}
    if type(node) in (list, tuple):
        return {type(node).__name__: [_describe(x) for x in node]}
    jax = imported_jax()
    children, _ = jax.tree_util.tree_flatten_with_path(
        node, is_leaf=lambda x: x is not node
    )
    labels = [_label(*path) for path, _ in children]
    if len(set(labels)) < len(labels):
        labels = [jax.tree_util.keystr(path) for path, _ in children]
    pairs = zip(labels, children, strict=True)
    return {"dict": [[label, _describe(child)] for label, (_, child) in pairs]}


def _name(key: Any) -> Any:
    return key if isinstance(key, str | int | float | bool) else str(key)


def _label(entry: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def build_tree(description: str, leaves: Sequence[Any]) -> Any:
    return _build(json.loads(description), leaves)


def leaf_order(description: str, count: int) -> list[int]:
    """Which leaf is where in what `build_tree` builds; each of `count` is once."""
    excess = _excess(description.encode(errors="replace"))
    if excess:
        raise StoreError(f"{description[:80]!r} is no structure: it has {excess}")
    try:
        order: list[int] = leaves_of(build_tree(description, range(count)))
        if sorted(order) == list(range(count)):
            return order
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        pass
    raise StoreError(f"{description[:80]!r} is no structure of {count} leaves")


def _build(node: Any, leaves: Sequence[Any]) -> Any:
    if node is None:
        return None
    if type(node) is int and node >= 0:
        return leaves[node]
    ((kind, children),) = node.items()
    if kind == "dict":
        return {key: _build(x, leaves) for key, x in children}
    built = [_build(x, leaves) for x in children]
    return {"list": built, "tuple": tuple(built)}[kind]


def npy_header(dtype: np.dtype[Any], length: int) -> bytes:
    """The head of a `.npy` file, of a size that does not depend on the length."""
    descr = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': ({length:20d},), }}"
    size = -(-(len(text) + 1 + 12) // 64) * 64
    text = text.ljust(size - 12 - 1) + "\n"
    return b"\x93NUMPY\x02\x00" + (size - 12).to_bytes(4, "little") + text.encode()
