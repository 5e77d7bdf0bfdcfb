"""The completion of shells as far as it needs none: every command and option, in clean lines.

docs/packages.md says in which shells it was tried.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from walkeeper_cli.program import cli

# The lines of one completion in the protocol between the program and the shell's script.
LINES = {BashComplete: 1, ZshComplete: 3, FishComplete: 1}


def commands(
    context: click.Context, *words: str
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the words and the command of each that is shown, the program first."""
    yield words, context.command
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            inner = context.command.get_command(context, name)
            assert inner is not None
            if not inner.hidden:
                below = click.Context(inner, info_name=name, parent=context)
                yield from commands(below, *words, name)


ALL = list(commands(click.Context(cli, info_name="walkeeper")))


def completion(shell: type[ShellComplete]) -> ShellComplete:
    return shell(cli, {}, "walkeeper", "_WALKEEPER_COMPLETE")


@pytest.mark.parametrize(("words", "command"), ALL, ids=lambda each: " ".join(each) or "walkeeper"
                         if isinstance(each, tuple) else "")  # fmt: skip
def test_each_option_and_each_command_is_completed(
    words: tuple[str, ...], command: click.Command
) -> None:
    bash = completion(BashComplete)
    found = {each.value for each in bash.get_completions(list(words), "--")}
    shown = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    named = {n for p in shown for n in (*p.opts, *p.secondary_opts) if n.startswith("--")}
    assert found >= named, named - found
    if isinstance(command, click.Group):
        inner = {path[-1] for path, _ in ALL if path[:-1] == words and path}
        assert {each.value for each in bash.get_completions(list(words), "")} >= inner


@pytest.mark.parametrize("shell", LINES)
def test_a_completion_has_the_lines_that_the_shells_script_reads(
    shell: type[ShellComplete],
) -> None:
    """A line feed in a help text would begin another completion."""
    program = completion(shell)
    for words, _ in ALL:
        for incomplete in ("", "--"):
            for each in program.get_completions(list(words), incomplete):
                text = program.format_completion(each)
                assert text.count("\n") + 1 == LINES[shell], text
                assert shell is not FishComplete or text.count("\t") <= 1, text


@pytest.mark.parametrize(
    ("group", "default"), [("members", "show"), ("logs", "ls"), ("slots", "ls"), ("user", "ls")]
)
def test_a_group_with_a_default_completes_the_options_of_that_command(
    group: str, default: str
) -> None:
    """`walkeeper members --safekeepers …` is `walkeeper members show --safekeepers …`."""
    bash = completion(BashComplete)

    def values(*words: str) -> list[str]:
        return [each.value for each in bash.get_completions(list(words), "--")]

    assert sorted(values(group)) == sorted(values(group, default))
    assert "--json" in values(group)
    assert "--safekeepers" not in values("spare"), "it needs a command"


def test_the_value_of_an_option_and_a_word_of_no_command_complete_to_nothing() -> None:
    bash = completion(BashComplete)
    assert bash.get_completions(["status", "--safekeepers"], "") == []
    assert bash.get_completions([], "nope") == []
