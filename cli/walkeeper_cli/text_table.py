"""A table of columns for people, as `kubectl` prints one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from walkeeper_common.operator_text.printable import printable


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows, of which the first is the head, in aligned columns."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in shown)
    return "\n".join(line.rstrip() for line in lines)
