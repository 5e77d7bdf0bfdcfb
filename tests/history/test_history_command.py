"""`walkeeper history stats` and `tables` as people run them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from struct import pack

import pyarrow.parquet as pq
import pytest

from pyspark_pgwal.pgwal_options import PgWalOptions
from tests.history.made_wal import write_segments
from tests.history.test_archives import MB, files_of, lay, made_stream
from tests.support.wal_maker import WalMaker
from walkeeper_cli.program import run
from walkeeper_history.lsn_of_time import CommitTimes
from walkeeper_history.time_text import parse_time
from walkeeper_wal.sources.plan import PlannedSegment, make_plan
from walkeeper_wal.sources.reading import Reading, SegmentReader
from walkeeper_wal.sources.wal_files import LocalFiles

XACT_COMMIT, XACT_PREPARE, TRANSACTION = 0x00, 0x10, 1
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
START = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return lay(tmp_path / "wal", files_of(made_stream()))


def test_stats_are_printed_and_given_as_json(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["history", "stats", "--path", str(archive)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("WAL statistics between 0/100028 and 0/")
    assert lines[3].startswith("XLOG ") and lines[-1].startswith("Total ")
    assert run(["history", "stats", "--path", str(archive), "--per-record", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    row = document["rows"][0]
    assert row["resource_manager/record_type"] == "XLOG/NOOP"
    assert row["count"] == document["total"]["count"] and row["count_percentage"] == 100.0


def test_an_option_can_come_from_the_environment_or_a_file(
    archive: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WALKEEPER_PATH", str(archive))
    assert run(["history", "stats"]) == 0
    monkeypatch.delenv("WALKEEPER_PATH")
    file = tmp_path / "walkeeper.toml"
    file.write_text(f'[history]\npath = "{archive}"\noutput = "{tmp_path}"\n')
    assert run(["history", "stats", "--config", str(file)]) == 0
    file.write_text(f'[history]\npath = "{archive}"\nno_such = 1\n')
    assert run(["history", "stats", "--config", str(file)]) == 2
    assert "no option 'no_such'" in capsys.readouterr().err


def test_damage_ends_it_or_is_reported_as_asked(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = sorted(archive.iterdir())[1]
    data = bytearray(victim.read_bytes())
    data[50_000] ^= 1
    victim.write_bytes(data)
    command = ["history", "stats", "--path", str(archive)]
    assert run(command) == 1
    captured = capsys.readouterr()
    assert not captured.out and victim.name in captured.err and "checksum" in captured.err
    for how, code in (("skip", 0), ("report", 1)):
        assert run([*command, "--on-error", how]) == code
        captured = capsys.readouterr()
        assert "Total" in captured.out and victim.name in captured.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--start-lsn", "zero"], "is not an LSN"),
        (["--start-time", "yesterday"], "is not a time"),
        (["--end-time", "2024-05-01x02"], "is not a time"),
        (["--end-time", "2024-05-01 12:30Z+02"], "is not a time"),
        (["--timeline", "0"], "is not a timeline"),
    ],
)
def test_wrong_values_are_usage_errors(
    archive: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["history", "stats", "--path", str(archive), *arguments]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2024-05-01", "2024-05-01T00:00:00+00:00"),
        ("2024-05-01 12:30", "2024-05-01T12:30:00+00:00"),
        ("2024-05-01T12:30:00.25Z", "2024-05-01T12:30:00.250000+00:00"),
        ("2024-05-01 12:30:00+02", "2024-05-01T12:30:00+02:00"),
        ("20240501 123000-0530", "2024-05-01T12:30:00-05:30"),
        ("2024-05-01 12:30 UTC", "2024-05-01T12:30:00+00:00"),
        ("2024-05-01+02", "2024-05-01T00:00:00+02:00"),  # +02 is a zone, and no hour
        ("20240501-05:30", "2024-05-01T00:00:00-05:30"),
        ("2024-05-01 12:30:00.0000015+02", "2024-05-01T12:30:00.000002+02:00"),
        ("2024-12-31 23:59:59.9999995", "2025-01-01T00:00:00+00:00"),
        ("2024-02-29 24:00:00", None),
        ("2023-02-29", None),
        ("2024-05-01 12:30.5", None),  # PostgreSQL reads twelve minutes
        ("2024-05-01 12:30-2024", None),
        ("2024-05-01 12:30+16", None),
        ("2024-05-01 12:30 Europe/Berlin", None),
        ("0044-03-15 BC", None),
        ("9999-12-31 23:59:59.9999999", None),
        ("10000-01-01", None),
        ("infinity", None),
        ("now", None),
    ],
)
def test_a_time_is_the_one_that_postgresql_reads_or_refused(text: str, shown: str | None) -> None:
    if shown is None:
        with pytest.raises(ValueError, match=r".+"):
            parse_time(text)
    else:
        assert parse_time(text).isoformat() == shown


def test_tables_are_written_once_for_each_segment(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    command = [
        "history", "tables", "--path", str(archive), "--output", str(output),
        "--table", "records,stats,segments,problems",
    ]  # fmt: skip
    assert run(command) == 0
    files = sorted(output.rglob("*.parquet"))
    assert len(files) == 4 * 3 and not list(output.rglob("*.partial"))
    records = pq.read_table(output / "records")
    assert records.num_rows == len(made_stream().records)
    first = {file: file.stat().st_mtime_ns for file in files}
    capsys.readouterr()
    assert run(command) == 0
    assert "2 of them from an earlier run" in capsys.readouterr().err
    again = {file for file in files if file.stat().st_mtime_ns != first[file]}
    assert {file.stem for file in again} == {files[-1].stem}, "only where the log ends"
    assert pq.read_table(output / "records").equals(records)
    assert run([*command, "--again"]) == 0
    assert "earlier" not in capsys.readouterr().err


def test_a_column_or_table_that_is_not_there_is_named(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["history", "tables", "--path", str(archive), "--output", str(tmp_path)]
    assert run([*command, "--table", "records,rows"]) == 2
    assert not list(tmp_path.rglob("*.parquet")), "nothing before all of them are known"
    assert "there are: records, blocks" in capsys.readouterr().err
    assert run([*command, "--columns", "lsn"]) == 2
    assert "it has: start_lsn, end_lsn" in capsys.readouterr().err
    assert run([*command, "--table", "records,stats", "--columns", "xid"]) == 2


def test_a_place_with_a_colon_is_a_directory(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative one was a URL to Parquet's writer."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        command = ["history", "tables", "--path", str(archive), "--output", "2026-11:23"]
        assert run([*command, "--table", "stats"]) == 0
        assert run(["history", "index", "--path", str(archive), "--output", "i:x"]) == 0
    assert list((tmp_path / "2026-11:23" / "stats").glob("*.parquet"))


def stamp(second: int) -> int:
    return (START + timedelta(seconds=second) - EPOCH) // timedelta(microseconds=1)


def commits(seed: int, count: int) -> tuple[WalMaker, list[tuple[int, int]]]:
    """Make a log of commits a second apart, some out of order; return their (second, LSN)."""
    random, made = Random(seed), []
    maker = WalMaker(random, segment_bytes=MB)
    for second in range(count):
        shown = second + random.choice((0, 0, 0, -2))
        record = maker.record(pack("<q", stamp(shown)), XACT_COMMIT, TRANSACTION)
        made.append((shown, int(record.start_lsn)))
        maker.record(random.choice((100, 40_000)))
        if random.random() < 0.02:
            maker.record(2 * MB)
    return maker, made


@pytest.mark.parametrize("seed", range(4))
def test_a_time_is_found_where_it_is_first_reached(tmp_path: Path, seed: int) -> None:
    maker, made = commits(seed, 300)
    write_segments(maker, tmp_path / "wal")
    files = LocalFiles(tmp_path / "wal")
    plan = make_plan(files)
    for second in (0, 1, 57, 150, 298):
        expected = next(lsn for shown, lsn in made if shown >= second)
        time = START + timedelta(seconds=second)
        assert CommitTimes(files, plan).range(time, None) == (expected, None)
        assert CommitTimes(files, plan).range(None, time) == (None, expected)
    assert CommitTimes(files, plan).range(None, START + timedelta(days=1)) == (None, None)


@pytest.mark.parametrize("set_back_s", [1000, 20])
def test_a_recovery_stops_where_a_time_is_first_reached_by_a_clock_that_was_set_back(
    tmp_path: Path, set_back_s: int
) -> None:
    """Eight segments later it is reached again, or never; a PREPARE before is no end."""
    maker = WalMaker(Random(7), segment_bytes=MB)
    made: list[tuple[int, int]] = []
    maker.record(pack("<16xq", stamp(90)), XACT_PREPARE, TRANSACTION)
    for number in range(60):
        shown = number if number < 20 else number - set_back_s
        record = maker.record(pack("<q", stamp(shown)), XACT_COMMIT, TRANSACTION)
        made.append((shown, int(record.start_lsn)))
        maker.record(400_000)
    write_segments(maker, tmp_path / "wal")
    files = LocalFiles(tmp_path / "wal")
    plan = make_plan(files)
    for second in (0, 11, 15, 19, 35):
        expected = next((lsn for shown, lsn in made if shown >= second), None)
        time = START + timedelta(seconds=second)
        assert CommitTimes(files, plan).range(None, time) == (None, expected)
        if expected is not None:
            assert CommitTimes(files, plan).range(time, None) == (expected, None)


def test_an_index_spares_the_search_for_a_time_the_segments_that_do_not_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, made = commits(3, 200)
    write_segments(maker, tmp_path / "wal")
    index = str(tmp_path / "index.parquet")
    assert run(["history", "index", "--path", str(tmp_path / "wal"), "--output", index]) == 0
    shown = str(START + timedelta(seconds=150))
    given = {"path": str(tmp_path / "wal"), "startTime": shown}
    read: list[int] = []
    reads = SegmentReader.read

    def counted(self: SegmentReader, plan: Sequence[PlannedSegment], index: int) -> Reading:
        read.append(index)
        return reads(self, plan, index)

    monkeypatch.setattr(SegmentReader, "read", counted)
    expected = next(lsn for second, lsn in made if second >= 150)
    assert PgWalOptions.parse({**given, "index": index}).plan().segments[0].begin_lsn == expected
    spared, read[:] = len(read), []
    assert PgWalOptions.parse(given).plan().segments[0].begin_lsn == expected
    assert spared == 1 < len(read)


def test_a_time_after_the_last_commit_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker, _ = commits(1, 20)
    write_segments(maker, tmp_path / "wal")
    command = ["history", "stats", "--path", str(tmp_path / "wal")]
    assert run([*command, "--start-time", "2025-01-01"]) == 1
    assert "no transaction ended at 2025-01-01" in capsys.readouterr().err
    assert run([*command, "--end-time", "2024-05-01 00:00:10"]) == 0
