"""The changes of a range in shares of whole tables, for several machines.

    shared = SharedChanges.open(path, plan, history, database, Asked(names, …, parts=8), base=…)
    shared.chosen(batch)             (part, records) of each share that has records in the batch
    store = shared.store(part); store.add(records); shared.rows(store, part)

Contract: the shares together have the rows of `ChangeReader.find`, each change once. Within a share
they are in the order of commits. The object travels to the machines that decode and replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from walkeeper_replay.catalogs.catalog import Database
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_events import TableFile
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.changes.undescribed import Undescribed
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.redo.chosen_records import Share, records_of
from walkeeper_replay.redo.heap_files import HeapFiles
from walkeeper_replay.redo.store import PageStore
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.sources.reading import Batch


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for tables by name, or all of users' tables, in a range of commits."""

    names: tuple[str, ...] = ()
    start_lsn: int = 0
    end_lsn: int = 0
    parts: int = 1


@dataclass(slots=True)
class SharedChanges:
    """The shares of one request."""

    path: str
    plan: Plan
    history: CatalogHistory
    database: Database
    base: BaseDirectory | None
    asked: Asked
    lost_from: int | None
    """Where the first WAL is missing, if the caller reads on."""
    files: list[list[TableFile]]

    @classmethod
    def open(
        cls, path: str, plan: Plan, history: CatalogHistory, database: Database, asked: Asked,
        *, base: BaseDirectory | None = None, lost_from: int | None = None,
    ) -> SharedChanges:  # fmt: skip
        """Return the shares; raise HistoryError if a table that was named is not there."""
        made = cls(path, plan, history, database, base, asked, lost_from, [])
        made.files = made._reader().shares(asked.names, asked.end_lsn, asked.parts, asked.start_lsn)
        return made

    def undescribed(
        self, heaps: HeapFiles, *, others: bool, is_cut_off: bool = False
    ) -> list[Undescribed]:
        """Return the places that were changed in the range, and that no share shows.

        `heaps` has the files with changes. With `is_cut_off`, the range of times begins before the
        WAL, and that part is one of the places. `rows` returns the tables without known columns.
        """
        reader = self._reader()
        reader.take_heaps(heaps)
        asked = self.asked
        found = [reader.cut_off_range()] if is_cut_off else []
        return found + reader.undescribed(
            asked.start_lsn, asked.end_lsn, others=others, names=asked.names
        )

    @property
    def until(self) -> int:
        """The end of the last record that a share needs."""
        return self.asked.end_lsn

    def chosen(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """Yield the records that each share needs."""
        for part, files in enumerate(self.files):
            relations = {each.relation for each in files}
            relations |= {toast for each in files for toast in each.toasts}
            chosen = records_of(batch, Share(frozenset(), frozenset(relations)))
            if files and len(chosen.records):
                yield part, chosen

    def store(self, part: int) -> PageStore:
        """Return an empty store for a share's records."""
        return self._reader().store_of(self.files[part])

    def rows(self, store: PageStore, part: int) -> tuple[Iterator[Any], Sequence[Undescribed]]:
        """Return the record batches of a share that is replayed, and the tables that they lack."""
        reader = self._reader()
        asked, files = self.asked, self.files[part]
        found = reader.found_in(store, files, asked.start_lsn, asked.end_lsn)
        return found.batches(self.database.name), reader.undecoded()

    def _reader(self) -> ChangeReader:
        reader = ChangeReader(
            open_files(self.path), self.plan, self.history, self.database, self.base,
            lost_from=self.lost_from,
        )  # fmt: skip
        reader.described.insists = bool(self.asked.names)
        return reader
