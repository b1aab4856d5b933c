"""Configuration of Sphinx, which builds the documentation site: `make docs`."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]  # for autodoc, and for `docs.site`

import lox  # noqa: E402

project = "lox"
author = "the lox developers"
release = version = lox.__version__

extensions = [
    "docs.site.code_in_pages",
    "docs.site.pictures_in_pages",
    "docs.site.sections_of_pages",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
# included by a page; not pages
exclude_patterns = [
    "benchmark-results.md",
    "peer-results.md",
    "reliability-results.md",
    "site/**",
]

# The pages are plain Markdown that a forge shows too. Links to `page.md#heading` use
# the anchors that a forge generates.
myst_heading_anchors = 4
# in docstrings, as in Markdown
default_role = "code"

autodoc_typehints = "none"  # `Args` describes types in words
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "lox"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
# prompts and output are not copied
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
