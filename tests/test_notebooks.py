"""A notebook, executed in a Jupyter kernel, and what is in the file afterwards."""

import base64
import importlib.util
import json
import os
import textwrap

import pytest

from tests import programs
from tests.waiting import HANG

if missing := [x for x in ("ipykernel", "nbclient") if not importlib.util.find_spec(x)]:
    names = " and ".join(missing)
    pytest.skip(
        f"no notebook can be executed without {names} "
        "(`pip install 'jax-lox[notebook]'`)",
        allow_module_level=True,
    )

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>"
NEVER = 600.0  # seconds, so that only the end is shown

CELLS = {
    "setup": f"""
        import os, time
        import jax, jax.numpy as jnp, numpy as np
        import lox, lox.loggers

        HOSTILE, NEVER = {HOSTILE!r}, {NEVER}
        keys = jax.random.split(jax.random.key(0), 4)

        def train(seed):
            def step(w, i):
                lox.log({{"w": w, HOSTILE: w / 2}}, step=i)
                return w + 1, None
            return jax.lax.scan(step, 1.0 * seed, jnp.arange(20))[0]

        def train_all(logger, count):
            @jax.vmap
            def run(seed, key):
                state = logger.init(key)
                w = logger.tap(train, state)(seed)
                logger.finish(state)
                return w
            run(jnp.arange(count), keys[:count])
            jax.effects_barrier()
    """,
    "console": """
        train_all(lox.loggers.ConsoleLogger(total=20, every=NEVER), 4)
    """,
    "apart": """
        train_all(lox.loggers.ConsoleLogger(runs="apart", every=NEVER), 3)
    """,
    # rows appear while the cell runs: it ends when the client has seen one
    "live": """
        live = lox.loggers.ConsoleLogger(every=0.01)
        first = live.init(0)
        live.log(first, {"seen": 123.0})
        while not os.path.exists("seen"):
            time.sleep(0.01)
    """,
    # a run that begins in another cell, while the first one is open
    "again": """
        second = live.init(1)
        live.log(second, {"seen": 125.0})
        live.finish(first)
        live.finish(second)
    """,
    "values": """
        empty = lox.loggers.ConsoleLogger(every=NEVER)
        empty.finish(empty.init(0))

        odd = lox.loggers.ConsoleLogger(every=NEVER)
        state = odd.init(0)
        for x in [1e308, -1e308, np.nan]:
            odd.log(state, {"huge": x, "lost": np.nan, "text\\ud800": np.ones((2, 3))})
        for i in range(400):
            odd.log(state, {f"key{i}": 1.0})
        odd.finish(state)
    """,
    "file": """
        with open("lines.txt", "w") as file:
            lines = lox.loggers.ConsoleLogger(file=file, every=NEVER)
            state = lines.init(0)
            lines.log(state, {"w": 1.5})
            lines.finish(state)
    """,
    "save": """
        train_all(lox.loggers.SaveLogger("store"), 4)
    """,
    "logs": """
        lox.spool(jax.vmap(train))(jnp.arange(4))[1]
    """,
    "runs": 'lox.runs("store")',
    "load": 'lox.load("store", key=keys[3])',
    "lanes": 'lox.runs("store").load()',
    "page": 'lox.page("store")',
    "plot": 'lox.runs("store").plot("w", band="ci")',
    # pyplot tells IPython how to show figures
    "pyplot": """
        import matplotlib.pyplot
        lox.load("store", key=keys[3]).plot("w")
    """,
    "different": """
        for i in (2, 3):
            lox.save({"x": np.zeros(i)}, "different", key=i)
        lox.runs("different")
    """,
    "progress": """
        lox.progress(lambda x: jax.lax.fori_loop(0, 20, lambda i, x: x + 1, x))(0);
    """,
}

# executes a notebook; keeps the messages about outputs, in their order
EXECUTE = """
    import json, pathlib, sys
    import nbclient, nbformat

    cells, hang, messages = json.load(open("cells.json")), float(sys.argv[1]), []

    class Client(nbclient.NotebookClient):
        def process_message(self, message, cell, cell_index):
            kind, content = message["msg_type"], message["content"]
            if kind in ("display_data", "update_display_data"):
                messages.append([cell_index, kind, content["data"]["text/plain"]])
                if "seen 123" in content["data"]["text/plain"]:
                    pathlib.Path("seen").touch()
            return super().process_message(message, cell, cell_index)

    cells = [nbformat.v4.new_code_cell(code) for code in cells]
    notebook = nbformat.v4.new_notebook(cells=cells)
    Client(notebook, timeout=hang, startup_timeout=hang).execute()
    nbformat.validate(notebook)
    nbformat.write(notebook, "notebook.ipynb")
    json.dump(messages, open("messages.json", "w"))
"""


class Notebook:
    """An executed notebook: the saved outputs, and the messages that led to them."""

    def __init__(self, path):
        self.path = path
        saved = json.loads((path / "notebook.ipynb").read_text())
        names = list(CELLS)
        outputs = [cell["outputs"] for cell in saved["cells"]]
        self.outputs = dict(zip(names, outputs, strict=True))
        self.messages = {name: [] for name in names}
        for index, kind, text in json.loads((path / "messages.json").read_text()):
            self.messages[names[index]].append((kind, text))

    def html(self, name):
        """The HTML of the only output of a cell."""
        (output,) = self.outputs[name]
        return _html(output)


def _html(output):
    return "".join(output["data"]["text/html"])


def _environment(path):
    """An environment that neither reads nor writes the user's directories."""
    folders = "IPYTHONDIR JUPYTER_CONFIG_DIR JUPYTER_DATA_DIR JUPYTER_RUNTIME_DIR"
    own = {name: str(path / name.lower()) for name in folders.split()}
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", **own}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    path = tmp_path_factory.mktemp("notebook")
    cells = [textwrap.dedent(code).strip() for code in CELLS.values()]
    (path / "cells.json").write_text(json.dumps(cells))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        done = programs.run(EXECUTE, HANG, env=_environment(path))
    assert done.returncode == 0, done.stderr
    return Notebook(path)


# --- the console ---------------------------------------------------------------


def test_console_is_one_output_with_final_values(notebook):
    html = notebook.html("console")
    assert "4 runs" in html and "20.5 ± 1.3" in html and "10.25 ± 0.65" in html
    assert '<progress value="1.0000" max="1">' in html and "100%  20/20" in html
    # mean and band of both keys
    assert html.count("<polyline") == html.count("<polygon") == 2
    # for readers without HTML
    (output,) = notebook.outputs["console"]
    text = "".join(output["data"]["text/plain"])
    assert text.startswith("100%  step 19  w 20.5 ± 1.3  ")


def test_console_sends_no_output_per_row(notebook):
    kinds = [kind for kind, _ in notebook.messages["console"]]
    assert kinds == ["display_data", "update_display_data"]


def test_console_shows_one_column_per_run(notebook):
    html = notebook.html("apart")
    assert html.count("<polyline") == 6 and "<polygon" not in html
    assert all(f"<td>{last}<br>" in html for last in (19, 20, 21))


def test_console_updates_while_its_cell_runs(notebook):
    first, *updates = notebook.messages["live"]
    assert first == ("display_data", "no rows yet")
    assert {kind for kind, _ in updates} == {"update_display_data"}
    assert any("seen 123" in text for _, text in updates)


def test_console_appears_in_every_cell_in_which_a_run_begins(notebook):
    kinds = [kind for kind, _ in notebook.messages["again"]]
    assert kinds.count("display_data") == 1
    # both are the same output, with the final values
    assert notebook.html("live") == notebook.html("again")
    assert "124 ± 1.4" in notebook.html("live")


def test_console_shows_empty_nonfinite_and_invalid_values(notebook):
    empty, odd = notebook.outputs["values"]
    assert "no rows were logged" in _html(empty)
    html = _html(odd)
    assert "nan," not in html and "inf" not in html
    assert "<td>nan</td><td> (3 not finite)</td>" in html
    assert "-1e+308 to 1e+308 (1 not finite)</title>" in html
    assert "text\\ud800" in html and "(2,3) 1 [1..1]" in html
    assert "and 103 more keys" in html  # an output of limited size


def test_console_with_file_prints_lines_to_it(notebook):
    assert notebook.outputs["file"] == []
    assert "w 1.5" in (notebook.path / "lines.txt").read_text()


def test_console_prints_lines_in_ipython_without_kernel(tmp_path):
    done = programs.run(
        """
        import IPython
        from IPython.core.interactiveshell import InteractiveShell
        import lox.loggers

        shell = InteractiveShell.instance()
        assert IPython.get_ipython() is shell
        logger = lox.loggers.ConsoleLogger(every=600)
        state = logger.init(0)
        logger.log(state, {"w": 1.5})
        logger.finish(state)
        """,
        env=_environment(tmp_path),
    )
    assert done.returncode == 0 and done.stdout.startswith("w 1.5"), done


# --- other outputs -------------------------------------------------------------


def test_logs_and_runs_are_tables_with_curves(notebook):
    for name in ("logs", "lanes"):
        html = notebook.html(name)
        assert "<code>w</code>" in html and "20.5 ± 1.3 (n = 4)" in html
        assert html.count("<polyline") == html.count("<polygon") == 2
    html = notebook.html("load")
    assert "<td>22</td>" in html and html.count("<polyline") == 2
    assert notebook.html("runs").count("finished") == 4
    assert "<table" in notebook.html("runs") and "<polyline" in notebook.html("runs")


def test_runs_that_cannot_be_drawn_together_say_why(notebook):
    html = notebook.html("different")
    assert html.count("finished") == 2 and "<svg" not in html
    assert "<p>No curves: &#x27;x&#x27; has different shapes" in html


@pytest.mark.parametrize("name", ["plot", "pyplot"])
def test_plot_is_one_image(notebook, name):
    (output,) = notebook.outputs[name]
    assert output["output_type"] == "execute_result"
    assert set(output["data"]) == {"text/plain", "image/png"}
    assert base64.b64decode(output["data"]["image/png"]).startswith(b"\x89PNG")


def test_page_is_inline_in_the_saved_notebook(notebook):
    html = notebook.html("page")
    assert "startNotebook(" in html and "<table" in html


def test_progress_prints_plain_lines(notebook):
    outputs = notebook.outputs["progress"]
    assert {output["output_type"] for output in outputs} == {"stream"}
    text = "".join(line for output in outputs for line in output["text"])
    assert "10% (2/20)" in text and "100% (20/20)" in text
    assert not {"\r", "\x1b"} & set(text)


def test_outputs_have_no_iframe_widget_or_warning(notebook):
    for name, outputs in notebook.outputs.items():
        for output in outputs:
            if name in ("progress", "plot", "pyplot"):
                continue
            assert output["output_type"] in ("display_data", "execute_result"), output
            assert set(output["data"]) == {"text/plain", "text/html"}
            assert "<iframe" not in _html(output)


def test_outputs_escape_hostile_names(notebook):
    for name in ("console", "apart", "logs", "load"):
        assert "&lt;/td&gt;&lt;script&gt;alert(1)" in notebook.html(name)
    for outputs in notebook.outputs.values():
        for output in outputs:
            html = _html(output) if "text/html" in output.get("data", ()) else ""
            assert "<script>alert" not in html and "<img" not in html
