"""The path to a first Delta table: each command of the page is one of the program, as it is."""

from __future__ import annotations

import re
import shlex

import click

from tests.support.folders import ROOT
from walkeeper_cli.program import LazyGroup

COMMAND = re.compile(r"^walkeeper .*", re.MULTILINE)


def commands() -> list[list[str]]:
    """Return the words of each command in the page's shell blocks, without redirections."""
    text = (ROOT / "docs" / "lake.md").read_text()
    blocks = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    joined = blocks.replace("\\\n", " ")
    lines = [found.partition(" >")[0] for found in COMMAND.findall(joined)]
    return [shlex.split(line)[1:] for line in lines]


def test_each_command_of_the_page_is_understood() -> None:
    program = LazyGroup("walkeeper")
    found = commands()
    assert len(found) == 3
    for words in found:
        command: click.Command | None = program
        names, rest = [], list(words)
        while isinstance(command, click.Group):
            names.append(rest.pop(0))
            command = command.get_command(click.Context(command), names[-1])
        assert command is not None, f"{names=}"
        given, more, _ = command.make_parser(click.Context(command)).parse_args(list(rest))
        lacking = [each.name for each in command.params if each.required and each.name not in given]
        assert not more and not lacking, f"{names=} {more=} {lacking=}"
