"""The tuples of pages that a snapshot sees after everything up to here is replayed.

    visible_tuples(store, relation, xids) -> Visible      in the order of the table

Contract: PostgreSQL's HeapTupleSatisfiesMVCC with the transactions of `xids`, which must be at the
same LSN as the pages. Locks hide no tuple. For a multixact its updater counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from walkeeper_replay.redo.apply import KNOWN, SLOTS
from walkeeper_replay.redo.compiled import compiled
from walkeeper_replay.redo.page import (
    INFOMASK,
    PAGE_BYTES,
    XMAX,
    XMIN,
    get16,
    get32,
    is_sane,
    item_count,
    tuple_at,
    tuple_length,
)
from walkeeper_replay.redo.store import PageStore
from walkeeper_replay.tuples.row_versions import (
    XMAX_COMMITTED,
    makers_commit,
    takers_commit,
    takers_of,
)
from walkeeper_replay.tuples.xids import ASSUMED, NEVER, Xids
from walkeeper_wal.records.segment import Bytes, Column

_COLUMNS = (np.int64, np.int64, np.uint32, np.uint32, np.uint16, np.uint16)


@compiled
def _list_tuples(
    pages: Any, slots: Any, places: Any, lengths: Any, xmins: Any, xmaxs: Any, masks: Any,
    numbers: Any, owners: Any,
) -> Any:  # fmt: skip
    n = np.int64(0)
    for i in range(len(slots)):
        page = pages[slots[i]]
        if not is_sane(page):
            continue
        for number in range(1, item_count(page) + 1):
            place = tuple_at(page, number)
            if place < 0:
                continue
            places[n], lengths[n] = slots[i] * PAGE_BYTES + place, tuple_length(page, number)
            xmins[n], xmaxs[n] = get32(page, place + XMIN), get32(page, place + XMAX)
            masks[n], numbers[n], owners[n] = get16(page, place + INFOMASK), number, i
            n += 1
    return n


@compiled
def _count_tuples(pages: Any, slots: Any) -> Any:
    n = np.int64(0)
    for slot in slots:
        if is_sane(pages[slot]):
            n += item_count(pages[slot])
    return n


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
    every = store.slots[: store.counts[SLOTS]]
    slots = np.flatnonzero((every["relation"] == relation) & np.isin(every["state"], states))
    slots = slots[np.argsort(every["block"][slots], kind="stable")]
    return tuples_of(store.pages, slots, store.slots["block"][slots])


def tuples_of(pages: Bytes, slots: Column, blocks: Column) -> Tuples:
    """Return every tuple of the pages in these slots, whose blocks are given."""
    count = int(_count_tuples(pages, slots))
    columns: list[Column] = [np.empty(count, dtype) for dtype in _COLUMNS]
    owners = np.empty(count, np.int64)
    list_tuples: Any = _list_tuples
    found = int(list_tuples(pages, slots, *columns, owners))
    places, lengths, xmin, xmax, mask, number = (column[:found] for column in columns)
    return Tuples(places, lengths, xmin, xmax, mask, number, blocks[owners[:found]])


@dataclass(slots=True)
class Visible:
    tuples: Tuples
    assumed: int
    """How many of these have a transaction from before the WAL whose fate is not written down."""
    taken: int
    """Left out, as deleted or updated by such transactions."""


def visible_tuples(store: PageStore, relation: int, xids: Xids) -> Visible:
    """See the module."""
    tuples = all_tuples(store, relation)
    unknown = xids.commit_lsns(tuples.xmin) == ASSUMED
    unknown &= tuples.mask & 0x0300 == 0
    there = makers_commit(tuples.xmin, tuples.mask, xids) != NEVER
    lasts = takers_commit(tuples.xmax, tuples.mask, xids) == NEVER
    taken = xids.commit_lsns(takers_of(tuples.xmax, tuples.mask, xids)) == ASSUMED
    taken &= there & (tuples.mask & XMAX_COMMITTED == 0)
    chosen = np.flatnonzero(there & lasts)
    return Visible(tuples.narrowed(chosen), int(unknown[chosen].sum()), int(taken.sum()))
