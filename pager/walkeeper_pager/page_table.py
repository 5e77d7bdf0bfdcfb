"""Pages as they are at the horizon: those that changed since the base backup, and those gone.

    table = PageTable(file); table.read(place, block)
    with table.change(): table.put(place, block, page); table.drop(place, from_block)

The state is one SQLite file: the pages, the marks that hide pages of the base, and the horizon.
They change in one transaction, so that a crash leaves the state before it or after it. Contract:
each thread has a connection of its own. Other connections see a change when its transaction ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from walkeeper_pager.page_names import Place
from walkeeper_pager.page_redo import PageState
from walkeeper_replay.redo.apply import GONE, KNOWN
from walkeeper_replay.redo.page_file import BLOCKS, connected
from walkeeper_wal.records.segment import Bytes

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS place (
    number INTEGER PRIMARY KEY, tablespace INTEGER, database INTEGER, relfilenode INTEGER,
    fork INTEGER, cut INTEGER, UNIQUE (tablespace, database, relfilenode, fork));
CREATE TABLE IF NOT EXISTS gone_database (
    tablespace INTEGER, database INTEGER, PRIMARY KEY (tablespace, database));
CREATE TABLE IF NOT EXISTS page (
    key INTEGER PRIMARY KEY, state INTEGER NOT NULL, why TEXT NOT NULL, image BLOB);
"""


class PageTable:
    """The table in one SQLite file; each thread needs an object of its own."""

    def __init__(self, file: Path) -> None:
        self._sql = connected(file, _SCHEMA)

    def close(self) -> None:
        self._sql.close()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Make all changes within the block durable as one."""
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._sql.execute("COMMIT")
        except BaseException:
            if self._sql.in_transaction:  # SQLite itself rolls back when the disk is full
                self._sql.execute("ROLLBACK")
            raise

    def get(self, name: str) -> str | None:
        """Return a named value, such as horizon_lsn, or None if it was never set."""
        row = self._sql.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set(self, name: str, value: object) -> None:
        self._sql.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, str(value)))

    def read(self, place: Place, block: int) -> PageState | None:
        """Return the page, or None if only the base knows it."""
        number, cut = self._place(place)
        if number is not None:
            row = self._sql.execute(
                "SELECT state, why, image FROM page WHERE key = ?", (number * BLOCKS + block,)
            ).fetchone()
            if row is not None:
                return PageState(row[0], _image(row[2]), row[1])
        if cut is not None and block >= cut:
            return PageState(GONE, _image(None))
        return None

    def put(self, place: Place, block: int, page: PageState) -> None:
        """Store a page. A page that is gone is stored too, since the base backup may have it."""
        image = page.image.tobytes() if page.state == KNOWN else None
        key = self._number(place) * BLOCKS + block
        self._sql.execute(
            "INSERT OR REPLACE INTO page VALUES (?, ?, ?, ?)", (key, page.state, page.why, image)
        )

    def drop(self, place: Place, from_block: int) -> None:
        """Remove the blocks of one fork from `from_block` on."""
        number = self._number(place)
        self._sql.execute(
            "UPDATE place SET cut = min(coalesce(cut, ?), ?) WHERE number = ?",
            (from_block, from_block, number),
        )
        self._sql.execute(
            "DELETE FROM page WHERE key >= ? AND key < ?",
            (number * BLOCKS + from_block, (number + 1) * BLOCKS),
        )

    def drop_database(self, tablespace: int, database: int) -> None:
        """Remove a database, and hide its pages of the base backup."""
        for place in self.places_of(tablespace, database):
            self.drop(place, 0)
        self._sql.execute(
            "INSERT OR IGNORE INTO gone_database VALUES (?, ?)", (tablespace, database)
        )

    def places_of(self, tablespace: int, database: int) -> list[Place]:
        """Return the places of a database in the table, without those of the base backup."""
        rows = self._sql.execute(
            "SELECT tablespace, database, relfilenode, fork FROM place "
            "WHERE tablespace = ? AND database = ?",
            (tablespace, database),
        )
        return [Place(*row) for row in rows.fetchall()]

    def blocks_of(self, place: Place) -> list[int]:
        """Return the numbers of the blocks of a place in the table."""
        number, _ = self._place(place)
        if number is None:
            return []
        rows = self._sql.execute(
            "SELECT key FROM page WHERE key >= ? AND key < ?",
            (number * BLOCKS, (number + 1) * BLOCKS),
        )
        return [key % BLOCKS for (key,) in rows.fetchall()]

    def _place(self, place: Place) -> tuple[int | None, int | None]:
        """Return the place's number, and the block from which on pages of the base are gone.

        Each is None if there is none.
        """
        row = self._sql.execute(
            "SELECT number, cut FROM place "
            "WHERE tablespace = ? AND database = ? AND relfilenode = ? AND fork = ?",
            (place.tablespace, place.database, place.relfilenode, place.fork),
        ).fetchone()
        number, cut = row if row is not None else (None, None)
        if (
            cut is None
            and self._sql.execute(
                "SELECT 1 FROM gone_database WHERE tablespace = ? AND database = ?",
                (place.tablespace, place.database),
            ).fetchone()
        ):
            cut = 0
        return number, cut

    def _number(self, place: Place) -> int:
        number, _ = self._place(place)
        if number is not None:
            return number
        values = (place.tablespace, place.database, place.relfilenode, place.fork)
        made = self._sql.execute(
            "INSERT INTO place (tablespace, database, relfilenode, fork) VALUES (?, ?, ?, ?)",
            values,
        )
        assert made.lastrowid is not None, f"{place=}"
        return made.lastrowid


def _image(data: bytes | None) -> Bytes:
    """Return a copy of the page's bytes."""
    image: Bytes = np.zeros(8192, np.uint8)
    if data is not None:
        image[:] = np.frombuffer(data, np.uint8)
    return image
