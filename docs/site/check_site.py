"""Checks that the built site loads no fonts, scripts or images from elsewhere."""

import pathlib
import re
import sys
from html.parser import HTMLParser

_ELSEWHERE = re.compile(r"(?:https?:)?//")
_STYLE = re.compile(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//")


class _Loaded(HTMLParser):
    """Collects the addresses of what a page loads; links are not loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(
        self, tag: str, attributes: list[tuple[str, str | None]]
    ) -> None:
        names = {"src", "srcset", "data", "poster"}
        if tag == "link":
            names.add("href")
        for name, value in attributes:
            if name in names and value and _ELSEWHERE.match(value):
                self.found.append(value)


def loaded_from_elsewhere(path: pathlib.Path) -> list[str]:
    text = path.read_text()
    if path.suffix == ".css":
        return _STYLE.findall(text)
    page = _Loaded()
    page.feed(text)
    return page.found + _STYLE.findall(text)


def main(site: str) -> None:
    paths = [*pathlib.Path(site).rglob("*.html"), *pathlib.Path(site).rglob("*.css")]
    if not paths:
        sys.exit(f"there is no site in {site}")
    problems = [
        f"{path}: {url}" for path in paths for url in loaded_from_elsewhere(path)
    ]
    if problems:
        sys.exit("the site loads files from elsewhere:\n" + "\n".join(problems))


if __name__ == "__main__":
    main(*sys.argv[1:])
