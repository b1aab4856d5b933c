"""The HTML of a page: code and styles are part of it, and nothing else is loaded."""

import base64
import hashlib
import html
import importlib.resources
import json
from collections.abc import Iterable
from typing import Any

from .packing import plain

_STYLES = ("uplot/uPlot.min.css", "page.css")
_LIBRARY = "uplot/uPlot.iife.min.js"
_SCRIPTS = (
    "text.js",
    "data.js",
    "state.js",
    "draw.js",
    "chart.js",
    "export.js",
    "table.js",
    "media.js",
    "page.js",
    "start.js",
)


def asset(name: str) -> str:
    files = importlib.resources.files("lox._page") / "assets"
    return files.joinpath(name).read_text(encoding="utf-8")


def styles() -> str:
    return "\n".join(map(asset, _STYLES))


def script(start: str) -> str:
    """The code of the page in one function, which ends with the call `start`."""
    parts = [asset(_LIBRARY), *map(asset, _SCRIPTS), start]
    return "(() => {\n" + "\n".join(parts) + "\n})();"


def to_json(content: Any) -> str:
    """JSON that cannot end the `<script>` element around it."""
    text = json.dumps(plain(content), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def document(
    title: str,
    content: Any,
    start: str,
    blocks: Iterable[tuple[str, str]] = (),
    nonce: str | None = None,
    fallback: str = "",
) -> str:
    """A whole page.

    Args:
        title: the title, as text.
        content: what the page needs to begin, as JSON.
        start: the call that begins it.
        blocks: further data, as names and Base64 text.
        nonce: the nonce of the server's `Content-Security-Policy`. Without one, the
            page has its own policy, which allows its own code and no connection.
        fallback: HTML that is shown without JavaScript.
    """
    code, style = script(start), styles()
    policy, mark = "", ""
    if nonce is None:
        rules = policy_of(f"'sha256-{_digest(code)}'", f"'sha256-{_digest(style)}'")
        policy = f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n'
    else:
        mark = f' nonce="{nonce}"'
    embedded = to_json(content)
    data = "".join(
        f'<script type="text/plain" id="{name}">{text}</script>\n'
        for name, text in blocks
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"{policy}"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{html.escape(title)}</title>\n"
        '<link rel="icon" href="data:,">\n'
        f"<style{mark}>{style}</style>\n"
        f'</head>\n<body>\n<div id="lox">{fallback}</div>\n'
        f'<script type="application/json" id="lox-content">{embedded}</script>\n'
        f"{data}<script{mark}>{code}</script>\n</body>\n</html>\n"
    )


def policy_of(code: str, style: str, connect: str = "'none'") -> str:
    """A `Content-Security-Policy` that allows this code and nothing else."""
    images = "blob: data:"
    return (
        f"default-src 'none'; script-src {code}; style-src {style}; "
        f"img-src {images}; connect-src {connect}; base-uri 'none'; "
        "form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()
