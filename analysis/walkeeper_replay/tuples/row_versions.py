"""Versions of rows: all that were ever in a recorded relation, each with its span of time.

    versions_of(events, xids) -> Versions        begin and end are LSNs of commits

Contract: a version begins at the end of the commit record of the transaction that made it (0 if
that was before the WAL). It ends at the end of the commit record of the one that took it away. An
LSN is NEVER if that did not happen. A version whose maker did not commit has no span. Versions of
pages that were not known are counted.

A transaction that ended before the WAL may have no hint and no pg_xact that says how. The WAL may
still tell. A later transaction that updates or deletes a version has seen that its maker committed.
It has also seen that an earlier taker of the same version did not. Without such a proof the new
version of an UPDATE has no span. So a reader finds no row there, and not one that was rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from walkeeper_replay.redo.apply import DELETED, INSERTED, OLD, SEEN, UNDONE
from walkeeper_replay.redo.page import INFOMASK, XMAX, XMIN
from walkeeper_replay.redo.store import Events
from walkeeper_replay.tuples.xids import ASSUMED, NEVER, Xids
from walkeeper_wal.records.gather import integers
from walkeeper_wal.records.segment import Bytes, Column

XMIN_COMMITTED, XMIN_INVALID, XMIN_FROZEN = 0x0100, 0x0200, 0x0300
XMAX_COMMITTED, XMAX_INVALID = 0x0400, 0x0800
UPDATED = 0x2000
_IS_MULTI, _LOCK_ONLY, _EXCL, _KEYSHR = 0x1000, 0x0080, 0x0040, 0x0010


@dataclass(slots=True)
class Versions:
    """Versions by columns: each one's tuple has its place in the arena, and its span."""

    arena: Bytes
    relation: Column
    block: Column
    number: Column
    place: Column
    length: Column
    begin: Column
    end: Column
    first_lsn: Column
    """The LSN of the record that showed it first, or 0 in the base."""
    unknown: int = 0
    unseen: dict[int, frozenset[int]] = field(default_factory=dict)
    """By relation: the commits that inserted a row on a page that was not known."""

    def alive(self, relation: int, lsn: int) -> Column:
        """Return the versions of a relation that a snapshot at `lsn` sees."""
        seen = (self.relation == relation) & (self.begin <= lsn) & (self.end > lsn)
        found: Column = np.flatnonzero(seen)
        return found

    def all_of(self, relation: int) -> Column:
        """Return all versions of a relation, also those that were never visible."""
        found: Column = np.flatnonzero(self.relation == relation)
        return found

    def are_updates(self, chosen: Column) -> Column:
        """Return which of these versions an UPDATE made."""
        mask = integers(self.arena, self.place[chosen] + INFOMASK, 2)
        found: Column = mask & UPDATED != 0
        return found

    def are_certain(self, chosen: Column) -> Column:
        """Return which of these versions are visible by a commit's record or by hint bits.

        The visibility of the others is a guess: a transaction ended before the WAL.
        """
        mask = integers(self.arena, self.place[chosen] + INFOMASK, 2)
        is_made = (self.begin[chosen] > 0) | (mask & XMIN_COMMITTED != 0)
        is_kept = (self.end[chosen] != NEVER) | (mask & XMAX_INVALID != 0)
        found: Column = is_made & is_kept
        return found

    def of(self, relation: int) -> Column:
        """Return all versions of a relation that were ever visible."""
        found: Column = np.flatnonzero((self.relation == relation) & (self.begin < self.end))
        return found


def joined(pieces: list[Events]) -> Events:
    """Return events of several batches as one, their places in one arena."""
    if not pieces:
        from walkeeper_replay.redo.apply import EVENT_ROW

        return Events(np.empty(0, EVENT_ROW), np.empty(0, np.uint8))
    if len(pieces) == 1:
        return pieces[0]
    rows = np.concatenate([piece.rows for piece in pieces])
    sizes = np.cumsum([0, *(len(piece.arena) for piece in pieces[:-1])])
    rows["place"] += np.repeat(sizes, [len(piece.rows) for piece in pieces])
    return Events(rows, np.concatenate([piece.arena for piece in pieces]))


def makers_commit(xmin: Column, mask: Column, xids: Xids) -> Column:
    """Return when versions with these headers began; 0 for a hint that names no LSN."""
    return hinted_makers(xids.commit_lsns(xmin), mask)


def hinted_makers(begins: Column, mask: Column) -> Column:
    """Change commits of makers by what the headers say of them; see makers_commit."""
    hints = mask & XMIN_FROZEN
    hinted = (hints & XMIN_COMMITTED != 0) & (begins == NEVER)
    begins[hinted | (begins < 0)] = 0
    begins[hints == XMIN_INVALID] = NEVER
    return begins


def without_later_makers(begins: Column, mask: Column, seen_lsns: Column) -> Column:
    """Change commits that are later than the place where a version was seen frozen.

    A frozen row keeps its maker's xid, and 2**32 transactions later another one has that number.
    """
    begins[(mask & XMIN_FROZEN == XMIN_FROZEN) & (begins != NEVER) & (begins > seen_lsns)] = 0
    return begins


def takers_of(xmax: Column, mask: Column, xids: Xids) -> Column:
    """Return the transactions that updated or deleted these versions.

    0 stands for a header that has none, and NOT_KNOWN for one that is not known.
    """
    locked = (mask & _LOCK_ONLY != 0) | (mask & (_IS_MULTI | _EXCL | _KEYSHR) == _EXCL)
    takers = np.where(locked | (mask & XMAX_INVALID != 0), 0, xmax.astype(np.int64))
    for row in np.flatnonzero((mask & _IS_MULTI != 0) & (takers != 0)).tolist():
        takers[row] = xids.updater(int(takers[row]))
    return takers


def takers_commit(xmax: Column, mask: Column, xids: Xids) -> Column:
    """Return when versions with these headers ended, NEVER for locks and without a commit."""
    takers = takers_of(xmax, mask, xids)
    return hinted_takers(xids.commit_lsns(takers), takers, mask)


def hinted_takers(ends: Column, takers: Column, mask: Column) -> Column:
    """Change commits of takers by what the headers say of them; see takers_commit."""
    hinted = (mask & XMAX_COMMITTED != 0) & (mask & _IS_MULTI == 0) & (ends == NEVER) & (takers > 2)
    ends[hinted | (ends < 0)] = 0
    return ends


def makers_are_assumed(xmin: Column, mask: Column, xids: Xids) -> Column:
    """Return which makers are only assumed to have committed."""
    assumed: Column = (mask & XMIN_FROZEN == 0) & (xids.commit_lsns(xmin) == ASSUMED)
    return assumed


def takers_are_assumed(xmax: Column, mask: Column, xids: Xids) -> Column:
    """Return which takers are only assumed to have committed."""
    assumed: Column = xids.commit_lsns(takers_of(xmax, mask, xids)) == ASSUMED
    assumed &= (mask & XMAX_COMMITTED == 0) | (mask & _IS_MULTI != 0)
    return assumed


@dataclass(slots=True)
class _Doubts:
    """The span of a version by each of its events, and which of these are assumed."""

    ends: Column
    ends_assumed: Column
    begins: Column
    begins_assumed: Column
    taken: Column
    """The events by which a later transaction took the version, which it therefore saw."""

    def settled(self, order: Column, starts: Column, updated: Column) -> tuple[Column, Column]:
        """Return the spans of versions. Their events begin at `starts`, in the log's order.

        `updated` are the events of versions that an UPDATE made."""
        behind = np.append(starts[1:], len(order))
        assumed = self.begins_assumed[order]
        begins = np.minimum.reduceat(np.where(assumed, NEVER, self.begins[order]), starts)
        is_open = np.logical_and.reduceat(assumed, starts)
        is_seen = np.logical_or.reduceat(self.taken[order], starts)
        begins[is_open & (is_seen | ~updated[order[starts]])] = 0
        ends = np.minimum.reduceat(self.ends[order], starts)
        ends[self.ends_assumed[order[behind - 1]]] = 0
        return begins, ends


def versions_of(
    pieces: list[Events], xids: Xids, dropped: Sequence[tuple[int, int, int]] = ()
) -> Versions:
    """Return the versions of the events; see the module.

    `dropped` has (relation, events before, LSN) of each relation that went with its database's
    directory. A version that is not seen again after the database came back ended then.
    """
    events = joined(pieces)
    known = events.rows["length"] > 0
    unseen = _unseen(events.rows[~known], xids)
    rows, arena = events.rows[known], events.arena
    places = rows["place"]
    xmin, xmax = integers(arena, places + XMIN, 4), integers(arena, places + XMAX, 4)
    mask = integers(arena, places + INFOMASK, 2)
    # An UNDONE insertion has no xmin any more: it ends the version at its place.
    xmin[rows["kind"] == UNDONE] = rows["xid"][rows["kind"] == UNDONE]
    ends = np.full(len(rows), NEVER)
    taken = np.isin(rows["kind"], (DELETED, OLD))
    ends[taken] = xids.commit_lsns(rows["xid"][taken])
    ends[rows["kind"] == UNDONE] = 0
    seen = rows["kind"] == SEEN
    ends[seen] = takers_commit(xmax[seen], mask[seen], xids)
    is_assumed = np.zeros(len(rows), bool)
    is_assumed[seen] = takers_are_assumed(xmax[seen], mask[seen], xids)
    begins = without_later_makers(makers_commit(xmin, mask, xids), mask, rows["start_lsn"])
    doubts = _Doubts(
        np.where(is_assumed, NEVER, ends), is_assumed,
        begins, makers_are_assumed(xmin, mask, xids), taken,
    )  # fmt: skip
    order = np.lexsort((xmin, rows["number"], rows["block"], rows["relation"]))
    keys = [column[order] for column in (rows["relation"], rows["block"], rows["number"], xmin)]
    starts = np.flatnonzero(_changes(keys))
    if not len(starts):
        none = np.empty(0, np.int64)
        unknown = int((~known).sum())
        return Versions(arena, none, none, none, none, none, none, none, none, unknown, unseen)
    kept = order[starts]
    begins, ends = doubts.settled(order, starts, mask & UPDATED != 0)
    last = np.maximum.reduceat(np.flatnonzero(known)[order], starts)
    for relation, before, lsn in dropped:
        gone = (rows["relation"][kept] == relation) & (last < before)
        ends[gone] = np.minimum(ends[gone], lsn)
    return Versions(
        arena,
        rows["relation"][kept],
        rows["block"][kept],
        rows["number"][kept],
        places[kept],
        rows["length"][kept],
        begins,
        ends,
        np.minimum.reduceat(rows["start_lsn"][order], starts),
        int((~known).sum()),
        unseen,
    )


def _unseen(rows: Column, xids: Xids) -> dict[int, frozenset[int]]:
    """Return the commits of the insertions among events without a tuple, by relation."""
    inserted = rows[rows["kind"] == INSERTED]
    commits = xids.commit_lsns(inserted["xid"])
    return {
        number: frozenset(commits[inserted["relation"] == number].tolist())
        for number in np.unique(inserted["relation"]).tolist()
    }


def _changes(keys: list[Column]) -> Column:
    """Return a mask of the rows in which any of the sorted columns differs from the row before."""
    found: Column = np.zeros(len(keys[0]), np.bool_)
    found[:1] = True
    for key in keys:
        found[1:] |= key[1:] != key[:-1]
    return found
