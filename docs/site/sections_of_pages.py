"""The directive `section`: a section of another page, so that it has one source.

```{section} ../loggers.md TensorBoard
```
"""

import pathlib
import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_HEADING = re.compile(r"(#+) (.*)")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")


class Section(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        name, _, heading = self.arguments[0].partition(" ")
        page = pathlib.Path(self.env.doc2path(self.env.docname)).parent / name
        self.env.note_dependency(str(page.resolve()))
        lines = _section(page.read_text().splitlines(), heading)
        if not lines:
            raise self.error(f"{name} has no section {heading!r}")
        # links are relative to the page of the section
        parent = pathlib.PurePosixPath(name).parent

        def moved(link: re.Match[str]) -> str:
            path, anchor = link[1], link[2] or ""
            return f"]({parent / path if path else name}{anchor})"

        text = _LINK.sub(moved, "\n".join(lines))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def _section(lines: list[str], heading: str) -> list[str]:
    """The lines below a heading, up to the next one of its level."""
    found: list[str] = []
    level = 0
    in_code = False
    for line in lines:
        in_code ^= line.startswith("```")
        match = None if in_code else _HEADING.fullmatch(line)
        if level and match and len(match[1]) <= level:
            break
        if level:
            found.append(line)
        elif match and match[2] == heading:
            level = len(match[1])
    return found


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("section", Section)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
