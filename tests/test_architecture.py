"""Which packages may import which, and which never import JAX."""

import ast
import functools
import pathlib
import pickle
import re
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
# What can be used without JAX: nothing in them imports it, except on demand in the
# functions of `JAX_ON_DEMAND`.
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
# Modules with functions that need JAX, and what for.
JAX_ON_DEMAND = {
    "lox._logs.compaction": "rows that return to their device",
    "lox._logs.key": "arrays of JAX",
    "lox._logs.logdict": "registered as a pytree by `import jax`",
    "lox._logs.pytree": "loaded by `import jax`",
    "lox._store.keys": "keys of other implementations, and traced seeds",
    "lox._store.schema": "typed keys, which only JAX has",
}


def modules():
    for path in sorted(SOURCE.glob("*/**/*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path


PATHS = dict(modules())


def imports(path, name, nodes=ast.walk):
    """The modules that a file imports, with lines, in some nodes of its code."""
    package = name.split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in nodes(ast.parse(path.read_text())):
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
    return nodes_that_run(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def nodes_that_run(tree, skipped=()):
    """The statements of a module, without those for type checkers."""
    stack = list(tree.body)
    while stack:
        node = stack.pop()
        if isinstance(node, skipped):
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


def test_every_package_is_in_the_order():
    assert not [name for name in PATHS if place(name) < 0 and name.count(".") > 1]


def files_of_the_map():
    """The packages in the table of `CONTRIBUTING.md`, with the files it names."""
    text = (pathlib.Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    for row in re.findall(r"^\| `(\w+(?:/\w+)?)` \|[^|]*\|(.*)\|$", text, re.M):
        yield row[0], set(re.findall(r"`(\w+\.py|\w+/)`", row[1]))


@pytest.mark.parametrize(("package", "named"), [*files_of_the_map()])
def test_map_in_contributing_names_every_file(package, named):
    entries = [path for path in (SOURCE / package).iterdir() if path.name[:2] != "__"]
    found = {path.name + "/" * path.is_dir() for path in entries}
    if package == "lox/cli":  # one file per sub-command
        found = {name for name in found if name.startswith("_")}
    assert named == {name for name in found if name.endswith((".py", "/"))}


def test_map_in_contributing_has_every_package():
    packages = {path.parent for path in SOURCE.glob("lox/*/__init__.py")}
    named = {SOURCE / package for package, _ in files_of_the_map()}
    assert named == {*packages, SOURCE / "logify"}


def private_jax_names_in(tree):
    """Mentions of `jax._src`, except in docstrings and comments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", ""), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [] if " " in node.value.strip() else [node.value]
        else:
            continue
        path = ".".join(filter(None, names))
        if path == "_src" or "jax._src" in path:
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_private_jax_names_are_used_in_one_module_only():
    for module, path in PATHS.items():
        if module != "lox._jax.compat":
            assert not list(private_jax_names_in(ast.parse(path.read_text()))), path


@pytest.mark.parametrize(
    "code",
    [
        "from jax import _src",
        "from jax._src import core",
        "from jax._src.core import Trace",
        "import jax._src.core",
        "jax._src.core.Trace",
        "importlib.import_module('jax._src.core')",
        "getattr(jax, '_src')",
    ],
)
def test_private_jax_name_in_other_module_is_found(code):
    assert list(private_jax_names_in(ast.parse(code)))


# JAX's tables of rules
RULE_TABLES = {
    "interpreters",  # the public modules that hold some of them
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
            names = [getattr(node, "module", ""), *(alias.name for alias in node.names)]
            names = ".".join(filter(None, names)).split(".")
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
        "jax.interpreters.mlir.register_lowering(log_p, rule)",
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
    """Adds a module to `seen`, and all that it loads."""
    if module not in seen:
        seen.add(module)
        for imported in loaded_directly(module) if module in PATHS else ():
            loaded_by(imported, seen)
    return seen


@functools.cache
def loaded_directly(module):
    parents = [module.rpartition(".")[0]] if "." in module else []
    found = imports(PATHS[module], module, at_load_nodes)
    return [*parents, *(imported for imported, _ in found)]


def is_jax(module):
    return module.split(".")[0] in ("jax", "jaxlib")


def loads_jax(module):
    return any(map(is_jax, loaded_by(module, set())))


def runs_without_jax(module):
    return module == "lox" or f"{module}.".startswith(
        tuple(f"{package}." for package in WITHOUT_JAX[1:])
    )


@pytest.mark.parametrize("module", [*filter(runs_without_jax, PATHS)])
def test_store_logs_and_command_line_do_not_import_jax(module):
    if module not in JAX_ON_DEMAND:
        found = imports(PATHS[module], module, nodes_that_run)
        wrong = [f"line {line}: {name}" for name, line in found if loads_jax(name)]
        assert not wrong
    elif module != "lox._logs.pytree":
        assert not loads_jax(module)


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
