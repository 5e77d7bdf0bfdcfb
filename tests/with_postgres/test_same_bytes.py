"""Safekeepers hold the primary's WAL byte for byte, and PostgreSQL's own tools read it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres_server import (
    PostgresServer,
    make_directory,
    own,
    program,
    run_as_server_user,
    server_environment,
    server_user,
)
from tests.waiting import wait_until
from tests.with_postgres.cluster import Cluster, lsn_of
from tests.with_postgres.journal import Journal
from tests.with_postgres.recovery import segments

pytestmark = pytest.mark.postgres

CHECKSUM = "SELECT count(*) || ':' || coalesce(sum(hashint8(id)), 0) FROM journal"
SEGMENT_BYTES = 1 << 20


def assert_same_wal(primary: PostgresServer, wal: Path, end: str) -> int:
    """Up to the end of WAL; the number of segments that were compared."""
    ours, theirs = segments(wal), segments(primary.data / "pg_wal")
    compared = 0
    for name in sorted(set(ours) & set(theirs)):
        start = (int(name[8:16], 16) << 32) + int(name[16:], 16) * SEGMENT_BYTES
        length = min(max(lsn_of(end) - start, 0), SEGMENT_BYTES)
        assert (wal / name).stat().st_size == SEGMENT_BYTES, f"{wal / name}"
        with open(wal / name, "rb") as one, open(primary.data / "pg_wal" / name, "rb") as other:
            assert one.read(length) == other.read(length), f"{wal / name} differs"
        compared += length > 0
    return compared


def test_segments_equal_the_primarys_and_pg_waldump_reads_them_all(
    cluster: Cluster, primary: PostgresServer
) -> None:
    with Journal(primary) as journal:
        journal.wait_for_more(500)
        primary.sql("INSERT INTO journal SELECT -i, repeat('y', 500) FROM generate_series(1, 9000) i")
        primary.sql("SELECT pg_switch_wal()")
        journal.wait_for_more(500)
    end = cluster.wait_all_equal()
    for number in (1, 2, 3):
        assert assert_same_wal(primary, cluster.wal_dir(number), end) >= 5
        names = segments(cluster.wal_dir(number))
        copy = make_directory("walkeeper_dump_")
        try:
            for name in names:
                shutil.copy(cluster.wal_dir(number) / name, copy / name)
            own(copy)
            first = f"{int(names[0][8:16], 16):X}/{int(names[0][16:], 16) * SEGMENT_BYTES:X}"
            arguments = ("-p", str(copy), "-s", first, "-e", end)
            done = run_as_server_user([program("pg_waldump"), *arguments])
        finally:
            shutil.rmtree(copy)
        assert "error" not in done.stdout, done.stdout[-500:]
        records = done.stdout.splitlines()
        assert len(records) > 10_000
        last = next(f for f in records[-1].split(", ") if f.startswith("lsn: "))
        assert lsn_of(last.removeprefix("lsn: ")) < lsn_of(end)
        assert sum("COMMIT" in line for line in records) >= len(journal.entries)


@contextlib.contextmanager
def standby_of(
    backup: PostgresServer, port: int, name: str, settings: dict[str, str] | None = None
) -> Iterator[PostgresServer]:
    """A hot standby that streams from the safekeeper at `port`; unmodified PostgreSQL."""
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


@contextlib.contextmanager
def pg_receivewal(port: int, slot: str | None = None) -> Iterator[Path]:
    """It runs, and writes into this directory."""
    directory = make_directory("walkeeper_receivewal_")
    dsn = f"host=127.0.0.1 port={port} user=postgres"
    arguments = [program("pg_receivewal"), "-d", dsn, "-D", str(directory), "--synchronous"]
    if slot:
        run_as_server_user([*arguments[:3], "--slot", slot, "--create-slot", "--if-not-exists"])
        arguments += ["--slot", slot]
    process = subprocess.Popen(
        arguments,
        user=server_user(),
        env=server_environment(),
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield directory
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory)


def received_end(directory: Path, end: str) -> bool:
    """Whether the segment of the byte before `end` is there."""
    last = lsn_of(end) - 1
    name = f"{1:08X}{last >> 32:08X}{(last & 0xFFFFFFFF) // SEGMENT_BYTES:08X}"
    return (directory / name).exists() or (directory / f"{name}.partial").exists()


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
                    replayed = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
                    wait_until(lambda s=standby, q=replayed: s.sql(q), 40)
                    assert standby.sql(CHECKSUM) == expected
                for received in (directory, other):
                    wait_until(lambda d=received: received_end(d, end), 20)
                    assert assert_same_wal(primary, received, end) >= 1
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
                replayed = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
                wait_until(lambda q=replayed: standby.sql(q), 40)
                assert standby.sql(CHECKSUM) == primary.sql(CHECKSUM)
                shown = run_as_server_user([*psql, "READ_REPLICATION_SLOT kept", dsn]).stdout
                assert shown.startswith("physical|0/"), shown
    finally:
        backup.delete()
