"""Runs the examples of a page, so that figures show the same values as the page."""

import contextlib
import doctest
import io
import pathlib
from typing import Any

DOCS = pathlib.Path(__file__).parents[1]


def run_page(name: str, directory: pathlib.Path) -> dict[str, Any]:
    """Runs the examples of a page in a directory, and returns their variables.

    The tests compare the output; here it is dropped.
    """
    import jax
    import jax.numpy as jnp

    import lox

    variables: dict[str, Any] = {"jax": jax, "jnp": jnp, "lox": lox}
    examples = doctest.DocTestParser().get_examples((DOCS / name).read_text())
    with (
        contextlib.chdir(directory),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        for example in examples:
            code = compile(example.source, f"{name}:{example.lineno + 1}", "single")
            exec(code, variables)
    return variables
