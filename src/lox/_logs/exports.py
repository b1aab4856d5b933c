"""Logs as data frames and datasets; libraries are imported on use."""

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from lox._arrays import to_native

from .columns import Column, columns_of
from .lane_step import LANE

if TYPE_CHECKING:
    from .logdict import logdict


def require(module: str, extra: str, what: str) -> Any:
    """Imports an optional dependency; raises an error that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(
            f"{what} needs {name}, which is not installed: "
            f"`pip install 'jax-lox[{extra}]'`."
        ) from error


def to_pandas(logs: "logdict") -> Any:
    pandas = require("pandas", "pandas", "`logs.to_pandas()`")
    tables: dict[tuple[str, ...], Any] = {}
    for column in columns_of(logs.compact()):
        labels, frame = _frame(pandas, column)
        if labels not in tables:
            tables[labels] = frame
            continue
        # join rows with the same lanes and steps: the n-th such row with the n-th
        both = tables[labels], frame
        both = tuple(
            one.assign(_nth=one.groupby(list(labels)).cumcount()) if labels else one
            for one in both
        )
        on = [*labels, "_nth"] if labels else None
        how = {"on": on, "how": "outer", "sort": True} if on else {"how": "cross"}
        joined = both[0].merge(both[1], **how)
        tables[labels] = joined.drop(columns="_nth", errors="ignore")
    # a key that was logged once is repeated in every row of its lanes; keys with other
    # steps are in separate rows
    once = {k: tables[k] for k in tables if all(map(_is_lane, k))}
    many = [table for labels, table in tables.items() if labels not in once]
    result = pandas.concat(many, ignore_index=True) if many else None
    for labels, table in once.items():
        if result is None:
            result = table
        elif labels:
            result = result.merge(table, how="left", on=list(labels))
        else:
            result = result.merge(table, how="cross")
    return pandas.DataFrame() if result is None else result


def _frame(pandas: Any, column: Column) -> tuple[tuple[str, ...], Any]:
    """One column, with row labels: lanes, and steps (or positions without steps)."""
    name, array, own, _, key = column
    shape = column.row_shape
    size = int(np.prod(shape))
    axes = dict(zip(column.axis_names(), _positions(shape), strict=True))
    steps = {
        step: to_native(np.broadcast_to(np.asarray(value), shape).reshape(size))
        for step, value in key.steps.items()
    }
    if not all(map(_is_lane, steps)):
        axes.pop("row", None)
    labels = {**axes, **steps}
    # pandas cannot select or join rows of other dtypes
    cells = to_native(array.reshape(size, *array.shape[array.ndim - own :]))
    if name in labels:  # a key that has the name of its step
        name = f"{name}.value"
    columns = {**labels, name: list(cells) if own else cells}
    frame = pandas.DataFrame({k: _exact(pandas, x) for k, x in columns.items()})
    if key.mask is not None:
        frame = frame[np.broadcast_to(np.asarray(key.mask), shape).reshape(size)]
    return tuple(labels), frame


def _is_lane(label: str) -> bool:
    return label == LANE or label.startswith("lane_")


def _exact(pandas: Any, column: Any) -> Any:
    """Keeps pandas from rounding large integers.

    Where values are missing, pandas converts integers to floats, which are inexact
    above 2**53. Its nullable integers are exact.
    """
    if not isinstance(column, np.ndarray) or column.dtype not in (np.int64, np.uint64):
        return column
    if not column.size or max(-int(column.min()), int(column.max())) <= 2**53:
        return column
    signed = column.dtype == np.int64
    return pandas.array(column, dtype="Int64" if signed else "UInt64")


def _positions(shape: tuple[int, ...]) -> Any:
    return np.indices(shape).reshape(len(shape), -1) if shape else []


def to_xarray(logs: "logdict") -> Any:
    xarray = require("xarray", "xarray", "`logs.to_xarray()`")
    variables: dict[str, Any] = {}
    coords: dict[str, Any] = {}
    lengths: dict[int, str] = {}
    for column in columns_of(logs.compact()):
        name, array, own, key, of = column
        rows = column.axis_names()
        if column.stacked:
            # keys with equally many rows share a dimension
            axis = column.time_axis
            label = "time" if not lengths else f"time_{name}"
            rows[axis] = lengths.setdefault(array.shape[axis], label)
        variables[name] = ([*rows, *(f"{name}_{i}" for i in range(own))], array)
        for step, value in of.steps.items():
            coords[f"{key}.{step}"] = (rows, np.asarray(value))
        if of.mask is not None:
            variables[f"{key}.mask"] = (rows, np.asarray(of.mask))
    return xarray.Dataset(variables, coords)
