"""The files of a store: JSON, `.places` files and the headers of `.npy` files.

The format is specified in `docs/store.md`. In short: a run is a directory with a JSON
file that describes it, and one directory per writer. A writer has one segment per
schema: a `.npy` file of fixed-size records, which is only appended to, and a JSON file
that describes the records, which is written first. The number of records follows from
the size of the file. So later writes cannot damage earlier records, and a truncated
record is not counted.
"""

import contextlib
import json
import os
import pathlib
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lox._arrays import imported_jax, leaves_of, structure_of
from lox._errors import StoreError

from .local_files import TEMPORARY as TEMPORARY, temporary_name
from .locations import Location, location_of

VERSION = 1
RUN_FILE = "run.json"
WRITER = re.compile(r"writer-(\d{4,})")
FINISHED = re.compile(
    r"writer-(\d{4,})\.json"
)  # the list that a finished writer leaves
# the files of a writer in its run: its directory, the list that it leaves when it has
# finished, and the file that says that it is open
WRITER_FILE = re.compile(r"writer-(\d{4,})(|\.json|\.open\.json)")
SEGMENT = re.compile(r"(\d{4,})\.json")
COPIED = "copied.json"  # in a copy: what has been copied so far of a writer
# all files in the directory of a writer
SEGMENT_FILE = re.compile(
    r"\d{4,}\.(npy|places|json(\..*~)?)|copied\.json(\..*~)?|times"
)
# Larger than any description of a run or of records. A few bytes of JSON can become a
# hundred Python objects, so the text is checked before it is parsed.
_MAX_JSON_BYTES = 2**25
_MAX_JSON_CONTAINERS = 2**20
_MAX_JSON_STRINGS = 2**22
_MAX_JSON_VALUES = 2**21
_MAX_JSON_DEPTH = 2000
# the index of a record in its segment, the number of its event in the writer's order,
# and a checksum
PLACE = np.dtype([("row", "<u8"), ("number", "<u8"), ("crc32", "<u8")])


# --- files -------------------------------------------------------------------


def display_path(path: pathlib.Path) -> str:
    """A path for messages: relative, if it is below the working directory."""
    with contextlib.suppress(OSError, ValueError):
        return str(path.relative_to(pathlib.Path.cwd()))
    return str(path)


def numbered(names: Iterable[str], pattern: re.Pattern[str]) -> list[tuple[int, str]]:
    """The names that match a pattern, in the order of their numbers."""
    matches = (pattern.fullmatch(name) for name in names)
    return sorted((int(match[1]), match[0]) for match in matches if match)


def write_json(path: pathlib.Path, content: Any, new: bool = False) -> None:
    """Writes a JSON file atomically, with a checksum.

    A file that replaces another one is flushed to disk first. If the machine
    crashes shortly after, a new one may be lost, or be left empty (`is_empty`).

    Args:
        path: the path of the file.
        content: the JSON content.
        new: whether to raise `FileExistsError` if the file exists.
    """
    text = format_json(content)
    excess = _excess(text)
    if excess:  # `read_json` would refuse it
        raise StoreError(
            f"{display_path(path)} cannot be written: it would have {excess}. Save "
            "large arrays in separate files, not in a config."
        )
    name = os.fspath(path)
    temporary = temporary_name(name)
    try:
        with open(temporary, "wb") as file:
            file.write(text)
            if not new and os.path.exists(name):
                file.flush()
                os.fsync(file.fileno())
        if new:
            _rename_new(temporary, name)
        else:
            os.replace(temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def format_json(content: Any) -> bytes:
    """The bytes of a JSON file, with a checksum."""
    plain = json.dumps(content)
    # as it will be read: integer keys become strings, which are sorted differently
    crc = _checksum(json.loads(plain))
    return f'{{"crc32": {crc}, "content": {plain}}}'.encode()


def _rename_new(old: str, new: str) -> None:
    if is_empty(new):
        _remove_empty(new, f"{old}{TEMPORARY}")
    try:
        os.link(old, new)  # unlike a rename, this fails if `new` exists
    except FileExistsError:
        raise
    except OSError:  # some file systems have no hard links
        os.replace(old, new)
    else:
        os.unlink(old)


def is_empty(path: str | pathlib.Path | Location) -> bool:
    """Whether a JSON file has no content, which a crash of the machine can cause.

    `write_json` never leaves an empty file otherwise, so it counts as missing.
    """
    try:
        return location_of(path).size() == 0
    except (OSError, StoreError):
        return False


def _remove_empty(path: str, temporary: str) -> None:
    """Removes an empty file, but not the one with which another process replaces it."""
    with contextlib.suppress(FileNotFoundError):  # another process has removed it
        os.replace(path, temporary)
        if not is_empty(temporary):
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        os.unlink(temporary)


class reading:
    """A context that raises errors with the name of what cannot be read.

    A class, because a store may have thousands of files: a generator takes longer.
    """

    def __init__(self, path: Location) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        unexpected = isinstance(error, OSError | OverflowError | ValueError)
        if unexpected and not isinstance(error, StoreError):
            raise StoreError(f"{self._path} cannot be read: {error}.") from error


def read_json(path: pathlib.Path | Location) -> dict[str, Any]:
    """Reads a file written by `write_json`; raises if it is missing or damaged."""
    location = location_of(path)
    return parse_json(read_json_bytes(location), location)


def read_json_bytes(path: Location) -> bytes:
    """The bytes of a JSON file, or the first bytes of one that is too large."""
    try:
        return path.read(0, _MAX_JSON_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error


def parse_json(raw: bytes, path: Location) -> dict[str, Any]:
    """Parses the content of a file written by `write_json`; raises if it is damaged.

    Args:
        raw: the content.
        path: the file, for messages.
    """
    try:
        if not raw:
            raise _damaged(path, "it is empty, perhaps after a crash of the machine")
        excess = _excess(raw)
        if excess:
            raise _damaged(path, f"it has {excess}, unlike any file written by lox")
        parsed = json.loads(raw.decode("utf-8"))
        content, crc = parsed["content"], parsed["crc32"]
        is_intact = _checksum(content) == crc
    except StoreError:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
        MemoryError,
    ) as error:
        raise _damaged(path, f"it cannot be read: {error!r:.200}") from None
    if not is_intact:
        raise _damaged(path, "its checksum does not match")
    version = content.get("version") if type(content) is dict else None
    if type(version) is not int or version < 1:
        raise _damaged(path, "it has no format version")
    if version > VERSION:
        raise StoreError(
            f"{path} has the format version {version}, but this version of lox reads "
            f"formats up to {VERSION}. Update jax-lox to read it."
        )
    return content


def _excess(text: bytes) -> str:
    """Says which limit of the files of a store a JSON text exceeds; empty if none.

    Takes memory in proportion to the size of the text, whatever its content.
    """
    if len(text) < _MAX_JSON_DEPTH:  # too short to exceed a limit
        return ""
    if len(text) > _MAX_JSON_BYTES:
        return f"more than {_MAX_JSON_BYTES} bytes"
    if text.count(b'"') > 2 * _MAX_JSON_STRINGS:
        return f"more than {_MAX_JSON_STRINGS} strings"
    punctuation = _STRING.sub(b"", text).translate(None, _NO_PUNCTUATION)
    if punctuation.count(b",") > _MAX_JSON_VALUES:
        return f"more than {_MAX_JSON_VALUES} values"
    brackets = np.frombuffer(punctuation.replace(b",", b""), np.uint8)
    if len(brackets) > 2 * _MAX_JSON_CONTAINERS:
        return f"more than {_MAX_JSON_CONTAINERS} lists and dicts"
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    depth = np.cumsum(np.where(opening, 1, -1).astype(np.int32))
    if depth.size and depth.max() > _MAX_JSON_DEPTH:
        return f"lists and dicts nested more than {_MAX_JSON_DEPTH} deep"
    return ""


# A string, or an unterminated one at the end of the text. Possessive, and matching at
# every quote, so that the time is linear in the length of any text.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NO_PUNCTUATION = bytes(set(range(256)) - set(b"[]{},"))


def _damaged(path: Location, reason: str) -> StoreError:
    remedy = ""
    if path.name == RUN_FILE:
        remedy = (
            " Restore it, or remove it: appending to the run creates a new one, and "
            "keeps the rows."
        )
    if path.name == COPIED:
        remedy = " `lox sync` repairs the copy."
    return StoreError(f"{path} is damaged: {reason}.{remedy}")


def _checksum(content: Any) -> int:
    return zlib.crc32(_sorted_json(content).encode())


# `json.dumps` with options creates an encoder per call
_sorted_json = json.JSONEncoder(ensure_ascii=True, sort_keys=True).encode


def encode_place(row: int, number: int) -> bytes:
    """Encodes an entry of a `.places` file."""
    place = np.array([(row, number, 0)], PLACE)
    place["crc32"] = zlib.crc32(place.tobytes()[:_CHECKED_BYTES])
    return place.tobytes()


def read_places(
    path: Location,
    last: bool = False,
    limit: int | None = None,
    start: int = 0,
) -> Any:
    """Reads the complete entries of a `.places` file, in order.

    Args:
        path: the file; if it does not exist, there are no entries.
        last: whether to read only the last entry.
        limit: the maximum number of entries to read.
        start: the number of entries to skip.
    """
    raw = b""
    with reading(path), contextlib.suppress(FileNotFoundError):
        count = path.size() // PLACE.itemsize
        count = count if limit is None else min(count, start + limit)
        first = max(count - 1, start) if last else start
        size = (count - first) * PLACE.itemsize
        raw = path.read(first * PLACE.itemsize, size)
    places = np.frombuffer(raw, PLACE)
    starts = range(0, len(raw), PLACE.itemsize)
    checksums = [zlib.crc32(raw[i : i + _CHECKED_BYTES]) for i in starts]
    rows = places["row"]
    if places["crc32"].tolist() != checksums or (rows[1:] < rows[:-1]).any():
        raise StoreError(f"{path} is damaged: its checksums do not match.")
    return places


_CHECKED_BYTES = 16  # an entry without its checksum


# --- tree structures ---------------------------------------------------------


def describe_tree(value: Any) -> str:
    """Describes the tree structure of a value as JSON, with the indices of its leaves.

    Dicts, lists, tuples and None are loaded as they are; any other node is loaded as a
    dict of its children.
    """
    tree = structure_of(value)
    return json.dumps(_describe(tree.unflatten(list(range(tree.num_leaves)))))


def _describe(node: Any) -> Any:
    if node is None or type(node) is int:
        return node
    if type(node) is dict:
        return {"dict": [[_json_key(key), _describe(x)] for key, x in node.items()]}
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


def _json_key(key: Any) -> Any:
    return key if isinstance(key, str | int | float | bool) else str(key)


def _label(entry: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def build_tree(description: str, leaves: Sequence[Any]) -> Any:
    """Builds a value from the JSON of `describe_tree` and its leaves."""
    return _build(json.loads(description), leaves)


def leaf_order(description: str, count: int) -> list[int]:
    """The indices of the leaves in the order of `jax.tree`; raises if some are missing.

    Args:
        description: the JSON of `describe_tree`.
        count: the number of leaves.
    """
    excess = _excess(description.encode(errors="replace"))
    if excess:
        raise StoreError(
            f"{description[:80]!r} is not a tree structure: it has {excess}"
        )
    try:
        order: list[int] = leaves_of(build_tree(description, range(count)))
        if sorted(order) == list(range(count)):
            return order
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        pass
    raise StoreError(f"{description[:80]!r} is not a tree structure of {count} leaves")


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
    """The header of a `.npy` file, of a size that does not depend on the length."""
    descr = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': ({length:20d},), }}"
    size = -(-(len(text) + 1 + 12) // 64) * 64
    text = text.ljust(size - 12 - 1) + "\n"
    return b"\x93NUMPY\x02\x00" + (size - 12).to_bytes(4, "little") + text.encode()
