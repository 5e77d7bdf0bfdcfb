"""Batches of made records, without a server: changes of rows in files, and ends of transactions.

batch_of([Change(xid, node), Commit(xid), Abort(xid), …], begin_lsn)
Batch(segment_at(begin_lsn), V15, …)     for records of any kind
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from walkeeper_replay.redo.chosen_records import ChosenRecords
from walkeeper_wal.records import walk
from walkeeper_wal.records.segment import SLACK_BYTES
from walkeeper_wal.records.versions import RMGR_IDS, WalVersion, version_of
from walkeeper_wal.sources.plan import PlannedSegment

SEGMENT_BYTES = 1 << 20
RECORD_BYTES = 64
SPACE, DATABASE = 1663, 5


@dataclass(frozen=True)
class Change:
    """An INSERT into the file with this number."""

    xid: int
    node: int


@dataclass(frozen=True)
class Commit:
    xid: int


@dataclass(frozen=True)
class Abort:
    xid: int


Step = Change | Commit | Abort


def _version(magic: int) -> WalVersion:
    version = version_of(magic)
    assert version is not None, f"{magic=:#x}"
    return version


V15 = _version(0xD110)


def segment_at(begin_lsn: int, size: int = SEGMENT_BYTES) -> PlannedSegment:
    """Return a segment of timeline 1 that has no file."""
    end_lsn = begin_lsn + size
    return PlannedSegment(
        "", 1, begin_lsn, size, 1, begin_lsn, end_lsn, 1 << 62, False, False
    )  # fmt: skip


def batch_of(steps: Sequence[Step], begin_lsn: int) -> ChosenRecords:
    """Return a record of RECORD_BYTES for each step. An end has its LSN as its time."""
    records = np.zeros(len(steps), walk.RECORD_ROW)
    starts = begin_lsn + RECORD_BYTES * np.arange(len(steps))
    payload = np.zeros(RECORD_BYTES * len(steps) + SLACK_BYTES, np.uint8)
    blocks = np.zeros(sum(isinstance(step, Change) for step in steps), walk.BLOCK_ROW)
    changes = iter(range(len(blocks)))
    for row, (record, step) in enumerate(zip(records, steps, strict=True)):
        record["xid"], record["offset"] = step.xid, RECORD_BYTES * row
        record["main_offset"], record["length"] = RECORD_BYTES * row, RECORD_BYTES
        if isinstance(step, Change):
            record["rmid"] = RMGR_IDS["Heap"]
            block = blocks[next(changes)]
            block["record"], block["relfilenode"] = row, step.node
            block["tablespace"], block["database"] = SPACE, DATABASE
        else:
            record["rmid"], record["main_length"] = RMGR_IDS["Transaction"], 8
            record["info"] = 0x00 if isinstance(step, Commit) else 0x20
            place = slice(RECORD_BYTES * row, RECORD_BYTES * row + 8)
            payload[place] = np.frombuffer(int(starts[row]).to_bytes(8, "little"), np.uint8)
    return ChosenRecords(
        segment_at(begin_lsn), V15, payload, records, blocks, np.empty(0, np.uint32),
        starts, starts + RECORD_BYTES, np.ones(len(steps), np.int64),
    )  # fmt: skip
