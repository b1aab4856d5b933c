"""`write_report`: the page as one file, which needs no server and no network."""

import math
import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lox._errors import LoxValueError, StoreError

from .charts import DEFAULT_BUCKETS, KEY, ROW, Request, charts
from .decimation import PER_OCTAVE
from .document import document
from .index import index_of
from .media import media
from .packing import embed, pack
from .signals import SCALAR
from .source import StoreSource
from .summary import summary_table

# The data of a report takes about this many bytes; of larger stores, curves have fewer
# points. Each point is still the smallest or largest value of its bucket.
MAX_BYTES = 9_500_000
_MIN_BUCKETS = 48
_MAX_AXES = 3
_MEDIA_SHARE = 0.25
_MAX_MEDIA_RUNS = 8
# compressed and in Base64, by what stores of random numbers take
_LANE_BYTES, _GROUP_BYTES = 10.5, 75.0


def write_report(
    store: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    x: Iterable[str] = (),
    overwrite: bool = False,
    max_bytes: int = MAX_BYTES,
) -> pathlib.Path:
    """Writes a page that shows the runs of a store to one HTML file.

    Args:
        store: a store, or a single run.
        path: the file to write.
        x: scalars that can be chosen as the x-axis, besides the steps.
        overwrite: whether to replace a file that exists.
        max_bytes: the approximate size of the data in the file.

    Returns:
        The path of the file.

    Example:
        >>> import pathlib, tempfile
        >>> from lox._page.report import write_report
        >>> store = pathlib.Path(tempfile.mkdtemp())
        >>> for seed in range(3):
        ...     lox.save({"loss": 1 / (seed + 1)}, store / "runs", key=seed)
        >>> path = write_report(store / "runs", store / "report.html")
        >>> "Content-Security-Policy" in path.read_text()
        True
    """
    file = pathlib.Path(path)
    if file.exists() and not overwrite:
        raise LoxValueError(
            f"{file} exists. Choose another path, or pass `overwrite=True`."
        )
    source = StoreSource(store)
    content, blocks = static_content(source, list(x), max_bytes)
    text = document(
        f"{source.name} · lox",
        content,
        "startFile();",
        blocks,
        fallback=summary_table(source),
    )
    _write(file, text)
    return file


def _write(path: pathlib.Path, text: str) -> None:
    """Writes a file that is complete, or not there."""
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            encoding="utf-8",
            dir=path.parent,
            prefix=f".{path.name}.",
            suffix="~",
            delete=False,
        ) as file:
            try:
                file.write(text)
                file.flush()
                umask = os.umask(0)
                os.umask(umask)
                os.chmod(file.name, 0o666 & ~umask)
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error}.") from error


def static_content(
    source: StoreSource, extra_axes: Sequence[str], max_bytes: int
) -> tuple[Any, list[tuple[str, str]]]:
    """What a page without a server needs: its content, and its blocks of data."""
    known = {name for run in source.runs.values() for name in run.signals}
    unknown = [name for name in extra_axes if name not in known]
    if unknown:
        raise LoxValueError(
            f"these runs have no scalar {', '.join(map(repr, unknown))} for `x`; they "
            f"have {', '.join(map(repr, sorted(known))) or 'none'}."
        )
    index = index_of(source)
    media_blocks, media_names = _media(source, index, int(max_bytes * _MEDIA_SHARE))
    left = max_bytes - sum(len(text) for _, text in media_blocks)
    buckets = _fitting_buckets(source, index, extra_axes, left)
    while True:
        names: dict[str, Any] = {}
        blocks: list[tuple[str, str]] = []
        for key in _scalars(index):
            names[key["name"]] = dict(
                _chart_blocks(source, key, index, extra_axes, buckets, blocks)
            )
        size = sum(len(text) for _, text in blocks)
        if size <= left or buckets <= _MIN_BUCKETS:
            break
        buckets = max(int(buckets * 0.9 * left / size), _MIN_BUCKETS)
    content = {"index": index, "blocks": {"charts": names, "media": media_names}}
    return content, [*blocks, *media_blocks]


def _scalars(index: dict[str, Any]) -> list[dict[str, Any]]:
    return [key for key in index["keys"] if key["kind"] == SCALAR]


def _axes(key: dict[str, Any], extra: Sequence[str]) -> list[str]:
    steps = key["steps"][:_MAX_AXES] or [ROW]
    return [*steps, *(KEY + name for name in extra if name != key["name"])]


def _groupings(index: dict[str, Any]) -> list[str]:
    return [found["id"] for found in index["groupings"] if found["groups"]]


def _chart_blocks(
    source: StoreSource,
    key: dict[str, Any],
    index: dict[str, Any],
    extra_axes: Sequence[str],
    buckets: int,
    blocks: list[tuple[str, str]],
) -> Iterator[tuple[str, Any]]:
    """Adds the data of one key to `blocks`; yields its axes and their blocks."""

    def add(content: Any) -> str:
        blocks.append((f"lox-{len(blocks)}", embed(pack(content))))
        return blocks[-1][0]

    for axis in _axes(key, extra_axes):
        request = Request(
            key["name"], axis, buckets=buckets, per_octave=_per_octave(buckets)
        )
        names: dict[str, str] = {}
        lanes = ""
        same: dict[str, str] = {}
        for by, data in charts(source, request, [[by] for by in _groupings(index)]):
            groups = data.pop("groups")
            if not lanes:
                lanes = add(data)
            # most stores have several groupings with the same groups
            text = repr([(group["label"], group["runs"]) for group in groups])
            if text not in same:
                same[text] = add({"groups": groups})
            names[by[0]] = same[text]
        yield axis, {"lanes": lanes, "groups": names}


def _per_octave(buckets: int) -> int:
    return min(max(buckets // 24, 2), PER_OCTAVE)


def _fitting_buckets(
    source: StoreSource, index: dict[str, Any], extra: Sequence[str], max_bytes: int
) -> int:
    """The number of points with which all curves fit into a file."""
    groups = {
        str(g["groups"]): len(g["groups"]) for g in index["groupings"] if g["groups"]
    }
    per_bucket = 0.0
    for key in _scalars(index):
        runs = [run for run in source.runs.values() if key["name"] in run.signals]
        lanes = 0
        for run in runs:
            leaf = run.signals[key["name"]].leaves[0]
            lanes += math.prod(leaf.column.shape[: leaf.lane_axes])
        curves = lanes * _LANE_BYTES + min(sum(groups.values()), lanes) * _GROUP_BYTES
        per_bucket += curves * len(_axes(key, extra))
    # the short buckets near zero are about a third more
    fitting = max_bytes / max(per_bucket, 1.0) / 1.35
    return int(min(max(fitting, _MIN_BUCKETS), DEFAULT_BUCKETS))


def _media(
    source: StoreSource, index: dict[str, Any], max_bytes: int
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Histograms and images, as many as fit."""
    blocks: list[tuple[str, str]] = []
    names: dict[str, str] = {}
    size = 0
    keys = [key["name"] for key in index["keys"] if key["kind"] != SCALAR]
    for i, name in enumerate(keys):
        share = max((max_bytes - size) // (len(keys) - i), 1)
        text = embed(pack(media(source, name, _MAX_MEDIA_RUNS, share)))
        size += len(text)
        if size > max_bytes:
            break
        names[name] = f"lox-media-{i}"
        blocks.append((names[name], text))
    return blocks, names
