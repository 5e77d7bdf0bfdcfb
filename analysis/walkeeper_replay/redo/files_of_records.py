"""Records' changes of whole files: truncation, creation, drops, copied databases, catalogs' maps.

Contract: changes come with the index of their record in the batch, in its order. A drop takes
effect with the record that ends its transaction. Layouts: storage_xlog.h, dbcommands_xlog.h,
relmapper.c, xact.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct, unpack_from

import numpy as np

from walkeeper_history.rows.ended import naming_endings
from walkeeper_history.rows.transactions import parse_ending
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.reading import Batch

Place = tuple[int, int, int]
_STORAGE, _DATABASE = RMGR_IDS["Storage"], RMGR_IDS["Database"]
_RELMAP, _XACT = RMGR_IDS["RelMap"], RMGR_IDS["Transaction"]
_CREATE, _TRUNCATE, _TRUNCATE_HEAP = 0x10, 0x20, 1
_MAP_MAGIC, _MAPPINGS_MAX = 0x592717, 64
_FOUR, _PLACE, _PAIR = Struct("<IIII"), Struct("<III"), Struct("<II")


@dataclass(frozen=True, slots=True)
class Drop:
    """Blocks from `from_block` on are gone, all of a database's if relfilenode is 0.

    `is_new` is True if the file was made anew and is empty.
    """

    record: int
    relation: Place
    from_block: int = 0
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class CopyDatabase:
    record: int
    database: int
    tablespace: int
    source: int
    source_tablespace: int


@dataclass(frozen=True, slots=True)
class Mapped:
    """A database's catalogs (0: the shared ones) have these relfilenodes."""

    record: int
    database: int
    nodes: dict[int, int]


Change = Drop | CopyDatabase | Mapped


def changes_of(batch: Batch) -> Iterator[Change]:
    """Yield changes in the order of the log; microseconds for each record of these kinds."""
    records = batch.records
    rmids = records["rmid"]
    found = (rmids == _STORAGE) | (rmids == _DATABASE) | (rmids == _RELMAP)
    found[naming_endings(batch)] = True
    for row in np.flatnonzero(found).tolist():
        record = records[row]
        begin = int(record["main_offset"])
        data = batch.payload[begin : begin + int(record["main_length"])].tobytes()
        rmid, info = int(record["rmid"]), int(record["info"])
        if rmid == _XACT:
            for place in parse_ending(data, info, batch.version).dropped:
                yield Drop(row, (place[0], place[1], place[2]))
        elif rmid == _STORAGE:
            yield from _storage(row, data, info & 0xF0)
        elif rmid == _DATABASE:
            yield from _database(row, data, info & 0xF0, batch.version.layout)
        else:
            yield from _mapped(row, data)


def _storage(row: int, data: bytes, op: int) -> Iterator[Change]:
    if op == _CREATE and len(data) >= 16:
        *place, fork = _FOUR.unpack_from(data)
        if fork == 0:
            yield Drop(row, (place[0], place[1], place[2]), is_new=True)
    elif op == _TRUNCATE and len(data) >= 20:
        block, *place = _FOUR.unpack_from(data)
        if data[16] & _TRUNCATE_HEAP:
            yield Drop(row, (place[0], place[1], place[2]), from_block=block)


def _database(row: int, data: bytes, op: int, major: int) -> Iterator[Change]:
    drop = 0x20 if major >= 15 else 0x10
    if op == 0x00 and len(data) >= 16:
        yield CopyDatabase(row, *_FOUR.unpack_from(data))
    elif op == drop and len(data) >= 8:
        database, count = _PAIR.unpack_from(data)
        for space in unpack_from(f"<{min(count, (len(data) - 8) // 4)}I", data, 8):
            yield Drop(row, (space, database, 0))


def _mapped(row: int, data: bytes) -> Iterator[Change]:
    if len(data) >= 12:
        database, _, size = _PLACE.unpack_from(data)
        yield Mapped(row, database, parse_map(data[12 : 12 + size]))


def parse_map(data: bytes) -> dict[int, int]:
    """Return a pg_filenode.map as catalog → relfilenode, empty if `data` is none."""
    if len(data) < 8:
        return {}
    magic, count = _PAIR.unpack_from(data)
    if magic != _MAP_MAGIC or not 0 <= count <= min(_MAPPINGS_MAX, (len(data) - 8) // 8):
        return {}
    return dict(_PAIR.unpack_from(data, 8 + 8 * k) for k in range(count))
