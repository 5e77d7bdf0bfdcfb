"""Row changes of a log that grows, window after window: each commit's changes once, in their order.

    stream = ChangeStream.open(path, scope)         as it was saved last, or at its beginning
    stream.advance(files, plan).changes()           of the commits in the next window of new WAL
    stream.save()

The state goes from window to window: the pages of the tables as they are at `position`, catalogs,
and how transactions ended. So a window reads only its own WAL, twice: for catalogs, then for rows.
Changes of transactions that are still open wait in the state. `advance_into` gives the changes of a
window in parts, so that those of a large transaction are never together in memory. Contract: what
the windows give together is what `ChangeReader` gives for all of the WAL. A window that fails
leaves a state that must not be used again. Open the saved one, and advance it over the same WAL:
that gives the same.

The file has 8 kB for each touched page of the tables. Memory has `pages_max` of them at most. Both
have the catalogs' versions, and 8 bytes for each transaction. Memory has `changes_max_bytes` of the
changes of open transactions at most, and the file has the others.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from struct import unpack_from
from typing import Any

from walkeeper_common.lsn import Lsn
from walkeeper_replay.catalogs.catalog import Catalog, Database, Table
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.catalogs.growing_catalogs import GrowingCatalogs
from walkeeper_replay.changes.change_events import TableFile
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.changes.change_rows import FoundChanges
from walkeeper_replay.changes.undescribed import Undescribed
from walkeeper_replay.redo.apply import RECORD_CHANGES
from walkeeper_replay.redo.base import BaseDirectory, NotConsistent
from walkeeper_replay.redo.bounded_pages import PAGES_MIN, BoundedPages
from walkeeper_replay.redo.decoded_window import DecodedWindow, Rooms
from walkeeper_replay.redo.heap_files import HeapFiles, makers_of_files
from walkeeper_replay.redo.page_file import PageFile
from walkeeper_replay.redo.store import PageStore, Relation
from walkeeper_replay.redo.wal_pass import xlog_records
from walkeeper_replay.streams.open_changes import CHANGES_MAX_BYTES, OpenChanges
from walkeeper_replay.tuples.stored_chunks import StoredChunks
from walkeeper_replay.tuples.toast import Fetch
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.sources.reading import Batch
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import HistoryError

PAGES_MAX = 1 << 17  # a gigabyte
_ONLINE_CHECKPOINT, _OLDEST_ACTIVE = 0x10, 80  # a field of CheckPoint


@dataclass(frozen=True, slots=True)
class Scope:
    """The tables to follow, and from where on. A saved state is of one scope."""

    tables: tuple[str, ...] = ()
    """The names of tables; none means all users' tables."""
    database: str | None = None
    base: str | None = None
    start_lsn: int = 0
    """The first commit to give ends after it."""


class _Reader(ChangeReader):
    """A reader of one window, over the pages that the state has."""

    def __init__(self, *given: Any, waiting: OpenChanges) -> None:
        super().__init__(*given)
        self._waiting = waiting
        self._far: dict[Relation, list[Fetch]] = {}

    def _fetch(self, store: PageStore, file: TableFile) -> Fetch:
        """Return chunks of a part's records, else those on the pages or of open transactions."""
        near = super()._fetch(store, file)
        if not file.toasts:
            return near
        assert isinstance(store, BoundedPages), f"{store=}"

        def far(toast: Relation) -> list[Fetch]:
            if toast not in self._far:
                # A file that the window drops has them until then.
                relation = store.want(toast)
                chunks = StoredChunks(store, relation)
                self._far[toast] = [chunks, self._waiting.fetch(relation)]
            return self._far[toast]

        def fetch(number: int, size: int) -> bytes | None:
            found = near(number, size)
            if found is not None and len(found) == size:
                return found
            for each in chain.from_iterable(map(far, file.toasts)):
                more = each(number, size)
                found = max((some for some in (found, more) if some), key=len, default=None)
                if found is not None and len(found) == size:
                    break
            return found

        return fetch


@dataclass(slots=True)
class ChangeStream:
    """The state of one stream, with the tables of its scope."""

    scope: Scope
    system_id: int | None = None
    position: int = 0
    """The end of the last record that was taken; 0 before the first window."""
    last_lsn: int = 0
    """The start of that record, which the next one names as its predecessor."""
    database: Database | None = None
    missing: list[Undescribed] = field(default_factory=list)
    """The changes that the last window's WAL does not describe."""
    remarks: list[Undescribed] = field(default_factory=list)
    """The changes of the last window that may lack a part, and the values that they do not show."""
    segments_max: int = 4
    """Segments in a window, at most."""
    pages_max: int = PAGES_MAX
    """Pages of the tables in memory, at most."""
    changes_max_bytes: int = CHANGES_MAX_BYTES
    """Bytes of the changes of open transactions in memory, at most."""
    _file: PageFile | None = None
    _catalogs: GrowingCatalogs = field(default_factory=GrowingCatalogs)
    _pages: BoundedPages | None = None
    _heaps: HeapFiles = field(default_factory=HeapFiles)
    _waiting: OpenChanges = field(default_factory=OpenChanges)
    _rooms: Rooms = field(default_factory=lambda: Rooms(0))
    _shown: dict[int, Catalog] = field(default_factory=dict)
    """Catalogs as of some LSNs, while no window changes one."""

    def advance(self, files: WalFiles, plan: Plan) -> FoundChanges:
        """Return the changes of the commits in the next window as one; see `advance_into`."""
        parts: list[FoundChanges] = []
        rewritten = self.advance_into(files, plan, parts.append)
        return FoundChanges.of_parts(parts, rewritten)

    def advance_into(
        self, files: WalFiles, plan: Plan, take: Callable[[FoundChanges], None]
    ) -> dict[int, Table]:
        """Give the changes of the commits in the next window to `take`, part after part.

        `plan` is all WAL that is there, from the base backup on. At its end there is no part.
        Return the tables that were rewritten. Raise HistoryError if WAL that is needed is gone or
        damaged.
        """
        if self.system_id not in (None, plan.system_id):
            raise HistoryError(
                f"{files.shown('')}: WAL of cluster {plan.system_id}, but the stream has read that "
                f"of {self.system_id}: name its archive, or begin with an empty --state"
            )
        base = None if self.scope.base is None else BaseDirectory(self.scope.base)
        first = plan.segments[0]
        if self.position and max(first.begin_lsn, first.first_lsn) > self.position:
            raise HistoryError(
                f"{files.shown('')}: WAL begins at {Lsn(first.begin_lsn)}, and the stream has read "
                f"up to {Lsn(self.position)}: give it an archive with the WAL between"
            )
        found = self._window(files, plan, base)
        if found is None:
            return {}
        window, history = found
        if not self._catalogs.is_quiet:
            self._shown = {}
        if self.database is None:
            self.database = history.database(history.end_lsn, self.scope.database)
        own = files, window.plan, history, self.database, base
        reader = _Reader(*own, waiting=self._waiting)
        reader._heaps, reader.described.catalogs = self._heaps, self._shown
        start = max(self.scope.start_lsn, self.position)
        made, given = _MadeFiles(), set[int]()

        def take_and_note(found: FoundChanges) -> None:
            given.update(found.transactions())
            take(found)

        rewritten = self._changes(reader, window, start, made, take_and_note)
        others = self.scope.database is None and not self.scope.tables
        self.missing = reader.undescribed(
            start, history.end_lsn, others=others, names=self.scope.tables
        )
        self.remarks = [*reader.remarks(), *reader.unsure(given)]
        self.remarks += [] if self.scope.tables else reader.large_objects(start)
        self.system_id, self.position = plan.system_id, history.end_lsn
        self.last_lsn = window.last_lsn
        history.xids.forget_commits(self.position)
        self._heaps.keep(lambda changed: ~history.xids.have_ended(changed))
        return rewritten

    def _window(
        self, files: WalFiles, plan: Plan, base: BaseDirectory | None
    ) -> tuple[DecodedWindow, CatalogHistory] | None:
        """Return the next window and the catalogs at its end, or None without a new record.

        The first window goes on up to where a base backup is consistent.
        """
        count, self._rooms.count = self.segments_max, self.segments_max
        while (window := plan.within(self.position, plan.segments[-1].end_lsn)) is not None:
            is_all = count >= len(window.segments)
            window = window.part(0, min(count, len(window.segments)))
            decoded = self._rooms.decoded(files, window, self.last_lsn)
            if not decoded.end_lsn:
                if is_all:
                    return None
                count *= 2  # One record covers these segments.
                continue
            try:
                return decoded, self._catalogs.advance(plan, decoded, base)
            except NotConsistent:
                if is_all or self.position:
                    raise
                count *= 2
        return None

    def _changes(
        self, reader: _Reader, window: DecodedWindow, start: int, made: _MadeFiles,
        take: Callable[[FoundChanges], None],
    ) -> dict[int, Table]:  # fmt: skip
        """Give the changes of the commits that end in the window, after `start`, to `take`."""
        end = reader.history.end_lsn
        window.pass_over([made.add])
        tables = reader._files(self.scope.tables, end)
        followed = [relation for f in tables for relation in (f.relation, *f.toasts)]
        # A file of a transaction that is still open may be that of a table to follow.
        new = [r for r in made.files if r.database == reader.database.oid]
        assert self._file is not None, "opened"
        if self._pages is None:
            self._pages = BoundedPages(
                wanted=[*followed, *new], base=reader.base, record_level=RECORD_CHANGES,
                file=self._file, origin=reader.base, pages_max=self.pages_max,
            )  # fmt: skip
        store = self._pages
        store.attach(self._file, self.pages_max, reader.base)
        for relation in [*followed, *new]:
            if relation not in store.relations:
                store.base = None  # The backup's pages are older than this window.
                store.want(relation)
        window.pass_over([store.add, self._heaps.add])
        store.take_events()
        xids, waiting = reader.history.xids, self._waiting
        waiting.attach(self._file, self.changes_max_bytes)
        own, store.events = waiting.joined_with(store.events), []
        toast = [store.want(relation) for file in tables for relation in file.toasts]
        for part in waiting.parts(own, xids.commits, start, end, toast):
            store.events = [part.events]
            files = [file for file in tables if file.begin <= part.end_lsn]
            found = reader.part_in(store, files, part.start_lsn, part.end_lsn)
            if part.is_of_one_commit:
                found = found.within(part.first_lsn, part.until_lsn)
            take(found)
        store.events = []
        waiting.keep(own, xids, made.oldest_active)
        store.end_window()
        return reader.rewritten_in(tables, start, end)

    def save(self) -> None:
        """Save the state, so that it is on disk whole or not at all."""
        assert self._file is not None, "opened"
        if self._pages is not None:
            self._pages.write()
        state = {name: getattr(self, name) for name in _saved_names()}
        self._file.save(pickle.dumps(state, pickle.HIGHEST_PROTOCOL))

    def close(self) -> None:
        """Let go of the file. It has the state that was saved last."""
        if self._file is not None:
            self._file.close()

    @classmethod
    def open(
        cls, path: Path, scope: Scope, *, pages_max: int = PAGES_MAX,
        changes_max_bytes: int = CHANGES_MAX_BYTES,
    ) -> ChangeStream:  # fmt: skip
        """Return the state that was saved last, or a new one at the beginning.

        Raise HistoryError if it is damaged, or was saved for another scope. The file has pickled
        objects of Python, so only its owner may be able to write it.
        """
        file = PageFile(path)
        stream = cls(
            scope, pages_max=max(pages_max, PAGES_MIN), changes_max_bytes=changes_max_bytes,
            _file=file,
        )  # fmt: skip
        saved = file.saved()
        if saved is None:
            return stream
        for name, value in pickle.loads(saved).items():
            setattr(stream, name, value)
        if stream.scope != scope:
            file.close()
            raise HistoryError(
                f"{path}: the stream was begun for other tables, another database, backup or "
                f"start ({stream.scope}); name those, or begin with an empty --state and --to"
            )
        return stream


def _saved_names() -> list[str]:
    """Return the fields that a saved state has: all but the file and what the log gives again."""
    bounds = ("segments_max", "pages_max", "changes_max_bytes")
    left_out = (*bounds, "_file", "missing", "remarks", "_rooms", "_shown")
    return [each.name for each in fields(ChangeStream) if each.name not in left_out]


class _MadeFiles:
    """The files that a window makes, and the oldest transaction of its last checkpoint."""

    def __init__(self) -> None:
        self.files: set[Relation] = set()
        self.oldest_active = 0

    def add(self, batch: Batch) -> None:
        """Take a batch of records."""
        self.files.update(makers_of_files(batch))
        for row in xlog_records(batch, _ONLINE_CHECKPOINT):
            begin = int(batch.records["main_offset"][row])
            data = batch.payload[begin : begin + int(batch.records["main_length"][row])]
            if len(data) >= _OLDEST_ACTIVE + 4:
                self.oldest_active = int(unpack_from("<I", data.tobytes(), _OLDEST_ACTIVE)[0])
