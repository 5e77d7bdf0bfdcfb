"""Tables of single kinds of records: transactions, checkpoints, locks, messages.

Column names are those of PostgreSQL's functions and views over the same facts
(pg_control_checkpoint, pg_locks, pg_prepared_xacts), where there are any.
Layouts: pg_control.h, standbydefs.h, message.h.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa

from walkeeper_history.rows.columns import (
    RECORD_COLUMNS,
    TIMESTAMP,
    ColumnOf,
    bigint,
    list_of,
    text,
    whole,
)
from walkeeper_history.rows.transactions import (
    HAS_INFO,
    Ending,
    parse_ending,
    parse_prepare,
)
from walkeeper_history.rows.view import View
from walkeeper_wal.records.gather import names, timestamps
from walkeeper_wal.records.segment import Column

_PREPARE = 1
_ENDINGS = (0, 1, 2, 3, 4)
_ENDING_NAMES = ("commit", "prepare", "abort", "commit prepared", "rollback prepared")
_RELATION = pa.struct(
    [("reltablespace", pa.int64()), ("reldatabase", pa.int64()), ("relfilenode", pa.int64())]
)


def _record(*chosen: str) -> dict[str, ColumnOf]:
    return {name: RECORD_COLUMNS[name] for name in chosen}


def transactions_of(view: View) -> View:
    """Return the records that end a transaction, or its first phase."""
    return view.of_kind("Transaction", *_ENDINGS)


def _endings(view: View) -> list[Ending | None]:
    """Return the content of each record that has more than a time, and None for the others."""
    found: list[Ending | None] = [None] * len(view)
    version, kinds = view.batch.version, view.kind & 15
    detailed = (view.records["info"] & HAS_INFO != 0) | (kinds == _PREPARE)
    for row in np.flatnonzero(detailed).tolist():
        data = view.main_bytes(row)
        if kinds[row] == _PREPARE:
            found[row] = parse_prepare(data, version)
        else:
            found[row] = parse_ending(data, int(view.records["info"][row]), version)
    return found


def _of_ending(type_: Any, take: Callable[[Ending], Any], absent: Any = None) -> ColumnOf:
    def make(view: View) -> Any:
        endings = view.kept("endings", _endings)
        values = [absent if ending is None else take(ending) for ending in endings]
        return pa.array(values, type_)

    return ColumnOf(type_, make)


def commit_times(view: View) -> tuple[Column, Column]:
    """Return PostgreSQL's timestamps of a view of transactions, and a mask of those present."""
    place = np.where(view.kind & 15 == _PREPARE, 16, 0)
    long_enough = view.records["main_length"] >= place + 8
    return view.main(place, 8), long_enough


def _ended_xid(view: View) -> Any:
    """Return the transactions that ended; another one's record ends a prepared transaction."""
    xids = view.records["xid"].astype(np.int64)
    for row, ending in enumerate(view.kept("endings", _endings)):
        if ending is not None and ending.xid is not None:
            xids[row] = ending.xid
    return pa.array(xids)


def _dropped(ending: Ending) -> list[dict[str, int]]:
    return [dict(zip(_RELATION.names, relation, strict=True)) for relation in ending.dropped]


XACT_COLUMNS: dict[str, ColumnOf] = {
    **_record("start_lsn", "end_lsn", "timeline"),
    "xid": ColumnOf(pa.int64(), _ended_xid),
    "kind": text(lambda view: names(_ENDING_NAMES, view.kind & 15)),
    "time": ColumnOf(TIMESTAMP, lambda view: timestamps(*commit_times(view))),
    "database": _of_ending(pa.int64(), lambda ending: ending.database),
    "gid": _of_ending(pa.string(), lambda ending: ending.gid),
    "subxacts": _of_ending(list_of(pa.int64()), lambda ending: ending.subxacts, []),
    "dropped_relations": _of_ending(list_of(_RELATION), _dropped, []),
    "invalidations": _of_ending(pa.int32(), lambda ending: ending.invalidations, 0),
    "origin": RECORD_COLUMNS["origin"],
    "origin_lsn": _of_ending(pa.int64(), lambda ending: ending.origin_lsn),
    "record_length": RECORD_COLUMNS["record_length"],
    "segment": RECORD_COLUMNS["segment"],
}


def checkpoints_of(view: View) -> View:
    """Return the checkpoint records with a whole CheckPoint struct."""
    found = view.of_kind("XLOG", 0, 1)
    return found.narrowed(found.records["main_length"] >= _CHECKPOINT_BYTES)


_CHECKPOINT_BYTES = 88
_CHECKPOINT_PLACES = {
    "redo_lsn": (0, 8), "timeline_id": (8, 4), "prev_timeline_id": (12, 4),
    "next_xid": (24, 8), "next_oid": (32, 4), "next_multixact_id": (36, 4),
    "next_multi_offset": (40, 4), "oldest_xid": (44, 4), "oldest_xid_dbid": (48, 4),
    "oldest_multi_xid": (52, 4), "oldest_multi_dbid": (56, 4), "oldest_commit_ts_xid": (72, 4),
    "newest_commit_ts_xid": (76, 4), "oldest_active_xid": (80, 4),
}  # fmt: skip
_WAL_LEVELS = ("minimal", "replica", "logical")


def _in_checkpoint(place: int, size: int) -> ColumnOf:
    return bigint(lambda view: view.main(place, size))


def _checkpoint_time(view: View) -> Any:
    """Return the checkpoints' times, the only ones in WAL in seconds since 1970."""
    seconds = view.main(64, 8)
    sane = (seconds >= 0) & (seconds < 1 << 40)
    return pa.array(np.where(sane, seconds, 0) * 1_000_000, TIMESTAMP, mask=~sane)


def _wal_level(view: View) -> Any:
    """Return wal_level, which the record has since PostgreSQL 18, and null before."""
    level = view.main(20, 4)
    known = (level < len(_WAL_LEVELS)) & (level >= 0) & (view.batch.version.layout >= 18)
    level = np.where(known, level, len(_WAL_LEVELS))
    return pa.array((*_WAL_LEVELS, None), pa.string()).take(pa.array(level))


CHECKPOINT_COLUMNS: dict[str, ColumnOf] = {
    "checkpoint_lsn": RECORD_COLUMNS["start_lsn"],
    **_record("end_lsn", "timeline"),
    "kind": text(lambda view: names(("shutdown", "online"), view.kind & 15)),
    **{name: _in_checkpoint(*place) for name, place in _CHECKPOINT_PLACES.items()},
    "full_page_writes": ColumnOf(pa.bool_(), lambda view: pa.array(view.main(16, 1) != 0)),
    "wal_level": text(_wal_level),
    "checkpoint_time": ColumnOf(TIMESTAMP, _checkpoint_time),
    "segment": RECORD_COLUMNS["segment"],
}

_LOCK_BYTES = 12


def locks_of(view: View) -> tuple[View, Column, Column]:
    """Return LOCK records (AccessExclusiveLocks, mostly DDL), and each lock's record and place."""
    view = view.of_kind("Standby", 0)
    room = np.maximum(view.records["main_length"].astype(np.int64) - 4, 0) // _LOCK_BYTES
    counts = np.minimum(view.main(0, 4), room)
    rows = np.repeat(np.arange(len(view)), counts)
    order = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return view, rows, 4 + order * _LOCK_BYTES


LOCK_FIELDS = ("xid", "database", "relation")


def lock_arrays(view: View) -> dict[str, Any]:
    """Return the columns of a row for each lock in a record."""
    view, rows, places = locks_of(view)
    taken = pa.array(rows)
    chosen = view.narrowed(rows)
    arrays = {
        name: RECORD_COLUMNS[name].make(view).take(taken)
        for name in ("start_lsn", "end_lsn", "timeline")
    }
    for number, name in enumerate(LOCK_FIELDS):
        arrays[name] = whole(chosen.main(places + 4 * number, 4), pa.int64())
    arrays["segment"] = RECORD_COLUMNS["segment"].make(view).take(taken)
    return arrays


_MESSAGE = Struct("<I?3xQQ")


def _messages(view: View) -> list[tuple[int, bool, str, bytes]]:
    """Return (database, transactional, prefix, content) of each message; contents are copied."""
    found = []
    for row in range(len(view)):
        data = view.main_bytes(row)
        if len(data) < _MESSAGE.size:
            found.append((0, False, "", b""))
            continue
        database, transactional, prefix, size = _MESSAGE.unpack_from(data)
        begin = _MESSAGE.size + min(prefix, len(data))
        name = data[_MESSAGE.size : begin].rstrip(b"\0").decode(errors="replace")
        found.append((database, transactional, name, data[begin : begin + size]))
    return found


def messages_of(view: View) -> View:
    """Return pg_logical_emit_message's records."""
    return view.of_kind("LogicalMessage", 0)


def _of_message(type_: Any, number: int) -> ColumnOf:
    def make(view: View) -> Any:
        return pa.array([message[number] for message in view.kept("messages", _messages)], type_)

    return ColumnOf(type_, make)


MESSAGE_COLUMNS: dict[str, ColumnOf] = {
    **_record("start_lsn", "end_lsn", "timeline", "xid"),
    "database": _of_message(pa.int64(), 0),
    "transactional": _of_message(pa.bool_(), 1),
    "prefix": _of_message(pa.string(), 2),
    "content": _of_message(pa.binary(), 3),
    "segment": RECORD_COLUMNS["segment"],
}
