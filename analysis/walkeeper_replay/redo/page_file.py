"""Pages, pieces and a saved state in one SQLite file. A crash loses what came after the last save.

    file = PageFile(path); file.put(rows); file.get(keys); file.save(state)
    file.put_piece(7, data); file.piece(7)       data of the caller's own form

A key is a relation's number and a block. Everything that is put belongs to one transaction, which
`save` ends with the state of the rest. So pages, pieces and state are always of one place of the
log. Contract: a page or a piece whose bytes are not those that were put raises HistoryError. One
process writes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from walkeeper_replay.redo.apply import GONE, KNOWN
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_wal.wal_errors import HistoryError

# 32 kB, so that three pages fit into one of SQLite's without overflow.
_SETTINGS = (
    "PRAGMA page_size = 32768",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA cache_size = -16384",
    "PRAGMA busy_timeout = 30000",
)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS saved (name TEXT PRIMARY KEY, digest BLOB NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS page (
    key INTEGER PRIMARY KEY, state INTEGER NOT NULL, sum INTEGER NOT NULL, image BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS piece (
    serial INTEGER PRIMARY KEY, sum INTEGER NOT NULL, data BLOB NOT NULL);
"""
_HEAD = b"SQLite format 3"
_FORM = "change stream 10"  # raised when the state has other fields or names other classes
_DIGEST_BYTES = 16
BLOCKS = 1 << 32
_ROWS_AT_ONCE = 500


class PageRow(NamedTuple):
    """A page of the file."""

    key: int
    state: int
    image: bytes


def connected(file: Path, schema: str) -> sqlite3.Connection:
    """Return a connection to a file of pages with these tables; HistoryError if it is none."""
    try:
        made = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        for setting in _SETTINGS:
            made.execute(setting)
        made.executescript(schema)
    except sqlite3.DatabaseError as error:
        raise HistoryError(f"{file}: {error}") from error
    return made


class PageFile:
    """See the module."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if path.exists():
            with path.open("rb") as file:
                if not _HEAD.startswith(file.read(len(_HEAD))):
                    raise self._damaged()
        self._sql = connected(path, _SCHEMA)

    def close(self) -> None:
        """Let go of the file, and of all that was put since the last `save`."""
        self._sql.close()

    def put(self, rows: Iterable[PageRow]) -> None:
        """Put pages, in place of those with the same keys."""
        with self._change():
            self._sql.executemany(
                "INSERT OR REPLACE INTO page VALUES (?, ?, ?, ?)",
                ((row.key, row.state, crc32(row.image), row.image) for row in rows),
            )

    def get(self, keys: Iterable[int]) -> Iterator[PageRow]:
        """Yield those of the pages that are there."""
        select = "SELECT key, state, sum, image FROM page WHERE key = ?"
        for key in keys:
            for row in self._rows(select, (key,)):
                yield self._checked(row)

    def pages_of(self, relation: int) -> Iterator[PageRow]:
        """Yield all pages of a relation, in the order of their blocks."""
        select = "SELECT key, state, sum, image FROM page WHERE key >= ? AND key < ? ORDER BY key"
        begin, end = relation * BLOCKS, (relation + 1) * BLOCKS
        while True:
            rows = self._rows(f"{select} LIMIT {_ROWS_AT_ONCE}", (begin, end))
            yield from map(self._checked, rows)
            if len(rows) < _ROWS_AT_ONCE:
                return
            begin = rows[-1][0] + 1

    def mark_gone(self, relation: int, from_block: int) -> None:
        """Mark the pages of a relation from a block on as gone; they stay until `forget_gone`.

        A page that was not known is empty from then on.
        """
        keys, empty = (relation * BLOCKS + from_block, (relation + 1) * BLOCKS), bytes(PAGE_BYTES)
        with self._change():
            self._sql.execute(
                "UPDATE page SET sum = ?, image = ? "
                "WHERE key >= ? AND key < ? AND state NOT IN (?, ?)",
                (crc32(empty), empty, *keys, KNOWN, GONE),
            )
            self._sql.execute("UPDATE page SET state = ? WHERE key >= ? AND key < ?", (GONE, *keys))

    def forget_gone(self, relation: int) -> None:
        """Remove the pages of a relation that are gone."""
        with self._change():
            self._sql.execute(
                "DELETE FROM page WHERE key >= ? AND key < ? AND state = ?",
                (relation * BLOCKS, (relation + 1) * BLOCKS, GONE),
            )

    def put_piece(self, serial: int, data: bytes) -> None:
        """Put a piece of data under a number that no other piece has."""
        with self._change():
            self._sql.execute("INSERT INTO piece VALUES (?, ?, ?)", (serial, crc32(data), data))

    def piece(self, serial: int) -> bytes:
        """Return a piece that was put."""
        select = "SELECT sum, data FROM piece WHERE serial = ?"
        for checksum, data in self._rows(select, (serial,)):
            if crc32(data) == checksum:
                return bytes(data)
        raise self._damaged()

    def forget_pieces(self, serials: Iterable[int]) -> None:
        """Remove pieces."""
        with self._change():
            self._sql.executemany(
                "DELETE FROM piece WHERE serial = ?", ((serial,) for serial in serials)
            )

    def save(self, state: bytes) -> None:
        """Make the state durable, with all pages that were put before."""
        with self._change():
            row = (_FORM, blake2b(state, digest_size=_DIGEST_BYTES).digest(), state)
            self._sql.execute("DELETE FROM saved")
            self._sql.execute("INSERT INTO saved VALUES (?, ?, ?)", row)
            self._sql.execute("COMMIT")

    def saved(self) -> bytes | None:
        """Return the state that was saved last, or None if none was."""
        for form, digest, data in self._rows("SELECT name, digest, data FROM saved", ()):
            if form != _FORM or digest != blake2b(data, digest_size=_DIGEST_BYTES).digest():
                raise self._damaged()
            return bytes(data)
        return None

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Change the file in the transaction that the next `save` ends."""
        try:
            if not self._sql.in_transaction:
                self._sql.execute("BEGIN IMMEDIATE")
            yield
        except sqlite3.OperationalError as error:  # such as a full disk
            raise HistoryError(
                f"{self._path}: {error}: make room there, or move the state's folder, and start "
                "the stream again: it goes on from the last saved state"
            ) from error
        except sqlite3.DatabaseError as error:
            raise self._damaged() from error

    def _rows(self, select: str, values: tuple[int, ...]) -> list[Any]:
        try:
            return self._sql.execute(select, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._damaged() from error

    def _checked(self, row: tuple[int, int, int, bytes]) -> PageRow:
        key, state, checksum, image = row
        if len(image) != PAGE_BYTES or crc32(image) != checksum:
            raise self._damaged()
        return PageRow(key, state, image)

    def _damaged(self) -> HistoryError:
        return HistoryError(
            f"{self._path}: damaged, or of another version of walkeeper; remove it, and the stream "
            "reads all WAL again, without a change that it has written"
        )
