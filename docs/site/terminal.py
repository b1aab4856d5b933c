"""Pictures of a terminal, as SVG without colors: the style of the page sets them.

Browsers have no font in which the dots of a curve (braille) are as wide as letters.
"""

import html
import re

_WIDTH, _HEIGHT = 7.25, 16.0  # of a character
_BRAILLE = 0x2800
# the bits of a braille character, by column and row of its dots
_DOTS = [(column, row) for column in (0, 1) for row in (0, 1, 2)] + [(0, 3), (1, 3)]


def picture(text: str) -> str:
    """Draws lines of text, with braille characters as dots."""
    lines = text.rstrip("\n").split("\n")
    width = _WIDTH * max(map(len, lines)) + 2
    height = _HEIGHT * len(lines) + 6
    parts = []
    for row, line in enumerate(lines):
        y = row * _HEIGHT
        for word in re.finditer(r"[^\s⠀-⣿]+", line):
            parts.append(
                f'<text class="code" x="{word.start() * _WIDTH:g}" y="{y + 13:g}" '
                f'font-size="12" textLength="{len(word[0]) * _WIDTH:g}">'
                f"{html.escape(word[0])}</text>"
            )
        for column, character in enumerate(line):
            if _BRAILLE <= ord(character) < _BRAILLE + 256:
                parts += _dots(ord(character) - _BRAILLE, column * _WIDTH, y)
    return (
        '<svg class="diagram terminal" role="img" xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">'
        + "".join(parts)
        + "</svg>"
    )


def _dots(bits: int, x: float, y: float) -> list[str]:
    return [
        f'<circle class="event" cx="{x + _WIDTH * (0.25 + column / 2):g}" '
        f'cy="{y + _HEIGHT * (0.125 + row / 4):g}" r="1.3"/>'
        for i, (column, row) in enumerate(_DOTS)
        if bits >> i & 1
    ]
