"""The facts of one segment that let a reader skip it, and the proof that they belong to it.

    facts_of(reading, files) -> values of SCHEMA, or None      of a whole and sound segment
    proof_of(files, path, last) -> text                        a digest of three pieces of the file

Contract: facts are those of all records that start in the segment. A proof is of the file's size
and of three times 8 kB: the first, the last, and those where its last record starts. They are taken
as stored, packed or not. So another history's segment of the same name, a longer one or a cut one
has another proof. Both ends are not enough: histories may part within a segment, and each of them
may switch to the next one. Damage elsewhere changes no fact: a reader that passes over the segment
needs none of these bytes. A live log's segments have no proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walkeeper_common.lsn import WAL_PAGE_BYTES
from walkeeper_history.find import deeds_of_batch
from walkeeper_history.rows.columns import TIMESTAMP, list_of
from walkeeper_history.rows.ended import Ended, detailed_endings, ended_of, naming_records
from walkeeper_history.rows.events import (
    CHECKPOINT_COLUMNS,
    XACT_COLUMNS,
    checkpoints_of,
    locks_of,
    transactions_of,
)
from walkeeper_history.rows.heap_changes import heap_changes
from walkeeper_history.rows.view import View
from walkeeper_wal.records.gather import names
from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import RMGR_IDS, rmgr_names
from walkeeper_wal.sources.plan import PlannedSegment
from walkeeper_wal.sources.reading import Batch, Reading
from walkeeper_wal.sources.wal_files import Pieces, WalFiles
from walkeeper_wal.wal_errors import HistoryError

_INTS = list_of(pa.int64())
SCHEMA = pa.schema(
    [
        ("segment", pa.string()),
        ("first_lsn", pa.int64()),
        ("records", pa.int64()),
        ("first_time", TIMESTAMP),
        ("last_time", TIMESTAMP),
        ("resource_managers", list_of(pa.string())),
        ("xids", _INTS),
        ("relfilenodes", _INTS),
        ("proof", pa.string()),
        ("start_lsn", pa.int64()),
        ("prev_lsn", pa.int64()),
        ("last_lsn", pa.int64()),
        ("end_lsn", pa.int64()),
        ("checkpoints", _INTS),
        ("files", _INTS),  # three numbers each: tablespace, database, relfilenode
        ("heap_files", _INTS),
        ("ended_xids", _INTS),
        ("ended_tops", _INTS),
        ("ended_lsns", _INTS),
        ("ended_times", _INTS),
        ("deed_xids", _INTS),
        ("is_special", pa.bool_()),
    ]
)
_FILE = ("tablespace", "database", "relfilenode")
_SETS = ("resource_managers", "xids", "relfilenodes")
_XLOG, _MULTIXACT = RMGR_IDS["XLOG"], RMGR_IDS["MultiXact"]
_PAGE_IMAGES = (0xA0, 0xB0)  # FPI_FOR_HINT and FPI, which have block references
_CREATE_ID = 0x20
_WHOLE_FILES = tuple(RMGR_IDS[name] for name in ("Storage", "Database", "RelMap"))


class _Facts:
    """The facts of one segment, made batch after batch."""

    def __init__(self) -> None:
        self.sets: dict[str, set[Any]] = {name: set() for name in _SETS}
        self.times: list[Any] = []
        self.checkpoints: list[int] = []
        self.files: set[tuple[int, ...]] = set()
        self.heap_files: set[tuple[int, ...]] = set()
        self.ended: list[Ended] = []
        self.deed_xids: set[int] = set()
        self.is_special = False

    def add(self, batch: Batch) -> None:
        view, sets = View(batch), self.sets
        rmids = np.unique(batch.records["rmid"])
        sets["resource_managers"].update(names(rmgr_names(), rmids).to_pylist())
        sets["relfilenodes"].update(np.unique(batch.blocks["relfilenode"]).tolist())
        sets["xids"].update(np.unique(batch.records["xid"]).tolist())
        ended, checkpoints = transactions_of(view), checkpoints_of(view)
        naming = view.narrowed(naming_records(batch))
        sets["xids"].update(XACT_COLUMNS["xid"].make(naming).to_pylist())
        for subxacts in XACT_COLUMNS["subxacts"].make(naming).to_pylist():
            sets["xids"].update(subxacts)
        locks, rows, places = locks_of(view)
        sets["xids"].update(locks.narrowed(rows).main(places, 4).tolist())
        for column, of in ((XACT_COLUMNS["time"], ended),
                           (CHECKPOINT_COLUMNS["checkpoint_time"], checkpoints)):  # fmt: skip
            ends = pc.min_max(column.make(of)).as_py()
            self.times += [time for time in ends.values() if time is not None]
        self.checkpoints += checkpoints.start_lsn.tolist()
        self.files.update(_files(*(batch.blocks[name] for name in _FILE)))
        self.heap_files.update(_files(*heap_changes(batch).T[:3]))
        self.ended.append(ended_of(batch))
        drops = [top for _, top, ending in detailed_endings(batch) if ending.dropped]
        self.deed_xids.update(deeds_of_batch(batch), drops)
        self.is_special |= bool(drops) or _is_special(batch.records)

    def values(self, reading: Reading, proof: str) -> list[Any]:
        segment, summary = reading.segment, reading.summary
        ended = (_joined(self.ended, name) for name in ("xids", "tops", "end_lsns", "times"))
        return [
            segment.name, segment.first_lsn, summary.record_count,
            min(self.times, default=None), max(self.times, default=None),
            *(sorted(self.sets[name]) for name in _SETS),
            proof, summary.start_lsn, summary.prev_lsn, summary.last_lsn, summary.end_lsn,
            self.checkpoints,
            _flat(self.files), _flat(self.heap_files), *ended,
            sorted(self.deed_xids), self.is_special,
        ]  # fmt: skip


def facts_of(reading: Reading, files: WalFiles) -> list[Any] | None:
    """Return the segment's facts, or None if it may change or not all its records are known.

    Both looks at the file are equal, or it has changed meanwhile and has no facts.
    """
    segment = reading.segment
    before = _pieces(files, segment.path, 0)
    facts = _Facts()
    for batch in reading:
        facts.add(batch)
    is_whole = reading.summary.status in ("complete", "switched") and not reading.problems
    if not (is_whole and is_uncut(segment)) or segment.is_partial:
        return None
    after = _pieces(files, segment.path, place_of_last(reading.summary.last_lsn, segment))
    if before is None or after is None or (before[0], before[3]) != (after[0], after[3]):
        return None
    return facts.values(reading, _digest(after)) if before[1] == after[1] else None


def is_uncut(segment: PlannedSegment) -> bool:
    """Return True if a plan has all of a segment, not only up to an LSN or a timeline's end."""
    end = segment.first_lsn + segment.segment_bytes
    return (segment.begin_lsn, segment.end_lsn) == (segment.first_lsn, end)


def place_of_last(last_lsn: int | None, segment: PlannedSegment) -> int:
    """Return the place in its file of the page where a segment's last record starts, or 0."""
    at = 0 if last_lsn is None else last_lsn - segment.first_lsn
    return at - at % WAL_PAGE_BYTES


def proof_of(files: WalFiles, path: str, last: int) -> str | None:
    """Return the proof of a file's content, or None if it cannot be read."""
    pieces = _pieces(files, path, last)
    return None if pieces is None else _digest(pieces)


def _pieces(files: WalFiles, path: str, at: int) -> Pieces | None:
    try:
        return files.read_pieces(path, WAL_PAGE_BYTES, at)
    except HistoryError:
        return None


def _digest(pieces: Pieces) -> str:
    length, *read = pieces
    digest = blake2b(length.to_bytes(8, "little"), digest_size=16)
    for piece in read:
        digest.update(piece)
    return digest.hexdigest()


def _is_special(records: Column) -> bool:
    """Return True if a record changes more than blocks and the state of a transaction."""
    rmids, kinds = records["rmid"], records["info"] & 0xF0
    special = (rmids == _XLOG) & ~np.isin(kinds, _PAGE_IMAGES)
    special |= (rmids == _MULTIXACT) & (kinds == _CREATE_ID)
    return bool((special | np.isin(rmids, _WHOLE_FILES)).any())


def _files(tablespaces: Column, databases: Column, nodes: Column) -> Iterator[tuple[int, ...]]:
    """Yield each file of three columns once. They are long, and have few files."""
    pairs = databases.astype(np.uint64) << np.uint64(32) | nodes.astype(np.uint64)
    for tablespace in np.unique(tablespaces).tolist():
        for pair in np.unique(pairs[tablespaces == tablespace]).tolist():
            yield tablespace, pair >> 32, pair & 0xFFFFFFFF


def _flat(files: set[tuple[int, ...]]) -> list[int]:
    return [number for file in sorted(files) for number in file]


def _joined(pieces: list[Ended], name: str) -> Column:
    nothing: Column = np.empty(0, np.int64)
    return np.concatenate([nothing, *(getattr(each, name) for each in pieces)])
