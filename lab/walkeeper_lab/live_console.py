"""A table that is kept up to date below lines that stay. Without a terminal, lines alone. Shell."""

from __future__ import annotations

from typing import IO, Self

from rich.console import Console, RenderableType
from rich.live import Live


class LiveConsole:
    """The console of a with statement; its `console` prints lines that stay."""

    def __init__(self, file: IO[str] | None = None) -> None:
        """Write to `file`, or to stdout if it is None."""
        # Lines of a log must not be folded, and paths in them are no markup.
        self.console = Console(file=file, soft_wrap=True, markup=False, highlight=False)
        self._live = Live(console=self.console, auto_refresh=False, transient=True)

    @property
    def is_terminal(self) -> bool:
        return self.console.is_terminal

    def __enter__(self) -> Self:
        if self.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Remove the table, because it would be out of date while everything stops."""
        self._live.stop()

    def update(self, table: RenderableType) -> None:
        """Show this table instead of the last one, on a terminal only."""
        self._live.update(table, refresh=True)
