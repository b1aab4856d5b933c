"""Code in pages: names are links, and details that readers do not need are left out."""

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

_NAME = re.compile(r"(?:lox|logify)(?:\.\w+)+")


class LinkNames(SphinxTransform):
    """Makes `lox.spool` in code a link to its reference, where there is one.

    In the tables of the reference, signatures are links too.
    """

    default_priority = 800

    def apply(self, **options: object) -> None:
        for code in list(self.document.findall(nodes.literal)):
            target = code.astext().removesuffix("()")
            if self.env.docname == "api":
                target = target.partition("(")[0]
            ancestors = (nodes.reference, nodes.title, addnodes.pending_xref)
            if not _NAME.fullmatch(target) or _is_inside(code, ancestors):
                continue
            link = addnodes.pending_xref(
                "",
                refdoc=self.env.docname,
                refdomain="py",
                reftype="obj",
                reftarget=target,
                refexplicit=True,
                refwarn=False,
            )
            code.replace_self(link)
            link += code


class TrimCode(SphinxTransform):
    """Drops the blank line that ends an example in Markdown, as doctest needs it."""

    default_priority = 800

    def apply(self, **options: object) -> None:
        for block in self.document.findall(nodes.literal_block):
            text = block.astext().rstrip("\n")
            if text != block.astext():
                block.rawsource = text
                block.children[:] = [nodes.Text(text)]


class HidePrivateModules(SphinxTransform):
    """Shows classes without a public path, such as what `lox.runs` returns, by name."""

    default_priority = 800

    def apply(self, **options: object) -> None:
        for module in list(self.document.findall(addnodes.desc_addname)):
            if "._" in module.astext():
                module.parent.remove(module)


def clean_signature(
    app: Sphinx,
    what: str,
    name: str,
    value: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Drops parameters that only catch mistakes: `*others`, `**others`, a default."""
    if signature:
        signature = signature.replace(", *others", ", *").replace(", **others", "")
        signature = re.sub(r"=<object object[^>]*>", "", signature)
        signature = re.sub(r"=<function [^>]*>", "=...", signature)
    return signature, returned


def _is_inside(node: nodes.Node, kinds: tuple[type[nodes.Node], ...]) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, kinds):
            return True
    return False


def setup(app: Sphinx) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.autodoc")
    app.add_transform(LinkNames)
    app.add_transform(TrimCode)
    app.add_transform(HidePrivateModules)
    app.connect("autodoc-process-signature", clean_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
