"""Compare redo with wal_consistency_checking's images, as PostgreSQL itself does on a standby.

    check = ConsistencyCheck(); check.run(files, plan)
    check.rows() -> (record type, compared and equal, different, of pages not known, not redone)

A server with wal_consistency_checking writes an image of the expected page after each change. The
image and the page that redo made are masked as bufmask.c and heap_mask() do (hint bits, command
ids, unused space). Then they must be the same bytes. A difference is repaired with the image, so
that it is counted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from walkeeper_common.lsn import Lsn
from walkeeper_history.records.walk import HAS_IMAGE
from walkeeper_history.wal.reading import Batch
from walkeeper_replay.redo.apply import KNOWN, apply_one, restore_image, slot_of
from walkeeper_replay.redo.compiled import compiled
from walkeeper_replay.redo.page import (
    CID,
    CTID,
    FLAGS,
    HEADER_BYTES,
    INFOMASK,
    LOWER,
    PAGE_BYTES,
    PRUNE_XID,
    UPPER,
    get16,
    get_item,
    item_count,
    put16,
    put32,
    set_ctid,
    tuple_at,
)
from walkeeper_replay.redo.store import PageStore

CHECKED = 0x02  # XLR_CHECK_CONSISTENCY in a record's info
EQUAL, DIFFERENT, NOT_KNOWN, NOT_REDONE = 0, 1, 2, 3
_HINTS = 0x07  # PD_HAS_FREE_LINES, PD_PAGE_FULL, PD_ALL_VISIBLE
_FROZEN, _XMAX_HINTS, _NO_XACT = 0x0300, 0x0C00, 0x000F
_SPECULATIVE = 0xFFFE
DIFFERENCES_KEPT = 20


@compiled
def mask_heap_page(page: Any, block: Any) -> Any:
    """Mask a page in place, as heap_mask() does."""
    page[0:FLAGS] = 0
    page[FLAGS] = np.int64(page[FLAGS]) & ~_HINTS
    page[PRUNE_XID : PRUNE_XID + 4] = 0
    lower, upper = get16(page, LOWER), get16(page, UPPER)
    if lower < HEADER_BYTES or lower > upper or upper > PAGE_BYTES:
        return
    page[lower:upper] = 0
    for number in range(1, item_count(page) + 1):
        item = get_item(page, number)
        place, length = item & 0x7FFF, item >> 17
        if tuple_at(page, number) >= 0:
            mask = get16(page, place + INFOMASK)
            mask = mask & ~_XMAX_HINTS if mask & _FROZEN == _FROZEN else mask & _NO_XACT
            put16(page, place + INFOMASK, mask)
            put32(page, place + CID, 0)
            if get16(page, place + CTID + 4) == _SPECULATIVE:
                set_ctid(page, place, block, number)
        if length:
            page[place + length : place + ((length + 7) & ~7)] = 0


@compiled
def _first_difference(a: Any, b: Any) -> Any:
    for z in range(PAGE_BYTES):
        if a[z] != b[z]:
            return np.int64(z)
    return np.int64(-1)


@compiled
def _check(
    b: Any, records: Any, blocks: Any, end_lsns: Any, chosen: Any, first: Any, images: Any,
    apply_flag: Any, major: Any, pages: Any, slots: Any, hash_keys: Any, hash_slots: Any,
    counts: Any, scratch: Any, masked: Any, tally: Any, different: Any,
) -> Any:  # fmt: skip
    for i in range(first, len(chosen)):
        k = np.int64(chosen[i].row)
        block = blocks[k]
        number = np.int64(block.block_number)
        slot = slot_of(hash_keys, hash_slots, slots, counts, np.int64(chosen[i].relation), number)
        if slot < 0:
            return np.int64(i)
        r = np.int64(block.record)
        record, page, image = records[r], pages[slot], np.int64(chosen[i].image)
        state, _, wrong = apply_one(
            page, np.int64(slots[slot].state), b, record, blocks, k, image, images, end_lsns[r],
            apply_flag, scratch, major,
        )  # fmt: skip
        slots[slot].state = state
        kind = np.int64(record.rmid) * 16 + (np.int64(record.info) >> 4)
        tally[kind, NOT_REDONE] += wrong < 0
        verifies = block.flags & HAS_IMAGE and not block.image_info & apply_flag
        if not (verifies and record.info & CHECKED):
            continue
        restore_image(scratch, b, block, image, images)
        place = np.int64(-1)
        if state == KNOWN:
            masked[0], masked[1] = page, scratch
            mask_heap_page(masked[0], number)
            mask_heap_page(masked[1], number)
            place = _first_difference(masked[0], masked[1])
            tally[kind, DIFFERENT if place >= 0 else EQUAL] += 1
        else:
            tally[kind, NOT_KNOWN] += 1
        if place >= 0 and tally[:, DIFFERENT].sum() <= len(different):
            row = different[tally[:, DIFFERENT].sum() - 1]
            row[0], row[1], row[2], row[3], row[4] = end_lsns[r], kind, place, k, number
        if state != KNOWN or place >= 0:
            page[:] = scratch
            slots[slot].state = KNOWN
    return np.int64(len(chosen))


@dataclass(frozen=True, slots=True)
class Checked:
    """One kind of record, and how its images compared."""

    name: str
    equal: int
    different: int
    not_known: int
    not_redone: int


class ConsistencyCheck:
    """Redo of every heap relation, and the sums of the comparisons."""

    def __init__(self) -> None:
        self.store = PageStore(takes_all=True)
        self._tally = np.zeros((256 * 16, 4), np.int64)
        self._different = np.zeros((DIFFERENCES_KEPT, 5), np.int64)
        self._masked = np.empty((2, PAGE_BYTES), np.uint8)
        self._names: tuple[str, ...] = ()
        self.shown: list[str] = []

    def add(self, batch: Batch) -> None:
        """Redo and compare; batches come in the order of the log."""
        store, version = self.store, batch.version
        self._names = version.record_names()
        for event_batch in store.stretches(batch):
            chosen, at = event_batch, 0
            while at < len(chosen):
                at = _check(
                    batch.payload, batch.records, batch.blocks, batch.end_lsn(), chosen, at,
                    store.images, version.image_apply_flag, version.layout, store.pages,
                    store.slots, store.hash_keys, store.hash_slots, store.counts, store.scratch,
                    self._masked, self._tally, self._different,
                )  # fmt: skip
                if at < len(chosen):
                    store.grow()
        self._show(batch)

    def _show(self, batch: Batch) -> None:
        """Keep differences of this batch as text, while its block references are there."""
        total = min(int(self._tally[:, DIFFERENT].sum()), DIFFERENCES_KEPT)
        for lsn, kind, place, row, number in self._different[len(self.shown) : total].tolist():
            relation = batch.blocks[row]
            names = ("tablespace", "database", "relfilenode")
            shown = "/".join(str(int(relation[name])) for name in names)
            self.shown.append(
                f"behind {Lsn(lsn)} ({self._names[kind]}): block {number} of {shown} differs "
                f"from byte {place} on"
            )

    def rows(self) -> Iterator[Checked]:
        for kind in np.flatnonzero(self._tally.any(axis=1)).tolist():
            yield Checked(self._names[kind], *self._tally[kind].tolist())
