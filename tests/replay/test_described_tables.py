"""Changes are missing of a file without a row of pg_class, or of a table without columns."""

from __future__ import annotations

from typing import cast

import numpy as np

from walkeeper_replay.catalogs.catalog import Catalog, Class, Database
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_events import TableFile
from walkeeper_replay.changes.described_tables import NO_ROW, DescribedTables
from walkeeper_replay.redo.store import Relation
from walkeeper_wal.records.segment import Column


class UnchangedCatalogs:
    """Catalogs that no commit changes."""

    def last_changes(self, lsns: Column) -> Column:
        return np.zeros(len(lsns), np.int64)


def described(*classes: Class) -> DescribedTables:
    database = Database(5, "postgres")
    catalog = Catalog(database, 0, classes={each.oid: each for each in classes})
    history = cast(CatalogHistory, UnchangedCatalogs())
    return DescribedTables(history, database, catalogs={0: catalog})


def test_a_file_without_a_row_of_pg_class_is_no_table() -> None:
    """So a reader that looks for a table's name learns that one without a name may be missing."""
    tables = described()
    file = TableFile(Relation(1663, 5, 24730), 1, 9, 24582, (), follows=False)
    assert tables.of_file(file, 5)[1] is None
    assert tables.undecoded == {("file", "1663/5/24730"): NO_ROW}


def test_a_table_whose_columns_are_not_known_is_named() -> None:
    tables = described(Class(24582, "h59", "public", "r", 24730, 0, 0, 2, "p", 0))
    file = TableFile(Relation(1663, 5, 24730), 1, 9, 24582, (), follows=False)
    assert tables.of_file(file, 5)[1] is None
    ((place, why),) = tables.undecoded.items()
    assert (
        place == ("table", "public.h59") and "has 2 columns, of which this WAL describes 0" in why
    )
