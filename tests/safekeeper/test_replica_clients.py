"""Real PostgreSQL clients against a safekeeper's port: pg_receivewal, psql, pg_isready, libpq."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import uvloop

from tests.support.fake_served_log import (
    FIRST_LSN,
    MIB,
    FakeCatalog,
    FakeLog,
    run_with_server,
    wait_until,
    wal_bytes,
)
from tests.support.raw_client import RawClient
from tests.support.waiting import LIMIT_S
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_common.postgres.pgwire import StandbyStatus, XLogData, unpack_from_sender
from walkeeper_safekeeper.replication.wal_stream import StreamLimits

pytestmark = pytest.mark.postgres
LOOPS = [
    pytest.param(asyncio.new_event_loop, id="asyncio"),
    pytest.param(uvloop.new_event_loop, id="uvloop"),
]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def program(name: str) -> str:
    newest = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = str(newest[-1]) if newest else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def spawn(name: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
    return subprocess.Popen(
        [program(name), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**environment, "LC_ALL": "C"},
        text=True,
    )


async def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and output; the server runs meanwhile."""
    output, _ = await asyncio.to_thread(process.communicate, timeout=LIMIT_S)
    return process.returncode, output


async def run(name: str, *arguments: str) -> tuple[int, str]:
    return await ended(spawn(name, *arguments))


def conninfo(port: int, more: str = "") -> str:
    return f"host=127.0.0.1 port={port} user=wk {more}"


def catalog() -> FakeCatalog:
    log = FakeLog()
    log.append(wal_bytes(3 * MIB + 5000))
    log.commit()
    return FakeCatalog(log)


def received(directory: Path, log: FakeLog) -> bytes:
    """Return the files of pg_receivewal, as far as the log is committed."""
    wal = b""
    for i in range(int(log.readable_lsn - log.oldest_lsn) // MIB + 1):
        name = segment_name(log.timeline, log.oldest_lsn + i * MIB, MIB)
        for found in (f"{name}.partial", name):  # in this order: it may be renamed meanwhile
            with suppress(FileNotFoundError):
                wal += (directory / found).read_bytes()
                break
    return wal[: log.readable_lsn - log.oldest_lsn]


@pytest.mark.parametrize("loop_factory", LOOPS)
@pytest.mark.parametrize("with_slot", [False, True])
def test_pg_receivewal_gets_every_committed_byte(
    tmp_path: Path, with_slot: bool, loop_factory: LoopFactory
) -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = catalog.logs["main"]
        where = ["-d", conninfo(port), "-D", str(tmp_path), "--no-loop", "-v"]
        slot = ["-S", "rw", "--synchronous"] if with_slot else []
        if with_slot:
            for _ in range(2):
                code, output = await run("pg_receivewal", "--create-slot", *where, *slot[:2])
                assert code == 0 or "already exists" in output, output
            # Kept from the first segment on, so that it starts there.
            log.slots.slots.acquire("rw", pid=-1)
            log.slots.slots.confirm("rw", log.oldest_lsn, pid=-1)
            log.slots.release("rw", pid=-1)
        else:
            # An empty directory starts at the current segment: make it continue from the first.
            (tmp_path / segment_name(1, Lsn(2 * MIB), MIB)).write_bytes(bytes(MIB))
        process = spawn("pg_receivewal", *where, *slot, "--status-interval=1")
        await wait_until(lambda: received(tmp_path, log) == log.wal)
        log.append(wal_bytes(2 * MIB, seed=9))
        assert received(tmp_path, log) == log.wal[: log.readable_lsn - log.oldest_lsn]
        log.commit()
        await wait_until(lambda: received(tmp_path, log) == log.wal)
        (reader,) = log.readers
        assert (reader.application_name, reader.state.value) == ("pg_receivewal", "streaming")
        if with_slot:
            await wait_until(lambda: reader.flush_lsn == log.readable_lsn)
            await wait_until(lambda: log.slots.slots.get("rw").restart_lsn == log.readable_lsn)
        await wait_until(lambda: reader.write_lsn == log.readable_lsn)
        process.send_signal(signal.SIGINT)
        code, output = await ended(process)
        assert code == 0 and "error" not in output, output
        if with_slot:
            assert (await run("pg_receivewal", "--drop-slot", *where, *slot[:2]))[0] == 0
            assert len(log.slots.slots) == 0

    run_with_server(catalog, scenario, loop_factory=loop_factory)


def test_pg_receivewal_reports_removed_wal_and_other_clusters(tmp_path: Path) -> None:
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        (tmp_path / segment_name(1, Lsn(MIB), MIB)).write_bytes(bytes(MIB))
        where = ["-D", str(tmp_path), "--no-loop"]
        code, output = await run("pg_receivewal", "-d", conninfo(port), *where)
        assert code == 1 and "000000010000000000000002 has already been removed" in output
        wrong = conninfo(port, "options='-c walkeeper.cluster=nosuch'")
        code, output = await run("pg_receivewal", "-d", wrong, *where)
        assert code == 1 and 'cluster "nosuch" does not exist here' in output, output
        assert "options='-c walkeeper.cluster=main'" in output

    run_with_server(catalog, scenario)


def test_psql_speaks_to_it() -> None:
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        async def psql(text: str, more: str = "replication=true") -> str:
            _, output = await run("psql", "-X", "-A", "-t", conninfo(port, more), "-c", text)
            return output.strip()

        assert await psql("IDENTIFY_SYSTEM") == "7400000000000000001|1|0/601388|"
        assert await psql("SHOW wal_segment_size;") == "1MB"
        assert await psql("CREATE_REPLICATION_SLOT barman PHYSICAL") == "barman|0/0||"
        assert "42710" not in await psql("READ_REPLICATION_SLOT barman")
        assert await psql("DROP_REPLICATION_SLOT barman WAIT") == "DROP_REPLICATION_SLOT"
        assert "primary" in await psql("SELECT 1")
        assert "replication=true" in await psql("SELECT 1", "dbname=main")
        assert await psql("SELECT pg_catalog.pg_is_in_recovery()", "dbname=main") == "f"
        assert "replication=database" in await psql("SELECT 1", "dbname=main replication=database")
        read_write = "replication=true target_session_attrs=read-write"
        assert await psql("SHOW in_hot_standby", read_write) == "off"

    run_with_server(catalog, scenario)


def test_pg_isready_tells_a_log_that_is_served_from_one_that_is_not() -> None:
    async def scenario(port: int, served: FakeCatalog) -> None:
        address = ["-h", "127.0.0.1", "-p", str(port)]
        assert (await run("pg_isready", *address))[0] == (1 if served.closed else 0)

    run_with_server(catalog, scenario)
    run_with_server(lambda: FakeCatalog(closed=["main"]), scenario)


def next_copy_data(pg: psycopg.pq.abc.PGconn) -> memoryview:
    """Empty at the end. Libpq's own waiting would keep the interpreter from the server's thread."""
    while (found := pg.get_copy_data(1))[0] == 0:
        select.select([pg.socket], [], [], 20)
        pg.consume_input()
    return memoryview(found[1])


def next_result(pg: psycopg.pq.abc.PGconn) -> psycopg.pq.abc.PGresult | None:
    while pg.is_busy():
        select.select([pg.socket], [], [], 20)
        pg.consume_input()
    return pg.get_result()


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_libpq_streams_and_ends_the_stream(loop_factory: LoopFactory) -> None:
    def client(port: int, size: int, protocol: str) -> tuple[bytes, str, list[str]]:
        text = conninfo(port, f"replication=true application_name=libpq {protocol}")
        with psycopg.connect(text, autocommit=True) as connection:
            system = connection.execute("IDENTIFY_SYSTEM").fetchone()
            assert system is not None and system[1] == 1, "the timeline is an integer"
            pg = connection.pgconn
            started = pg.exec_(f"START_REPLICATION PHYSICAL {FIRST_LSN} TIMELINE 1".encode())
            assert started.status == psycopg.pq.ExecStatus.COPY_BOTH
            wal = b""
            while len(wal) < size:
                got = unpack_from_sender(next_copy_data(pg))
                wal += bytes(got.payload) if isinstance(got, XLogData) else b""
            end = FIRST_LSN + size
            pg.put_copy_data(StandbyStatus(end, end, end, 0, False).pack())
            pg.put_copy_end(None)
            while next_copy_data(pg):
                pass
            statuses = []
            while (ended := next_result(pg)) is not None:
                statuses.append(psycopg.pq.ExecStatus(ended.status).name)
            again = connection.execute("SHOW server_version").fetchone()
            assert again == ("15.18 (Debian 15.18-0+deb12u1)",)
            return wal, str(system[0]), statuses

    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = catalog.logs["main"]
        protocols = ["", "max_protocol_version=3.2 sslmode=disable"]
        if psycopg.pq.version() < 180000:
            protocols.pop()
        calls = [asyncio.to_thread(client, port, len(log.wal), text) for text in protocols]
        for wal, system_id, statuses in await asyncio.gather(*calls):
            assert (wal, system_id) == (bytes(log.wal), str(log.system_id))
            assert statuses == ["COMMAND_OK", "COMMAND_OK"]

    run_with_server(catalog, scenario, loop_factory=loop_factory)


def test_several_receivers_are_served_while_one_client_is_stuck(tmp_path: Path) -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = catalog.logs["main"]
        stuck = await RawClient.connect(port, application_name="stuck")
        await stuck.start(f"START_REPLICATION {FIRST_LSN}")
        directories = [tmp_path / str(i) for i in range(3)]
        processes = []
        for directory in directories:
            directory.mkdir()
            (directory / segment_name(1, Lsn(2 * MIB), MIB)).write_bytes(bytes(MIB))
            where = ["-d", conninfo(port), "-D", str(directory), "--no-loop", "--no-sync"]
            processes.append(spawn("pg_receivewal", *where))
        log.append(wal_bytes(20 * MIB, seed=11))
        log.commit()
        await wait_until(lambda: all(received(d, log) == log.wal for d in directories))
        for process in processes:
            process.send_signal(signal.SIGINT)
            assert (await ended(process))[0] == 0

    limits = StreamLimits(keepalive_interval_s=1.0, sender_timeout_s=10.0)
    run_with_server(catalog, scenario, limits=limits)
