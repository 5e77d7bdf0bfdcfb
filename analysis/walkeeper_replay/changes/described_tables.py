"""The tables of one database as the catalogs have them, where their rows were changed. Pure.

    tables = DescribedTables(history, database, later)
    catalog, table = tables.of_file(file, commit_lsn)
    tables.undecoded                        the tables that are not described, and why

Contract: a table has the columns that the commit left it. A table that is not described is an error
if the caller names it. Otherwise its changes are left out, and `undecoded` has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from walkeeper_replay.catalogs.catalog import Catalog, Class, Database, Table
from walkeeper_replay.catalogs.catalog_history import CatalogHistory, Named
from walkeeper_replay.changes.change_events import TableFile
from walkeeper_replay.redo.store import Relation
from walkeeper_wal.wal_errors import HistoryError

NO_ROW = "no row of pg_class names it where it was changed, and its changes are missing"


@dataclass
class DescribedTables:
    """The tables of `database`, by the commits that changed their catalogs."""

    history: CatalogHistory
    database: Database
    later: Catalog | None = None
    """Catalogs that name labels, roles, and what regclass and its like print, or None."""
    catalogs: dict[int, Catalog] = field(default_factory=dict)
    undecoded: dict[tuple[str, str], str] = field(default_factory=dict)
    """Kind and place of the tables and files whose changes were left out, and why."""
    insists: bool = False
    """True if tables were named, so that one that is not described is an error."""

    def catalog(self, lsn: int) -> Catalog:
        """Return the catalog as of a commit; few are made, because few commits change a catalog."""
        place = int(self.history.last_changes(np.array([lsn]))[0])
        if place not in self.catalogs:
            self.catalogs[place] = self.history.at(lsn, self.database).in_names_of(self.later)
        return self.catalogs[place]

    def of_file(self, file: TableFile, lsn: int) -> tuple[Catalog, Table | None]:
        """Return a file's table as a commit that ends at `lsn` left it, or as it was last."""
        catalog = self.catalog(lsn)
        known = catalog.classes.get(file.oid)
        if known is None:  # dropped by the same transaction, or by one before it
            catalog = self.catalog(max(file.end - 1, file.begin))
            known = catalog.classes.get(file.oid)
        if known is None:
            self.undecoded["file", "/".join(map(str, file.relation))] = NO_ROW
            return catalog, None
        return catalog, self.table(catalog, known)

    def table(self, catalog: Catalog, known: Class) -> Table | None:
        """Return a table, or None if its columns are not known and it was not asked for by name."""
        try:
            return catalog.table(known)
        except HistoryError as error:
            if self.insists:
                raise
            self.undecoded["table", f"{known.schema}.{known.name}"] = str(error)
            return None

    def last(self, oids: Iterable[int]) -> dict[int, Table]:
        """Return the tables, materialized views left out, as they are at the end."""
        catalog = self.catalog(self.history.end_lsn)
        known = (catalog.classes[oid] for oid in set(oids) if oid in catalog.classes)
        tables = [self.table(catalog, each) for each in known if each.kind == "r"]
        return {table.oid: table for table in tables if table is not None}

    def toasts_of(self, named: Named) -> tuple[Relation, ...]:
        """Return the files that a table's TOAST table had in turn."""
        table = self.catalog(max(named.begin, 1)).classes.get(named.oid)
        return () if table is None else self._toasts.get(table.toast, ())

    @cached_property
    def _toasts(self) -> dict[int, tuple[Relation, ...]]:
        found: dict[int, tuple[Relation, ...]] = {}
        for file, owners in self.history.names().items():
            for oid in {each.oid for each in owners if each.kind == "t"}:
                if file.database == self.database.oid:
                    found[oid] = (*found.get(oid, ()), file)
        return found

    def has_new_key(self, file: TableFile, lsn: int) -> bool:
        """Return True if a commit gave a table that was there before another primary key."""
        before, after = self.catalog(lsn - 1), self.catalog(lsn)
        indexes = {each.key_indexes.get(file.oid) for each in (before, after)}
        return file.oid in before.classes and len(indexes) > 1

    def has_same_columns(self, file: TableFile, lsn: int) -> bool:
        """Return True if a commit left the table the columns that it had before."""
        before, after = (self.catalog(at).attributes.get(file.oid) for at in (lsn - 1, lsn))
        return before is not None and before == after
