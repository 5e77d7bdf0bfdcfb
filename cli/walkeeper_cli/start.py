"""The start of every `walkeeper`: `restore` behind its guard, any other command without it.

Contract: this module and the guard import only what Python itself has imported. A module that is
missing then ends a restore with the guard's 126, and not with Python's 1.
"""

from __future__ import annotations

from walkeeper_restore import guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from click import Group


def main(broken: Callable[[BaseException], None] | None = None) -> None:
    """Run the command line, for the script `walkeeper` and for `python -m walkeeper_cli`.

    `broken` gets the error of a module that cannot be imported, and may start this process again.
    """
    guard.main(_restore, _any_other, broken)


def _restore(words: list[str]) -> str:
    from walkeeper_restore.entry import run

    return run(words, _program)


def _program() -> Group:
    from walkeeper_cli.program import cli

    return cli


def _any_other() -> None:
    from walkeeper_cli import program

    program.main()
