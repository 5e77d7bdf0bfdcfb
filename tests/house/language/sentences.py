"""Sentences of a passage and the words in them, as the language rules count them.

A code span (`in backticks`) counts as one word, and its punctuation is not the sentence's. Masking
keeps every offset, so that a masked sentence and its original are the same slice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

ABBREVIATION = re.compile(
    r"\b(e\.g|i\.e|cf|vs|etc|resp|approx|incl|no|sec|fig|p)\.$", re.IGNORECASE
)
CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
PLACEHOLDER = re.compile(r"%[-#0-9.]*[sdrfxX]|\{[^{}\s]*\}")
ADDRESS = re.compile(r"\b[a-z][a-z0-9+]*://[^\s)>\]]+")
END = re.compile(r"""[.!?]["')\]*_]*(?=\s|$)""")
WORD = re.compile(r"\S*\w\S*")
SEPARATOR = re.compile(r"[;:](?=[\s*_]|$)|(?<=\s)(?:[\u2013\u2014]|--|-)(?=\s)")


@dataclass(frozen=True, slots=True)
class Sentence:
    offset: int
    text: str
    masked: str  # as long as text: code spans, placeholders and addresses are one word of "x"


def masked(text: str) -> str:
    """Return the text with each code span, placeholder and address as a run of "x"."""
    for pattern in (CODE_SPAN, ADDRESS, PLACEHOLDER):
        text = pattern.sub(lambda found: "x" * len(found[0]), text)
    return text


def sentences(text: str) -> Iterator[Sentence]:
    """Split a passage at full stops, question marks and exclamation marks."""
    mask = masked(text)
    start = 0
    for end in END.finditer(mask):
        if mask[end.start()] == "." and ABBREVIATION.search(mask, start, end.start() + 1):
            continue
        yield from _sentence(text, mask, start, end.end())
        start = end.end()
    yield from _sentence(text, mask, start, len(text))


def _sentence(text: str, mask: str, start: int, end: int) -> Iterator[Sentence]:
    while start < end and text[start].isspace():
        start += 1
    stripped = text[start:end].rstrip()
    if WORD.search(stripped):
        yield Sentence(start, stripped, mask[start : start + len(stripped)])


def words(mask: str) -> int:
    """Count the words of a masked sentence."""
    return len(WORD.findall(mask))


def separators(mask: str) -> int:
    """Count semicolons, colons and dashes, but not one that introduces a list or ends its item."""
    return len(SEPARATOR.findall(mask.rstrip("*_ ").rstrip(":;")))
