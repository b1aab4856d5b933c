"""Prints a script that completes commands and options in a shell.

bash: add `eval "$(lox completion bash)"` to ~/.bashrc. zsh: add
`eval "$(lox completion zsh)"` to ~/.zshrc, after `compinit`. fish: write the script to
~/.config/fish/completions/lox.fish.
"""

import argparse
import importlib
import shlex
from typing import Any, NamedTuple

HELP = "print a completion script for a shell"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(arguments: Any) -> int:
    print(_SCRIPTS[arguments.shell](_commands()))
    return 0


class _Option(NamedTuple):
    """An option of a command."""

    names: list[str]
    help: str
    takes_value: bool
    choices: list[str]
    only_choices: bool  # if not, file names are completed too


class _Command(NamedTuple):
    name: str
    help: str
    options: list[_Option]
    choices: list[str]  # the values of its positional arguments


def _commands() -> list[_Command]:
    from lox import cli

    found = []
    for name, module_name in cli.command_modules().items():
        module = importlib.import_module(f"lox.cli.{module_name}")
        parser = argparse.ArgumentParser(prog="lox")
        module.add_arguments(parser)
        options, choices = [], []
        for action in parser._actions:
            examples = getattr(action, "examples", ())
            values = [str(choice) for choice in action.choices or examples]
            if action.option_strings:
                takes_value = action.nargs != 0
                text = (action.help or "").partition("(")[0].replace("%%", "%").strip()
                names = list(action.option_strings)
                only = action.choices is not None
                options.append(_Option(names, text, takes_value, values, only))
            else:
                choices += values
        found.append(_Command(name, module.HELP, options, choices))
    return found


# --- bash --------------------------------------------------------------------


def _bash(commands: list[_Command]) -> str:
    cases, values = [], []
    for command in commands:
        names = " ".join(name for option in command.options for name in option.names)
        words = " ".join(command.choices)
        cases.append(f"    {command.name}) options='{names}' words='{words}' ;;")
        for option in command.options:
            if option.choices:
                pattern = "|".join(f"{command.name}:{name}" for name in option.names)
                values.append(f"    {pattern}) words='{' '.join(option.choices)}' ;;")
    return _BASH.format(
        commands=" ".join(command.name for command in commands),
        cases="\n".join(cases),
        values="\n".join(values),
    )


_BASH = """\
_lox() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}}
  local previous=${{COMP_WORDS[COMP_CWORD-1]}} options='' words=''
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W '{commands} --help --version' -- "$current"))
    return
  fi
  case $command in
{cases}
  esac
  case $command:$previous in
{values}
  esac
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$current"))
  elif [[ -n $words ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  fi
}}
# without a match, names of files
complete -o default -F _lox lox"""


# --- zsh ---------------------------------------------------------------------


def _zsh(commands: list[_Command]) -> str:
    described = "\n".join(
        f"    {shlex.quote(f'{command.name}:{command.help}')}" for command in commands
    )
    cases = []
    for command in commands:
        arguments = [
            shlex.quote(f"{name}[{_zsh_text(option.help)}]{_zsh_value(option)}")
            for option in command.options
            for name in option.names
        ]
        values = f"({' '.join(command.choices)})" if command.choices else "_files"
        arguments.append(f"'*:run:{values}'")
        cases.append(f"    {command.name}) _arguments {' '.join(arguments)} ;;")
    return _ZSH.format(described=described, cases="\n".join(cases))


def _zsh_text(text: str) -> str:
    for character in "[]:":
        text = text.replace(character, f"\\{character}")
    return text


def _zsh_value(option: _Option) -> str:
    if not option.takes_value:
        return ""
    values = f"({' '.join(option.choices)})" if option.choices else "_files"
    if option.choices and not option.only_choices:
        named = f"names:name:{values}"
        values = f'{{_alternative "{named}" "files:file:_files"}}'
    return f":value:{values}"


_ZSH = """\
_lox() {{
  local -a commands flags
  flags=(--help --version)
  commands=(
{described}
  )
  if ((CURRENT == 2)); then
    _describe command commands
    _describe option flags
    return
  fi
  local name=$words[2]
  shift words
  ((CURRENT--))
  case $name in
{cases}
  esac
}}
compdef _lox lox"""


# --- fish --------------------------------------------------------------------


def _fish(commands: list[_Command]) -> str:
    lines = [
        f"complete -c lox -n __fish_use_subcommand -f -l {name}"
        for name in ("help", "version")
    ]
    for command in commands:
        lines.append(
            f"complete -c lox -n __fish_use_subcommand -f -a {command.name} "
            f"-d {shlex.quote(command.help)}"
        )
        where = f"complete -c lox -n '__fish_seen_subcommand_from {command.name}'"
        if command.choices:
            lines.append(f"{where} -f -a '{' '.join(command.choices)}'")
        for option in command.options:
            line = where
            for name in option.names:
                kind = "-l" if name.startswith("--") else "-s"
                line += f" {kind} {name.lstrip('-')}"
            if option.choices:
                kind = "-x" if option.only_choices else "-r"
                line += f" {kind} -a '{' '.join(option.choices)}'"
            elif option.takes_value:
                line += " -r"
            text = option.help.replace("\\", "\\\\").replace("'", "\\'")
            lines.append(f"{line} -d '{text}'")
    return "\n".join(lines)


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
