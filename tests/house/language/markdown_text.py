"""Prose of a Markdown document: headings, paragraphs and list items.

    passages(source) -> passages          pure

Left out: code blocks, tables, HTML, front matter and link definitions. A link stays as its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.house.language.passages import Kind, Passage, paragraphs

FENCE = re.compile(r"\s*(?:[*+-]\s+|\d+[.)]\s+)?(`{3,}|~{3,})")
HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.*?)\s*#*$")
NO_PROSE = re.compile(r"\s*(\||<|!!!\s|\?\?\?\+?\s|\[[^\]]+\]:|(?:-{3,}|={3,}|\*{3,})\s*$)")
ADMONITION = re.compile(r"\s*(?:!!!|\?\?\?\+?)\s")
QUOTE = re.compile(r"^\s{0,3}(>\s?)+")
INDENT = "    "
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]*)\](?:\([^)\s]*(?:\s+\"[^\"]*\")?\)|\[[^\]]*\])")
HTML_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def passages(source: str) -> list[Passage]:
    """Return the passages of a Markdown source, in the order of their lines."""
    source = HTML_COMMENT.sub(lambda found: "\n" * found[0].count("\n"), source)
    headings: list[Passage] = []
    lines = list(enumerate(_prose(source.splitlines(), headings), 1))
    found = [
        Passage(passage.kind, passage.line, _without_links(passage.text))
        for passage in [*headings, *paragraphs(lines, kind=Kind.PROSE)]
    ]
    return sorted(found, key=lambda passage: passage.line)


def _prose(lines: list[str], headings: list[Passage]) -> Iterator[str]:
    fence = ""
    admonition = False
    front_matter = lines[:1] == ["---"]
    for number, line in enumerate(lines, 1):
        if front_matter:
            front_matter = number == 1 or line != "---"
            yield ""
            continue
        admonition = ADMONITION.match(line) is not None or (
            admonition and (not line.strip() or line.startswith(INDENT))
        )
        if admonition:
            line = line.removeprefix(INDENT)
        mark = FENCE.match(line)
        if fence or mark:
            if mark and not fence:
                fence = mark[1]
            elif mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            yield ""
            continue
        heading = HEADING.match(line)
        if heading:
            headings.append(Passage(Kind.HEADING, number, heading[1]))
        yield "" if heading or NO_PROSE.match(line) else QUOTE.sub("", line)


def _without_links(text: str) -> str:
    return LINK.sub(r"\1", IMAGE.sub("", text))
