"""A revoked certificate opens no connection, and its open ones end when the list is loaded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.common.test_http_access import client_context, serving
from tests.common.test_revocation_lists import made_list, with_text
from tests.safekeeper.test_opening import context_of, fatal, first_message, tls_client
from tests.safekeeper.test_password_login import USERS, FixedUsers
from tests.support.postgres_server import program, server_environment
from tests.support.raw_client import RawClient, errors
from tests.support.served_port import Served, with_port
from tests.support.silent_owner import Silent
from tests.support.waiting import LIMIT_S, until
from tests.tls_files import TlsFiles
from walkeeper_cli.certs.authority import show
from walkeeper_common.access.identity import Role
from walkeeper_common.postgres.pgwire import startup_packet
from walkeeper_common.shell.http.http_locks import use_https
from walkeeper_common.shell.safekeeper_links.framed_connection import FramedConnection
from walkeeper_common.shell.safekeeper_links.safekeeper_connection import connect
from walkeeper_common.shell.safekeeper_links.safekeeper_socket import connect as connect_blocking
from walkeeper_common.shell.tls.credentials import ALPN, ALPN_POSTGRESQL, Credentials
from walkeeper_common.shell.tls.own_credentials import own_credentials, use_credentials
from walkeeper_common.shell.tls.tls_transport import TlsTransport
from walkeeper_common.wire.framing import PREFACE
from walkeeper_common.wire.messages import Reject

LOGIN = {"user": "wk", "database": "replication", "replication": "true"}


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


@pytest.fixture(autouse=True)
def no_credentials() -> Iterator[None]:
    yield
    use_credentials(None)
    use_https(is_on=False)


Story = Callable[[Served], Awaitable[None]]


def closing(story: Story, ending: contextlib.ExitStack) -> Story:
    """Return the story with an end: uvloop waits for ever for a connection that is left open."""

    async def whole(served: Served) -> None:
        try:
            await story(served)
        finally:
            ending.close()

    return whole


def revoked_in(own: str, ca: Path, *others: str) -> None:
    """Add a list to the file `own` that has the certificates of these files."""
    with_text(own, made_list(ca, *(show(other).serial for other in others)))


def libpq(port: int, file: str, **more: str) -> str:
    given = {"host": "127.0.0.1", "port": str(port), "user": "wk", "dbname": "replication"}
    names = ("sslcert", "sslkey", "sslrootcert")
    return make_conninfo(
        **given, sslmode="verify-full", replication="true", **dict.fromkeys(names, file), **more
    )


def test_a_revoked_proposer_is_refused_with_the_reason(tmp_path: Path, files: TlsFiles) -> None:
    own, thief = files.path(Role.SAFEKEEPER, "1"), files.path(Role.PROPOSER, "db1", cluster="main")
    revoked_in(own, tmp_path / "ca", thief)

    async def story(served: Served) -> None:
        reader, writer = await tls_client(served.port, context_of(thief, own, ALPN))
        writer.write(PREFACE)
        message = await first_message(reader)
        assert isinstance(message, Reject) and "was revoked" in message.text
        assert served.audit.refusals == {"revoked": 1} and not served.door.received
        assert "walkeeper://main/proposer/db1 was revoked" in served.lines[-1]
        writer.close()

    with_port(story, own)


@pytest.mark.parametrize("has_users", [True, False])
def test_a_revoked_client_cannot_come_in_by_loopback_or_password_instead(
    tmp_path: Path, files: TlsFiles, has_users: bool
) -> None:
    own, thief = files.path(Role.SAFEKEEPER, "1"), files.path(Role.REPLICA, "standby1")
    revoked_in(own, tmp_path / "ca", thief)

    async def story(served: Served) -> None:
        reader, writer = await tls_client(served.port, context_of(thief, own, ALPN_POSTGRESQL))
        writer.write(startup_packet(LOGIN))
        error = await fatal(reader)
        assert error["C"] == "28000" and "was revoked" in error["M"]
        assert served.audit.refusals == {"revoked": 1}
        writer.close()

    with_port(story, own, users=FixedUsers(USERS) if has_users else None)


def test_stock_psql_is_told_that_its_certificate_is_revoked(
    tmp_path: Path, files: TlsFiles
) -> None:
    own, thief = files.path(Role.SAFEKEEPER, "1"), files.path(Role.REPLICA, "standby1")
    honest = files.path(Role.REPLICA, "standby2")
    revoked_in(own, tmp_path / "ca", thief)

    async def story(served: Served) -> None:
        async def psql(file: str) -> subprocess.CompletedProcess[str]:
            words = [program("psql"), "-X", "-A", "-t", "-d", libpq(served.port, file)]
            return await asyncio.to_thread(
                subprocess.run,
                [*words, "-c", "IDENTIFY_SYSTEM"],
                env=server_environment(),
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )

        assert (await psql(honest)).returncode == 0
        refused = await psql(thief)
        assert refused.returncode == 2 and "was revoked" in refused.stderr, refused

    with_port(story, own)


def test_open_connections_of_a_revoked_certificate_end_and_no_others(
    tmp_path: Path, files: TlsFiles
) -> None:
    own, thief = files.path(Role.SAFEKEEPER, "1"), files.path(Role.ADMIN, "mallory")
    honest = files.path(Role.ADMIN, "alice")

    async def opened(served: Served, file: str, alpn: str, first: bytes) -> RawClient:
        client = RawClient(*await tls_client(served.port, context_of(file, own, alpn)))
        ending.callback(client.writer.transport.abort)
        client.writer.write(first)
        return client

    async def story(served: Served) -> None:
        served.door.closes = False
        door = [await opened(served, each, ALPN, PREFACE) for each in (thief, honest)]
        clients = list[RawClient]()
        for each in (thief, honest):
            clients.append(await opened(served, each, ALPN_POSTGRESQL, startup_packet(LOGIN)))
            await clients[-1].until(b"Z")
        await until(lambda: len(served.door.received) == 2, LIMIT_S)
        revoked_in(own, tmp_path / "ca", thief)
        await opened(served, honest, ALPN, b"")  # the file is loaded for it
        await until(lambda: served.audit.refusals == {"revoked": 2}, LIMIT_S)
        (error,) = errors(await clients[0].until(b"E"))
        assert error["C"] == "57P01" and await clients[0].closed()
        assert await door[0].closed()
        assert "identity=mallory how=certificate" in served.lines[-1], served.lines
        before = served.door.received_bytes
        door[1].writer.write(b"more")
        await until(lambda: served.door.received_bytes == before + 4, LIMIT_S)
        assert (await clients[1].query("IDENTIFY_SYSTEM"))[-1].tag == b"Z"

    with contextlib.ExitStack() as ending:
        with_port(closing(story, ending), own)


def test_a_connection_that_broke_does_not_end_the_daemon_with_the_next_file(
    tmp_path: Path, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the loop would, and such a connection is held against each new list."""
    own, client = files.path(Role.SAFEKEEPER, "1"), files.path(Role.ADMIN, "alice")
    kept, admit = list[TlsTransport](), Credentials.admit

    def keep(self: Credentials, transport: TlsTransport, loop: asyncio.AbstractEventLoop) -> None:
        kept.append(transport)
        admit(self, transport, loop)

    monkeypatch.setattr(Credentials, "admit", keep)

    async def story(served: Served) -> None:
        errors_of_loop = list[object]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: errors_of_loop.append(context))
        served.door.closes = False
        _reader, writer = await tls_client(served.port, context_of(client, own, ALPN))
        ending.callback(writer.transport.abort)
        writer.write(PREFACE)
        await until(lambda: bool(served.door.received), LIMIT_S)
        os.write(writer.get_extra_info("socket").fileno(), b"not TLS")
        await until(kept[0].is_closing, LIMIT_S)
        revoked_in(own, tmp_path / "ca", files.path(Role.ADMIN, "mallory"))
        other = await tls_client(served.port, context_of(client, own, ALPN))
        ending.callback(other[1].transport.abort)
        other[1].write(PREFACE)
        await until(lambda: len(served.door.received) == 2, LIMIT_S)
        assert not errors_of_loop and not served.audit.refusals

    with contextlib.ExitStack() as ending:
        with_port(closing(story, ending), own)


async def connected(
    served: Served, ending: contextlib.ExitStack, owner: Silent
) -> FramedConnection:
    """Return a connection of this process to the safekeeper, as a proposer makes them."""
    address = ("127.0.0.1", served.port)
    transport, connection = await connect(address, lambda: FramedConnection(lambda _: owner))
    ending.callback(transport.abort)
    connection.greet(transport)
    return connection


class Left(Silent):
    """Keeps the reason for which its connection was lost."""

    reason = ""

    def on_closed(self, reason: str) -> None:
        self.reason = reason


def test_a_proposer_leaves_a_safekeeper_whose_certificate_is_revoked(
    tmp_path: Path, files: TlsFiles
) -> None:
    """A thief with a safekeeper's file and address could vote and acknowledge."""
    own, thief = files.path(Role.PROPOSER, "db1", cluster="main"), files.path(Role.SAFEKEEPER, "1")
    use_credentials(own)

    async def story(served: Served) -> None:
        served.door.closes = False
        owner = Left()
        await connected(served, ending, owner)
        await until(lambda: bool(served.door.received), LIMIT_S)
        revoked_in(own, tmp_path / "ca", thief)
        with pytest.raises(OSError, match="safekeeper/1 was revoked"):
            await connected(served, ending, Silent())
        await until(lambda: "safekeeper/1 was revoked" in owner.reason, LIMIT_S)
        with pytest.raises(ConnectionError, match="safekeeper/1 was revoked"):
            await asyncio.to_thread(connect_blocking, ("127.0.0.1", served.port), LIMIT_S)

    with contextlib.ExitStack() as ending:
        with_port(closing(story, ending), thief)


def test_a_file_that_a_thread_loads_ends_connections_in_the_loop(
    tmp_path: Path, files: TlsFiles
) -> None:
    """A command's blocking connection looks at the same file."""
    own, thief = files.path(Role.ADMIN, "alice"), files.path(Role.SAFEKEEPER, "1")
    use_credentials(own)

    async def story(served: Served) -> None:
        served.door.closes = False
        connection = await connected(served, ending, Silent())
        revoked_in(own, tmp_path / "ca", thief)
        credentials = own_credentials()
        assert credentials is not None
        await asyncio.to_thread(credentials.file.reload)
        await until(lambda: connection.is_closed, LIMIT_S)

    with contextlib.ExitStack() as ending:
        with_port(closing(story, ending), thief)


def test_a_revoked_monitor_reads_nothing_more_on_a_connection_that_is_open(
    tmp_path: Path, files: TlsFiles
) -> None:
    own, thief = files.path(Role.SAFEKEEPER, "1"), files.path(Role.MONITOR, "m")
    use_credentials(own)
    use_https(is_on=True)

    async def story() -> None:
        async with serving(client_context(own, thief)) as served:
            assert (await served.get("/status"))[0] == 200
            revoked_in(own, tmp_path / "ca", thief)
            assert (await served.get("/status"))[0] == 401

    asyncio.run(story())


def test_a_client_of_http_believes_no_revoked_daemon(tmp_path: Path, files: TlsFiles) -> None:
    own, thief = files.path(Role.PAGER, "p", hosts=("127.0.0.1",)), files.path(Role.SAFEKEEPER, "1")
    use_credentials(thief)
    use_https(is_on=True)

    async def story() -> None:
        async with serving(client_context(own, own)) as served:

            def fetched() -> int:
                handler = urllib.request.HTTPSHandler(context=Credentials(own).web_context())
                opener = urllib.request.build_opener(handler)
                with opener.open(
                    f"https://127.0.0.1:{served.port}/health", timeout=LIMIT_S
                ) as answer:
                    return int(answer.status)

            assert await asyncio.to_thread(fetched) == 200
            revoked_in(own, tmp_path / "ca", thief)
            with pytest.raises(urllib.error.URLError, match="was revoked"):
                await asyncio.to_thread(fetched)

    asyncio.run(story())
