"""The tuples of pages that a snapshot sees after everything up to here is replayed.

    visible_tuples(store, known_slots(store, relation), xids) -> Visible

The tuples come in the order of the table, also from some of the slots at a time.

Contract: PostgreSQL's HeapTupleSatisfiesMVCC with the transactions of `xids`, which must be at the
same LSN as the pages. Locks hide no tuple. For a multixact its updater counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from walkeeper_replay.redo.apply import KNOWN, SLOTS
from walkeeper_replay.redo.store import PageStore
from walkeeper_replay.tuples.row_versions import (
    XMAX_COMMITTED,
    hinted_makers,
    hinted_takers,
    takers_of,
)
from walkeeper_replay.tuples.tuple_loops import loops
from walkeeper_replay.tuples.xids import ASSUMED, NEVER, Xids
from walkeeper_wal.records.segment import Bytes, Column

_COLUMNS = (np.int64, np.int64, np.uint32, np.uint32, np.uint16, np.uint16, np.int64)


@dataclass(slots=True)
class Tuples:
    """The places of tuples in a store's pages, flattened, and the fields of their headers."""

    places: Column
    lengths: Column
    xmin: Column
    xmax: Column
    mask: Column
    number: Column
    block: Column

    def narrowed(self, chosen: Column) -> Tuples:
        return Tuples(*(getattr(self, name)[chosen] for name in self.__slots__))


def all_tuples(store: PageStore, relation: int, states: tuple[int, ...] = (KNOWN,)) -> Tuples:
    """Return every tuple that an item points to, dead or alive, on pages of these states."""
    slots = known_slots(store, relation, states)
    return tuples_of(store.pages, slots, store.slots["block"][slots])


def known_slots(store: PageStore, relation: int, states: tuple[int, ...] = (KNOWN,)) -> Column:
    """Return the slots of a relation's pages of these states, in the order of their blocks."""
    every = store.slots[: store.counts[SLOTS]]
    slots = np.flatnonzero((every["relation"] == relation) & np.isin(every["state"], states))
    ordered: Column = slots[np.argsort(every["block"][slots], kind="stable")]
    return ordered


def tuples_of(pages: Bytes, slots: Column, blocks: Column) -> Tuples:
    """Return every tuple of the pages in these slots, whose blocks are given."""
    slots = np.ascontiguousarray(slots, np.int64)
    count = loops.count_tuples(pages, slots)
    places, lengths, xmin, xmax, mask, number, owners = (
        np.empty(count, dtype) for dtype in _COLUMNS
    )
    found = loops.list_tuples(pages, slots, places, lengths, xmin, xmax, mask, number, owners)
    n = slice(found)
    return Tuples(places[n], lengths[n], xmin[n], xmax[n], mask[n], number[n], blocks[owners[n]])


@dataclass(slots=True)
class Visible:
    """The visible tuples, and the number of those that are a guess."""

    tuples: Tuples
    assumed: int
    """The number of these whose transaction is from before the WAL, and its end is not recorded."""
    taken: int
    """The number of tuples that are left out, since such a transaction deleted or updated them."""


def visible_tuples(store: PageStore, slots: Column, xids: Xids) -> Visible:
    """Return the tuples of these pages that a snapshot after all transactions of `xids` sees."""
    tuples = tuples_of(store.pages, slots, store.slots["block"][slots])
    begins = xids.ends_by_now(tuples.xmin)
    unknown = begins == ASSUMED
    unknown &= tuples.mask & 0x0300 == 0
    there = hinted_makers(begins, tuples.mask) != NEVER
    takers = takers_of(tuples.xmax, tuples.mask, xids)
    ends = xids.ends_by_now(takers)
    taken = ends == ASSUMED
    lasts = hinted_takers(ends, takers, tuples.mask) == NEVER
    taken &= there & (tuples.mask & XMAX_COMMITTED == 0)
    chosen = np.flatnonzero(there & lasts)
    return Visible(tuples.narrowed(chosen), int(unknown[chosen].sum()), int(taken.sum()))
