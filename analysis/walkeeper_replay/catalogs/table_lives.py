"""The tables that had one OID in turn: after 2**32 OIDs a new table may get that of a dropped one.

    lives = TableLives.of_database(history, database.oid)
    lives.at(oid, commit_lsn) -> the commit that began the life, the same for all commits of it

Contract: a life begins with a commit that inserts a row of pg_class after the end of all earlier
ones. A row that VACUUM FULL copied begins none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from walkeeper_replay.catalogs.catalog_history import CatalogHistory, Named


@dataclass(frozen=True, slots=True)
class TableLives:
    """See the module."""

    begins: dict[int, list[int]]
    """By OID: the commits that began its lives, in order."""

    @classmethod
    def of(cls, versions: Iterable[Named], is_created_in: Callable[[int, int], bool]) -> TableLives:
        """Return the lives by all versions of the rows of pg_class."""
        begins: dict[int, list[int]] = {}
        ended: dict[int, int] = {}
        for named in sorted(versions, key=lambda version: version.begin):
            oid = named.oid
            is_first = oid not in begins
            if is_first or (named.begin > ended[oid] and is_created_in(oid, named.begin)):
                begins.setdefault(oid, []).append(named.begin)
            ended[oid] = max(named.end, ended.get(oid, named.end))
        return cls(begins)

    @classmethod
    def of_database(cls, history: CatalogHistory, database: int) -> TableLives:
        """Return the lives of a database's tables."""
        owned = [
            named
            for relation, owners in history.names().items()
            if relation.database == database
            for named in owners
        ]
        return cls.of(owned, history.file_steps(database).is_created_in)

    def at(self, oid: int, commit_lsn: int) -> int:
        """Return the commit that began the life which a commit belongs to, or 0."""
        begins = self.begins.get(oid, [])
        place = bisect_right(begins, commit_lsn)
        return begins[place - 1] if place else 0

    def is_last(self, oid: int, commit_lsn: int) -> bool:
        """Return whether no other table got the OID after this commit."""
        begins = self.begins.get(oid, [])
        return bisect_right(begins, commit_lsn) == len(begins)
