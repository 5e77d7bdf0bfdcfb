"""The content of transaction records: commits, aborts, prepared transactions. Pure.

Layouts: xact.h (xl_xact_commit, xl_xact_abort, xl_xact_prepare and ParseCommitRecord), twophase.c.
Contract: if a record's data ends before all that its flags announce, the rest is null. No layout
can make a read go beyond the record.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from struct import Struct, error

from walkeeper_wal.records.versions import WalVersion

HAS_INFO = 0x80
_DBINFO, _SUBXACTS, _RELATIONS, INVALS = 0x01, 0x02, 0x04, 0x08
_TWOPHASE, _ORIGIN, _GID, _STATS = 0x10, 0x20, 0x80, 0x100
NAMING = _SUBXACTS | _RELATIONS | _TWOPHASE
"""The flags of an ending that names other transactions, or files that go away."""
FLAGS_AT, FLAGS_BYTES = 8, 4  # with HAS_INFO, after the time
_TIME, _U32, _I32, _PAIR = Struct("<q"), Struct("<I"), Struct("<i"), Struct("<II")
_RELATION, _PLACE = Struct("<III"), Struct("<Qq")
_PREPARE = Struct("<IIIIqIiii")  # magic … nsubxacts, ncommitrels, nabortrels; 15 has more


@dataclass(slots=True)
class Ending:
    """The end of a transaction, or of its first phase."""

    time: int | None = None
    xid: int | None = None
    """The xid of the prepared transaction, if the record has another one."""
    database: int | None = None
    subxacts: list[int] = field(default_factory=list)
    dropped: list[tuple[int, ...]] = field(default_factory=list)
    """Relations whose files go away: tablespace, database, relfilenode."""
    invalidations: int = 0
    gid: str | None = None
    origin_lsn: int | None = None


def parse_ending(data: bytes, info: int, version: WalVersion) -> Ending:
    """Return the content of a commit or an abort, of one or two phases."""
    ending = Ending()
    with contextlib.suppress(error, ValueError):  # cut off: the fields that were there are kept
        _parse_ending(_Cursor(data), info, version, ending)
    return ending


def _parse_ending(cursor: _Cursor, info: int, version: WalVersion, ending: Ending) -> None:
    ending.time = cursor.take(_TIME)[0]
    if not info & HAS_INFO:
        return
    flags = cursor.take(_U32)[0]
    if flags & _DBINFO:
        ending.database = cursor.take(_PAIR)[0]
    if flags & _SUBXACTS:
        ending.subxacts = [cursor.take(_U32)[0] for _ in cursor.count(4)]
    if flags & _RELATIONS:
        ending.dropped = [cursor.take(_RELATION) for _ in cursor.count(12)]
    if flags & _STATS and version.layout >= 15:
        size = 12 if version.layout < 18 else 16
        cursor.skip(len(cursor.count(size)) * size)
    if flags & INVALS:
        ending.invalidations = len(found := cursor.count(16))
        cursor.skip(len(found) * 16)
    if flags & _TWOPHASE:
        ending.xid = cursor.take(_U32)[0]
    if flags & _GID:
        ending.gid = cursor.text()
    if flags & _ORIGIN:
        ending.origin_lsn = cursor.take(_PLACE)[0]


def parse_prepare(data: bytes, version: WalVersion) -> Ending:
    """Return the content of a PREPARE: the state file's header, its gid and its subtransactions."""
    ending = Ending()
    with contextlib.suppress(error, ValueError):
        cursor = _Cursor(data)
        _, _, ending.xid, ending.database, ending.time, _, subxacts, *_ = cursor.take(_PREPARE)
        cursor.skip(8 if version.layout >= 15 else 0)  # ncommitstats, nabortstats
        ending.invalidations = cursor.take(_I32)[0]
        cursor.skip(2)  # initfileinval and alignment
        length = int.from_bytes(cursor.bytes(2), "little")
        cursor.align(8)
        ending.origin_lsn = cursor.take(_PLACE)[0] or None
        ending.gid = cursor.bytes(length).rstrip(b"\0").decode(errors="replace")
        cursor.align(8)
        if not 0 <= subxacts <= cursor.left // 4:
            return ending
        ending.subxacts = [cursor.take(_U32)[0] for _ in range(subxacts)]
    return ending


class _Cursor:
    """A place in one record's data. A read past the end raises struct.error or ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._place

    def take(self, layout: Struct) -> tuple[int, ...]:
        values: tuple[int, ...] = layout.unpack_from(self._data, self._place)
        self._place += layout.size
        return values

    def count(self, item_bytes: int) -> range:
        """Return a range of the announced length; raise ValueError if there is no room for it."""
        announced = self.take(_I32)[0]
        if not 0 <= announced * item_bytes <= self.left:
            raise ValueError(f"{announced} items of {item_bytes} bytes in {self.left}")
        return range(announced)

    def skip(self, size: int) -> None:
        self._place += size

    def align(self, unit: int) -> None:
        self._place = -(-self._place // unit) * unit

    def bytes(self, size: int) -> bytes:
        if size > self.left:
            raise ValueError(f"{size} bytes in {self.left}")
        begin, self._place = self._place, self._place + size
        return self._data[begin : self._place]

    def text(self) -> str:
        end = self._data.index(b"\0", self._place)
        return self.bytes(end + 1 - self._place)[:-1].decode(errors="replace")
