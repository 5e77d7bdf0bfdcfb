"""The changes of a range in shares of whole tables, for several machines.

    shared = SharedChanges.open(path, plan, history, database, Asked(names, …, parts=8), base=…)
    take = shared.task(before); take(batch)      (part, records or commits) of each share
    share = shared.share(part); share.add(records or commits); share.rows()

Contract: the shares together have the rows of `ChangeReader.find`, each change once. Within a share
they are in the order of commits. The object travels to the machines that decode and replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from walkeeper_history.rows.ended import Ended
from walkeeper_replay.catalogs.catalog import Database
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_events import TableFile
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.changes.shared_ends import SharedEnds, WalBefore
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
        made.files = made.reader().shares(asked.names, asked.end_lsn, asked.parts, asked.start_lsn)
        return made

    def undescribed(
        self, heaps: HeapFiles, *, others: bool, is_cut_off: bool = False
    ) -> list[Undescribed]:
        """Return the places that were changed in the range, and that no share shows.

        `heaps` has the files with changes. With `is_cut_off`, the range of times begins before the
        WAL, and that part is one of the places. `rows` returns the tables without known columns.
        """
        reader = self.reader()
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

    def task(self, before: WalBefore) -> Callable[[Batch], Iterator[tuple[int, Batch | Ended]]]:
        """Return what yields the records and commits that each share needs of a task's batches.

        The batches are in the order of the log; `before` is about the WAL before the first one.
        """
        ends = SharedEnds([part for part, files in enumerate(self.files) if files], before)

        def take(batch: Batch) -> Iterator[tuple[int, Batch | Ended]]:
            chosen = [*self._chosen(batch)]
            yield from chosen
            yield from ends.of(batch, chosen)

        return take

    def _chosen(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        for part, files in enumerate(self.files):
            relations = {each.relation for each in files}
            relations |= {toast for each in files for toast in each.toasts}
            chosen = records_of(batch, Share(frozenset(), frozenset(relations)))
            if files and len(chosen.records):
                yield part, chosen

    def share(self, part: int) -> ReplayedShare:
        """Return a share without records."""
        return ReplayedShare(self, part, self.reader().store_of(self.files[part]))

    def reader(self, commits: Sequence[Ended] = ()) -> ChangeReader:
        """Return a reader whose history has these commits, too."""
        history = self.history
        if commits:
            history = copy(history)
            history.xids = history.xids.with_commits(commits)
        reader = ChangeReader(
            open_files(self.path), self.plan, history, self.database, self.base,
            lost_from=self.lost_from,
        )  # fmt: skip
        reader.described.insists = bool(self.asked.names)
        return reader


@dataclass(slots=True)
class ReplayedShare:
    """One share while it is replayed: its pages, and the commits of its transactions."""

    of: SharedChanges
    part: int
    store: PageStore
    commits: list[Ended] = field(default_factory=list)

    def add(self, found: Batch | Ended) -> None:
        """Take what a task found, in the order of the log."""
        if isinstance(found, Ended):
            self.commits.append(found)
        else:
            self.store.add(found)

    def rows(self) -> tuple[Iterator[Any], Sequence[Undescribed]]:
        """Return the record batches of the changes, and the tables that they lack."""
        reader = self.of.reader(self.commits)
        asked, files = self.of.asked, self.of.files[self.part]
        found = reader.found_in(self.store, files, asked.start_lsn, asked.end_lsn)
        return found.batches(self.of.database.name), reader.undecoded()
