"""The transactions that were open where the WAL begins, from made records; no server."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest

from tests.replay.made_records import SEGMENT_BYTES, V15, segment_at
from walkeeper_replay.tuples import open_at_start
from walkeeper_replay.tuples.open_at_start import OpenAtStart
from walkeeper_replay.tuples.xids import ASSUMED, NEVER, Xids
from walkeeper_wal.records import walk
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.reading import Batch

LAST = (1 << 32) - 1


def snapshot(*running: int, next_xid: int, overflows: bool = False) -> bytes:
    """Return the content of a record of running transactions."""
    head = struct.pack("<II?3xIII", len(running), 0, overflows, next_xid, 0, 0)
    return head + struct.pack(f"<{len(running)}I", *running)


def batch(*content: int | bytes | tuple[str, bytes]) -> Batch:
    """Return records of these xids, snapshots, and records of the named resource managers."""
    records = np.zeros(len(content), walk.RECORD_ROW)
    payload = bytearray()
    for row, one in zip(records, content, strict=True):
        row["offset"], row["main_offset"] = len(payload), len(payload)
        if isinstance(one, bytes):
            row["rmid"], row["info"], row["main_length"] = RMGR_IDS["Standby"], 0x10, len(one)
            payload += one
        elif isinstance(one, tuple):
            row["rmid"], row["info"], row["main_length"] = RMGR_IDS[one[0]], 0x10, len(one[1])
            payload += one[1]
        else:
            row["rmid"], row["xid"] = RMGR_IDS["Heap"], one
    blocks, pages = np.zeros(0, walk.BLOCK_ROW), np.ones(1 << 11, np.uint32)
    data = np.frombuffer(payload, np.uint8)
    return Batch(segment_at(SEGMENT_BYTES), V15, data, records, blocks, pages)


def started(*batches: Batch) -> OpenAtStart:
    start = OpenAtStart()
    for one in batches:
        start.add(one)
    return start


def test_a_snapshot_says_which_transactions_had_begun_before() -> None:
    """712 is not open and has no record. It ended before, so all older ones had begun before."""
    start = started(batch(714, snapshot(711, 713, next_xid=715)))
    assert start.is_decided and start.below == 713 and start.later_from == 715
    shown = [start.shows_end(xid) for xid in (711, 712, 713, 714, 715)]
    assert shown == [True, False, True, True, True]


def test_a_snapshot_that_overflows_decides_nothing() -> None:
    start = started(batch(714, snapshot(711, next_xid=715, overflows=True)))
    assert not start.is_decided and start.below is None and not start.shows_end(716)
    assert start.later_from == 715


@pytest.mark.parametrize("given", [range(700, 709), (*range(LAST - 3, LAST + 1), *range(3, 8))])
def test_the_search_for_a_snapshot_ends(
    monkeypatch: pytest.MonkeyPatch, given: Sequence[int]
) -> None:
    monkeypatch.setattr(open_at_start, "XIDS_MAX", 4)
    before, *seen, gap, last, later = given
    xids = Xids()
    overflows = snapshot(seen[0], next_xid=last, overflows=True)
    xids.add(batch(seen[0], seen[1], overflows, seen[2]))
    xids.add(batch(seen[3], seen[4], last))
    xids.add(batch(snapshot(before, next_xid=later)))  # too late: it is not looked at
    asked = np.array([before, seen[1], gap, last, later], np.int64)
    assert xids.may_have_begun_before(asked).tolist() == [True, True, True, False, False]
    assert xids.began_before(asked).tolist() == [True, False, False, False, False]
    assert xids.commit_lsns(asked).tolist() == [ASSUMED, NEVER, ASSUMED, NEVER, NEVER]
    assert Xids(redo_lsn=7).may_have_begun_before(asked).tolist() == [False] * 5


def checkpoint(redo_lsn: int, next_xid: int) -> tuple[str, bytes]:
    """Return the content of a checkpoint's record."""
    return "XLOG", struct.pack("<Q16xI", redo_lsn, next_xid) + bytes(60)


@pytest.mark.parametrize(
    ("content", "later_from"),
    [
        ((714, 715), None),
        ((714, snapshot(next_xid=716), 716), 716),
        ((714, checkpoint(SEGMENT_BYTES, 715), snapshot(next_xid=716)), 715),
        ((714, checkpoint(SEGMENT_BYTES - 8, 712), snapshot(next_xid=716)), 716),
        ((714, checkpoint(SEGMENT_BYTES - 8, 712)), None),
    ],
    ids=["nothing says so", "a snapshot", "a checkpoint", "one that began before", "no other"],
)
def test_the_first_next_xid_says_which_transactions_began_later(
    content: Sequence[int | bytes | tuple[str, bytes]], later_from: int | None
) -> None:
    assert started(batch(*content)).later_from == later_from


def test_each_transaction_may_have_begun_before_until_a_record_has_the_next_xid() -> None:
    xids, asked = Xids(), np.array([713, 714, 715])
    xids.add(batch(714, 715))
    assert xids.may_have_begun_before(asked).all()
    xids.add(batch(snapshot(next_xid=715)))
    assert xids.may_have_begun_before(asked).tolist() == [True, True, False]
