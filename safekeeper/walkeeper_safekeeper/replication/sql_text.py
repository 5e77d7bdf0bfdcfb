"""Texts of SQL, as PostgreSQL's own clients write them. Pure."""

from __future__ import annotations

import re

_SPACES = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")|\s+(,)|\s+""")


def one_line(sql: str) -> str:
    """Return the statement with single spaces, and none before a comma. Quoted texts stay."""
    return _SPACES.sub(lambda found: found[1] or found[2] or " ", sql.strip())


def literals(text: str) -> set[str]:
    """Return the strings in `'a', 'it''s'`."""
    return {one[1:-1].replace("''", "'") for one in re.findall(r"'(?:[^']|'')*'", text)}
