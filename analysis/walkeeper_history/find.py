"""Find each drop, truncate and delete with its place in the log: a recovery must stop before it.

    deeds_of_segment(reading) -> SegmentDeeds      in any thread
    findings(segments) -> Finding …                in the order of the log
    transaction(segments, xid) -> Finding …        the endings of one transaction

Contract: only committed transactions are findings of DROP, TRUNCATE and DELETE. Their
subtransactions count, and so does the prepared part of a transaction of two phases. `end_lsn` of a
finding is the start of its commit record. Recovery with that as recovery_target_lsn and
recovery_target_inclusive = false replays everything before the finding and nothing of it.

The kind of a finding follows from its records. If files that existed before the transaction go away
with its commit, and it made no new ones, they were dropped. They were also dropped if it deleted
rows of pg_class that are older than itself, in any version. A rewrite (CLUSTER, VACUUM FULL, some
ALTER TABLE) writes the rows of its tables beside the old ones. It makes these rows itself, and
deletes them. Otherwise the transaction gave relations new files. TRUNCATE leaves a heap's new file
empty, or an INSERT begins its first page. REINDEX fills all, and SET TABLESPACE copies pages.

A transaction that did several of these is a finding of each kind, with all the files that went
away. pg_class is known by its first relfilenode, which it keeps unless it is rewritten itself.
After that, a drop together with new files is named a truncate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from walkeeper_history.rows.events import commit_times, transactions_of
from walkeeper_history.rows.file_uses import FileUses, MadeFile, Relation
from walkeeper_history.rows.transactions import Ending, parse_ending, parse_prepare
from walkeeper_history.rows.view import View
from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.reading import Batch, Reading

PG_CLASS = 1259
FIRST_NORMAL_OID = 16384
KINDS = ("drop", "truncate", "rewrite", "delete", "drop database")
_HEAP, _HEAP2, _STORAGE = (RMGR_IDS[name] for name in ("Heap", "Heap2", "Storage"))
_INSERT, _DELETE, _UPDATE, _HOT_UPDATE, _MULTI_INSERT, _CREATE = 0, 1, 2, 4, 5, 1
_INIT_PAGE = 8  # XLOG_HEAP_INIT_PAGE is this bit of info >> 4.
_COMMITS, _PREPARE = ("commit", "commit prepared"), 1
_ENDINGS = ("commit", "prepare", "abort", "commit prepared", "rollback prepared")

Place = tuple[int, int]
"""A block of pg_class, and the number of a row in it."""


class ClassRow(NamedTuple):
    """A row of pg_class that was inserted, updated or deleted: the places of its two versions."""

    lsn: int
    old: Place | None
    new: Place | None


@dataclass(slots=True)
class Deeds:
    """The actions of a transaction that is still open, as far as findings need them."""

    deleted: dict[Relation, int] = field(default_factory=dict)
    created: set[Relation] = field(default_factory=set)
    written: set[Relation] = field(default_factory=set)
    begun: set[Relation] = field(default_factory=set)
    """The files whose first page begins with a row that was inserted."""
    class_rows: list[ClassRow] = field(default_factory=list)
    databases: list[int] = field(default_factory=list)

    def add(self, other: Deeds) -> None:
        for relation, rows in other.deleted.items():
            self.deleted[relation] = self.deleted.get(relation, 0) + rows
        self.created |= other.created
        self.written |= other.written
        self.begun |= other.begun
        self.class_rows += other.class_rows
        self.databases += other.databases


@dataclass(frozen=True, slots=True)
class Finding:
    """One action of one transaction."""

    kind: str
    xid: int
    timeline: int
    start_lsn: int | None
    """The start of its first record in the WAL that was read."""
    end_lsn: int
    commit_lsn: int
    """The end of the record that begins at `end_lsn`."""
    time: int
    """PostgreSQL's microseconds since 2000."""
    database: int | None
    relations: tuple[Relation, ...]
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class _End:
    """The record that ends a transaction."""

    xid: int
    outcome: str
    lsn: int
    end_lsn: int
    timeline: int
    time: int
    detail: Ending

    @property
    def family(self) -> tuple[int, ...]:
        """The transaction and its subtransactions."""
        return (self.xid, *self.detail.subxacts)


@dataclass(slots=True)
class SegmentDeeds:
    """The actions and the ended transactions of one segment, and the first records of its xids."""

    deeds: dict[int, Deeds] = field(default_factory=dict)
    ends: list[_End] = field(default_factory=list)
    xids: Column = field(default_factory=lambda: np.empty(0, np.uint32))
    first_lsns: Column = field(default_factory=lambda: np.empty(0, np.int64))


def deeds_of_segment(reading: Reading) -> SegmentDeeds:
    """Return the part of a segment that `findings` needs; may run in any thread."""
    found = SegmentDeeds()
    for batch in reading:
        _add_deeds(batch, found.deeds)
        found.ends += _ends(batch)
        xids, first = np.unique(batch.records["xid"], return_index=True)
        lsns = batch.start_lsn()[first]
        found.xids = np.concatenate([found.xids, xids])
        found.first_lsns = np.concatenate([found.first_lsns, lsns])
    return found


def deeds_of_batch(batch: Batch) -> set[int]:
    """Return the transactions of a batch with an action that findings need."""
    deeds: dict[int, Deeds] = {}
    _add_deeds(batch, deeds)
    return set(deeds)


def _add_deeds(batch: Batch, deeds: dict[int, Deeds]) -> None:
    records, blocks = batch.records, batch.blocks
    rmid, kind = records["rmid"], records["info"] >> 4
    operation = kind & 7
    for xid, relation, count in _counted(batch, (rmid == _HEAP) & (operation == _DELETE)):
        if relation[2] >= FIRST_NORMAL_OID:
            mine = deeds.setdefault(xid, Deeds())
            mine.deleted[relation] = mine.deleted.get(relation, 0) + count
    creates = np.flatnonzero((rmid == _STORAGE) & (kind == _CREATE))
    if len(creates):
        view = View(batch).narrowed(creates)
        places = np.stack([view.main(4 * n, 4) for n in range(3)], axis=1).tolist()
        for xid, (space, database, node) in zip(view.records["xid"].tolist(), places, strict=True):
            deeds.setdefault(xid, Deeds()).created.add((space, database, node))
    for xid, class_row in _class_rows(batch, operation):
        deeds.setdefault(xid, Deeds()).class_rows.append(class_row)
    makers = np.array([xid for xid, mine in deeds.items() if mine.created], np.uint32)
    if len(makers) and len(blocks):
        theirs = np.isin(records["xid"], makers)
        for xid, relation, _ in _counted(batch, theirs):
            deeds[xid].written.add(relation)
        for xid, relation, _ in _counted(batch, theirs & _begins(batch, kind)):
            deeds[xid].begun.add(relation)
    for row in np.flatnonzero((rmid == RMGR_IDS["Database"]) & _is_drop(batch, kind)).tolist():
        view = View(batch).narrowed(np.array([row]))
        mine = deeds.setdefault(int(records["xid"][row]), Deeds())
        mine.databases.append(int(view.main(0, 4)[0]))


def _begins(batch: Batch, kind: Column) -> Column:
    """Return a mask of the records that begin the first page of a heap with rows."""
    rmid, blocks = batch.records["rmid"], batch.blocks
    of_rows = (rmid == _HEAP) & (kind == _INSERT | _INIT_PAGE)
    of_rows |= (rmid == _HEAP2) & (kind == _MULTI_INSERT | _INIT_PAGE)
    is_first = np.zeros(len(rmid), bool)
    is_first[blocks["record"][(blocks["block_id"] == 0) & (blocks["block_number"] == 0)]] = True
    found: Column = of_rows & is_first
    return found


def _class_rows(batch: Batch, operation: Column) -> Iterator[tuple[int, ClassRow]]:
    """Yield changes of pg_class with their transactions.

    An update has two blocks if the new row is on another page.
    """
    records, blocks = batch.records, batch.blocks
    kinds = (_INSERT, _DELETE, _UPDATE, _HOT_UPDATE)
    of_rows = (records["rmid"] == _HEAP) & np.isin(operation, kinds)
    own = of_rows[blocks["record"]] & (blocks["relfilenode"] == PG_CLASS)
    if not own.any():
        return
    first, second = (blocks[own & (blocks["block_id"] == number)] for number in (0, 1))
    others = dict(zip(second["record"].tolist(), second["block_number"].tolist(), strict=True))
    rows = first["record"].astype(np.int64)
    view = View(batch).narrowed(rows)
    # xl_heap_insert has the number at 0, xl_heap_delete and xl_heap_update at 4, the new one at 12.
    for record, place, kind, xid, lsn, at in zip(
        rows.tolist(), first["block_number"].tolist(), operation[rows].tolist(),
        view.records["xid"].tolist(), view.start_lsn.tolist(), range(len(rows)), strict=True,
    ):  # fmt: skip
        data = view.main_bytes(at)
        if kind == _INSERT:
            yield xid, ClassRow(lsn, None, (place, _number(data, 0)))
        elif kind == _DELETE:
            yield xid, ClassRow(lsn, (place, _number(data, 4)), None)
        else:
            old = (others.get(record, place), _number(data, 4))
            yield xid, ClassRow(lsn, old, (place, _number(data, 12)))


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "little")


def _is_drop(batch: Batch, kind: Column) -> Column:
    """Return a mask of DROP DATABASE.

    PostgreSQL 15 has another number for it, since it has two ways to create a database.
    """
    drop: Column = kind == (2 if batch.version.layout >= 15 else 1)
    return drop


def _counted(batch: Batch, mask: Column) -> Iterator[tuple[int, Relation, int]]:
    """Yield (xid, relation of the first block, number of chosen records) for each pair."""
    records, blocks = batch.records, batch.blocks
    chosen = mask[blocks["record"]] & (blocks["block_id"] == 0)
    blocks = blocks[chosen]
    if not len(blocks):
        return
    keys = np.empty((len(blocks), 4), np.uint32)
    keys[:, 0] = records["xid"][blocks["record"]]
    for number, name in enumerate(("tablespace", "database", "relfilenode"), 1):
        keys[:, number] = blocks[name]
    unique, counts = np.unique(keys, axis=0, return_counts=True)
    for (xid, space, database, node), count in zip(unique.tolist(), counts.tolist(), strict=True):
        yield xid, (space, database, node), count


def _ends(batch: Batch) -> list[_End]:
    view = transactions_of(View(batch))
    times, _ = commit_times(view)
    kinds, records = view.kind & 15, view.records
    places = list(zip(view.start_lsn.tolist(), view.end_lsn.tolist(), view.timeline.tolist(),
                      strict=True))  # fmt: skip
    found = []
    for row, time in enumerate(times.tolist()):
        data, version = view.main_bytes(row), batch.version
        if kinds[row] == _PREPARE:
            detail = parse_prepare(data, version)
        else:
            detail = parse_ending(data, int(records["info"][row]), version)
        xid = detail.xid if detail.xid is not None else int(records["xid"][row])
        outcome = _ENDINGS[kinds[row]]
        found.append(_End(xid, outcome, *places[row], time, detail))
    return found


def findings(segments: Iterable[SegmentDeeds], uses: FileUses | None = None) -> Iterator[Finding]:
    """Yield the findings of segments in the order of the log, each one at its commit.

    `uses` takes the files that were made.
    """
    return _Findings(uses).of(segments, _committed)


def transaction(
    segments: Iterable[SegmentDeeds], xid: int, uses: FileUses | None = None
) -> Iterator[Finding]:
    """Yield each ending of the transaction `xid`, two if it had two phases."""

    def ended(end: _End, deeds: Deeds, start: int | None) -> Iterator[Finding]:
        if xid in (end.xid, *end.detail.subxacts):
            yield _finding(end, end.outcome, start, tuple(sorted(deeds.deleted)))

    return _Findings(uses).of(segments, ended)


_Report = Callable[[_End, Deeds, int | None], Iterator[Finding]]


class _Findings:
    """The transactions that are open while the log is followed: their actions and first records."""

    def __init__(self, uses: FileUses | None) -> None:
        self._uses = uses
        self._deeds: dict[int, Deeds] = {}
        self._xids = np.empty(0, np.uint32)
        self._first_lsns = np.empty(0, np.int64)

    def of(self, segments: Iterable[SegmentDeeds], report: _Report) -> Iterator[Finding]:
        for segment in segments:
            for xid, deeds in segment.deeds.items():
                self._deeds.setdefault(xid, Deeds()).add(deeds)
            self._open(segment)
            for end in segment.ends:
                yield from self._end(end, report)
            self._close(segment.ends)

    def _open(self, segment: SegmentDeeds) -> None:
        xids = np.concatenate([self._xids, segment.xids])
        lsns = np.concatenate([self._first_lsns, segment.first_lsns])
        # unique keeps the first of equals, which is the earlier.
        self._xids, first = np.unique(xids, return_index=True)
        self._first_lsns = lsns[first]

    def _end(self, end: _End, report: _Report) -> Iterator[Finding]:
        if end.outcome == "prepare":
            yield from report(end, Deeds(), self._first(end.xid))
            return
        deeds = Deeds()
        for xid in (end.xid, *end.detail.subxacts):
            deeds.add(self._deeds.pop(xid, Deeds()))
        if self._uses is not None and end.outcome in _COMMITS:
            self._uses.note(deeds.created, MadeFile(end.end_lsn, end.time))
        yield from report(end, deeds, self._first(end.xid))

    def _first(self, xid: int) -> int | None:
        at = int(np.searchsorted(self._xids, xid))
        found = at < len(self._xids) and self._xids[at] == xid
        return int(self._first_lsns[at]) if found else None

    def _close(self, ends: list[_End]) -> None:
        ended = [x for end in ends if end.outcome != "prepare"
                 for x in (end.xid, *end.detail.subxacts)]  # fmt: skip
        kept = ~np.isin(self._xids, np.array(ended, np.uint32))
        self._xids, self._first_lsns = self._xids[kept], self._first_lsns[kept]


def _how_files_went(deeds: Deeds) -> list[str]:
    if not deeds.created:
        return ["drop"]
    dropped, rewritten = _deleted_rows(deeds.class_rows)
    kinds = ["drop"] if dropped else []
    begins_empty = deeds.created - deeds.written or (
        deeds.class_rows and deeds.created & deeds.begun
    )
    if rewritten or not (dropped or begins_empty):
        kinds.append("rewrite")
    return kinds or ["truncate"]


def _deleted_rows(rows: list[ClassRow]) -> tuple[bool, bool]:
    """Return whether a transaction deleted older rows of pg_class, and whether it rewrote tables.

    A rewrite swaps the files of an old and a new row: it updates the one and then the other. Then
    it deletes the new row, and before that the old TOAST table's, where the new one needs none.
    """
    swapped: dict[Place, bool] = {}  # the transaction's own rows
    dropped = rewritten = updated_older = False
    in_this_run = 0
    for _, old, new in sorted(rows, key=lambda row: row.lsn):
        is_own = old is None or old in swapped
        is_swapped = old is not None and swapped.pop(old, False)
        if new is None:
            in_this_run = 0 if is_swapped else in_this_run + (not is_own)
            rewritten |= is_swapped
            continue
        dropped, in_this_run = dropped or in_this_run > 0, 0
        if is_own:
            swapped[new] = is_swapped or (old is not None and updated_older)
        updated_older = not is_own
    return dropped or in_this_run > 0, rewritten


def _committed(end: _End, deeds: Deeds, start: int | None) -> Iterator[Finding]:
    if end.outcome not in _COMMITS:
        return
    gone = {(r[0], r[1], r[2]) for r in end.detail.dropped} - deeds.created
    for kind in _how_files_went(deeds) if gone else ():
        yield _finding(end, kind, start, tuple(sorted(gone)))
    for database in deeds.databases:
        yield _finding(end, "drop database", start, (), database=database)
    if deeds.deleted:
        rows = sum(deeds.deleted.values())
        yield _finding(end, "delete", start, tuple(sorted(deeds.deleted)), rows=rows)


def _finding(
    end: _End,
    kind: str,
    start: int | None,
    relations: tuple[Relation, ...],
    *,
    rows: int | None = None,
    database: int | None = None,
) -> Finding:
    owner = database if database is not None else end.detail.database
    places = start, end.lsn, end.end_lsn
    return Finding(kind, end.xid, end.timeline, *places, end.time, owner, relations, rows)
