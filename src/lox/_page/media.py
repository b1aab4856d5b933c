"""Histograms over time and images, as the page shows them."""

from typing import Any

import numpy as np

from lox._errors import StoreError
from lox._images import encode_png, to_uint8

from .chart_requests import ROW
from .packing import plain
from .signals import HISTOGRAM, IMAGE, Signal, read_rows
from .source import StoreSource

Array = np.ndarray[Any, Any]

MAX_HISTOGRAMS = 160  # per run
MAX_IMAGES = 24  # per run
MAX_BYTES = 2**23  # of all images of a key
_MAX_PIXELS = 2**20


def media(
    source: StoreSource, name: str, max_runs: int = 64, max_bytes: int = MAX_BYTES
) -> dict[str, Any]:
    """The histograms or images of one key, by run, to be packed.

    If there are many rows, evenly spaced ones are chosen, including the first and
    the last.
    """
    found: list[dict[str, Any]] = []
    problems = []
    size = 0
    for number, run in source.runs.items():
        signal = run.signals.get(name)
        if signal is None or signal.kind not in (HISTOGRAM, IMAGE):
            continue
        if len(found) >= max_runs or size > max_bytes:
            break
        try:
            if signal.kind == HISTOGRAM:
                shown = _histograms(signal)
                size += shown["counts"].nbytes + shown["edges"].nbytes
            else:
                shown = _images(signal, max_bytes - size)
                size += sum(image.nbytes for image in shown["images"])
        except (StoreError, OSError, ValueError) as error:
            problems.append(f"{run.run.name}: {error}")
            continue
        found.append({"id": number, **shown})
    return {"runs": found, "problems": plain(problems)}


def _axis(signal: Signal) -> str | None:
    return next(iter(signal.steps), None)


def _chosen(count: int, limit: int) -> Array:
    """Evenly spaced positions, with the first and the last one."""
    if count <= limit:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, limit).round().astype(np.int64))


def _histograms(signal: Signal) -> dict[str, Any]:
    axis = _axis(signal)
    counts = read_rows(signal.leaves, axis)[0]
    edges = read_rows(signal.edges, axis)[0]
    order = np.argsort(np.asarray(counts.x, np.float64), kind="stable")
    rows = order[_chosen(len(order), MAX_HISTOGRAMS)]
    with np.errstate(over="ignore"):  # numbers that are too large become infinite
        return {
            "axis": axis or ROW,
            "rows": len(order),
            "x": np.asarray(counts.x, np.float64)[rows],
            "counts": np.asarray(counts.values[rows], np.float32),
            "edges": np.asarray(edges.values[rows], np.float32),
        }


def _images(signal: Signal, max_bytes: int) -> dict[str, Any]:
    axis = _axis(signal)
    lane = read_rows(signal.leaves, axis)[0]
    rows = _chosen(len(lane.values), MAX_IMAGES)
    images: list[Array] = []
    kept: list[int] = []
    size = 0
    for row in rows.tolist():
        png = encode_png(_pixels(np.asarray(lane.values[row])))
        size += len(png)
        if images and size > max_bytes:
            break
        images.append(np.frombuffer(png, np.uint8))
        kept.append(row)
    return {
        "axis": axis or ROW,
        "rows": len(lane.values),
        "x": np.asarray(lane.x, np.float64)[kept],
        "images": images,
    }


def _pixels(image: Array) -> Array:
    """The bytes of an image, at most about a million pixels."""
    if image.dtype.kind not in "biuf":  # bfloat16 and similar types
        image = image.astype(np.float32)
    stride = 1
    while (image.shape[0] // stride) * (image.shape[1] // stride) > _MAX_PIXELS:
        stride += 1
    image = image[::stride, ::stride]
    if image.dtype.kind == "f" and image.ndim == 2:  # a matrix: from black to white
        finite = image[np.isfinite(image)]
        if finite.size and (finite.min() < 0 or finite.max() > 1):
            low, high = float(finite.min()), float(finite.max())
            image = (image.astype(np.float64) - low) / ((high - low) or 1.0)
    return to_uint8(image)
