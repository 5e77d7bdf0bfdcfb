"""The one port admits a peer by its certificate, and by loopback alone only if that is allowed."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.raw_client import RawClient
from tests.support.served_port import Served, with_port
from tests.support.silent_owner import Silent
from tests.support.waiting import LIMIT_S, until
from tests.tls_files import NOW, TlsFiles
from walkeeper_common.access.certificate_identity import identity_of_certificate
from walkeeper_common.access.identity import Identity, Role
from walkeeper_common.errors import Refused
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.lsn import ZERO_LSN
from walkeeper_common.postgres.pgwire import (
    GSSENC_REQUEST,
    SSL_REQUEST,
    parse_error_fields,
    request_packet,
    startup_packet,
)
from walkeeper_common.shell.safekeeper_links.framed_connection import FramedConnection
from walkeeper_common.shell.safekeeper_links.safekeeper_connection import connect
from walkeeper_common.shell.tls.credentials import ALPN, ALPN_POSTGRESQL
from walkeeper_common.shell.tls.own_credentials import use_credentials
from walkeeper_common.wire.framing import PREFACE, FrameReader, encode
from walkeeper_common.wire.messages import AcceptorGreeting, Reject
from walkeeper_proposer.consensus.proposer_events import Event, LinkLost, Received
from walkeeper_proposer.links import SafekeeperLinks
from walkeeper_safekeeper import safekeeper_daemon
from walkeeper_safekeeper.connections import new_connection
from walkeeper_safekeeper.safekeeper_settings import SafekeeperSettings
from walkeeper_safekeeper.server import PlainPeers

LOGIN = {"user": "wk", "database": "replication", "replication": "true"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(autouse=True)
def no_credentials() -> Iterator[None]:
    yield
    use_credentials(None)


def context_of(file: str | None, ca: str, *alpn: str) -> ssl.SSLContext:
    """Return a stock client's context, with a certificate or without one."""
    context = ssl.create_default_context(cafile=ca)
    if file is not None:
        context.load_cert_chain(file)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


async def tls_client(
    port: int, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect with asyncio's own TLS, from the first byte on."""
    return await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="127.0.0.1"
    )


async def first_message(reader: asyncio.StreamReader) -> object:
    """Return the first message of walkeeper's protocol."""
    frames = FrameReader()
    while data := await reader.read(1 << 16):
        frames.buffer()[: len(data)] = data
        for message in frames.received(len(data)):
            return message
    return None


async def fatal(reader: asyncio.StreamReader) -> dict[str, str]:
    """Return the fields of the error that a PostgreSQL client receives."""
    data = await reader.read(1 << 16)
    assert data[:1] == b"E", f"{data=}"
    return parse_error_fields(data[5:])


# Plain


@pytest.mark.parametrize("has_file", [True, False])
def test_a_plain_proposer_is_refused_unless_loopback_is_trusted(
    files: TlsFiles, has_file: bool
) -> None:
    async def story(served: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(PREFACE + b"a question that nobody parses")
        message = await first_message(reader)
        assert isinstance(message, Reject) and "--tls" in message.text
        assert await reader.read() == b""
        assert served.audit.refusals == {"certificate": 1}
        assert not served.door.received
        writer.close()

    with_port(story, files.path(Role.SAFEKEEPER, "1") if has_file else None)


def test_a_plain_client_is_refused_with_the_code_of_postgresql(files: TlsFiles) -> None:
    async def story(served: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(startup_packet(LOGIN))
        error = await fatal(reader)
        assert error["C"] == "28000" and "sslmode=verify-full" in error["M"]
        writer.close()

    with_port(story, files.path(Role.SAFEKEEPER, "1"))


def test_loopback_needs_no_certificate_beside_tls(files: TlsFiles) -> None:
    async def story(served: Served) -> None:
        await RawClient.connect(served.port)
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(PREFACE)
        await until(lambda: bool(served.door.identities), LIMIT_S)
        assert served.door.identities[0].name == "anybody"
        writer.close()

    with_port(story, files.path(Role.SAFEKEEPER, "1"), plain=PlainPeers())


@pytest.mark.parametrize(
    ("host", "plain", "is_admitted"),
    [
        ("127.0.0.1", PlainPeers(), True),
        ("::1", PlainPeers(), True),
        ("10.0.0.7", PlainPeers(), False),
        ("::ffff:127.0.0.1.example", PlainPeers(), False),
        ("", PlainPeers(), False),
        ("10.0.0.7", PlainPeers(anywhere=True), True),
        ("127.0.0.1", PlainPeers(on_loopback=False), False),
    ],
)
def test_only_loopback_is_admitted_in_plain(
    host: str, plain: PlainPeers, is_admitted: bool
) -> None:
    assert plain.admits(host) is is_admitted


# TLS


def test_a_proposer_comes_in_with_the_identity_of_its_certificate(files: TlsFiles) -> None:
    async def story(served: Served) -> None:
        use_credentials(files.path(Role.PROPOSER, "db1", cluster="main"))
        transport, connection = await connect(
            ("127.0.0.1", served.port), lambda: FramedConnection(lambda _: Silent())
        )
        assert connection.is_encrypted and connection.identity.safekeeper_id == 1
        connection.greet(transport)
        await until(lambda: bool(served.door.identities), LIMIT_S)
        (identity,) = served.door.identities
        assert (identity.name, set(identity.roles)) == ("db1", {Role.PROPOSER})
        assert identity.clusters == frozenset({"main"}) and identity.how == "certificate"
        connection.abort("done")

    with_port(story, files.path(Role.SAFEKEEPER, "1"))


def test_our_own_protocol_needs_a_certificate_even_on_loopback(files: TlsFiles) -> None:
    async def story(served: Served) -> None:
        ca = files.path(Role.PROPOSER, "db1", cluster="main")
        reader, writer = await tls_client(served.port, context_of(None, ca, ALPN))
        writer.write(PREFACE)
        message = await first_message(reader)
        assert isinstance(message, Reject) and "certificate" in message.text
        assert not served.door.received and served.audit.refusals == {"certificate": 1}
        writer.close()

    with_port(story, files.path(Role.SAFEKEEPER, "1"), plain=PlainPeers())


def test_a_certificate_without_an_identity_is_refused_with_the_reason(
    files: TlsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authority signs other things, too, as that of a company does."""
    path, own = str(tmp_path / "web.pem"), files.path(Role.SAFEKEEPER, "1")
    files.authority.issue(path, ["walkeeper://main/proposer/p1"], ())

    async def story(served: Served) -> None:
        reader, writer = await tls_client(served.port, context_of(path, own, ALPN_POSTGRESQL))
        writer.write(startup_packet(LOGIN))
        error = await fatal(reader)
        assert error["C"] == "28000" and "subjectAltName" in error["M"]
        writer.close()

    def none_stated(_certificate: object) -> Identity:
        return identity_of_certificate({})

    monkeypatch.setattr(new_connection, "identity_of_certificate", none_stated)
    with_port(story, own, plain=PlainPeers())


def test_a_certificate_of_another_authority_does_not_get_in(
    files: TlsFiles, tmp_path: Path
) -> None:
    eve = TlsFiles(tmp_path).path(Role.ADMIN, "eve")
    own = files.path(Role.SAFEKEEPER, "1")

    async def story(served: Served) -> None:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            reader, writer = await tls_client(served.port, context_of(eve, own, ALPN))
            writer.write(PREFACE)
            await reader.readexactly(1)
        await until(lambda: served.audit.refusals["tls"] == 1, LIMIT_S)
        assert "not valid" in served.lines[-1] and not served.door.received

    with_port(story, own, plain=PlainPeers(anywhere=True))


def test_an_expired_certificate_does_not_get_in(tmp_path: Path) -> None:
    now = TlsFiles(tmp_path)
    own = now.path(Role.SAFEKEEPER, "1")
    old, past = str(tmp_path / "old.pem"), NOW - datetime.timedelta(days=91)
    type(now.authority)(str(tmp_path / "ca"), past).issue(old, ["walkeeper://*/admin/old"], ())

    async def story(served: Served) -> None:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            reader, writer = await tls_client(served.port, context_of(old, own, ALPN))
            writer.write(PREFACE)
            await reader.readexactly(1)
        await until(lambda: served.audit.refusals["tls"] == 1, LIMIT_S)
        assert "expired" in served.lines[-1] and not served.door.received

    with_port(story, own)


@pytest.mark.parametrize("alpn", [(), ("http/1.1",), ("postgresql/9",)])
def test_tls_at_once_has_to_name_a_protocol(files: TlsFiles, alpn: tuple[str, ...]) -> None:
    """A browser that another site sends here, for example, gets no answer (ALPACA)."""

    async def story(served: Served) -> None:
        admin = files.path(Role.ADMIN, "alice")
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            reader, writer = await tls_client(served.port, context_of(admin, admin, *alpn))
            writer.write(PREFACE)
            await reader.readexactly(1)
        assert not served.door.received

    with_port(story, files.path(Role.SAFEKEEPER, "1"))


@pytest.mark.parametrize(
    ("alpn", "first"), [(ALPN, startup_packet(LOGIN)), (ALPN_POSTGRESQL, PREFACE)]
)
def test_the_named_protocol_has_to_follow(files: TlsFiles, alpn: str, first: bytes) -> None:
    async def story(served: Served) -> None:
        admin = files.path(Role.ADMIN, "alice")
        reader, writer = await tls_client(served.port, context_of(admin, admin, alpn))
        writer.write(first)
        assert (await fatal(reader))["C"] == "08P01"
        assert not served.door.received
        writer.close()

    with_port(story, files.path(Role.SAFEKEEPER, "1"))


def test_bytes_behind_an_ssl_request_end_the_connection(files: TlsFiles) -> None:
    """A stranger on the path could put commands before those of the client (CVE-2021-23214)."""

    async def story(served: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(request_packet(SSL_REQUEST) + startup_packet(LOGIN))
        error = await fatal(reader)
        assert error["C"] == "08P01" and "unencrypted data" in error["M"]
        assert await reader.read() == b""
        writer.close()

    with_port(story, files.path(Role.SAFEKEEPER, "1"), plain=PlainPeers())


def test_a_client_that_asks_for_gss_first_still_gets_tls(files: TlsFiles) -> None:
    async def story(served: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(request_packet(GSSENC_REQUEST))
        assert await reader.readexactly(1) == b"N"
        for byte in request_packet(SSL_REQUEST):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert await reader.readexactly(1) == b"S"
        writer.close()

    with_port(story, files.path(Role.SAFEKEEPER, "1"))


def test_a_handshake_has_a_place_among_the_undecided_and_loses_it(files: TlsFiles) -> None:
    """A client that asks for TLS and then says nothing holds no place for ever."""

    async def story(served: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(request_packet(SSL_REQUEST))
        assert await reader.readexactly(1) == b"S"
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await until(lambda: served.audit.refusals["tls"] == 1, LIMIT_S)
        writer.close()

    with_port(story, files.path(Role.SAFEKEEPER, "1"))


# The connecting side


@pytest.mark.parametrize(
    ("role", "hosts", "said"),
    [
        (Role.SAFEKEEPER, ("10.0.0.1",), "127.0.0.1"),
        (Role.PROPOSER, ("127.0.0.1",), "no safekeeper"),
    ],
)
def test_a_client_refuses_another_host_and_what_is_no_safekeeper(
    files: TlsFiles, role: Role, hosts: tuple[str, ...], said: str
) -> None:
    async def story(served: Served) -> None:
        use_credentials(files.path(Role.ADMIN, "alice"))
        factory = lambda: FramedConnection(lambda _: Silent())  # noqa: E731
        with pytest.raises(OSError, match=said):
            await connect(("127.0.0.1", served.port), factory)
        assert not served.door.received

    with_port(story, files.path(role, "9", hosts=hosts))


def test_a_client_with_a_file_never_speaks_in_plain(files: TlsFiles) -> None:
    async def story(served: Served) -> None:
        use_credentials(files.path(Role.ADMIN, "alice"))
        factory = lambda: FramedConnection(lambda _: Silent())  # noqa: E731
        with pytest.raises(OSError, match="TLS"):
            await connect(("127.0.0.1", served.port), factory)
        assert not served.door.received

    with_port(story, None, plain=PlainPeers(anywhere=True))


@pytest.mark.parametrize("stated_id", [1, 2])
def test_a_host_with_the_file_of_one_safekeeper_cannot_be_another_one(
    files: TlsFiles, stated_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A vote of safekeeper 2 would count, although the machine of safekeeper 1 gave it."""
    events = list[Event]()

    async def story(served: Served) -> None:
        use_credentials(files.path(Role.PROPOSER, "db1", cluster="main"))
        greeting = AcceptorGreeting(
            acceptor_id=stated_id,
            incarnation=bytes(16),
            log_uuid=bytes(16),
            configuration=None,
            ballot=NO_BALLOT,
            history=(),
            oldest_lsn=ZERO_LSN,
            flush_lsn=ZERO_LSN,
            record_lsn=ZERO_LSN,
            commit_lsn=ZERO_LSN,
            live=None,
        )
        served.door.answer = b"".join(encode(greeting))
        links = SafekeeperLinks([("127.0.0.1", served.port)])
        running = asyncio.create_task(links.run(events.append, lambda *_: 0))
        await until(lambda: any(isinstance(event, Received | LinkLost) for event in events))
        running.cancel()
        await asyncio.wait([running])

    with_port(story, files.path(Role.SAFEKEEPER, "1"))
    assert any(isinstance(event, Received) for event in events) is (stated_id == 1)
    assert ("is that of safekeeper 1" in caplog.text) is (stated_id == 2)


# The daemon's own file


@pytest.mark.parametrize(
    ("role", "name", "settings", "said"),
    [
        (Role.SAFEKEEPER, "1", {}, None),
        (Role.SAFEKEEPER, "2", {}, "that of safekeeper 2"),
        (Role.ADMIN, "1", {}, "no safekeeper's"),
        (None, "", {"require_tls": True}, "add --tls"),
        (None, "", {}, None),
        (
            Role.SAFEKEEPER,
            "1",
            {"require_tls": True, "allow_unauthenticated": True},
            "exclude each other",
        ),
    ],
)
def test_a_daemon_starts_with_its_own_file_alone(
    files: TlsFiles, role: Role | None, name: str, settings: dict[str, Any], said: str | None
) -> None:
    use_credentials(None if role is None else files.path(role, name))
    chosen = replace(SafekeeperSettings(1, "/nowhere", ("127.0.0.1", 0)), **settings)
    with contextlib.nullcontext() if said is None else pytest.raises(Refused, match=said):
        safekeeper_daemon._refuse_wrong_file(chosen)


def test_an_open_door_is_named_and_a_closed_one_is_not(files: TlsFiles) -> None:
    outside = SafekeeperSettings(1, "/nowhere", ("10.0.0.1", 5454))
    with pytest.raises(Refused, match=r"add --tls FILE, listen on 127\.0\.0\.1"):
        safekeeper_daemon._refuse_open_door(outside)
    safekeeper_daemon._refuse_open_door(replace(outside, allow_unauthenticated=True))
    use_credentials(files.path(Role.SAFEKEEPER, "1"))
    safekeeper_daemon._refuse_open_door(outside)
    assert not safekeeper_daemon.open_doors(outside)
    (warning,) = safekeeper_daemon.open_doors(replace(outside, allow_unauthenticated=True))
    assert "10.0.0.1 can read and write the WAL" in warning
    with pytest.raises(Refused, match="--http"):
        safekeeper_daemon._refuse_open_door(replace(outside, http=("10.0.0.1", 7676)))
