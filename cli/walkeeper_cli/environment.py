"""Environment variables that no command reads because their names are misspelt.

A daemon would run with a default where its operator has set another value. The module
configuration_file.py refuses such keys in a file.
"""

from __future__ import annotations

import os

import click

from walkeeper_cli.configuration_file import options_of

PREFIX = "WALKEEPER_"
ALIKE = 0.8  # difflib's ratio: DATADIR and DATA_DIR have 0.93, SAFEKEEPERS and SAFEKEEPER_PORT 0.77


def warn_of_misspelt(program: click.Group, command: click.Command) -> None:
    """Warn on stderr of variables that resemble one of `command` and that no command reads.

    The warning leaves out all others, because some are no mistake. Kubernetes, for example, makes
    a WALKEEPER_SAFEKEEPER_PORT from a service's name.
    """
    read = _variables(command)
    ours = {name.removeprefix(PREFIX) for name in os.environ if name.startswith(PREFIX)}
    strange = ours - read
    if not strange:
        return
    from difflib import get_close_matches  # not for every start

    meant = {name: get_close_matches(name, read, n=1, cutoff=ALIKE) for name in sorted(strange)}
    if not any(meant.values()):
        return
    context = click.Context(program)
    commands = (program.get_command(context, each) for each in program.list_commands(context))
    known = set().union(*(_variables(each) for each in commands if each is not None))
    for name, close in meant.items():
        if close and name not in known:
            text = f"nothing reads {PREFIX}{name}: did you mean {PREFIX}{close[0]}?"
            click.echo(f"walkeeper: {text}", err=True)


def _variables(command: click.Command) -> set[str]:
    """Return the variables that the command reads, without the prefix."""
    names = (option.envvar for option in options_of(command).values())
    return {name.removeprefix(PREFIX) for name in names if isinstance(name, str)}
