"""The documentation is complete: public names, arguments, pages and commands."""

import ast
import contextlib
import doctest
import inspect
import io
import pathlib
import re
import shlex

import pytest

import logify
import lox
import lox.cli
import lox.loggers
import lox.neptune
import lox.wandb
from docs.site import benchmark_results, check_site, page_programs

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGES = {
    str(path.relative_to(DOCS).with_suffix("")): path.read_text()
    for path in sorted(DOCS.rglob("*.md"))
}


def names_of(module, *names):
    """The public names of a module that are not modules or imports of it."""
    found = names or [
        name
        for name in dir(module)
        if not name.startswith("_")
        and not inspect.ismodule(getattr(module, name))
        and not getattr(getattr(module, name), "__module__", "").startswith("typing")
        and name != "TYPE_CHECKING"
    ]
    return {f"{module.__name__}.{name}": getattr(module, name) for name in found}


PUBLIC = {
    **names_of(lox),
    **names_of(lox.loggers),
    **names_of(logify),
    **names_of(lox.wandb, "init", "log", "finish"),
    **names_of(lox.neptune, "init", "log", "finish"),
    **names_of(lox.cli, "main"),
}
# classes whose constructor is not public
CREATED_BY_LOX = (Exception, lox.loggers.LoggerState, logify.Logs)


def test_public_names_are_found():
    assert {"lox.spool", "lox.loggers.WandbLogger", "logify.Logs"} <= PUBLIC.keys()
    assert len(PUBLIC) > 40


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_is_in_the_table_of_the_reference(name):
    short = name.rpartition(".")[2]
    assert re.search(rf"`(?:{re.escape(name)}|{short})\b", PAGES["api"])


def test_tables_of_the_reference_show_the_signatures():
    shown = re.findall(r"^\| `((?:lox|logify)[\w.]*)\((.*?)\)` \|", PAGES["api"], re.M)
    assert {"lox.tap", "lox.load", "logify.log"} <= {name for name, _ in shown}
    for name, parameters in shown:
        arguments = ast.parse(f"def f({parameters}): ...").body[0].args
        named = [*arguments.args, *arguments.kwonlyargs, arguments.kwarg]
        actual = [
            x for x in inspect.signature(PUBLIC[name]).parameters if x != "others"
        ]
        assert {x.arg for x in named if x} == set(actual), name


def test_reference_documents_every_public_name_once():
    directive = r"^\.\. auto(?:function|class|exception):: (?!lox\._)([\w.]+)"
    documented = [
        name for page in PAGES.values() for name in re.findall(directive, page, re.M)
    ]
    assert sorted(documented) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_describes_every_argument(name):
    value = PUBLIC[name]
    docstring = inspect.getdoc(value)
    assert docstring and docstring.splitlines()[0].endswith(".")
    if inspect.isclass(value) and issubclass(value, CREATED_BY_LOX):
        return
    parameters = inspect.signature(value).parameters.values()
    described = set(re.findall(r"^    \*{0,2}(\w+): ", docstring, re.M))
    for parameter in parameters:
        if parameter.name not in ("others", "args", "kwargs"):
            assert parameter.name in described, parameter.name


def test_every_page_is_in_a_table_of_contents():
    listed = set()
    for name, page in PAGES.items():
        folder = pathlib.PurePosixPath(name).parent
        for entries in re.findall(r"```\{toctree\}\n(.*?)```", page, re.DOTALL):
            lines = [line for line in entries.split() if not line.startswith(":")]
            listed |= {str(folder / line) for line in lines}
    fragments = {"index", "benchmark-results", "peer-results", "reliability-results"}
    assert set(PAGES) - fragments - listed == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('<a href="https://x.org">link</a><img src="_images/a.svg">', 0),
        ('<script src="https://x.org/a.js"></script>', 1),
        ('<link rel="stylesheet" href="//x.org/a.css">', 1),
        ("<style>@import 'https://x.org/a.css'; a { color: red }</style>", 1),
        ("<style>b { background: url(https://x.org/a.png) }</style>", 1),
    ],
)
def test_site_check_finds_what_is_loaded_from_elsewhere(tmp_path, text, found):
    page = tmp_path / "page.html"
    page.write_text(text)
    assert len(check_site.loaded_from_elsewhere(page)) == found


@pytest.mark.parametrize("name", [x for x in PAGES if ">>> " in PAGES[x]])
def test_page_imports_what_its_examples_use(name):
    """Doctests have the names of `conftest.py`; readers have only the page."""
    for example in doctest.DocTestParser().get_examples(PAGES[name]):
        for used in re.findall(r"(?<![\w.])(jax|jnp|lox)\.\w", example.source):
            module = "jax.numpy as jnp" if used == "jnp" else rf"{used}\b"
            before = "\n".join(PAGES[name].splitlines()[: example.lineno + 1])
            assert re.search(rf">>> import (?:.*, )?{module}", before), (
                f"docs/{name}.md:{example.lineno + 1} uses `{used}`"
            )


def test_code_that_is_not_executed_compiles():
    for name, page in PAGES.items():
        if name.startswith("examples/"):
            continue  # excerpts, which are compared with the programs
        for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            if not code.startswith(">>> "):
                compile(code, f"docs/{name}.md", "exec")


def shape_of(text):
    """What does not depend on times and on the last digits."""
    return re.sub(r"\d+(?:\.\d+)?", "", text).replace(" s ", " ")


def test_commands_of_the_tutorial_print_what_it_shows(tmp_path, monkeypatch):
    page_programs.run_page("tutorial.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "88")
    blocks = re.findall(r"```console\n(.*?)```", PAGES["tutorial"], re.DOTALL)
    compared = 0
    for block in blocks:
        for command in re.split(r"^\$ ", block, flags=re.M)[1:]:
            line, _, expected = command.partition("\n")
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                assert lox.cli.main(shlex.split(line)[1:]) == 0
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            # without output in the page, there is a picture of it
            shown, printed = shape_of(expected or "..."), shape_of(output.getvalue())
            assert doctest.OutputChecker().check_output(shown, printed, flags), printed
            compared += 1
    assert compared == 3


def test_benchmark_table_has_the_printed_figures():
    printed = (
        "figure                     value    goal  met\n"
        "`tap` / `jax.debug.callback`, one event in a scan      0.047    0.06  yes\n"
        "  with `ordered=False`                                 0.038    0.06  NO\n"
        "skipped: jax-tap is not installed\n"
        "bytes of a row                                      12.000       -\n"
    )
    rows = benchmark_results.read_printed(printed)
    assert [row.value for row in rows] == ["0.047", "0.038", "12.000"]
    written = benchmark_results.as_markdown(rows, "here")
    assert benchmark_results.read_results(written) == rows
    assert benchmark_results.read_results(PAGES["benchmark-results"])


def test_benchmark_table_leaves_out_times_of_equal_programs():
    printed = (
        "spool / by hand, instructions: scan                    1.000    1.00  yes\n"
        "  run time                                             1.200    1.05  NO\n"
        "  masks in the program                                 0.000    0.00  yes\n"
        "spool / by hand, instructions: vmap                    1.100    1.00  NO\n"
        "  run time                                             1.300    1.05  NO\n"
    )
    rows = benchmark_results.without_noise(benchmark_results.read_printed(printed))
    assert [row.value for row in rows] == ["1.000", "0.000", "1.100", "1.300"]
