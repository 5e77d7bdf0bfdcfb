"""Write a man page for `walkeeper` and for each of its commands, from the program's own help.

    python man.py FOLDER

click-man would drop the lines of examples, and sees no command that is imported when it is named.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click

from walkeeper_cli.program import cli


def escaped(text: str) -> str:
    """Return text that groff shows as it is."""
    lines = text.replace("\\", r"\e").replace("-", r"\-").splitlines()
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in lines)


def paragraphs(text: str) -> Iterator[str]:
    """Give each paragraph. click marks one whose lines stay with a line of \\b."""
    for part in inspect.cleandoc(text).split("\n\n"):
        for number, block in enumerate(part.split("\b")):
            if block := block.strip("\n"):
                yield ".PP"
                yield f".nf\n{escaped(block)}\n.fi" if number else escaped(block)


def page(context: click.Context) -> str:
    """Return the page of one command."""
    command, name = context.command, context.command_path.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f'.TH "{name.upper()}" 1 "" "walkeeper {version("walkeeper")}" "walkeeper"',
        ".SH NAME",
        rf"{escaped(name)} \- {escaped(command.get_short_help_str(limit=200))}",
        ".SH SYNOPSIS",
        rf"\fB{escaped(context.command_path)}\fR {escaped(usage)}",
        ".SH DESCRIPTION",
        *paragraphs(command.help or ""),
        ".SH OPTIONS",
    ]
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            lines += [".TP", rf"\fB{escaped(record[0])}\fR", escaped(record[1])]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for inner in children(context, command):
            shown = escaped(inner.command.get_short_help_str(limit=200))
            lines += [".TP", rf"\fB{escaped(inner.command_path.replace(' ', '-'))}\fR(1)", shown]
    return "\n".join(lines) + "\n"


def children(context: click.Context, group: click.Group) -> Iterator[click.Context]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            yield click.Context(command, info_name=name, parent=context)


def write(context: click.Context, folder: Path) -> None:
    """Write the page of a command, and those of its own commands."""
    name = context.command_path.replace(" ", "-")
    (folder / f"{name}.1").write_text(page(context))
    if isinstance(context.command, click.Group):
        for inner in children(context, context.command):
            write(inner, folder)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write(click.Context(cli, info_name="walkeeper"), target)
