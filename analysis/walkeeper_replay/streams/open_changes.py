"""Changes of transactions that are still open: a bounded part in memory, all others in a file.

    waiting = OpenChanges(); waiting.attach(file, bytes_max)
    own = waiting.joined_with(events)         with the events of a window
    for part in waiting.parts(own, …): …      of the commits of a window, in their order
    waiting.keep(own, xids, oldest_active)    of the transactions that are open at its end

`own` has the events that are in memory. Between windows these are `bytes_max` bytes at most. A part
has some megabytes of events, and those of the window in addition. An event that goes to the file is
in one piece of it, with others of the same window. Memory keeps which transactions a piece has. A
piece whose transactions have all ended is removed, unread if none of them committed. A death loses
the pieces that `PageFile.save` has not made durable. Contract: the parts together have each event
of the window's commits once, and the commits in their order. A transaction larger than a part has
several, in the order of its records. Compare PostgreSQL's reorderbuffer.c and
logical_decoding_work_mem.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct

import numpy as np

from walkeeper_replay.redo.apply import EVENT_ROW, UNDONE
from walkeeper_replay.redo.page_file import PageFile
from walkeeper_replay.redo.store import Events
from walkeeper_replay.tuples.commits import Commits
from walkeeper_replay.tuples.row_versions import joined
from walkeeper_replay.tuples.toast import Chunks, Fetch, whole_from
from walkeeper_replay.tuples.tuple_loops import loops
from walkeeper_replay.tuples.xids import NEVER, Xids
from walkeeper_wal.records.segment import Bytes, Column

CHANGES_MAX_BYTES = 64 << 20  # as logical_decoding_work_mem
PART_BYTES, PIECE_BYTES = 16 << 20, 4 << 20
_HEAD = Struct("<Q")  # the number of rows


@dataclass(frozen=True, slots=True)
class Part:
    """Events of some commits, or of some records of one commit.

    Events of other transactions may be among them.
    """

    events: Events
    start_lsn: int
    """The commits end after it."""
    end_lsn: int
    first_lsn: int = 0
    """The changes are of records that start here or later."""
    until_lsn: int = NEVER

    @property
    def is_of_one_commit(self) -> bool:
        """True if this is one of several parts of one commit."""
        return (self.first_lsn, self.until_lsn) != (0, NEVER)


@dataclass(frozen=True, slots=True)
class _Source:
    """Events of one stretch of the log, in memory or in the file, and whose they are."""

    first_lsn: int
    xids: Column
    """Each transaction once, in order. In a piece they are those that are open."""
    sizes: Column
    """The bytes of each of them."""
    undone: Column
    """The rows of insertions that were taken back."""
    events: Events | None = None
    serial: int = 0
    """A piece's place in the file."""
    relations: frozenset[int] = frozenset()


@dataclass(slots=True)
class OpenChanges:
    """The events of open transactions, in memory and in pieces of a file."""

    bytes_max: int = CHANGES_MAX_BYTES
    near: Events = field(default_factory=lambda: joined([]))
    """The newest events, which are in memory."""
    _pieces: list[_Source] = field(default_factory=list)
    _serial: int = 0
    _file: PageFile | None = None

    def __getstate__(self) -> dict[str, object]:
        names = ("near", "_pieces", "_serial")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, object]) -> None:
        self._file, self.bytes_max = None, CHANGES_MAX_BYTES
        for name, value in state.items():
            setattr(self, name, value)

    def attach(self, file: PageFile, bytes_max: int) -> None:
        """Set the file of the other events, and the most bytes of events in memory."""
        self._file, self.bytes_max = file, bytes_max

    @property
    def bytes_in_memory(self) -> int:
        """The bytes of events in memory between two windows."""
        return _bytes_of(self.near)

    @property
    def _part_bytes(self) -> int:
        return min(self.bytes_max, PART_BYTES)

    @property
    def pieces(self) -> int:
        """The number of pieces in the file."""
        return len(self._pieces)

    def joined_with(self, events: list[Events]) -> Events:
        """Return all events in memory: those that were kept, and those of a window."""
        kept, self.near = self.near, joined([])
        return joined([kept, *events] if len(kept.rows) else events)

    def parts(
        self, own: Events, commits: Commits, start: int, end: int, always: Sequence[int]
    ) -> Iterator[Part]:
        """Yield the events of the commits that end in (start, end].

        A part has all events of the relations `always` that are in memory.
        """
        if not any(_has_commit(piece, commits, start, end) for piece in self._pieces):
            yield Part(own, start, end)
            return
        sources = [*self._pieces, _described(own)]
        sizes: dict[int, int] = {}
        for source in sources:
            lsns = _commit_lsns(source.xids, commits)
            for lsn, size in zip(lsns.tolist(), source.sizes.tolist(), strict=True):
                if start < lsn <= end:
                    sizes[lsn] = sizes.get(lsn, 0) + size
        for before, last in _groups(sizes, start, end, self._part_bytes):
            yield from self._group(sources, commits, before, last, always)

    def _group(
        self, sources: list[_Source], commits: Commits, start: int, end: int,
        always: Sequence[int],
    ) -> Iterator[Part]:  # fmt: skip
        """Yield the events of the commits in (start, end], in one part if its bytes admit it."""
        first, taken, taken_bytes = 0, list[_Source](), 0
        for source in [s for s in sources if _has_commit(s, commits, start, end)]:
            if taken and taken_bytes >= self._part_bytes:
                events = self._events(taken, sources, commits, start, end, always)
                yield Part(events, start, end, first, source.first_lsn)
                first, taken, taken_bytes = source.first_lsn, [], 0
            taken.append(source)
            lsns = _commit_lsns(source.xids, commits)
            taken_bytes += int(source.sizes[(lsns > start) & (lsns <= end)].sum())
        yield Part(self._events(taken, sources, commits, start, end, always), start, end, first)

    def _events(
        self, taken: list[_Source], sources: list[_Source], commits: Commits, start: int, end: int,
        always: Sequence[int],
    ) -> Events:  # fmt: skip
        found = []
        for source in sources:
            lsns = _commit_lsns(source.xids, commits)
            xids = source.xids[(lsns > start) & (lsns <= end)]
            if any(source is each for each in taken):
                events = self._read(source.serial) if source.events is None else source.events
                mask = np.isin(events.rows["xid"], xids)
            else:
                if len(source.undone):
                    # An insertion in another part must learn that it was taken back.
                    found.append(Events(source.undone, np.empty(0, np.uint8)))
                if source.events is None:
                    continue
                events = source.events
                mask = np.zeros(len(events.rows), bool)
            if source.events is not None:
                mask |= np.isin(events.rows["relation"], always)
            found.append(chosen(events, mask))
        return joined(found)

    def keep(self, own: Events, xids: Xids, oldest_active: int) -> None:
        """Keep the events of transactions that are open at a window's end, and forget the rest.

        A crash ended the transactions before `oldest_active` without a record. It is 0 if not
        known.
        """
        assert self._file is not None, "attached"

        def is_open(found: Column) -> Column:
            mask: Column = ~xids.have_ended(found) & (found != 0)
            if oldest_active:
                mask &= (found.astype(np.int64) - oldest_active) % (1 << 32) < 1 << 31
            return mask

        kept = []
        for piece in self._pieces:
            mask = is_open(piece.xids)
            if mask.any():
                kept.append(replace(piece, xids=piece.xids[mask], sizes=piece.sizes[mask]))
        gone = {each.serial for each in self._pieces} - {each.serial for each in kept}
        self._file.forget_pieces(sorted(gone))
        self._pieces = kept
        self.near = chosen(own, is_open(own.rows["xid"]))
        if _bytes_of(self.near) > self.bytes_max:
            self._spill()

    def _spill(self) -> None:
        """Move the events in memory to the file."""
        assert self._file is not None, "attached"
        rows = self.near.rows
        sizes = np.cumsum(np.maximum(rows["length"].astype(np.int64), 0) + EVENT_ROW.itemsize)
        begin = 0
        while begin < len(rows):
            before = int(sizes[begin - 1]) if begin else 0
            end = max(int(np.searchsorted(sizes, before + PIECE_BYTES, "right")), begin + 1)
            while end < len(rows) and rows["start_lsn"][end] == rows["start_lsn"][end - 1]:
                end += 1  # Both versions of an update lie in one piece.
            mask = np.zeros(len(rows), bool)
            mask[begin:end] = True
            events = chosen(self.near, mask)
            self._serial += 1
            data = _HEAD.pack(len(events.rows)) + events.rows.tobytes() + events.arena.tobytes()
            self._file.put_piece(self._serial, data)
            relations = frozenset(np.unique(events.rows["relation"]).tolist())
            self._pieces.append(
                replace(
                    _described(events), events=None, serial=self._serial, relations=relations
                )
            )  # fmt: skip
            begin = end
        self.near = joined([])

    def _read(self, serial: int) -> Events:
        assert self._file is not None, "attached"
        data = self._file.piece(serial)
        (count,) = _HEAD.unpack_from(data)
        rows = np.frombuffer(data, EVENT_ROW, count, _HEAD.size)
        return Events(rows, np.frombuffer(data, np.uint8, offset=_HEAD.size + rows.nbytes))

    def fetch(self, relation: int) -> Fetch:
        """Return the chunks of a TOAST relation that lie in the file."""
        return SpilledChunks(self, [p.serial for p in self._pieces if relation in p.relations],
                             relation)  # fmt: skip

    def chunks(self, serial: int, relation: int) -> Chunks:
        """Return a piece's chunks of a TOAST relation."""
        events = self._read(serial)
        rows = events.rows[(events.rows["relation"] == relation) & (events.rows["length"] > 0)]
        return Chunks(events.arena, rows["place"], rows["length"])


class SpilledChunks:
    """The chunks of a TOAST relation in some pieces, of which one at a time is in memory."""

    def __init__(self, waiting: OpenChanges, serials: list[int], relation: int) -> None:
        self._waiting, self._serials, self._relation = waiting, serials, relation
        self._ids: list[Column] | None = None

    def __call__(self, number: int, size: int) -> bytes | None:
        if self._ids is None:
            of = (self._waiting.chunks(each, self._relation) for each in self._serials)
            self._ids = [np.unique(chunks.ids) for chunks in of]
        found: dict[int, bytes] = {}
        for serial, ids in zip(self._serials, self._ids, strict=True):
            at = int(np.searchsorted(ids, number))
            if at < len(ids) and ids[at] == number:
                found.update(self._waiting.chunks(serial, self._relation).numbered(number))
        return whole_from(found)


def _bytes_of(events: Events) -> int:
    return int(events.rows.nbytes + events.arena.nbytes)


def chosen(events: Events, mask: Column) -> Events:
    """Return the events that a mask names, with their tuples alone."""
    rows = events.rows[mask]
    lengths = np.maximum(rows["length"].astype(np.int64), 0)
    arena: Bytes = np.empty(int(lengths.sum()), np.uint8)
    offsets = np.append(0, np.cumsum(lengths))
    places = np.ascontiguousarray(rows["place"], np.int64)
    loops.copy_values(events.arena, np.flatnonzero(lengths), places, offsets, arena)
    rows["place"] = offsets[:-1]
    return Events(rows, arena)


def _described(events: Events) -> _Source:
    """Describe events in memory."""
    rows = events.rows
    xids, places = np.unique(rows["xid"], return_inverse=True)
    lengths = np.maximum(rows["length"].astype(np.int64), 0) + EVENT_ROW.itemsize
    sizes = np.bincount(places, lengths, len(xids)).astype(np.int64)
    undone = rows[rows["kind"] == UNDONE].copy()
    undone["place"] = undone["length"] = 0
    # A page of a base backup that is loaded has no record.
    first = int(rows["start_lsn"][rows["start_lsn"] > 0].min(initial=NEVER))
    return _Source(first, xids, sizes, undone, events)


def _commit_lsns(xids: Column, commits: Commits) -> Column:
    """Return where each transaction was committed, or 0."""
    found: Column = np.append(commits.columns.end_lsn, 0)[commits.rows(xids)]
    return found


def _has_commit(source: _Source, commits: Commits, start: int, end: int) -> bool:
    lsns = _commit_lsns(source.xids, commits)
    return bool(((lsns > start) & (lsns <= end)).any())


def _groups(
    sizes: dict[int, int], start: int, end: int, bytes_max: int
) -> Iterator[tuple[int, int]]:
    """Yield pieces of (start, end], of at most `bytes_max` bytes unless one commit has more."""
    before, last, total = start, start, 0
    for lsn in sorted(sizes):
        if total and total + sizes[lsn] > bytes_max:
            yield before, last
            before, total = last, 0
        last, total = lsn, total + sizes[lsn]
    yield before, end
