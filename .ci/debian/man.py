"""Write a man page for `walkeeper` and for each of its commands, from the program's own help.

    python man.py FOLDER

click-man would drop the lines of examples, and sees no command that is imported when it is named.
"""

from __future__ import annotations

import inspect
import os
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click

from walkeeper_cli.program import cli

COLUMNS_MAX = 72  # mandoc counts bytes, and a character of another script has three


def escaped(text: str) -> str:
    """Return text that groff shows as it is, line by line."""
    return "\n".join(map(guarded, marked(text).splitlines()))


def filled(text: str) -> str:
    """Return text whose lines groff fills, in lines that mandoc does not call too long."""
    words = " ".join(marked(text).split())
    lines = textwrap.wrap(words, COLUMNS_MAX, break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(guarded, lines))


def marked(text: str) -> str:
    return text.replace("\\", r"\e").replace("-", r"\-")


def guarded(line: str) -> str:
    """Return a line that is no request."""
    return rf"\&{line}" if line.startswith((".", "'")) else line


def paragraphs(text: str) -> Iterator[str]:
    """Give each paragraph, the first without a macro, as it follows a heading.

    click marks one whose lines stay with a line of \\b."""
    parts = [
        f".nf\n{escaped(block)}\n.fi" if number else filled(block)
        for part in inspect.cleandoc(text).split("\n\n")
        for number, each in enumerate(part.split("\b"))
        if (block := each.strip("\n"))
    ]
    yield from "\n.PP\n".join(parts).splitlines()


def date() -> str:
    """Return the day of the packages' changelog, so that two builds are equal."""
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def page(context: click.Context) -> str:
    """Return the page of one command."""
    command, name = context.command, context.command_path.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f'.TH "{name.upper()}" 1 "{date()}" "walkeeper {version("walkeeper")}" "walkeeper"',
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
            lines += [".TP", rf"\fB{escaped(record[0])}\fR", filled(record[1])]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for inner in children(context, command):
            shown = filled(inner.command.get_short_help_str(limit=200))
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
