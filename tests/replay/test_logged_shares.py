"""Shares of a logical log that executors read: each sees what the driver saw, or the task fails."""

from __future__ import annotations

from pathlib import Path
from struct import pack
from typing import Any

import pytest

from pyspark_pgwal.logical_tables import LoggedOptions, LoggedReader
from tests.support.entry_maker import LogBytes, begin, commit, new_stream, sent
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_wal.wal_errors import HistoryError

MB, TABLE = 1 << 20, 16384
COLUMNS = b"\1id\0" + pack("!Ii", 25, -1) + b"\0v\0" + pack("!Ii", 25, -1)
RELATION = sent(b"R" + pack("!I", TABLE) + b"public\0t\0d" + pack("!H", 2) + COLUMNS)


def row(kind: bytes, *values: bytes) -> bytes:
    columns = b"".join(b"t" + pack("!I", len(value)) + value for value in values)
    return sent(kind + pack("!I", TABLE) + b"N" + pack("!H", len(values)) + columns)


def lay(folder: Path, rows: list[bytes]) -> list[Path]:
    """Write a log in segments of 1 MB, of transactions with a change each."""
    stream, log = new_stream(Lsn(MB), MB), LogBytes(Lsn(MB))
    stream.on_connected()
    for change in rows:
        lsn = int(stream.end_lsn) + 0x10
        for payload in (begin(lsn), RELATION, change, commit(lsn, lsn + 8)):
            stream.on_copy_data(payload)
        log.take(stream)
        stream.on_committed(stream.writer.position)
    made = []
    for at in range(int(log.begin), int(log.end), MB):
        data = log.read(Lsn(at), min(Lsn(at + MB), log.end))
        made.append(folder / segment_name(1, Lsn(at), MB))
        made[-1].write_bytes(data.ljust(MB, b"\0"))
    return made


def numbers_of(reader: LoggedReader, part: Any) -> list[int]:
    rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
    return [int(dict(row["new"])["id"]) for row in rows]


def test_an_executor_that_sees_less_than_the_driver_fails_its_task(tmp_path: Path) -> None:
    """Its share ended where its own copy ended, or began there, without an error."""
    files = lay(tmp_path, [row(b"I", b"%d" % number, b"v" * 9000) for number in range(300)])
    assert len(files) == 3
    options = LoggedOptions.parse({"path": str(tmp_path), "table": "changes", "parts": "3"})
    reader = LoggedReader(options)
    parts = list(reader.partitions())
    assert [n for part in parts for n in numbers_of(reader, part)] == list(range(300))
    last = files[-1].read_bytes()
    files[-1].unlink()
    with pytest.raises(HistoryError, match="and the driver saw it up to 0/3"):
        numbers_of(reader, parts[2])
    assert numbers_of(reader, parts[0])
    files[-1].write_bytes(last)
    files[0].unlink()
    with pytest.raises(HistoryError, match="changes before position 0/200000 are gone"):
        numbers_of(reader, parts[0])
    assert numbers_of(reader, parts[2])


def test_row_history_of_a_log_names_a_change_without_the_old_value(tmp_path: Path) -> None:
    """An update to another value was left out: of the old row its identity alone is sent."""
    lay(tmp_path, [row(b"I", b"1", b"open"), row(b"U", b"1", b"shut")])

    def found(**given: str) -> list[str]:
        options = {"path": str(tmp_path), "table": "row_history", "parts": "1"}
        reader = LoggedReader(LoggedOptions.parse(options | given))
        (part,) = reader.partitions()
        return [row["operation"] for batch in reader.read(part) for row in batch.to_pylist()]

    assert found(where="id=1") == ["insert", "update"]
    with pytest.raises(HistoryError, match=r"by v may lack changes: update of public\.t at"):
        found(where="v=open")
    assert found(where="v=open", allowmissing="true") == ["insert"]
    assert found(where="v=shut") == ["update"] and not found(where="nothing=1")
