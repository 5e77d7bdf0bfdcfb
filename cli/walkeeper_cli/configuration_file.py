"""The TOML file of --config: values for options, checked as strictly as the command line.

    safekeepers = ["10.0.0.1:5454", "10.0.0.2:5454", "10.0.0.3:5454"]   # for every command
    [proposer]                                                          # for one command
    dsn = "service=prod"

Keys are the options' names, with - or _. A key that no command knows is an error, because a
misspelt one would otherwise be ignored in silence.
"""

from __future__ import annotations

from typing import Any

import click


def load_defaults(
    path: str, command: click.Command, group: click.Group | None, program: click.Group
) -> dict[str, str | list[str]]:
    """Return the file's values for one command; its own table comes before the top level.

    A command of a group takes the group's table, which may hold the options of all its commands.
    Raise UsageError for a table or key that no command of `program` knows.
    """
    import tomllib  # not for every start

    owner: click.Command = group or command
    try:
        with open(path, encoding="utf-8-sig") as file:  # some editors write a byte order mark
            document = tomllib.loads(file.read())
    except (OSError, ValueError, RecursionError) as error:  # ValueError: a number is too long, too
        raise click.UsageError(f"--config {path}: {error}") from error
    common = {k: v for k, v in document.items() if not isinstance(v, dict)}
    own = document.get(owner.name or "", {})
    if not isinstance(own, dict):
        raise click.UsageError(f"--config {path}: {owner.name} is a command: [{owner.name}]")
    for table in (common, own):
        _refuse_twice(path, table)
    parameters, known = options_of(command), options_of(owner)
    for key in own:
        if _name(key) not in known:
            raise click.UsageError(f"--config {path}: [{owner.name}] has no option {key!r}")
    _refuse_unknown(path, document, common, program)
    defaults: dict[str, str | list[str]] = {}
    for key, value in (common | own).items():
        parameter = parameters.get(_name(key))
        if parameter is not None and parameter.name:
            texts = _as_written(path, key, value)
            defaults[parameter.name] = texts if parameter.multiple else ",".join(texts)
    return defaults


def _as_written(path: str, key: str, value: Any) -> list[str]:
    """Return the value as on a command line, because options check text and not TOML values."""
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, dict | list) for item in items):
        raise click.UsageError(f"--config {path}: {key} is a table, not a value")
    return [str(item) for item in items]


def _refuse_twice(path: str, table: dict[str, Any]) -> None:
    """Raise UsageError if the table has one option in both of its spellings."""
    for key in table:
        if key != _name(key) and _name(key) in table:
            raise click.UsageError(f"--config {path}: {key} and {_name(key)} are the same option")


def _name(key: str) -> str:
    return key.replace("-", "_")


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Return the command's options by the names that users give them."""
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    below = {name: param for each in inner for name, param in options_of(each).items()}
    return below | {
        _name(flag.removeprefix("--")): param
        for param in command.params
        for flag in param.opts
        if flag.startswith("--") and isinstance(param, click.Option)
    }


def _refuse_unknown(
    path: str, document: dict[str, Any], common: dict[str, Any], program: click.Group
) -> None:
    context = click.Context(program)
    commands = {name: program.get_command(context, name) for name in program.list_commands(context)}
    options = set().union(*(options_of(c) for c in commands.values() if c is not None))
    for key, value in document.items():
        if isinstance(value, dict) and key not in commands:
            raise click.UsageError(f"--config {path}: [{key}] is not a command of walkeeper")
    for key in common:
        if _name(key) not in options:
            raise click.UsageError(f"--config {path}: no command has an option {key!r}")
