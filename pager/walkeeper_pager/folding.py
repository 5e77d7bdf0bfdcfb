"""Put a segment's records into the table of pages, as the horizon passes them.

    with table.change(): fold_segment(batches, table, base)

Contract: the pages are those that `Pager.page` returns at the segment's end. Each page is read and
written once for each stretch of records between changes of whole files.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from walkeeper_pager.base_pages import BasePages
from walkeeper_pager.block_index import number_places, replayed_blocks
from walkeeper_pager.page_names import Place
from walkeeper_pager.page_redo import PageState, bring_on
from walkeeper_pager.page_table import PageTable
from walkeeper_replay.redo.apply import BROKEN, KNOWN, NOT_REPLAYED, UNKNOWN
from walkeeper_replay.redo.files_of_records import Change, CopyDatabase, Drop, changes_of
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_wal.records.segment import Bytes, Column
from walkeeper_wal.sources.reading import Batch

INIT_FORK = 3
UNLOGGED = "it is of an unlogged table or index, whose changes are not in WAL"
DAMAGED = "damaged in the base backup: its checksum or its header is not as a server wrote it"


def fold_segment(batches: Iterable[Batch], table: PageTable, base: BasePages) -> None:
    """Redo the batches of one segment, in their order, on the pages of the table or of the base."""
    scratch: Bytes = np.empty(PAGE_BYTES, np.uint8)
    for batch in batches:
        rows, ends = replayed_blocks(batch), batch.end_lsn()
        records = batch.blocks["record"][rows]
        begin = 0
        for change in changes_of(batch):
            end = int(np.searchsorted(records, change.record, "right"))
            _fold(batch, rows[begin:end], ends, table, base, scratch)
            _change(change, table, base)
            begin = end
        _fold(batch, rows[begin:], ends, table, base, scratch)


def _fold(
    batch: Batch, rows: Column, ends: Column, table: PageTable, base: BasePages, scratch: Bytes
) -> None:
    if not len(rows):
        return
    numbers: dict[Place, int] = {}
    of_place = number_places(batch, rows, numbers)
    places = list(numbers)
    keys = of_place << 32 | batch.blocks["block_number"][rows].astype(np.int64)
    order = np.argsort(keys, kind="stable")
    rows, keys = rows[order], keys[order]
    cuts = np.flatnonzero(np.diff(keys)) + 1
    for own, key in zip(np.split(rows, cuts), keys[np.concatenate(([0], cuts))], strict=True):
        place, block = places[int(key) >> 32], int(key) & 0xFFFFFFFF
        page = current(table, base, place, block)
        bring_on(page, batch, own, ends, scratch)
        if page.state != UNKNOWN:
            table.put(place, block, page)


def current(table: PageTable, base: BasePages, place: Place, block: int) -> PageState:
    """Return the page as the table has it, or else the base backup, or else UNKNOWN.

    A damaged page of the backup is BROKEN until its first image. A backup of a running server may
    have torn pages, for which the WAL has images.
    """
    found = table.read(place, block)
    if found is not None:
        return found
    image = base.read(place, block)
    if image is not None:
        if base.is_unlogged(place):
            return PageState(NOT_REPLAYED, image, UNLOGGED)
        if base.verifies(image, block):
            return PageState(KNOWN, image)
        return PageState(BROKEN, image, DAMAGED)
    empty: Bytes = np.zeros(PAGE_BYTES, np.uint8)
    return PageState(UNKNOWN, empty)


def _change(change: Change, table: PageTable, base: BasePages) -> None:
    match change:
        case Drop(_, (tablespace, database, 0), _):
            table.drop_database(tablespace, database)
        case Drop(_, (tablespace, database, node), from_block):
            place = Place(tablespace, database, node)
            table.drop(place, from_block)
            if from_block == 0:
                table.drop(Place(tablespace, database, node, INIT_FORK), 0)
        case CopyDatabase():
            _copy(change, table, base)


def _copy(change: CopyDatabase, table: PageTable, base: BasePages) -> None:
    """Copy every page of the source as it is now (CREATE DATABASE with STRATEGY FILE_COPY)."""
    source = (change.source_tablespace, change.source)
    blocks = {place: set(range(count)) for place, count in base.places_of(*source)}
    for place in table.places_of(*source):
        blocks.setdefault(place, set()).update(table.blocks_of(place))
    for place, numbers in blocks.items():
        copy = Place(change.tablespace, change.database, place.relfilenode, place.fork)
        for block in sorted(numbers):
            page = current(table, base, place, block)
            if page.state != UNKNOWN:
                table.put(copy, block, page)
