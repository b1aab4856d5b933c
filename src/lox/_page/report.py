"""`write_report`: the page as one file, which needs no server and no network."""

import contextlib
import math
import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lox._errors import LoxValueError, StoreError, describe

from .chart_requests import KEY, TIMES, Request
from .charts import charts
from .decimation import PER_OCTAVE
from .document import document, to_json
from .fitting import (
    Estimate,
    Plan,
    axes_of,
    fitted_index,
    notes_of,
    plans,
    scalars,
    thinned,
    thinned_group,
)
from .index import index_of
from .media import media
from .packing import embed, pack
from .signals import SCALAR
from .source import StoreSource
from .summary import summary_table

# The data of a report takes at most about this many bytes; for larger stores, it is
# reduced. Each point of a curve is still the smallest or largest value of its bucket.
MAX_BYTES = 9_500_000
_MEDIA_SHARE = 0.25
# Charts are computed again, in more detail, if they use only this share of the space.
_MIN_USED, _MAX_ATTEMPTS = 0.6, 4
_MAX_MEDIA_RUNS = 8


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
        store: the directory or URL of a store, or of a single run.
        path: the file to write.
        x: scalars that can be chosen as the x-axis, besides the steps. `"#time"` is the
            time since the start of a run, and `"#clock"` the time of the day.
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
    with contextlib.closing(StoreSource(store)) as source:
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
    is_number = isinstance(max_bytes, int | float) and not isinstance(max_bytes, bool)
    if not is_number or not 0 < max_bytes < math.inf:
        raise LoxValueError(
            f"`max_bytes` is {describe(max_bytes)}; it must be a positive number."
        )
    index, notes = fitted_index(index_of(source), max_bytes)
    axes = _extra_axes(source, index, extra_axes)
    media_blocks, media_names = _media(source, index, int(max_bytes * _MEDIA_SHARE))
    left = max_bytes - len(to_json(index))
    left -= sum(len(text) for _, text in media_blocks)
    plan, names, blocks = _fitting_charts(source, index, axes, left)
    notes = [*notes_of(plan, index), *notes]
    kept = [
        grouping
        for grouping in index["groupings"]
        if grouping["id"] in plan.groupings or not grouping["groups"]
    ]
    index = {**index, "groupings": kept}
    if notes:
        limit = f"This page is limited to {max_bytes / 1e6:.3g} MB"
        index["notes"] = [f"{limit}: {'; '.join(notes)}. `lox serve` shows everything."]
    content = {"index": index, "blocks": {"charts": names, "media": media_names}}
    return content, [*blocks, *media_blocks]


def _fitting_charts(
    source: StoreSource, index: dict[str, Any], axes: list[str], max_bytes: int
) -> tuple[Plan, dict[str, Any], list[tuple[str, str]]]:
    """As much of the charts as fits; if nothing fits, the smallest version.

    The first estimate may be wrong by a factor, which is known after the first attempt.
    """
    possible = list(plans(index, axes))
    estimate = Estimate(source, index)
    sizes = [estimate.size(plan) for plan in possible]
    last = len(possible) - 1
    factor, least, best, found = 1.0, 0, last + 1, None
    for _ in range(_MAX_ATTEMPTS):
        fitting = (i for i, size in enumerate(sizes) if factor * size <= max_bytes)
        i = min(max(next(fitting, last), least), last)
        if i >= best:
            break
        names, blocks = _charts(source, index, possible[i])
        size = sum(len(text) for _, text in blocks)
        ratio = size / max(sizes[i], 1.0)
        if size <= max_bytes or i == last:
            best, found = i, (possible[i], names, blocks)
            factor = 1.2 * ratio
            if size > _MIN_USED * max_bytes:  # not worth another attempt
                break
        else:
            least, factor = i + 1, 1.05 * ratio
    return found or (possible[last], *_charts(source, index, possible[last]))


def _charts(
    source: StoreSource, index: dict[str, Any], plan: Plan
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The names of the blocks of all charts, and the blocks."""
    blocks: list[tuple[str, str]] = []
    names = {
        key["name"]: dict(_chart_blocks(source, key, plan, blocks))
        for key in scalars(index)[: plan.keys]
    }
    return names, blocks


def _extra_axes(
    source: StoreSource, index: dict[str, Any], names: Sequence[str]
) -> list[str]:
    """The x-axes with these names; raises if one does not exist."""
    known = {name for run in source.runs.values() for name in run.signals}
    unknown = [name for name in names if name not in known and name not in TIMES]
    if unknown:
        raise LoxValueError(
            f"these runs have no scalar {', '.join(map(repr, unknown))} for `x`; they "
            f"have {', '.join(map(repr, sorted(known))) or 'none'}."
        )
    if not any(key["times"] for key in scalars(index)):
        for name in names:
            if name in TIMES:
                raise LoxValueError(
                    f"the rows of these runs have no times for {name!r}: an older "
                    "version of lox has written them, or they were imported."
                )
    return [name if name in TIMES else KEY + name for name in dict.fromkeys(names)]


def _chart_blocks(
    source: StoreSource,
    key: dict[str, Any],
    plan: Plan,
    blocks: list[tuple[str, str]],
) -> Iterator[tuple[str, Any]]:
    """Adds the data of one key to `blocks`; yields its axes and their blocks."""

    def add(content: Any) -> str:
        blocks.append((f"lox-{len(blocks)}", embed(pack(content))))
        return blocks[-1][0]

    for axis in axes_of(key, plan.axes):
        request = Request(
            key["name"],
            axis,
            buckets=plan.buckets,
            per_octave=_per_octave(plan.buckets),
        )
        names: dict[str, str] = {}
        lanes = ""
        same: dict[str, str] = {}
        for by, data in charts(source, request, [[by] for by in plan.groupings]):
            groups, runs = data.pop("groups"), data["lanes"]["runs"]
            kept = thinned(data, plan.share)
            if not lanes:
                lanes = add(data)
            # most stores have several groupings with the same groups
            text = repr([(group["label"], group["runs"]) for group in groups])
            if text not in same:
                if len(kept) < len(runs):
                    groups = [thinned_group(group, runs, kept) for group in groups]
                same[text] = add({"groups": groups})
            names[by[0]] = same[text]
        yield axis, {"lanes": lanes, "groups": names}


def _per_octave(buckets: int) -> int:
    return min(max(buckets // 24, 2), PER_OCTAVE)


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
