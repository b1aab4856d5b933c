"""The directive `picture`: a picture that the build has made, with its caption.

```{picture} seeds
:alt: Loss over steps, for two learning rates

The caption, in Markdown.
```

`python -m docs.site.make_pictures` writes the pictures to `build/pictures`. A diagram
(`NAME.svg`) becomes part of the page, and takes its colors. Other pictures have two
files, `NAME-light` and `NAME-dark`.
"""

import html
import os
import pathlib

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

DIRECTORY = pathlib.Path(__file__).parents[2] / "build" / "pictures"


class Picture(SphinxDirective):
    required_arguments = 1
    has_content = True
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        self.assert_has_content()  # the caption
        self.env.note_reread()  # the pictures may have changed
        name = self.arguments[0]
        if (DIRECTORY / f"{name}.skipped").exists():
            # `make_pictures` has said why
            return []
        figure = nodes.figure(classes=["picture", name])
        figure += self._pictures(name)
        caption = nodes.caption()
        caption += self.parse_content_to_nodes()[0].children
        figure += caption
        self.set_source_info(figure)
        return [figure]

    def _pictures(self, name: str) -> list[nodes.Node]:
        alt = self.options.get("alt")
        if not alt:
            raise self.error(f"the picture {name!r} needs `:alt:`")
        diagram = DIRECTORY / f"{name}.svg"
        if diagram.exists():
            label = f'<svg aria-label="{html.escape(alt)}" '
            svg = diagram.read_text().replace("<svg ", label, 1)
            return [nodes.raw("", svg, format="html")]
        pictures = []
        for mode in ("light", "dark"):
            found = sorted(DIRECTORY.glob(f"{name}-{mode}.*"))
            if not found:
                raise self.error(f"there is no picture {name!r}; run `make docs`")
            # absolute paths are relative to the directory of the sources
            path = "/" + os.path.relpath(found[0], self.env.srcdir)
            image = nodes.image(uri=path, alt=alt, classes=[f"only-{mode}"])
            pictures.append(image)
        return pictures


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
