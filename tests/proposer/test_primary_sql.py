"""The parts of a libpq connection string, as asyncpg needs them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.proposer.test_replication_connection import POSTMASTER_DIED, served
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S, until, wait_until
from walkeeper_common.errors import Refused
from walkeeper_common.postgres.pgwire import command_complete, ready_for_query
from walkeeper_proposer.postgres import primary_sql
from walkeeper_proposer.postgres.primary_sql import NotConnected, connected, connection_arguments


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_both_forms_of_a_connection_string_mean_the_same() -> None:
    url = connection_arguments("postgresql://u:p%40ss@h1:5433,h2:5434/db?sslmode=require")
    words = connection_arguments(
        "host=h1,h2 port=5433,5434 user=u password='p@ss' dbname=db sslmode=require"
    )
    assert url == words
    assert (url["host"], url["port"]) == (["h1", "h2"], [5433, 5434])
    assert (url["user"], url["password"], url["database"]) == ("u", ["p@ss", "p@ss"], "db")
    assert "sslmode=require" in url["dsn"]


def test_one_port_is_for_every_host() -> None:
    assert connection_arguments("host=a,b port=7")["port"] == [7, 7]


def test_quotes_and_backslashes_in_a_password_survive() -> None:
    assert connection_arguments(r"host=h password='a\'b\\c d'")["password"] == [r"a'b\c d"]


def test_the_environment_fills_in_what_the_string_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGHOST", "fromenv")
    monkeypatch.setenv("PGPORT", "7777")
    arguments = connection_arguments("port=8888")
    assert (arguments["host"], arguments["port"]) == (["fromenv"], [8888])


def test_a_service_is_looked_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    services = tmp_path / "services"
    services.write_text("[prod]\nhost=db1\nport=6000\nuser=wk\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    arguments = connection_arguments("service=prod port=6001")
    assert (arguments["host"], arguments["port"]) == (["db1"], [6001])
    assert arguments["user"] == "wk"
    with pytest.raises(Refused, match="other"):
        connection_arguments("service=other")


def test_a_database_is_postgres_unless_one_is_named() -> None:
    assert connection_arguments("host=h user=wk")["database"] == "postgres"
    assert connection_arguments("host=h user=wk dbname=app")["database"] == "app"


@pytest.mark.parametrize("dsn", ["host", "bogus=1", "postgresql://h:port-without-end?x=1", "a='"])
def test_a_dsn_that_libpq_does_not_understand_is_refused_with_the_reason(dsn: str) -> None:
    with pytest.raises(Refused, match="connection string"):
        connection_arguments(dsn)


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [
        ("host=h port=x", "ports are numbers from 1 to 65535, not 'x'"),
        ("host=h port=0", "not '0'"),
        ("port=65536", "not '65536'"),
        ("host=/tmp port=70000", "not '70000'"),
        ("host=a,b port=5432,65536", "not '5432,65536'"),
        ("postgresql://a:70000,b/", "not '70000,'"),
        (f"host=h port={'1' * 5000}", "ports are numbers"),
        ("host=h connect_timeout=soon", "a number, not 'soon'"),
        ("host=a,b,c port=1,2", "2 ports for 3 hosts"),
        ("host=a,10.0.0..1", "'10.0.0..1' cannot be a host's name"),
        (f"host={'a' * 64}.x", "cannot be a host's name"),
    ],
)
def test_a_host_a_port_or_a_time_limit_that_is_none_is_refused(dsn: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        connection_arguments(dsn)


def test_an_address_without_a_server_is_refused_in_one_line() -> None:
    async def connect() -> None:
        async with connected("host=127.0.0.1 port=1 user=u"):
            raise AssertionError("connected to nobody")

    with pytest.raises(NotConnected, match=r"^no SQL connection to the primary: [^\n]*$") as error:
        asyncio.run(connect())
    assert error.value.sqlstate == "", "the server said nothing"


@pytest.mark.parametrize(
    ("dsn", "text"),
    [
        ("host=127.0.0.1 port=1", "127.0.0.1 port 1: Connection refused"),
        ("host=/nowhere port=1", "/nowhere/.s.PGSQL.1: No such file or directory"),
        ("host=no.invalid port=1", "no.invalid port 1: "),
        (
            "host=127.0.0.1,/nowhere port=1,2",
            "127.0.0.1 port 1: Connection refused; /nowhere/.s.PGSQL.2: No such file or directory",
        ),
    ],
)
def test_each_server_that_was_asked_is_named_with_what_it_said(dsn: str, text: str) -> None:
    """They may come from a service file or the environment."""

    async def connect() -> None:
        async with connected(dsn):
            raise AssertionError("connected to nobody")

    with pytest.raises(Refused) as refused:
        asyncio.run(connect())
    assert str(refused.value).startswith(f"no SQL connection to the primary: {text}")
    assert "Errno" not in str(refused.value)


@pytest.mark.postgres
def test_a_server_that_is_not_what_target_session_attrs_says_is_named_beside_those_down() -> None:
    async def connect(dsn: str) -> None:
        async with connected(dsn):
            raise AssertionError("connected to a primary")

    with PostgresServer.create() as server:
        hosts = f"host=127.0.0.1,127.0.0.1 port=1,{server.port} user=postgres"
        with pytest.raises(Refused) as refused:
            asyncio.run(connect(f"{hosts} target_session_attrs=standby"))
    assert str(refused.value) == (
        "no SQL connection to the primary: 127.0.0.1 port 1: Connection refused; "
        f"127.0.0.1 port {server.port}: it is not as target_session_attrs=standby asks"
    )


def test_a_server_that_ends_the_connection_between_two_queries_is_refused_in_one_line() -> None:
    """Its last words are there, and the end of the stream is not yet."""

    async def body() -> None:
        async with asyncio.timeout(LIMIT_S), served(speaks_sql=True) as (peer, dsn):
            asking = asyncio.create_task(ask(dsn))
            await until(lambda: peer.writers)
            await peer.command()
            peer.writer.write(command_complete("SET") + ready_for_query() + POSTMASTER_DIED)
            await asking

    async def ask(dsn: str) -> None:
        with pytest.raises(Refused, match=r"^PostgreSQL ended the connection; its log says why$"):
            async with connected(dsn) as sql:
                await sql.fetchval("SELECT 1")

    asyncio.run(body())


@pytest.mark.postgres
def test_a_server_that_says_nothing_does_not_keep_us_from_the_next() -> None:
    async def version(dsn: str) -> None:
        async with connected(dsn) as sql:
            assert await sql.fetchval("SELECT 1") == 1

    with PostgresServer.create() as server, socket.create_server(("127.0.0.1", 0)) as silent:
        ports = f"{silent.getsockname()[1]},{server.port}"
        asyncio.run(
            version(f"host=127.0.0.1,127.0.0.1 port={ports} user=postgres connect_timeout=2")
        )


@pytest.mark.postgres
def test_a_failed_statement_and_a_failed_login_are_refused_with_the_servers_text() -> None:
    async def run(dsn: str, statement: str) -> None:
        async with connected(dsn) as sql:
            await sql.execute(statement)

    with PostgresServer.create() as server:
        with pytest.raises(Refused, match="division by zero"):
            asyncio.run(run(server.dsn(), "SELECT 1/0"))
        with pytest.raises(Refused, match="nosuchrole"):
            asyncio.run(run(server.dsn(user="nosuchrole"), "SELECT 1"))
        asyncio.run(run(server.dsn(sslmode="prefer"), "SELECT 1"))
        asyncio.run(run(f"host={server.directory} port={server.port} user=postgres", "SELECT 1"))
        server.configure(
            {"max_connections": "5", "superuser_reserved_connections": "2", "max_wal_senders": "2"}
        )
        server.restart()
        server.sql("CREATE ROLE plain LOGIN")

        def free_slot() -> psycopg.Connection[Any] | None:
            """Connect, unless a session that has just ended still has its slot."""
            with contextlib.suppress(psycopg.OperationalError):
                return server.connect(user="plain")
            return None

        held = [slot for _ in range(3) if (slot := wait_until(free_slot))]
        with pytest.raises(Refused, match="superuser_reserved_connections"):
            asyncio.run(run(server.dsn(user="plain"), "SELECT 1"))
        asyncio.run(run(server.dsn(), "SELECT 1"))
        for connection in held:
            connection.close()


class Hangs:
    """A connection that never finishes its first statement."""

    def __init__(self) -> None:
        self.begun, self.is_closed = asyncio.Event(), False

    async def execute(self, _: str) -> None:
        self.begun.set()
        await asyncio.Event().wait()

    async def close(self, **_: float) -> None:
        self.is_closed = True


def test_a_connection_that_is_cancelled_at_its_first_statement_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hangs = Hangs()

    async def connect(*_: object) -> Hangs:
        return hangs

    async def use() -> None:
        async with connected("host=127.0.0.1"):
            raise AssertionError("it cannot be used yet")

    async def body() -> None:
        task = asyncio.create_task(use())
        await hangs.begun.wait()
        task.cancel()
        await asyncio.wait([task])

    monkeypatch.setattr(primary_sql, "_connect", connect)
    asyncio.run(body())
    assert hangs.is_closed
