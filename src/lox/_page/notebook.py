"""`lox.page`: the page inside a notebook."""

import contextlib
import os
import secrets
from collections.abc import Iterable

from .document import script, styles, to_json
from .report import static_content
from .source import StoreSource
from .summary import summary_table

# the maximum size of the data in one output of a notebook
MAX_BYTES = 3_000_000


class Page:
    """The page of a store, as the output of a notebook cell."""

    def __init__(self, html: str) -> None:
        self._html = html

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return "<lox page: display it in a notebook>"


def page(
    store: str | os.PathLike[str],
    *,
    x: Iterable[str] = (),
    max_bytes: int = MAX_BYTES,
) -> Page:
    """Shows the runs of a store in a notebook.

    The output contains code and data, so it works without a server and remains in the
    saved notebook. Where code does not run, such as in a notebook that is not trusted,
    it is a table of the runs.

    Args:
        store: the directory or URL of a store, or of a single run.
        x: scalars that can be chosen as the x-axis, besides the steps. `"#time"` is the
            time since the start of a run, and `"#clock"` the time of the day.
        max_bytes: the approximate size of the data in the output.

    Example:
        >>> import tempfile
        >>> store = tempfile.mkdtemp()
        >>> lox.save({"loss": 0.5}, store, key=0)
        >>> lox.page(store)
        <lox page: display it in a notebook>
    """
    with contextlib.closing(StoreSource(store)) as source:
        content, blocks = static_content(source, list(x), max_bytes)
        table = summary_table(source)
    name = f"lox-{secrets.token_hex(8)}"
    arguments = ", ".join(
        to_json(argument) for argument in (name, styles(), content, dict(blocks))
    )
    code = script(f"startNotebook({arguments});")
    return Page(f'<div id="{name}">{table}</div>\n<script>{code}</script>')
