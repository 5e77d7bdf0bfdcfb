"""Tables say what PostgreSQL's own functions say of the same WAL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.history.seeded_wal import play
from tests.history.workload import SETTINGS
from tests.support.installations import binaries_or_skip
from tests.support.postgres_server import PostgresServer, installation
from tests.support.seeds import drawn_seed
from walkeeper_common.lsn import Lsn
from walkeeper_history.tables import table
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.sources.reading import SegmentReader

pytestmark = pytest.mark.postgres
# The function of block references: 16 has none with today's columns.
BLOCK_FUNCTION_MAJOR = 17


def rows_of(
    wal: Path, name: str, start: Lsn, end: Lsn, columns: list[str] | None = None
) -> list[dict[str, Any]]:
    files = open_files(str(wal))
    plan = make_plan(files, start_lsn=int(start), end_lsn=int(end))
    reader, made = SegmentReader(files), table(name, columns)
    batches = [
        batch
        for index in range(len(plan.segments))
        for batch in made.batches(reader.read(plan.reachable, index))
    ]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, made.schema).to_pylist()
    return rows


class Played:
    """A running server, and the stretch of its WAL that the workload made."""

    def __init__(self, server: PostgresServer, seed: int) -> None:
        self.server = server
        server.sql("CREATE EXTENSION pg_walinspect", "SELECT pg_switch_wal()")
        self.start = Lsn.parse(server.sql("CHECKPOINT", "SELECT pg_current_wal_lsn()"))
        play(server, seed, 800)
        self.end = Lsn.parse(server.sql("CHECKPOINT", "SELECT pg_current_wal_lsn()"))
        self.wal = server.data / "pg_wal"

    def query(self, statement: str) -> list[dict[str, Any]]:
        with self.server.connect(options="-c statement_timeout=120s") as connection:
            cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
            bounds = {"start": str(self.start), "end": str(self.end)}
            return cursor.execute(statement.encode(), bounds).fetchall()


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield Played(server, drawn_seed())


def test_records_are_those_of_pg_walinspect(played: Played) -> None:
    numbers = ["start_lsn", "end_lsn", "prev_lsn"]
    columns = [
        *numbers, "xid", "resource_manager", "record_type", "record_length",
        "main_data_length", "fpi_length",
    ]  # fmt: skip
    expected = played.query(
        "SELECT start_lsn - '0/0' AS start_lsn, end_lsn - '0/0' AS end_lsn, "
        "prev_lsn - '0/0' AS prev_lsn, xid::text::bigint AS xid, resource_manager, record_type, "
        "record_length, main_data_length, fpi_length "
        "FROM pg_get_wal_records_info(%(start)s, %(end)s)"
    )
    found = rows_of(played.wal, "records", played.start, played.end, columns)
    assert len(found) > 5000 and found == [
        {**row, **{name: int(row[name]) for name in numbers}} for row in expected
    ]


def test_sums_of_stats_are_those_of_pg_walinspect(played: Played) -> None:
    expected = {
        (row["kind"]): (row["count"], row["record_size"], row["fpi_size"])
        for row in played.query(
            'SELECT "resource_manager/record_type" AS kind, count, record_size, fpi_size '
            "FROM pg_get_wal_stats(%(start)s, %(end)s, true) WHERE count > 0"
        )
    }
    sums: dict[str, list[int]] = {}
    for row in rows_of(played.wal, "stats", played.start, played.end):
        key = f"{row['resource_manager']}/{row['record_type']}"
        values = (row["count"], row["record_size"], row["fpi_size"])
        sums[key] = [a + b for a, b in zip(sums.get(key, [0, 0, 0]), values, strict=True)]
    assert {key: tuple(values) for key, values in sums.items()} == {
        key: tuple(map(int, values)) for key, values in expected.items()
    }


def test_commit_times_are_those_of_track_commit_timestamp(played: Played) -> None:
    rows = rows_of(played.wal, "xacts", played.start, played.end)
    commits = {r["xid"]: r["time"] for r in rows if r["kind"].startswith("commit")}
    assert len(commits) > 50
    xids = "{" + ",".join(map(str, commits)) + "}"
    expected = played.query(
        f"SELECT x::text::bigint AS xid, pg_xact_commit_timestamp(x) AS time "
        f"FROM unnest('{xids}'::xid[]) x"
    )
    assert commits == {row["xid"]: row["time"] for row in expected}
    kinds = {row["kind"] for row in rows}
    assert kinds == {"commit", "abort", "prepare", "commit prepared", "rollback prepared"}


def test_both_phases_of_a_prepared_transaction_have_its_xid_and_gid(played: Played) -> None:
    rows = rows_of(played.wal, "xacts", played.start, played.end)
    phases: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["gid"] is not None:
            phases.setdefault(row["gid"], []).append(row)
    assert len(phases) == 2
    for first, second in phases.values():
        assert (first["kind"], second["kind"].endswith("prepared")) == ("prepare", True)
        assert first["xid"] == second["xid"] != 0
        assert first["subxacts"] == second["subxacts"] != []
        assert first["database"] == second["database"] != 0
        assert first["time"] <= second["time"]


def test_the_last_checkpoint_is_the_control_files(played: Played) -> None:
    end = Lsn.parse(played.server.sql("CHECKPOINT", "SELECT pg_current_wal_lsn()"))
    rows = rows_of(played.wal, "checkpoints", played.start, end)
    expected = played.query(
        "SELECT checkpoint_lsn - '0/0' AS checkpoint_lsn, redo_lsn - '0/0' AS redo_lsn, "
        "timeline_id, prev_timeline_id, full_page_writes, next_oid::bigint, "
        "next_multixact_id::text::bigint, next_multi_offset::text::bigint, "
        "oldest_xid::text::bigint, oldest_xid_dbid::bigint, "
        "oldest_active_xid::text::bigint, oldest_multi_xid::text::bigint, "
        "oldest_multi_dbid::bigint, oldest_commit_ts_xid::text::bigint, "
        "newest_commit_ts_xid::text::bigint, checkpoint_time FROM pg_control_checkpoint()"
    )[0]
    assert {name: rows[-1][name] for name in expected} == {
        name: int(value) if name.endswith("_lsn") else value for name, value in expected.items()
    }


def test_locks_messages_and_relations_are_found(played: Played) -> None:
    messages = rows_of(played.wal, "messages", played.start, played.end)
    assert {row["prefix"] for row in messages} == {"test"}
    assert {row["transactional"] for row in messages} == {True, False}
    assert all(set(row["content"]) == {ord("m")} for row in messages)
    locks = rows_of(played.wal, "locks", played.start, played.end)
    assert locks and all(row["xid"] and row["relation"] for row in locks)
    relations = rows_of(played.wal, "relations", played.start, played.end)
    records = rows_of(played.wal, "records", played.start, played.end)
    of_blocks = sum(row["record_length"] for row in records if row["blocks"])
    assert sum(row["wal_bytes"] for row in relations) == of_blocks
    assert sum(row["fpi_bytes"] for row in relations) == sum(r["fpi_length"] for r in records)
    inserts = sum(row["inserts"] for row in relations)
    assert inserts == sum(
        r["record_type"] in ("INSERT", "INSERT+INIT") and r["resource_manager"] == "Heap"
        for r in records
    )


def test_blocks_are_those_of_pg_walinspect() -> None:
    programs = binaries_or_skip(BLOCK_FUNCTION_MAJOR)
    with (
        installation(programs),
        PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server,
    ):
        played = Played(server, drawn_seed())
        expected = played.query(
            "SELECT start_lsn - '0/0' AS start_lsn, block_id, reltablespace::bigint, "
            "reldatabase::bigint, relfilenode::bigint, relforknumber, relblocknumber, "
            "xid::text::bigint AS xid, resource_manager, record_type, record_length, "
            "main_data_length, block_data_length, block_fpi_length, block_fpi_info, "
            "coalesce(block_data, '') AS block_data, "
            "coalesce(length(block_fpi_data), 0) AS image_bytes "
            "FROM pg_get_wal_block_info(%(start)s, %(end)s) ORDER BY start_lsn, block_id"
        )
        columns = [name for name in expected[0] if name != "image_bytes"]
        found = rows_of(played.wal, "blocks", played.start, played.end, columns)
        assert len(found) > 5000
        for row, other in zip(found, expected, strict=True):
            image_bytes = other.pop("image_bytes")
            assert image_bytes in (0, 8192), "PostgreSQL shows an image restored"
            assert row == {**other, "start_lsn": int(other["start_lsn"])}
