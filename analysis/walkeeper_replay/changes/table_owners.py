"""The tables of one database that owned files, and those that a name means in a range. Pure.

    owners = TableOwners.of(history, database)
    owners.meant(["public.t"], start, end) -> {(OID, first commit), …}

Contract: a name, or an OID, means each table that had it in the range. A table is its OID until
another table gets that OID.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from walkeeper_replay.catalogs.catalog import FIRST_NORMAL_OID, Database
from walkeeper_replay.catalogs.catalog_history import CatalogHistory, Named
from walkeeper_replay.catalogs.table_lives import TableLives
from walkeeper_replay.catalogs.table_names import meant
from walkeeper_replay.changes.change_events import Tenure, tenures
from walkeeper_replay.redo.store import Relation

TableLife = tuple[int, int]
"""An OID, and the commit that gave it to the table."""


@dataclass(frozen=True, slots=True)
class TableOwners:
    """The owners of files in one database, in the order of their first commits."""

    lives: TableLives
    _owners: list[tuple[Relation, Named, Tenure]]

    @classmethod
    def of(cls, history: CatalogHistory, database: Database) -> TableOwners:
        """Return the owners of all files of users' tables and materialized views.

        A temporary table is left out: its name in one session means another table elsewhere.
        """
        steps = history.file_steps(database.oid)
        owners = [
            (relation, named, tenure)
            for relation, owned in history.names().items()
            if relation.database == database.oid
            for named, tenure in tenures(owned, steps.is_created_in)
            if named.kind in ("r", "m")
            and named.oid >= FIRST_NORMAL_OID
            and named.persistence != "t"
        ]
        lives = TableLives.of_database(history, database.oid)
        return cls(lives, sorted(owners, key=lambda owner: owner[1].begin))

    def until(self, end: int) -> list[tuple[Relation, Named, Tenure]]:
        """Return the owners up to a commit, in the order of their commits."""
        return [owner for owner in self._owners if owner[1].begin <= end]

    def life(self, named: Named) -> TableLife:
        """Return the table to which a version of a row of pg_class belongs."""
        return named.oid, self.lives.at(named.oid, named.begin)

    def meant(
        self, names: Sequence[str], start: int, end: int, *, may_go_on: bool = False
    ) -> set[TableLife]:
        """Return the tables that had one of the names in (start, end], or all without a name.

        The last known row of pg_class may have ended by a change whose new row the WAL does not
        describe. With `may_go_on` the table has its last name from then on, if it was not dropped.
        """
        rows = [(self.life(named), named) for _, named, _ in self.until(end)]
        last = dict(rows)
        had = {
            ((named.schema, named.name, named.oid), life)
            for life, named in rows
            if named.end > start or (may_go_on and last[life] is named)
        }
        known = list({name for name, _ in had})
        asked = {each for name in names for each in meant(name, known)}
        return {life for name, life in had if not names or name in asked}
