"""The names that the schemas of one database had in turn, by all versions of their rows. Pure.

    names = SchemaNames.of(rows of pg_namespace with their spans)
    names.within(oid, begin, end) -> [(begin, end, name), …]     a part for each name

Contract: a schema of which no row is known has no name, and its span is one part. Before its first
known row it has that row's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class SchemaNames:
    """See the module."""

    _begins: dict[int, list[tuple[int, str]]]
    """By OID: the names, each with the commit that gave it."""

    @classmethod
    def of(cls, rows: Iterable[tuple[tuple[int, int], Mapping[str, Any]]]) -> SchemaNames:
        """Return the names by all rows; VACUUM FULL makes several of one version."""
        begins: dict[int, list[tuple[int, str]]] = {}
        for (begin, _), row in sorted(rows, key=lambda version: version[0]):
            own = begins.setdefault(row["oid"], [])
            if not own:
                own.append((0, row["nspname"]))
            elif own[-1][1] != row["nspname"]:
                own.append((begin, row["nspname"]))
        return cls(begins)

    def within(self, oid: int, begin: int, end: int) -> list[tuple[int, int, str | None]]:
        """Return the names in a span, which is not empty."""
        known = self._begins.get(oid)
        if not known:
            return [(begin, end, None)]
        cuts = [begin, *(since for since, _ in known if begin < since < end), end]
        names = [name for since, name in known if since < end][1 - len(cuts) :]
        return [(*span, name) for span, name in zip(pairwise(cuts), names, strict=True)]
