"""The store: runs on disk that survive anything, and that NumPy can read.

The format is specified in `docs/store.md`. In short: a run is a directory with a JSON
file about it and a directory for each writer. A writer has a segment for each schema:
records of one size that are only ever appended, and a JSON file that says what they
mean, written before the first of them. How many records there are follows from the
file's size. So nothing that was written once can be lost by what comes later, and a
record that was cut off is not counted.
"""

import json
import os
import pathlib
import re
import threading
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ._errors import StoreError

VERSION = 1
RUN_FILE = "run.json"
WRITER = re.compile(r"writer-(\d{4,})$")
SEGMENT = re.compile(r"(\d{4,})\.json$")
# a position in a segment, and the number of the event there in its writer
PLACE = np.dtype([("row", "<u8"), ("number", "<u8")])


# --- files -------------------------------------------------------------------


def write_json(path: pathlib.Path, content: Any) -> None:
    """Writes a file that is there as a whole, or not at all."""
    text = json.dumps(content, ensure_ascii=True, sort_keys=True)
    whole = json.dumps({"crc32": zlib.crc32(text.encode()), "content": content})
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}~")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(whole)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_json(path: pathlib.Path) -> Any:
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        content, crc = whole["content"], whole["crc32"]
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is damaged, and cannot be read: {error}.") from None
    text = json.dumps(content, ensure_ascii=True, sort_keys=True)
    if zlib.crc32(text.encode()) != crc:
        raise StoreError(f"{path} is damaged: its checksum does not fit.")
    if content.get("version", 0) > VERSION:
        raise StoreError(
            f"{path} has the format {content['version']}, and this lox knows those up "
            f"to {VERSION}. Update jax-lox to read it."
        )
    return content


# --- structures --------------------------------------------------------------


def describe_tree(value: Any) -> str:
    """The structure of a value as JSON, with the numbers of its leaves.

    Dicts, lists, tuples and None come back as they are; of every other kind of node,
    its children do, by name.
    """
    tree = jax.tree.structure(value)
    return json.dumps(_describe(tree.unflatten(list(range(tree.num_leaves)))))


def _describe(node: Any) -> Any:
    if node is None or type(node) is int:
        return node
    if type(node) is dict:
        return {"dict": [[_name(key), _describe(x)] for key, x in node.items()]}
    if type(node) in (list, tuple):
        return {type(node).__name__: [_describe(x) for x in node]}
    children, _ = jax.tree_util.tree_flatten_with_path(
        node, is_leaf=lambda x: x is not node
    )
    return {"dict": [[_label(path), _describe(child)] for path, child in children]}


def _name(key: Any) -> Any:
    return key if isinstance(key, str | int | float | bool) else str(key)


def _label(path: Any) -> str:
    return jax.tree_util.keystr(path).strip(".[]'\"")


def build_tree(description: str, leaves: Sequence[Any]) -> Any:
    return _build(json.loads(description), leaves)


def _build(node: Any, leaves: Sequence[Any]) -> Any:
    if node is None:
        return None
    if type(node) is int:
        return leaves[node]
    if "dict" in node:
        return {key: _build(x, leaves) for key, x in node["dict"]}
    if "list" in node:
        return [_build(x, leaves) for x in node["list"]]
    return tuple(_build(x, leaves) for x in node["tuple"])


def npy_header(dtype: np.dtype[Any], length: int) -> bytes:
    """The head of a `.npy` file, of a size that does not depend on the length."""
    descr = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': ({length:20d},), }}"
    size = -(-(len(text) + 1 + 12) // 64) * 64
    text = text.ljust(size - 12 - 1) + "\n"
    return b"\x93NUMPY\x02\x00" + (size - 12).to_bytes(4, "little") + text.encode()
