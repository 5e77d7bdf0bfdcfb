"""The history's readers over WAL of any bytes: both engines, and whatever tables are made of it.

An input is that of `wal`. Promises: the readers raise no exception. Both engines give the same
records, block references and problems. Every batch is a valid one of its table's schema. With a
check of CRCs, a record that is given has a right one.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
from crc32c import crc32c

from tests.proof.fuzz.blocks import block_seeds
from tests.proof.fuzz.contract import Target, require
from tests.proof.fuzz.wal import BYTES, laid_out
from walkeeper_common.lsn import LSN_MAX
from walkeeper_history.find import deeds_of_segment, findings
from walkeeper_history.report.data import gather
from walkeeper_history.tables import TABLE_NAMES, Table, column_names, table
from walkeeper_wal.records.segment import Bytes
from walkeeper_wal.records.walk import BLOCK_ROW, RECORD_ROW, Buffers
from walkeeper_wal.sources.archive_names import archived_file
from walkeeper_wal.sources.plan import PlannedSegment
from walkeeper_wal.sources.reading import SegmentReader
from walkeeper_wal.sources.wal_files import Pieces

TIMELINE_MAX = 9
# So few that walks end and go on because of them.
FEW_RECORDS, FEW_BLOCKS = 16, 40
_RECORD, _BLOCK = ([name for name in row.names or () if name != "padding"]
                   for row in (RECORD_ROW, BLOCK_ROW))  # fmt: skip


class Held:
    """Segments as files of their numbers."""

    def __init__(self, segments: list[bytes]) -> None:
        self._data = [np.frombuffer(data, np.uint8) for data in segments]

    def list_files(self) -> list[tuple[str, int]]:
        return [(str(number), len(data)) for number, data in enumerate(self._data)]

    def read(self, path: str) -> Bytes:
        return self._data[int(path)]

    def read_front(self, path: str, size: int) -> bytes:
        return self._data[int(path)][:size].tobytes()

    def open_plain(self, path: str) -> int | None:
        return None

    def read_pieces(self, path: str, size: int, at: int) -> Pieces:
        data = self._data[int(path)].tobytes()
        return len(data), data[:size], data[at : at + size], data[-size:]

    def shown(self, path: str) -> str:
        return path


def planned(wal: bytes, base: int, size: int) -> tuple[Held, list[PlannedSegment]]:
    """Plan segments of which the last one is where the bytes end."""
    pieces = [wal[at : at + size] for at in range(0, len(wal), size)]
    segments = [
        PlannedSegment(
            str(number), TIMELINE_MAX, base + number * size, size, None,
            base + number * size, base + (number + 1) * size, int(LSN_MAX),
            len(data) < size, number == len(pieces) - 1,
        )
        for number, data in enumerate(pieces)
    ]  # fmt: skip
    return Held(pieces), segments


_READERS: dict[tuple[str, bool], Buffers] = {}


def _reader(files: Held, engine: str, *, check_crc: bool) -> SegmentReader:
    buffers = _READERS.setdefault((engine, check_crc), Buffers(FEW_RECORDS, FEW_BLOCKS))
    return SegmentReader(files, engine_name=engine, check_crc=check_crc, buffers=buffers)


def run_history(data: bytes) -> None:
    wal, base, size = laid_out(data)
    files, segments = planned(wal, int(base), size)
    check_crc = crc32(data) % 2 == 0
    fast, slow = (_reader(files, name, check_crc=check_crc) for name in ("auto", "numpy"))
    for index in range(len(segments)):
        reads = [_rows(reader, segments, index) for reader in (fast, slow)]
        require(reads[0] == reads[1], "segment {}: compiled {}, numpy {}", index, *reads)
    name = (*TABLE_NAMES, "find", "report")[crc32(data) // 2 % (len(TABLE_NAMES) + 2)]
    if name == "find":
        parts = (deeds_of_segment(slow.read(segments, n)) for n in range(len(segments)))
        list(findings(parts))
    elif name == "report":
        for index in range(len(segments)):
            gather(slow.read(segments, index))
    else:
        made = table(name, column_names(name, with_payload=True))
        _check_table(made, slow, segments)


def _rows(
    reader: SegmentReader, segments: list[PlannedSegment], index: int
) -> tuple[list[tuple[int, ...]], list[str]]:
    reading, found = reader.read(segments, index), list[tuple[int, ...]]()
    for batch in reading:
        found += batch.records[_RECORD].tolist()
        found += batch.blocks[_BLOCK].tolist()
        if reader.check_crc:
            for row in batch.records:
                begin, end = int(row["offset"]), int(row["offset"]) + int(row["length"])
                record = batch.payload[begin:end].tobytes()
                crc = crc32c(record[:20], crc32c(record[24:]))
                require(crc.to_bytes(4, "little") == record[20:24], "CRC of {}", row)
    return found, [problem.reason for problem in reading.problems]


def _check_table(made: Table, reader: SegmentReader, segments: list[PlannedSegment]) -> None:
    for index in range(len(segments)):
        for batch in made.batches(reader.read(segments, index)):
            require(batch.schema.equals(made.schema), "{} has {}", made.name, batch.schema)
            batch.validate(full=True)


def run_names(data: bytes) -> None:
    """Read names of files in an archive, and the text of a history file."""
    from walkeeper_common.operator_text.printable import printable
    from walkeeper_wal.sources.segment_timelines import parse_history
    from walkeeper_wal.wal_errors import HistoryError

    text = data.decode("utf-8", "replace")
    path, _, content = text.partition("\n")
    file = archived_file(path, len(data))
    if file is not None and file.segment is not None:
        require(file.segment in path and 0 <= file.timeline < 1 << 32, "{} is {}", path, file)
    try:
        stretches = parse_history(content.encode(), 1 + len(path), path)
    except HistoryError as error:
        require(printable(path) in str(error), "{} names no file", error)
        return
    ends = [each.end_lsn for each in stretches]
    require(ends == sorted(ends), "{} leaves timelines at {}", content, ends)


HISTORY = Target(
    name="history",
    about="WAL of any bytes through both engines of the history, and its tables",
    run=run_history,
    seeds=lambda: [*BYTES.seeds(), *block_seeds()],
    bytes_max=BYTES.bytes_max,
    alter=BYTES.alter,
    repair=BYTES.repair,
)
NAMES = Target(
    name="archive_names",
    about="names of archived files and timelines' histories",
    run=run_names,
    seeds=lambda: [
        name.encode() + b"\n1\t0/3000000\tno recovery target\n2 0/5A00028 x\n"
        for name in (
            "000000010000000000000003", "x/00000001/000000010000000000000003.zst",
            "0000000100000000/000000010000000000000003-" + "a" * 40 + ".gz",
            "000000020000000000000003.0000000003A00028.partial.zst", "00000003.history.lz4",
            "000000010000000000000003.gz.partial",
        )
    ],
    bytes_max=300,
)  # fmt: skip
