"""Diagrams of how it works, as SVG without colors: the style of the page sets them."""

import html
import math

WIDTH = 460  # so narrow that the text can be read on a phone
_LINE = 17
_PADDING = 9


class Diagram:
    """Boxes, regions and arrows, from top to bottom."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._height = 0.0

    def box(
        self, x: float, y: float, width: float, *lines: str, kind: str = "box"
    ) -> float:
        """Draws a box around lines of text, and returns its lower end.

        A line that begins with a backtick is code, one with a tilde is a remark.
        """
        height = _LINE * len(lines) + 2 * _PADDING - 4
        self._parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" '
            'rx="5"/>'
        )
        for i, line in enumerate(lines):
            self._text(x + width / 2, y + _PADDING + _LINE * i + 10, line, "middle")
        self._height = max(self._height, y + height)
        return y + height

    def region(self, y: float, end: float, label: str) -> None:
        """Draws a dashed frame, and its name in the upper left corner."""
        self._parts.append(
            f'<rect class="region" x="1" y="{y}" width="{WIDTH - 2}" '
            f'height="{end - y}" rx="8"/>'
        )
        self._text(12, y + 18, f"~{label}", "start")
        self._height = max(self._height, end + 1)

    def event(self, x: float, y: float, label: str, kept: bool = True) -> None:
        """Draws a numbered event; those that are not kept are empty."""
        kind = "event" if kept else "region"
        self._parts.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="11"/>')
        self._text(x, y + 4, f"{'^' if kept else '~'}{label}", "middle")
        self._height = max(self._height, y + 12)

    def title(self, y: float, line: str) -> None:
        """Draws a line of text at the left."""
        self._text(1, y, line, "start")

    def arrow(self, *points: tuple[float, float], label: str = "") -> None:
        """Draws a line through points, with its head at the last one."""
        (x0, y0), (x1, y1) = points[-2:]
        angle = math.atan2(y1 - y0, x1 - x0)
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline class="arrow" points="{path}"/>')
        corners = [(x1, y1)]
        for turn in (2.7, -2.7):
            corners.append(
                (x1 + 8 * math.cos(angle + turn), y1 + 8 * math.sin(angle + turn))
            )
        head = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        self._parts.append(f'<polygon class="head" points="{head}"/>')
        if label:
            (x0, y0), (x1, y1) = points[:2]
            self._text((x0 + x1) / 2 + 8, (y0 + y1) / 2 + 4, f"~{label}", "start")

    def _text(self, x: float, y: float, line: str, anchor: str) -> None:
        kinds = {"`": "code", "~": "quiet", "^": "inverse"}
        kind = kinds.get(line[0], "plain")
        text = html.escape(line[1:] if line[0] in kinds else line)
        size = 12 if kind == "code" else 13
        self._parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size}" '
            f'text-anchor="{anchor}" xml:space="preserve">{text}</text>'
        )

    def svg(self) -> str:
        height = self._height + 1
        return (
            f'<svg class="diagram" role="img" xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}">'
            + "".join(self._parts)
            + "</svg>"
        )


def _traced(diagram: Diagram) -> float:
    """The first part, which all diagrams of an event's path have in common."""
    y = diagram.box(
        80, 1, 300, "`lox.log({'x': x}, step=i)", "~your line, while JAX traces"
    )
    diagram.arrow((230, y), (230, y + 28))
    y = diagram.box(
        80, y + 28, 300, "`lox_log[x, step at f.py:4]", "~an equation of the jaxpr"
    )
    return y


def _iterations(diagram: Diagram, top: float) -> float:
    """Three iterations of a loop, side by side; returns their lower end."""
    below = 0.0
    for i in range(3):
        x = 20 + 145 * i
        below = diagram.box(x, top, 130, f"iteration {i}", f"`x = {8 / 2**i:g}")
        if i < 2:
            diagram.arrow((x + 130, top + 24), (x + 145, top + 24))
    return below


def spool() -> str:
    diagram = Diagram()
    y = _traced(diagram)
    diagram.arrow((230, y), (230, y + 36), label="lox.spool evaluates the jaxpr")
    lines = ("no lox_log; x is one more output", "~the new program")
    y = diagram.box(80, y + 36, 300, *lines, kind="own")
    diagram.arrow((230, y), (230, y + 44), label="jit")
    device = y + 44
    y = _iterations(diagram, device + 30)
    for x in (85, 230, 375):
        diagram.arrow((x, y), (x, y + 24))
    y = diagram.box(20, y + 24, 420, "`[8. 4. 2.]")
    diagram.region(device, y + 12, "device")
    diagram.arrow((230, y), (230, y + 48), label="returned with the result")
    diagram.box(80, y + 48, 300, "`logs['x'], logs.step['x']", kind="own")
    return diagram.svg()


def tap() -> str:
    diagram = Diagram()
    y = _traced(diagram)
    diagram.arrow((230, y), (230, y + 36), label="lox.tap evaluates the jaxpr")
    lines = ("the equation has a destination", "~the new program")
    y = diagram.box(80, y + 36, 300, *lines, kind="own")
    diagram.arrow((230, y), (230, y + 44), label="jit")
    device = y + 44
    below = _iterations(diagram, device + 30)
    diagram.region(device, below + 12, "device")
    host = below + 40
    for x in (85, 230, 375):
        diagram.arrow((x, below), (x, host + 32))
    y = diagram.box(20, host + 32, 420, "one host call per event, in program order")
    diagram.arrow((230, y), (230, y + 20))
    y = diagram.box(80, y + 20, 300, "a logdict of NumPy values per lane")
    diagram.arrow((230, y), (230, y + 20))
    y = diagram.box(80, y + 20, 300, "`callback(logs)", kind="own")
    diagram.region(host, y + 12, "host")
    return diagram.svg()


def logger() -> str:
    diagram = Diagram()
    left, right, width = 20, 245, 195

    def both(y: float, *boxes: tuple[str, ...], kind: str = "box") -> float:
        """A box per lane or backend, side by side; returns their lower end."""
        ends = [
            diagram.box(x, y, width, *lines, kind=kind)
            for x, lines in zip((left, right), boxes, strict=True)
        ]
        return max(ends)

    def arrows(y: float, end: float) -> None:
        for x in (left, right):
            diagram.arrow((x + width / 2, y), (x + width / 2, end))

    device = 1
    states = [(f"`state = logger.init(key{i})", "~the key of the run") for i in (0, 1)]
    y = both(device + 30, *states)
    arrows(y, y + 18)
    y = both(y + 18, ("`x = 8.0",), ("`x = 5.0",))
    diagram.region(device, y + 12, "device: a vmap of two seeds")
    host = y + 40
    arrows(y, host + 32)
    y = diagram.box(left, host + 32, 420, "one host call with the rows of both lanes")
    arrows(y, y + 26)
    y = both(y + 26, ("run of key0", "`{'x': 8.0}"), ("run of key1", "`{'x': 5.0}"))
    # each run goes to each backend
    arrows(y, y + 34)
    diagram.arrow((left + width / 2, y), (right + width / 2 - 14, y + 34))
    diagram.arrow((right + width / 2, y), (left + width / 2 + 14, y + 34))
    fast = ("fast: files, console", "~called directly")
    slow = ("slow: W&B, MLflow, …", "~queue, background thread")
    y = both(y + 34, fast, slow)
    arrows(y, y + 26)
    files = ("`runs/key0, runs/key1", "~rows are in the files")
    tracker = ("one W&B run per key", "~sent in the background")
    y = both(y + 26, files, tracker, kind="own")
    diagram.region(host, y + 12, "host")
    return diagram.svg()


def streams() -> str:
    diagram = Diagram()
    places = [19 + 38.3 * i for i in range(12)]
    diagram.title(13, "12 events of a key")
    for i, x in enumerate(places):
        diagram.event(x, 36, str(i))
    diagram.title(76, "`interval=2")
    for i, x in enumerate(places):
        diagram.event(x, 99, str(i), kept=i % 2 == 0)
    for first in (0, 6):
        left, right = places[first] - 14, places[first + 4] + 14
        kept = (first, first + 2, first + 4)
        for i in kept:
            diagram.arrow((places[i], 111), (places[i], 134))
        mean = f"the mean of {', '.join(map(str, kept))}"
        end = diagram.box(left, 134, right - left, mean, "`window=3")
        diagram.arrow(((left + right) / 2, end), ((left + right) / 2, end + 36))
    lines = ("one host call with 2 rows", "`buffer=2")
    diagram.box(5, end + 36, places[10] + 9, *lines, kind="own")
    return diagram.svg()


DIAGRAMS = {
    "way-spool": spool,
    "way-tap": tap,
    "way-logger": logger,
    "streams": streams,
}
