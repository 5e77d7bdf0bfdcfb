"""Files change while clients stream: an authority that goes ends none, a user that goes its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.common.test_scram import Client as ScramProof
from tests.safekeeper.test_handshakes import NO_WAY_IN
from tests.safekeeper.test_opening import context_of, tls_client
from tests.safekeeper.test_password_login import USERS
from tests.support.fake_served_log import FIRST_LSN, FakeCatalog, FakeLog, wal_bytes
from tests.support.raw_client import RawClient, errors, tags
from tests.support.served_port import NONE_ADMITTED, Served, with_port
from tests.support.waiting import LIMIT_S
from tests.tls_files import NOW, TlsFiles
from walkeeper_cli.certs.authority import CA_CERTIFICATE, Authority
from walkeeper_cli.users.writing import add_user, remove_user
from walkeeper_common.access.identity import Role
from walkeeper_common.postgres.pgwire import startup_packet
from walkeeper_common.shell.files.users_file import users_file
from walkeeper_common.shell.tls.credentials import ALPN_POSTGRESQL
from walkeeper_safekeeper.server import PlainPeers

STREAMS = 50
LOGIN = {"user": "standby1", "database": "replication", "replication": "true"}
OWNER = ("walkeeper://*/replica/standby1",)


async def over_tls(served: Served, file: str, ca: str) -> RawClient:
    """Return a client that has logged in with a certificate."""
    context = context_of(file, ca, ALPN_POSTGRESQL)
    client = RawClient(*await tls_client(served.port, context))
    client.writer.write(startup_packet(LOGIN))
    found = await client.until(b"Z")
    assert tags(found).endswith("Z"), f"{found=}"
    return client


async def by_password(served: Served, name: str) -> RawClient:
    """Return a client that has logged in with a password."""
    client, proof = await RawClient.open(served.port), ScramProof(f"password of {name}")
    client.writer.write(startup_packet({**LOGIN, "user": name}))
    await client.next()
    first = proof.first()
    client.send(b"p", b"SCRAM-SHA-256\0" + len(first).to_bytes(4) + first)
    answer = await client.next()
    assert answer is not None
    client.send(b"p", proof.final(answer.body[4:]))
    assert (await client.until(b"Z"))[-1].tag == b"Z"
    return client


def replace_text(path: str, text: str) -> None:
    new = Path(f"{path}.new")
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(path)


def test_fifty_streams_outlive_their_authority(tmp_path: Path) -> None:
    files, log = TlsFiles(tmp_path), FakeLog()
    own, mine = files.path(Role.SAFEKEEPER, "1"), files.path(Role.REPLICA, "standby1")
    others = Authority.create(str(tmp_path / "new"), NOW)
    new_ca, newcomer = str(tmp_path / "new" / CA_CERTIFICATE), str(tmp_path / "newcomer.pem")
    others.issue(newcomer, OWNER, ())
    old_ca = str(tmp_path / "ca" / CA_CERTIFICATE)
    with_both = Path(own).read_text() + Path(new_ca).read_text()

    async def all_receive(clients: Sequence[RawClient], seed: int) -> None:
        wal = wal_bytes(3000, seed)
        log.append(wal)
        log.commit()
        for client in clients:
            assert await client.wal(len(wal)) == wal

    async def story(served: Served) -> None:
        clients = [await over_tls(served, mine, old_ca) for _ in range(STREAMS)]
        for client in clients:
            await client.start(f"START_REPLICATION PHYSICAL {FIRST_LSN}")
        await all_receive(clients, 1)
        replace_text(own, with_both)
        await over_tls(served, newcomer, old_ca)
        await all_receive(clients, 2)
        others.issue(own, ["walkeeper://*/safekeeper/1"], ["127.0.0.1"])
        latest = await over_tls(served, newcomer, new_ca)
        with pytest.raises((*NO_WAY_IN, AssertionError)):
            await over_tls(served, mine, new_ca)
        assert "not valid" in served.lines[-1]
        await all_receive(clients, 3)
        for client in (*clients, latest):
            client.writer.close()

    with_port(story, own, catalog=lambda: FakeCatalog(log), clients_max=2 * STREAMS)


def test_a_user_that_is_removed_streams_no_more(tmp_path: Path) -> None:
    log, path = FakeLog(), str(tmp_path / "users")
    for name in ("standby1", "alice"):
        add_user(path, USERS.by_name[name], replaces=False)
    file = users_file(path)

    async def story(served: Served) -> None:
        gone, stays = await by_password(served, "standby1"), await by_password(served, "alice")
        for client in (gone, stays):
            await client.start(f"START_REPLICATION PHYSICAL {FIRST_LSN}")
        remove_user(path, "standby1")
        file.reload()
        async with asyncio.timeout(LIMIT_S):
            (error,) = errors(await gone.until(b"E"))
        assert error["C"] == "57P01" and await gone.closed()
        wal = wal_bytes(3000)
        log.append(wal)
        log.commit()
        assert await stays.wal(len(wal)) == wal

    with_port(story, None, users=file, plain=PlainPeers(), catalog=lambda: FakeCatalog(log))


@pytest.mark.parametrize("nonce", ["", "clientnonce", "clientnonce-and-one-that-is-not-its-own"])
def test_a_proof_with_another_nonce_is_no_proof(tmp_path: Path, nonce: str) -> None:
    path = str(tmp_path / "users")
    add_user(path, USERS.by_name["standby1"], replaces=False)

    async def story(served: Served) -> None:
        client, proof = await RawClient.open(served.port), ScramProof("password of standby1")
        client.writer.write(startup_packet(LOGIN))
        await client.next()
        first = proof.first()
        client.send(b"p", b"SCRAM-SHA-256\0" + len(first).to_bytes(4) + first)
        answer = await client.next()
        assert answer is not None
        _, salt, rounds = answer.body[4:].decode().split(",")
        client.send(b"p", proof.final(f"r={nonce},{salt},{rounds}".encode()))
        (error,) = errors(await client.until(b"E"))
        assert error["C"] == "08P01" and await client.closed()

    with_port(story, None, users=users_file(path), plain=PlainPeers())


def test_a_certificate_outside_its_clusters_streams_nothing(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    own = files.path(Role.SAFEKEEPER, "1")
    other = files.path(Role.REPLICA, "standby1", cluster="other")

    async def story(served: Served) -> None:
        context = context_of(other, own, ALPN_POSTGRESQL)
        client = RawClient(*await tls_client(served.port, context))
        client.writer.write(startup_packet(LOGIN))
        (error,) = errors(await client.until(b"E"))
        assert 'may not reach cluster "main"' in error["M"] and await client.closed()

    with_port(story, own, plain=NONE_ADMITTED, catalog=lambda: FakeCatalog(FakeLog()))
