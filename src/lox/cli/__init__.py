"""The `lox` command. Each sub-command is a module of this package.

Such a module defines `HELP`, a line of text, `add_arguments(parser)`, and
`run(arguments)`, which returns the exit code. Its docstring is the description in
`lox COMMAND --help`. A module whose name starts with an underscore is not a command. An
underscore at the end is not part of the command's name, which may be a Python keyword.

Exit codes: 0 if all went well, 1 after an error, 2 if the command line is not valid,
130 if the user has interrupted the command, and 141 if its output was closed early
(`lox ls | head`), as for other programs.
"""

import argparse
import gc
import importlib
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from lox._errors import LoxError, LoxWarning
from lox._garbage import collector_paused
from lox._version import __version__

from ._output import (
    discard_output,
    flush_messages,
    output_is_closed,
    prepare_output,
    say,
)

# if set, errors have tracebacks
_TRACEBACK = "LOX_TRACEBACK"
_BROKEN_PIPE = 141  # 128 and the number of SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the `lox` command; returns its exit code.

    Args:
        arguments: the arguments of the command line; by default those of this process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "numpy" not in sys.modules:
        # NumPy would start threads for linear algebra, which takes 30 to 50 ms
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code = _reported(_parse_and_run, given)
    # Python would do so at exit, and report errors in another way
    code = _reported(_flush, code)
    if arguments is None:  # the process ends, so garbage collection is not needed
        gc.freeze()
    return code


def _reported(function: Callable[[Any], int], argument: Any) -> int:
    """The exit code that a function returns, or that of its exception."""
    try:
        return function(argument)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except Exception as error:
        # raised by stdout, not by a connection
        if isinstance(error, BrokenPipeError) and output_is_closed() is not False:
            discard_output()
            return _BROKEN_PIPE
        if os.environ.get(_TRACEBACK):
            raise
        message = str(error) or type(error).__name__
        if not isinstance(error, LoxError | OSError):
            message = f"{type(error).__name__}: {message} ({_TRACEBACK}=1 shows where)"
        say(f"error: {message}")
        return 1


def _parse_and_run(given: list[str]) -> int:
    with collector_paused():  # while modules are imported
        parser = _parser(given)
    if not given:
        parser.print_help(sys.stderr)
        return 2
    try:
        parsed = parser.parse_args(given)
    except SystemExit as stop:  # `argparse` has printed help, or an error
        return stop.code if isinstance(stop.code, int) else 2
    prepare_output()
    with warnings.catch_warnings():
        warnings.simplefilter("always", LoxWarning)
        warnings.showwarning = _once_each()
        code: int = parsed.command.run(parsed)
        return code


def _flush(code: int) -> int:
    """Writes the output; returns `code`, unless there is a new error."""
    flush_messages()
    try:
        if sys.stdout is not None:  # None if it was closed before the start
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError:  # such as a full disk
        discard_output()
        if not code:
            raise
    return code


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lox", description="Works with the runs that lox has saved."
    )
    parser.add_argument("--version", action="version", version=f"lox {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    modules = command_modules()
    # the other commands are not imported, which takes time
    for name in given[:1] if given[:1] and given[0] in modules else modules:
        command = importlib.import_module(f"{__name__}.{modules[name]}")
        _add(commands, name, command)
    return parser


def command_modules() -> dict[str, str]:
    """The names of all commands, and of their modules in this package."""
    return {
        module.name.removesuffix("_"): module.name
        for module in pkgutil.iter_modules(__path__)
        if not module.name.startswith("_")
    }


def _add(commands: Any, name: str, command: ModuleType) -> None:
    parser = commands.add_parser(name, help=command.HELP, description=command.__doc__)
    command.add_arguments(parser)
    parser.set_defaults(command=command)


def _once_each() -> Callable[..., None]:
    """A `warnings.showwarning` that prints lines; a store may be read many times."""
    shown: set[str] = set()

    def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            say(f"warning: {message}")

    return show_warning
