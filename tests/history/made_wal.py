"""Archives made without a server: WalMaker's stream cut into segments, and records at random."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

from tests.support.wal_maker import WalMaker
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_wal.records.segment import Bytes
from walkeeper_wal.sources.plan import PlannedSegment
from walkeeper_wal.sources.wal_files import LocalFiles, Pieces

SEGMENT_BYTES = 65536  # too small for PostgreSQL: the reader does not mind, and tests are quick
SYSTEM_ID = 7_000_000_000_000_000_001


def write_segments(maker: WalMaker, directory: Path, *, pad: bool = True) -> list[Path]:
    """Write the stream as segment files, the last one padded with zeros."""
    size, paths = maker.segment_bytes, []
    directory.mkdir(exist_ok=True)
    for begin in range(int(maker.start_lsn), int(maker.end_lsn), size):
        data = maker.read(Lsn(begin), min(Lsn(begin + size), maker.end_lsn))
        path = directory / segment_name(maker.timeline, Lsn(begin), size)
        path.write_bytes(data.ljust(size, b"\0") if pad else data)
        paths.append(path)
    return paths


def planned(maker: WalMaker, paths: list[Path]) -> list[PlannedSegment]:
    """Return the segments that a plan would have, for sizes that a plan refuses."""
    size = maker.segment_bytes
    found = []
    for number, path in enumerate(paths):
        first = int(maker.start_lsn) + number * size
        found.append(
            PlannedSegment(
                path.name, maker.timeline, first, size, SYSTEM_ID,
                first, first + size, 1 << 62, False, number == len(paths) - 1,
            )
        )  # fmt: skip
    return found


class MemoryFiles(LocalFiles):
    """Files whose bytes a test can change between writing and reading."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.changed: dict[str, Bytes] = {}

    def read(self, path: str) -> Bytes:
        return self.changed[path] if path in self.changed else super().read(path)

    def read_front(self, path: str, size: int) -> bytes:
        return self.read(path)[:size].tobytes()

    def open_plain(self, path: str) -> int | None:
        return None if path in self.changed else super().open_plain(path)

    def read_pieces(self, path: str, size: int, at: int) -> Pieces:
        data = self.read(path).tobytes()
        return len(data), data[:size], data[at : at + size], data[-size:]


def random_body(random: Random) -> bytes:
    """Make headers and data of a record that add up, with everything that headers can hold."""
    headers, data = b"", b""
    if random.random() < 0.1:
        headers += struct.pack("<BH", 253, random.randrange(1 << 16))
    if random.random() < 0.1:
        headers += struct.pack("<BI", 252, random.randrange(1 << 32))
    ids = sorted(random.sample(range(33), random.choice((0, 0, 1, 1, 1, 2, 3, 8))))
    for number, block_id in enumerate(ids):
        size = random.choice((0, 0, 8, 60))
        flags = random.randrange(4) | (0x20 if size else 0)
        image = b""
        if random.random() < 0.3:
            flags |= 0x10
            info = random.choice((0x00, 0x02, 0x03, 0x05, 0x0B, 0x13))
            length = random.choice((1, 700, 8192 if not info & 1 else 4000))
            hole = random.randrange(4000) if info & 1 else 0
            image = struct.pack("<HHB", length, info & 1, info)
            image += struct.pack("<H", hole) if info & 1 and info & 0x1C else b""
            data += random.randbytes(length)
        flags |= 0x80 if number and random.random() < 0.5 else 0
        headers += struct.pack("<BBH", block_id, flags, size) + image
        if not flags & 0x80:
            headers += random.randbytes(12)
        headers += random.randbytes(4)
        data += random.randbytes(size)
    main = random.choice((0, 3, 255, 300, 9000))
    if main > 255:
        headers += struct.pack("<BI", 254, main)
    elif main:
        headers += struct.pack("<BB", 255, main)
    return headers + data + random.randbytes(main)
