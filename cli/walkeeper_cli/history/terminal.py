"""Lines of `walkeeper history` for people; no text in them controls a terminal (see printable)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

import click

from walkeeper_common.operator_text.printable import printable


def tell(text: str) -> None:
    """Write one line on stderr."""
    click.echo(printable(text), err=True)


class OnTerminal:
    """Stdout on a terminal, with escapes in rows; a file or a pipe has the rows byte for byte."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def writelines(self, lines: Iterable[str]) -> None:
        """Write text with escapes for what a terminal would obey, but for line ends and tabs."""
        self._out.writelines(printable(line, kept="\n\t") for line in lines)
