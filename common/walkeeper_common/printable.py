"""Text of a peer as text that a log and a terminal can show. Pure.

Controls, and the characters that change the order or the width of others, become escapes. So a name
can neither begin a line of its own nor speak to a terminal. Letters of all languages stay.
"""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def printable(text: str) -> str:
    """Return the text with escapes in place of controls; the same text if it has none."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """Return our own text of several lines, such as a traceback, with each line printable."""
    return "\n".join(map(printable, text.split("\n")))


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape").decode("ascii")
