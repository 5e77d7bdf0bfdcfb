"""Pages are the same without the redo that a later image or init makes needless."""

from __future__ import annotations

import pickle
from zlib import crc32

import numpy as np
import pytest

from tests.replay.made_records import V15, segment_at
from walkeeper_replay.redo.apply import APPLIED, HEAP, KNOWN, SLOTS, XLOG
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.redo.page_resets import LastResets, PageResets
from walkeeper_replay.redo.store import PageStore, Relation
from walkeeper_wal.records import walk
from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.reading import Batch

SEGMENT_BYTES = 1 << 24
OURS = [Relation(1663, 5, 16384), Relation(1663, 5, 16399)]
OTHER = Relation(1663, 6, 16384)
INSERT, DELETE, INIT, FPI, TRUNCATE = 0x00, 0x10, 0x80, 0xB0, 0x20
RECORDS, BLOCKS, BATCHES = 400, 12, 6
ROOM_BYTES = 320  # for a record: short data, or an image of which most is a hole


class Log:
    """Batches of random records on pages of three relations; many do not fit their page."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.batches = [self._batch(number) for number in range(BATCHES)]

    def _batch(self, number: int) -> Batch:
        draw, first_lsn = self._random, (number + 1) * SEGMENT_BYTES
        segment = segment_at(first_lsn, SEGMENT_BYTES)
        records, blocks = np.zeros(RECORDS, walk.RECORD_ROW), np.zeros(RECORDS, walk.BLOCK_ROW)
        payload = np.zeros(RECORDS * ROOM_BYTES + walk.PAGE_BYTES, np.uint8)
        begins = np.arange(RECORDS) * ROOM_BYTES
        records["offset"], records["length"], records["main_offset"] = begins, ROOM_BYTES, begins
        records["main_length"], records["xid"] = 20, 700
        blocks["record"] = np.arange(RECORDS)
        for row, begin in enumerate(begins.tolist()):
            relation = (*OURS, OTHER)[draw.integers(0, 3)]
            block = int(draw.integers(0, BLOCKS))
            blocks["tablespace"][row], blocks["database"][row] = relation[:2]
            blocks["relfilenode"][row], blocks["block_number"][row] = relation[2], block
            self._record(records[row : row + 1], blocks[row : row + 1])
            main = payload[begin : begin + 20]
            if records["rmid"][row] == RMGR_IDS["Storage"]:
                main[:] = np.array([block, *relation, 1], np.uint32).view(np.uint8)
                blocks["relfilenode"][row] = 1  # the record has no reference to a block
            else:
                number = 1 if records["info"][row] & INIT else int(draw.integers(1, 4))
                main[0 if records["info"][row] & 0x70 == INSERT else 4] = number
        batch = Batch(segment, V15, payload, records, blocks, np.ones(1 << 11, np.uint32))
        starts = batch.start_lsn()
        records["prev_lsn"] = [first_lsn - 8, *starts[:-1]]
        return batch

    def _record(self, record: Column, block: Column) -> None:
        """Make one record: of each kind that resets its page, and of those that do not."""
        kind = self._random.choice(["insert", "init", "delete", "image", "compared", "truncate"],
                                   p=[0.5, 0.15, 0.15, 0.1, 0.05, 0.05])  # fmt: skip
        record["rmid"], record["info"] = HEAP, INSERT
        block["flags"], block["data_length"] = walk.HAS_DATA, 30
        block["data_offset"] = record["main_offset"] + 32
        if kind == "init":
            record["info"] = INSERT | INIT
        elif kind == "delete":
            record["info"], block["flags"], block["data_length"] = DELETE, 0, 0
        elif kind == "truncate":
            record["rmid"], record["info"] = RMGR_IDS["Storage"], TRUNCATE
        elif kind in ("image", "compared"):
            self._image(record, block, restored=kind == "image")

    def _image(self, record: Column, block: Column, *, restored: bool) -> None:
        """Make an image whose header says that the page is empty, or one that is no page."""
        if restored:
            record["rmid"], record["info"] = XLOG, FPI
        block["flags"] |= walk.HAS_IMAGE
        block["image_info"] = walk.IMAGE_HAS_HOLE | (0x02 if restored else 0)
        block["image_offset"] = record["main_offset"] + 80
        size = int(self._random.choice([64, 65, 200]))
        block["image_length"], block["hole_offset"] = size, 40
        block["hole_length"] = PAGE_BYTES - size + int(self._random.random() < 0.1)


def replayed(log: Log, last: LastResets | None, count: int = BATCHES) -> PageStore:
    store = PageStore(wanted=OURS, resets=last)
    for batch in log.batches[:count]:
        store.add(batch)
    return store


def noted(log: Log, rows_max: int = 1 << 20) -> PageResets:
    resets = PageResets(rows_max)
    for batch in log.batches:
        resets.add(batch)
    return resets


def pages_of(store: PageStore) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the state of each page, and a sum of the bytes of those that are known."""
    slots = store.slots[: store.counts[SLOTS]]
    return {
        (int(row["relation"]), int(row["block"])): (
            int(row["state"]),
            crc32(store.pages[slot]) if row["state"] == KNOWN else 0,
        )
        for slot, row in enumerate(slots)
    }


def end_of(log: Log, count: int) -> int:
    return log.batches[count - 1].span()[1]


@pytest.mark.parametrize("seed", range(8))
def test_pages_are_the_same_without_redo_before_their_last_reset(seed: int) -> None:
    log = Log(seed)
    whole = replayed(log, None)
    short = replayed(log, noted(log).last_of(OURS, end_of(log, BATCHES)))
    assert pages_of(short) == pages_of(whole)
    assert {state for state, _ in pages_of(whole).values()} > {KNOWN}, "all states would be alike"
    assert 0 < short.counts[APPLIED] < whole.counts[APPLIED] / 4, "the redo was not left out"


def test_a_pass_that_ends_earlier_leaves_nothing_out() -> None:
    log, count = Log(1), BATCHES - 1
    resets, until = noted(log), end_of(log, count)
    assert resets.last_of(OURS, until) is None
    assert pages_of(replayed(log, resets.last_of(OURS, until), count)) == pages_of(
        replayed(log, None, count)
    )


def test_the_oldest_resets_go_where_there_are_too_many() -> None:
    log = Log(2)
    every, few = noted(log), noted(log, rows_max=RECORDS // 2)
    whole, end = replayed(log, None), end_of(log, BATCHES)
    some = replayed(log, few.last_of(OURS, end))
    assert pages_of(some) == pages_of(whole)
    assert some.counts[APPLIED] < whole.counts[APPLIED]
    assert few._count <= RECORDS // 2 < every._count


def test_a_copy_has_no_resets_and_leaves_nothing_out() -> None:
    log = Log(3)
    copy = pickle.loads(pickle.dumps(noted(log)))
    assert copy.last_of(OURS, end_of(log, BATCHES)) is None


def test_relations_without_a_reset_have_none() -> None:
    assert noted(Log(4)).last_of([Relation(1663, 5, 99)], 1 << 60) is None
