"""Gives the ends of transactions in archived WAL other times, as if the server's clock had stepped.

    step_clock(directory, from_lsn, random) -> [(LSN, microseconds since 2000), …]

A record keeps its place and length, and gets a new CRC. PostgreSQL and walkeeper both read the
result. No program has to fake the clock of a running server.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from struct import pack, pack_into, unpack_from

from crc32c import crc32c

from walkeeper_history.rows.view import View
from walkeeper_history.wal.opening import open_files
from walkeeper_history.wal.plan import make_plan
from walkeeper_history.wal.reading import Batch
from walkeeper_replay.redo.pass_over import pass_over

PAGE, SHORT_HEADER, LONG_HEADER, RECORD_HEADER, CRC_AT = 8192, 24, 40, 24, 20
ENDS = (0, 2, 3, 4)  # commit, abort, and both of prepared transactions
_ORIGIN, _TOP_XID, _LONG, _SHORT = 253, 252, 254, 255
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
SECOND = 1_000_000


def moment(microseconds: int) -> datetime:
    """Return a time of WAL as a datetime."""
    return EPOCH + timedelta(microseconds=microseconds)


class Archived:
    """Bytes of one timeline's segments, found by LSN; `save` writes them back."""

    def __init__(self, directory: Path) -> None:
        paths = sorted(path for path in directory.iterdir() if len(path.name) == 24)
        self._size = paths[0].stat().st_size
        per_log = (1 << 32) // self._size
        self._paths = {
            (int(p.name[8:16], 16) * per_log + int(p.name[16:], 16)) * self._size: p for p in paths
        }
        self._data: dict[int, bytearray] = {}

    def _spans(self, lsn: int, length: int) -> list[tuple[bytearray, int, int]]:
        """Return where the bytes of a record lie, without the headers of pages."""
        found = []
        while length:
            first = lsn - lsn % self._size
            if lsn % PAGE == 0:
                lsn += LONG_HEADER if lsn == first else SHORT_HEADER
            if first not in self._data:
                self._data[first] = bytearray(self._paths[first].read_bytes())
            count = min(length, PAGE - lsn % PAGE)
            found.append((self._data[first], lsn - first, count))
            lsn, length = lsn + count, length - count
        return found

    def record(self, lsn: int) -> bytearray:
        """Return the record that starts at `lsn`."""
        (length,) = unpack_from("<I", self._read(lsn, 4))
        return self._read(lsn, length)

    def _read(self, lsn: int, length: int) -> bytearray:
        return bytearray().join(d[at : at + n] for d, at, n in self._spans(lsn, length))

    def write(self, lsn: int, record: bytes) -> None:
        """Put a record of the same length in its place."""
        done = 0
        for data, at, count in self._spans(lsn, len(record)):
            data[at : at + count] = record[done : done + count]
            done += count

    def save(self) -> None:
        """Write the segments that were read."""
        for first, data in self._data.items():
            self._paths[first].write_bytes(data)


def main_data(record: bytes | bytearray) -> int:
    """Return where the main data of a record without blocks begins."""
    at = RECORD_HEADER
    while True:
        kind = record[at]
        if kind in (_SHORT, _LONG):
            return at + (2 if kind == _SHORT else 5)
        assert kind in (_ORIGIN, _TOP_XID), f"{kind=}: a record with blocks"
        at += 3 if kind == _ORIGIN else 5


def stamped(record: bytearray, microseconds: int) -> bytes:
    """Return the record of a transaction's end with another time."""
    pack_into("<q", record, main_data(record), microseconds)
    crc = crc32c(bytes(record[:CRC_AT]), crc32c(bytes(record[RECORD_HEADER:])))
    record[CRC_AT:RECORD_HEADER] = pack("<I", crc)
    return bytes(record)


def ends_of(directory: Path, from_lsn: int) -> list[int]:
    """Return the LSN of each record from `from_lsn` on that ends a transaction."""
    found: list[int] = []

    def take(batch: Batch) -> None:
        found.extend(View(batch).of_kind("Transaction", *ENDS).start_lsn.tolist())

    files = open_files(str(directory))
    pass_over(files, make_plan(files), [take])
    return [lsn for lsn in found if lsn >= from_lsn]


def step_clock(directory: Path, from_lsn: int, random: Random) -> list[tuple[int, int]]:
    """Move the clock to and fro from `from_lsn` on; return where it showed what.

    The clock never shows less than it did at the first end of a transaction.
    """
    archived, times = Archived(directory), list[tuple[int, int]]()
    ends = ends_of(directory, from_lsn)
    steps = random.choice((0, 1, 1, 3, len(ends) // 4))
    at = set(random.sample(range(1, len(ends)), min(steps, len(ends) - 1)))
    first = clock = 0
    for number, lsn in enumerate(ends):
        record = archived.record(lsn)
        if not number:
            (first,) = unpack_from("<q", record, main_data(record))
            clock = first
        clock += random.choice((0, SECOND, SECOND, 3 * SECOND))
        if number in at:
            clock = max(first, clock + random.randint(-120, 120) * SECOND)
        archived.write(lsn, stamped(record, clock))
        times.append((lsn, clock))
    archived.save()
    return times
