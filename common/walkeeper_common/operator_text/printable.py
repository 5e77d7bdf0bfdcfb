r"""Names and texts of peers, WAL and servers, made fit for a line that people read. Pure.

    printable("a\n\x1b[2J") -> r"a\n\x1b[2J"
    in_one_line(error) -> "what failed: why", where the error's text has several lines

Contract: a text stays in its line, and a terminal obeys nothing in it. Control characters (of C0
and C1), line and paragraph separators, marks that change the direction of text, and halves of
surrogate pairs become escapes. Other text is unchanged. cf. pg_dump's sanitize_line, CVE-2025-8715.
"""

from __future__ import annotations

import re

UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape_of(character: str) -> str:
    r"""Return `\n`, `\x1b` or `\u202e`, as Python, JSON and PostgreSQL's E'' read it."""
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}")


def printable(text: str, kept: str = "") -> str:
    """Return the text with an escape for each unprintable character that is not in `kept`."""
    return UNPRINTABLE.sub(lambda m: m[0] if m[0] in kept else escape_of(m[0]), text)


def in_one_line(said: object) -> str:
    """Return the text of an error or an answer in one line, with one space for each gap."""
    return " ".join(str(said).split())
