"""Safekeepers hold the primary's WAL byte for byte, and PostgreSQL's own tools read it."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.journal import Journal
from tests.support.postgres_server import (
    PostgresServer,
    make_directory,
    own,
    program,
    run_as_server_user,
)
from tests.support.receivers import pg_receivewal
from tests.support.segment_files import assert_same_wal, segments, start_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres

CHECKSUM = "SELECT count(*) || ':' || coalesce(sum(hashint8(id)), 0) FROM journal"
SEGMENT_BYTES = 1 << 20


def pgbench(primary: PostgresServer, *arguments: str) -> None:
    options = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres"]
    run_as_server_user([program("pgbench"), *options, *arguments, "postgres"])


def records_of(wal: Path, end: str) -> list[str]:
    """Return pg_waldump's output for this directory, from its first byte to the end of WAL."""
    copy = make_directory("walkeeper_dump_")
    try:
        for name in segments(wal):
            shutil.copy(wal / name, copy / name)
        own(copy)
        first = start_of(segments(wal)[0], SEGMENT_BYTES)
        begin = f"{first >> 32:X}/{first & 0xFFFFFFFF:X}"
        dump = [program("pg_waldump"), "-p", str(copy), "-s", begin, "-e", end]
        return run_as_server_user(dump).stdout.splitlines()
    finally:
        shutil.rmtree(copy)


def test_segments_equal_the_primarys_and_pg_waldump_reads_them_all(
    cluster: Cluster, primary: PostgresServer
) -> None:
    pgbench(primary, "-i", "-s", "1", "-q")
    with Journal(primary) as journal:
        pgbench(primary, "-c", "4", "-T", "3", "-n")
        primary.sql("SELECT pg_switch_wal()")
        journal.wait_for_more(300)
    end = cluster.wait_all_equal()
    for number in (1, 2, 3):
        wal = cluster.wal_dir(number)
        assert assert_same_wal(primary.data / "pg_wal", wal, lsn_of(end)) >= 5
        records = records_of(wal, end)
        assert not any("error" in line for line in records), records[-3:]
        assert sum("COMMIT" in line for line in records) >= len(journal.entries)
        found = re.search(r"lsn: (\S+), prev (\S+),", records[-1])
        assert found and lsn_of(found[1]) < lsn_of(end) <= lsn_of(found[1]) + 8192


@contextlib.contextmanager
def standby_of(
    backup: PostgresServer, port: int, name: str, settings: dict[str, str] | None = None
) -> Iterator[PostgresServer]:
    """Yield a stock hot standby that streams from the safekeeper at `port`."""
    directory = make_directory("walkeeper_standby_")
    run_as_server_user(["cp", "-a", str(backup.data), str(directory / "data")])
    conninfo = f"host=127.0.0.1 port={port} user=postgres application_name={name}"
    given = {"primary_conninfo": conninfo, "wal_retrieve_retry_interval": "200ms"}
    none = {"synchronous_standby_names": ""}
    server = PostgresServer(directory, {**given, **none, **(settings or {})})
    (server.data / "standby.signal").touch()
    own(server.data)
    try:
        server.start()
        yield server
    finally:
        server.delete()


def wait_replayed(standby: PostgresServer, end: str) -> None:
    replayed = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
    wait_until(lambda: standby.sql(replayed))


def wait_received(primary: PostgresServer, directory: Path, end: str) -> None:
    """Wait until pg_receivewal has the last byte before `end`; compare all of that segment."""
    number = (lsn_of(end) - 1) // SEGMENT_BYTES
    per_file_id = (1 << 32) // SEGMENT_BYTES
    name = f"{1:08X}{number // per_file_id:08X}{number % per_file_id:08X}"
    length = lsn_of(end) - number * SEGMENT_BYTES
    expected = primary.wal_file(name)[:length]

    def is_there() -> bool:
        found = [path for path in directory.iterdir() if path.name.startswith(name)]
        return bool(found) and found[0].read_bytes()[:length] == expected

    wait_until(is_there)


def test_standbys_and_pg_receivewal_stream_from_safekeepers_at_the_same_time(
    cluster: Cluster, primary: PostgresServer
) -> None:
    with Journal(primary) as journal:
        journal.wait_for_more(100)
        backup = primary.base_backup()
        try:
            one, two, three = cluster.ports
            with (
                standby_of(backup, one, "standby_a") as a,
                standby_of(backup, two, "standby_b") as b,
                pg_receivewal(three, "archive") as directory,
                pg_receivewal(one) as other,
            ):
                journal.wait_for_more(500)
                primary.sql("SELECT pg_switch_wal()")
                journal.wait_for_more(200)
                journal.stop()
                end = cluster.wait_all_equal()
                expected = primary.sql(CHECKSUM)
                for standby in (a, b):
                    wait_replayed(standby, end)
                    assert standby.sql(CHECKSUM) == expected
                for received in (directory, other):
                    wait_received(primary, received, end)
                    assert assert_same_wal(primary.data / "pg_wal", received, lsn_of(end)) >= 1
                shown = [s for line in cluster.status()["safekeepers"] for s in line["standbys"]]
                names = {s["application_name"] for s in shown}
                assert {"standby_a", "standby_b", "pg_receivewal"} <= names
        finally:
            backup.delete()


def test_slots_of_standbys_survive_a_safekeeper_restart(
    cluster: Cluster, primary: PostgresServer
) -> None:
    primary.sql("CREATE TABLE journal (id bigint PRIMARY KEY, padding text)")
    backup = primary.base_backup()
    make_slot = "CREATE_REPLICATION_SLOT kept PHYSICAL RESERVE_WAL"
    psql = [program("psql"), "-XAt", "-c"]
    port = cluster.ports[0]
    dsn = f"host=127.0.0.1 port={port} user=postgres replication=true"
    run_as_server_user([*psql, make_slot, dsn])
    try:
        with standby_of(backup, port, "s", {"primary_slot_name": "kept"}) as standby:
            for way in ("terminate", "kill"):
                with Journal(primary) as journal:
                    journal.wait_for_more(200)
                getattr(cluster.safekeepers[0], way)()
                cluster.safekeepers[0].start()
                end = primary.sql("SELECT pg_current_wal_flush_lsn()")
                wait_replayed(standby, end)
                assert standby.sql(CHECKSUM) == primary.sql(CHECKSUM)
                shown = run_as_server_user([*psql, "READ_REPLICATION_SLOT kept", dsn]).stdout
                assert shown.startswith("physical|0/"), shown
    finally:
        backup.delete()
