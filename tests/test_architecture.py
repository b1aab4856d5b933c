"""Which packages may import which, and which never import JAX."""

import ast
import pathlib
import pickle
import types

import numpy as np
import pytest

import lox

from . import programs

SOURCE = pathlib.Path(lox.__file__).parent.parent
# Packages in the flow of data. A module imports from its own package and from those
# before it; modules directly in `lox` that are not listed come first.
FLOW = [
    "lox._jax",
    "lox._reduce",
    "lox._logs",
    "lox._store",
    "lox._page",
    "lox._event_files",
    "lox._trackers",
    "lox._libraries",
    "lox._events",
    "lox._host",
    "lox._interpreter",
    "lox._streams",
    "lox._transforms",
    "lox._runtime",
    "lox.loggers",
    "lox.wandb",
    "lox.neptune",
    "lox.cli",
    "lox.__main__",
    "lox",  # which re-exports from all of them
    "logify",
]
# What can be used without JAX: nothing in them imports it when it is loaded.
WITHOUT_JAX = [
    "lox",
    "lox._store",
    "lox._event_files",
    "lox._trackers",
    "lox._logs",
    "lox._page",
    "lox.cli",
    "lox.__main__",
]


def modules():
    for path in sorted(SOURCE.glob("*/**/*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path


PATHS = dict(modules())


def imports(path, name, at_load=False):
    """The modules that a file imports, with lines: on load, or at any time."""
    package = name.split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    tree = ast.parse(path.read_text())
    for node in at_load_nodes(tree) if at_load else ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield (inner if inner in PATHS else module), node.lineno


def at_load_nodes(tree):
    """The statements that run when a module is loaded."""
    stack = list(tree.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            stack += node.orelse
            continue
        yield node
        stack += ast.iter_child_nodes(node)


def place(module):
    """Where a module is in the flow of data."""
    for i, package in enumerate(FLOW):
        if module == package or (module.startswith(f"{package}.") and package != "lox"):
            return i
    return -1


def violates_order(module, imported):
    if module == "lox._old_pickles":  # stands for modules that no longer exist
        return False
    return imported in PATHS and place(imported) > place(module)


@pytest.mark.parametrize("module", PATHS)
def test_imports_follow_the_order_of_packages(module):
    wrong = [
        f"line {line}: {imported}"
        for imported, line in imports(PATHS[module], module)
        if violates_order(module, imported)
    ]
    assert not wrong


def test_import_against_the_order_is_found():
    assert violates_order("lox._events.event", "lox._transforms.spool")
    assert not violates_order("lox._transforms.spool", "lox._events.event")
    assert {place(module) for module in PATHS} == {-1, *range(len(FLOW))}


def private_jax_names_in(tree):
    """Mentions of `jax._src`, except in docstrings and comments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            text = ast.unparse(node)
        elif isinstance(node, ast.Attribute):
            text = "jax._src" if node.attr == "_src" else ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = "" if " " in node.value.strip() else node.value
        else:
            continue
        if "jax._src" in text:
            yield f"line {node.lineno}: {text}"


def test_private_jax_names_are_used_in_one_module_only():
    for module, path in PATHS.items():
        if module != "lox._jax.compat":
            assert not list(private_jax_names_in(ast.parse(path.read_text()))), path


@pytest.mark.parametrize(
    "code",
    [
        "from jax._src import core",
        "from jax._src.core import Trace",
        "import jax._src.core",
        "jax._src.core.Trace",
        "importlib.import_module('jax._src.core')",
    ],
)
def test_private_jax_name_in_other_module_is_found(code):
    assert list(private_jax_names_in(ast.parse(code)))


# JAX's tables of rules, by primitive
RULE_TABLES = {
    "_lowerings",
    "_platform_specific_lowerings",
    "axis_primitive_batchers",
    "call_param_updaters",
    "call_transpose_param_updaters",
    "custom_partial_eval_rules",
    "dce_rules",
    "discharge_rules",
    "error_checks",
    "fancy_primitive_batchers",
    "jet_rules",
    "partial_eval_jaxpr_custom_rules",
    "partial_eval_rules",
    "primitive_batchers",
    "primitive_jvps",
    "primitive_linearizations",
    "primitive_transposes",
}


def rule_tables_in(tree):
    """Accesses to JAX's tables of rules, or to the modules that hold them."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name.rpartition(".")[2] for alias in node.names]
            if "jax.interpreters" in ast.unparse(node):
                yield f"line {node.lineno}: jax.interpreters"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]  # as for `getattr`
        for name in RULE_TABLES.intersection(names):
            yield f"line {node.lineno}: {name}"


def test_jax_rule_tables_are_used_in_one_package_only():
    for module, path in PATHS.items():
        if not module.startswith("lox._jax"):
            assert not list(rule_tables_in(ast.parse(path.read_text()))), path


@pytest.mark.parametrize(
    "code",
    [
        "compat.batching.fancy_primitive_batchers[log_p] = rule",
        "getattr(pe, 'dce_rules')",
        "from jax.interpreters import ad",
        "from jax.interpreters.ad import primitive_jvps as jvps",
        "import jax.interpreters.mlir",
    ],
)
def test_jax_rule_table_in_other_package_is_found(code):
    assert list(rule_tables_in(ast.parse(code)))


# Attributes of logdicts that only their own package uses.
PRIVATE_OF_LOGDICT = {
    name
    for cls in lox.logdict.__mro__[:-2]  # without `dict` and `object`
    for name in vars(cls)
    if name.startswith("_") and not name.endswith("_")
}


def private_of_logdict_in(tree):
    """Accesses to private attributes of logdicts; types are unknown, so by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE_OF_LOGDICT:
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_only_one_package_uses_private_attributes_of_logdicts():
    for module, path in PATHS.items():
        if module.startswith("lox._logs") or module == "lox._old_pickles":
            continue
        assert not list(private_of_logdict_in(ast.parse(path.read_text()))), path


@pytest.mark.parametrize(
    "code", ["logs._metadata.steps", "logs._key('x')", "logdict._from_pickle(data)"]
)
def test_access_to_private_attributes_of_logdicts_is_found(code):
    assert list(private_of_logdict_in(ast.parse(code)))


def loaded_by(module, seen):
    """All modules that a module loads, and their imports from other packages."""
    parents = [module.rpartition(".")[0]] if "." in module else []
    for imported in [*parents, *(name for name, _ in imports_at_load(module))]:
        if imported not in seen:
            seen.add(imported)
            if imported in PATHS:
                loaded_by(imported, seen)
    return seen


def imports_at_load(module):
    return imports(PATHS[module], module, at_load=True)


def test_store_and_logs_do_not_import_jax():
    for module in PATHS:
        package = module.rpartition(".")[0]
        if module == "lox._logs.pytree":  # loaded by `import jax`
            continue
        if module in WITHOUT_JAX or package in WITHOUT_JAX[1:]:
            loaded = loaded_by(module, set())
            assert not [name for name in loaded if name.split(".")[0] == "jax"], module


def test_load_and_runs_do_not_import_jax(tmp_path):
    logs = lox.logdict({"loss": np.arange(4.0)}, {"step": {"loss": np.arange(4)}}, True)
    lox.save(logs, tmp_path, key=3)
    program = f"""
        import sys
        import lox
        assert "spool" in dir(lox) and "loggers" in dir(lox)
        (run,) = lox.runs({str(tmp_path)!r})
        logs = run.load()
        print(logs, logs.step, logs.reduce("mean"), logs.slice[1:], len(logs.lanes()))
        print(lox.load({str(tmp_path)!r}, key=3))
        assert "jax" not in sys.modules
    """
    done = programs.run(program, fresh=True)
    assert not done.stderr
    assert done.stdout.startswith("{'loss': [0.0, 1.0, 2.0, 3.0]} {'loss': array(")


def test_public_names_load_once_and_unknown_names_raise():
    assert lox.spool is lox.spool
    assert {"log", "spool", "tap", "nolog", "load", "loggers"} <= set(dir(lox))
    with pytest.raises(AttributeError, match="no attribute 'spoool'"):
        lox.spoool  # noqa: B018


def test_old_version_of_jax_is_refused_with_the_remedy():
    requirement = f"jax>={'.'.join(map(str, lox._OLDEST_JAX))}"
    assert f'"{requirement}"' in (SOURCE.parent / "pyproject.toml").read_text()
    old = types.SimpleNamespace(__version__="0.8.2", __version_info__=(0, 8, 2))
    with pytest.raises(lox.UnsupportedJaxError, match="0.8.2 .* --upgrade jax"):
        lox._prepare_jax(old)


def test_pickled_logdict_names_only_public_classes():
    logs = lox.logdict({"x": np.arange(3)}, {"step": {"x": np.arange(3)}}, True)
    data = pickle.dumps(logs)
    assert b"lox._" not in data
    assert pickle.loads(data) == logs


def test_logdict_pickled_by_version_0_1_0_loads():
    path = pathlib.Path(__file__).parent / "data" / "logdict-0.1.0.pickle"
    logs = pickle.loads(path.read_bytes())
    assert logs["sum"].tolist() == [0, 1, 3, 6]
    assert logs["tree"]["b"][1].tolist() == [0, 1, 2, 3]
    assert logs.step["sum"].tolist() == [0, 1, 2, 3]
    assert logs.tags == {"once": ("setup",)}
    assert logs.reduce("last") == {
        "once": 1.5,
        "sum": 6.0,
        "tree": {"a": 3.0, "b": (3.0, 3.0)},
    }
