"""The group whose bare form lists: `walkeeper logs --safekeepers …` runs `walkeeper logs ls …`."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem


class DefaultCommand(click.Group):
    """The group that runs its command `default` if the arguments name none.

    That command may change nothing, and takes no arguments but options. `walkeeper logs old` is
    still an error."""

    def __init__(self, *arguments: Any, default: str, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_help = bool(args) and args[0] in ctx.help_option_names
        is_typed = not args and ctx.resilient_parsing  # completion: the word may be a command
        if not is_help and not is_typed and (not args or args[0].startswith("-")):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands, or the options of the default one, which needs no name."""
        found = super().shell_complete(ctx, incomplete)
        command = self.get_command(ctx, self.default)
        if command is None or not incomplete.startswith("-"):
            return found
        known = {each.value for each in found}
        below = click.Context(command, info_name=self.default, parent=ctx, resilient_parsing=True)
        options = command.shell_complete(below, incomplete)
        return [*found, *(each for each in options if each.value not in known)]
