"""Parses and checks the requests that a page sends to its server."""

import math
import re
import urllib.parse

from .chart_requests import AUTO, DEFAULT_BUCKETS, Request
from .source import StoreSource
from .statistics import BANDS

MAX_TARGET = 8192  # characters of a path with its query
_MAX_FIELDS = 64
_MAX_BUCKETS = 4000
_HEXADECIMAL = re.compile(r"[0-9a-f]{1,4096}")


class BadRequestError(Exception):
    """A request that the page does not send."""


class NotFoundError(Exception):
    """A page or a key that does not exist."""


Query = dict[str, list[str]]


def parse_query(text: str) -> Query:
    try:
        return urllib.parse.parse_qs(
            text, keep_blank_values=True, max_num_fields=_MAX_FIELDS
        )
    except ValueError:
        raise BadRequestError("the query has too many fields") from None


def key_of(query: Query) -> str:
    return _text(query, "key")


def since_of(query: Query) -> int:
    text = query.get("since", ["0"])[0]
    if not re.fullmatch(r"\d{1,15}", text):
        raise BadRequestError("`since` is not a version")
    return int(text)


def chart_request(query: Query, source: StoreSource) -> Request:
    band = query.get("band", ["none"])[0]
    if band not in (*BANDS, "none"):
        raise BadRequestError("there is no such band")
    return Request(
        key=_text(query, "key"),
        x=query.get("x", [""])[0],
        by=tuple(query.get("by", [AUTO])),
        bands=() if band == "none" else (band,),
        runs=_runs(query, source),
        low=_number(query, "low"),
        high=_number(query, "high"),
        buckets=_buckets(query),
        after=_number(query, "after"),
        width=_number(query, "width"),
    )


def _text(query: Query, name: str) -> str:
    if len(query.get(name, [])) != 1:
        raise BadRequestError(f"`{name}` is missing")
    return query[name][0]


def _number(query: Query, name: str) -> float | None:
    if name not in query:
        return None
    try:
        number = float(query[name][0])
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (name == "width" and number < 0):
        raise BadRequestError(f"`{name}` is not a number")
    return number


def _buckets(query: Query) -> int:
    number = _number(query, "buckets")
    return DEFAULT_BUCKETS if number is None else min(max(int(number), 8), _MAX_BUCKETS)


def _runs(query: Query, source: StoreSource) -> frozenset[int] | None:
    """The selected runs: hexadecimal digits, with a bit for each of four runs."""
    if "runs" not in query:
        return None
    digits = query["runs"][0]
    if not _HEXADECIMAL.fullmatch(digits):
        raise BadRequestError("`runs` is not a set of runs")
    return frozenset(
        number
        for number in source.runs
        if number // 4 < len(digits) and int(digits[number // 4], 16) >> number % 4 & 1
    )
