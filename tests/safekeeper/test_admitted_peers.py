"""Certificates of another purpose or of the past, stock clients that refuse, and admitted fuzz."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from random import Random

import psycopg
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.proof.fuzz.framed import MESSAGES, frame_of
from tests.proof.fuzz.mutation import havoc
from tests.safekeeper.test_handshakes import NO_WAY_IN
from tests.safekeeper.test_opening import context_of, tls_client
from tests.safekeeper.test_password_login import USERS, FixedUsers, dsn
from tests.safekeeper.test_permissions import one
from tests.safekeeper.test_proposer_session import Peer, session_of
from tests.support.served_port import Served, with_port
from tests.support.waiting import LIMIT_S, until
from tests.tls_files import TlsFiles
from walkeeper_cli.certs import authority
from walkeeper_common.access.identity import Role
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.shell.tls.credentials import ALPN, ALPN_POSTGRESQL
from walkeeper_common.wire.framing import PREFACE, FrameReader
from walkeeper_safekeeper.connections.permissions import may_send, tags_of
from walkeeper_safekeeper.server import PlainPeers


async def refused_in_the_handshake(served: Served, context: ssl.SSLContext, why: str) -> None:
    """Check that this client does not get in, and that the audit says why."""
    before = served.audit.refusals["tls"]
    with pytest.raises(NO_WAY_IN):
        reader, writer = await tls_client(served.port, context)
        writer.write(PREFACE)
        await reader.readexactly(1)
    await until(lambda: served.audit.refusals["tls"] == before + 1, LIMIT_S)
    assert why in served.lines[-1], served.lines


def test_a_certificate_for_servers_alone_does_not_get_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authority of a company gives such ones to its web servers."""
    files = TlsFiles(tmp_path)
    own = files.path(Role.SAFEKEEPER, "1")
    monkeypatch.setattr(authority, "_purposes", lambda _: [ExtendedKeyUsageOID.SERVER_AUTH])
    web = files.path(Role.ADMIN, "web")

    async def story(served: Served) -> None:
        for alpn in (ALPN, ALPN_POSTGRESQL):
            context = context_of(web, own, alpn)
            await refused_in_the_handshake(served, context, "unsuitable certificate purpose")
        assert not served.door.received

    with_port(story, own, plain=PlainPeers())


def test_a_connection_outlives_its_certificate_and_a_new_one_does_not_get_in(
    tmp_path: Path,
) -> None:
    """Commits go on until somebody renews it. The daemons warn for 14 days before."""
    files = TlsFiles(tmp_path)
    own, brief = files.path(Role.SAFEKEEPER, "1"), str(tmp_path / "brief.pem")
    begun = datetime.datetime.now(datetime.UTC)
    begins = begun - datetime.timedelta(days=authority.LEAF_DAYS) + datetime.timedelta(seconds=3)
    signer = authority.Authority(str(tmp_path / "ca"), begins)
    ends = signer.issue(brief, ["walkeeper://*/proposer/db1"], ()).ends

    async def story(served: Served) -> None:
        served.door.closes = False
        context = context_of(brief, own, ALPN)
        _, writer = await tls_client(served.port, context)
        writer.write(PREFACE)
        await until(lambda: len(served.door.received) == 1, LIMIT_S)
        await until(lambda: datetime.datetime.now(datetime.UTC) > ends, LIMIT_S)
        before = served.door.received_bytes
        writer.write(b"more")
        await until(lambda: served.door.received_bytes == before + 4, LIMIT_S)
        await refused_in_the_handshake(served, context, "expired")
        assert len(served.door.received) == 1
        writer.transport.abort()

    with_port(story, own)


@pytest.mark.parametrize(
    ("demand", "refusal"),
    [
        ({"sslmode": "verify-full"}, "server does not support SSL"),
        ({"sslmode": "disable", "channel_binding": "require"}, "channel binding"),
    ],
    ids=["TLS", "channel binding"],
)
def test_libpq_refuses_a_port_that_does_not_offer_what_it_demands(
    demand: dict[str, str], refusal: str
) -> None:
    """A stranger on the path may take the offer of TLS, or of -PLUS, out of an answer."""

    async def story(served: Served) -> None:
        connection = f"{dsn(served.port, 'standby1')} " + " ".join(
            f"{name}={value}" for name, value in demand.items()
        )
        with pytest.raises(psycopg.OperationalError, match=refusal):
            await psycopg.AsyncConnection.connect(connection)

    with_port(story, None, plain=PlainPeers(), users=FixedUsers(USERS))


@pytest.mark.parametrize("role", Role)
def test_no_mutated_message_gets_past_the_role_of_its_sender(role: Role) -> None:
    """A head decides before a body is received, whatever the bytes claim to be."""
    random, identity, arrived = Random(f"{role}"), one(role), 0
    for _ in range(2000):
        peer = Peer()
        session_of(peer, identity, greet=random.random() < 0.5)
        assert peer.limit_of is not None
        reader = FrameReader(limit_of=peer.limit_of)
        data = havoc(frame_of(random.choice(MESSAGES)), random)[: len(reader.buffer())]
        reader.buffer()[: len(data)] = data
        try:
            for message in reader.received(len(data)):
                assert may_send(identity, message.TAG), f"{role}: {message}"
                arrived += 1
        except RemoteProtocolError:
            continue
    assert arrived > 20 * bool(tags_of(identity)) - 1, f"{role}: {arrived}"
