"""Names of tables as people write them. Pure.

    meant(text, known) -> those of `known` (schema, name, oid) that it means

With quotes it is PostgreSQL's rule: `public."My.Table"`, `"S.x"."q""t"`. A name without quotes is
taken exactly as it is, never folded. A dot may separate schema and table or belong to either: the
last dot that gives a known table counts. An OID is a name, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

Known = tuple[str, str, int]
_PART = r'("(?:[^"]|"")+"|[^".]+)'
_QUOTED = re.compile(rf"(?:{_PART}\.)?{_PART}")


def meant(text: str, known: Sequence[Known]) -> list[Known]:
    """Return the known tables that `text` means, several if it names no schema."""
    for schema, table in _meanings(text):
        if found := [k for k in known if k[1] == table and schema in (None, k[0])]:
            return found
    return [k for k in known if str(k[2]) == text]


def in_quotes(part: str) -> str:
    """Return a part of a name so that `meant` takes it exactly. SQL: see written.quoted_name."""
    return '"' + part.replace('"', '""') + '"'


def _meanings(text: str) -> Iterator[tuple[str | None, str]]:
    """Yield the possible (schema, table), the likeliest first."""
    if parts := _QUOTED.fullmatch(text):
        schema, table = parts.groups()
        yield None if schema is None else _plain(schema), _plain(table)
    for dot in reversed([k for k, character in enumerate(text) if character == "."]):
        yield text[:dot], text[dot + 1 :]
    yield None, text


def _plain(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
