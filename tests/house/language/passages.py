"""Passages: the pieces of text that the language rules look at, one paragraph or list item each.

    paragraphs(lines) -> passages          literal blocks (indented by four) are left out

Pure: no file is read here. The extractors (`python_text`, `markdown_text`) find the lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

LITERAL_INDENT = 4
ITEM = re.compile(r"(?P<indent>\s*)(?:[*+-]|\d{1,3}[.)])\s+(?=\S)")
# A row of two columns, "term   meaning": the meaning is a passage of its own.
ROW = re.compile(r"\s*\S(?:.*?[^\s.])?\s{2,}(?=\S)")
DOCTEST = re.compile(r"\s*(>>>|\.\.\.)( |$)")


class Kind(Enum):
    """The sort of text that a passage is; it selects the rules that apply."""

    PROSE = "prose"  # documents, module and class docstrings, --help texts
    DOCSTRING = "docstring"  # the summary of a function's docstring
    COMMENT = "comment"
    MESSAGE = "message"  # its form: `what failed: why; what to do`
    HEADING = "heading"


@dataclass(frozen=True, slots=True)
class Passage:
    kind: Kind
    line: int
    text: str  # its line breaks are kept, so that a sentence's line can be counted


def paragraphs(lines: Iterable[tuple[int, str]], *, kind: Kind) -> Iterator[Passage]:
    """Split numbered lines at blank lines and list items; leave out literal blocks."""
    held: list[str] = []
    first = 0
    in_list = False

    def flush() -> Iterator[Passage]:
        if held:
            yield Passage(kind, first, "\n".join(held))
            held.clear()

    for number, line in lines:
        indent = len(line) - len(line.lstrip())
        if not line.strip() or DOCTEST.match(line):
            yield from flush()
            continue
        if indent >= LITERAL_INDENT and not in_list:
            yield from flush()
            continue
        item = ITEM.match(line) or ROW.match(line)
        if item:
            yield from flush()
            in_list = True
            line = line[item.end() :]
        elif indent == 0 and not held:
            in_list = False
        if not held:
            first = number
        held.append(line.strip())
    yield from flush()
