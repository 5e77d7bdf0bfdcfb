"""TLS over memory: every byte arrives once, however it is cut, and only a trusted peer gets in."""

from __future__ import annotations

import datetime
import os
import ssl
from pathlib import Path
from random import Random

import pytest

from tests.support.tls_ends import files, pair
from tests.tls_files import NOW, TlsFiles
from walkeeper_cli.certs.authority import CA_CERTIFICATE, Authority
from walkeeper_common.access.certificate_identity import identity_of_certificate
from walkeeper_common.access.identity import Role
from walkeeper_common.errors import Refused
from walkeeper_common.shell.tls.credentials import ALPN, Credentials
from walkeeper_common.shell.tls.tls_layer import RECORD_BYTES_MAX, TlsLayer

__all__ = ["files"]


def carry(sender: TlsLayer, receiver: TlsLayer, piece_bytes: int = 1 << 20) -> None:
    data = sender.take()
    for at in range(0, len(data), piece_bytes):
        receiver.feed(data[at : at + piece_bytes])
        if not receiver.is_established:
            receiver.handshake()


def shake_hands(server: TlsLayer, client: TlsLayer, piece_bytes: int = 1 << 20) -> None:
    """Complete the handshake; raise ssl.SSLError from the side that refuses."""
    client.handshake()
    while not (server.is_established and client.is_established):
        carry(client, server, piece_bytes)
        carry(server, client, piece_bytes)


def established(files: TlsFiles, piece_bytes: int = 1 << 20) -> tuple[TlsLayer, TlsLayer]:
    server, client = pair(files.safekeeper(1).server_context(), files.proposer().client_context())
    shake_hands(server, client, piece_bytes)
    return server, client


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
def test_bytes_arrive_in_order_however_the_records_are_cut(
    files: TlsFiles, piece_bytes: int
) -> None:
    server, client = established(files, piece_bytes)
    random, received = Random(piece_bytes), bytearray()
    sent = b"".join(random.randbytes(size) for size in (0, 1, 16_383, 16_384, 16_385, 40_000))
    client.write(sent)
    data = client.take()
    assert sent[:16] not in data
    for at in range(0, len(data), piece_bytes):
        server.feed(data[at : at + piece_bytes])
        received += server.read(random.choice((1, 50, 5000)))
    while more := server.read(4096):
        received += more
    assert received == sent
    assert not server.is_ended


def test_no_peer_is_refused_while_the_authority_changes(tmp_path: Path) -> None:
    """Each step is there for all but one of the processes, as while files are copied."""
    files = TlsFiles(tmp_path)
    other = Authority.create(str(tmp_path / "other"), NOW)
    added = (tmp_path / "other" / CA_CERTIFICATE).read_bytes()
    paths = [files.path(Role.SAFEKEEPER, "1"), files.path(Role.PROPOSER, "db1", cluster="main")]
    copies = [Path(path).read_bytes() for path in paths]

    def taken(path: str, number: int) -> bytes:
        if number == 0:
            return Path(path).read_bytes() + added
        other.renew(path, only_own=number == 2)
        return Path(path).read_bytes()

    for number in range(3):
        before, copies = copies, [taken(path, number) for path in paths]
        for old in range(2):
            for which, path in enumerate(paths):
                Path(path).write_bytes((before if which == old else copies)[which])
            established(files)
        for path, content in zip(paths, copies, strict=True):
            Path(path).write_bytes(content)
    established(files)


def records_of(data: bytes) -> list[bytes]:
    """Split ciphertext into its records of TLS."""
    records, at = list[bytes](), 0
    while at < len(data):
        end = at + 5 + int.from_bytes(data[at + 3 : at + 5])
        records.append(data[at:end])
        at = end
    return records


@pytest.mark.parametrize(
    ("wal_bytes", "records"), [(1, 1), (RECORD_BYTES_MAX - 73, 1), (RECORD_BYTES_MAX - 72, 2)]
)
def test_a_frame_and_its_wal_are_one_record_if_they_fit(
    files: TlsFiles, wal_bytes: int, records: int
) -> None:
    server, client = established(files)
    client.write_all((bytes(73), memoryview(bytes(wal_bytes))))
    data = client.take()
    assert len(records_of(data)) == records
    server.feed(data)
    assert server.read() == bytes(73 + wal_bytes)


def test_no_read_only_asks_for_more(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL would answer it by an exception, which costs more than the record."""
    server, client = established(files)
    reads, read, memory = list[int](), server._read, memoryview(bytearray(50_000))

    def counted(size: int, into: memoryview) -> int:
        reads.append(size)
        return read(size, into)

    monkeypatch.setattr(server, "_read", counted)
    client.write(b"a" * 300)
    client.write(b"b" * 40_000)
    server.feed(client.take())
    assert server.read_into(memory) == 40_300 and len(reads) == 4
    assert server.read_into(memory) == 0 and len(reads) == 4
    client.write(b"cd")
    data = client.take()
    server.feed(data[:10])
    assert server.read_into(memory) == 0 and len(reads) == 5
    server.feed(data[10:])
    assert server.read_into(memory[:1]) == 1  # a part of the record is left
    assert server.read_into(memory) == 1 and len(reads) == 7


def test_nothing_is_read_behind_the_end_in_the_middle_of_a_group(files: TlsFiles) -> None:
    server, client = established(files)
    client.write(b"first")
    client.shut_down()
    other = established(files)[1]
    other.write(b"behind the end")
    server.feed(client.take() + other.take())
    assert server.read() == b"first" and server.is_ended
    assert server.read() == b""


def test_nothing_is_read_of_a_group_behind_a_broken_record(files: TlsFiles) -> None:
    server, client = established(files)
    memory = memoryview(bytearray(6))
    for text in (b"first!", b"second", b"third!"):
        client.write(text)
    records = records_of(client.take())
    server.feed(records[0] + records[2] + records[1])  # not in the order of their numbers
    assert server.read_into(memory) == 6 and bytes(memory) == b"first!"
    with pytest.raises(ssl.SSLError):
        server.read_into(memory)
    assert server.read() == b""


def test_both_sides_know_each_other(files: TlsFiles) -> None:
    server, client = established(files)
    assert (server.alpn, client.alpn) == (ALPN, ALPN)
    assert server.peer_certificate is not None and client.peer_certificate is not None
    proposer = identity_of_certificate(server.peer_certificate)
    assert proposer.name == "db1"
    assert proposer.roles == frozenset({Role.PROPOSER})
    assert proposer.clusters == frozenset({"main"})
    safekeeper = identity_of_certificate(client.peer_certificate)
    assert (safekeeper.safekeeper_id, safekeeper.clusters) == (1, None)


@pytest.mark.parametrize("is_cut", [True, False])
def test_the_peer_is_known_after_tls_broke(files: TlsFiles, is_cut: bool) -> None:
    """OpenSSL itself forgets it with the first error, and a new list is held against it later."""
    server, _client = established(files)
    before = server.peer_certificate
    if is_cut:
        server.feed_eof()
        assert server.read() == b""
    else:
        server.feed(b"not TLS")
        with pytest.raises(ssl.SSLError):
            server.read()
    assert before is not None and server.peer_certificate == before


@pytest.mark.parametrize("is_announced", [True, False])
def test_the_end_is_seen_after_the_last_byte(files: TlsFiles, is_announced: bool) -> None:
    server, client = established(files)
    client.write(b"last")
    if is_announced:
        client.shut_down()
    carry(client, server)
    if not is_announced:
        server.feed_eof()
    assert server.read() == b"last"
    assert server.read() == b""
    assert server.is_ended


def test_a_changed_byte_ends_the_connection(files: TlsFiles) -> None:
    server, client = established(files)
    client.write(b"WAL" * 100)
    data = bytearray(client.take())
    data[len(data) // 2] ^= 1
    server.feed(data)
    with pytest.raises(ssl.SSLError):
        server.read()


def test_a_peer_of_another_authority_is_refused(files: TlsFiles, tmp_path: Path) -> None:
    other = TlsFiles(tmp_path)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(*pair(other.safekeeper(1).server_context(), files.proposer().client_context()))
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.load_cert_chain(other.path(Role.ADMIN, "eve"))
    client_context.load_verify_locations(files.path(Role.PROPOSER, "db1", cluster="main"))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(*pair(files.safekeeper(1).server_context(), client_context))


def test_a_safekeeper_at_another_host_is_refused(files: TlsFiles) -> None:
    server, client = pair(
        files.safekeeper(1).server_context(), files.proposer().client_context(), "127.0.0.2"
    )
    with pytest.raises(ssl.SSLError, match=r"127\.0\.0\.2"):
        shake_hands(server, client)


def test_a_certificate_that_serves_no_host_cannot_serve(files: TlsFiles) -> None:
    """A stolen file of a replica, for instance, is of no use as a safekeeper."""
    thief = Credentials(files.path(Role.REPLICA, "standby1"))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(*pair(thief.server_context(), files.proposer().client_context()))


def test_an_expired_certificate_is_refused(
    tmp_path: Path, files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    past = TlsFiles(tmp_path, NOW - datetime.timedelta(days=91))
    expired = past.safekeeper(1)
    assert "run walkeeper certs renew" in caplog.text
    with pytest.raises(ssl.SSLError, match="expired"):
        shake_hands(*pair(expired.server_context(), past.proposer().client_context()))


def test_plain_bytes_are_no_handshake(files: TlsFiles) -> None:
    server = TlsLayer(files.safekeeper(1).server_context(), server_side=True)
    server.feed(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(ssl.SSLError):
        server.handshake()


# The file.


def test_a_renewed_file_serves_new_connections_without_a_restart(
    files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    path = files.path(Role.SAFEKEEPER, "7")
    credentials, client = Credentials(path), files.proposer().client_context()
    old = pair(credentials.server_context(), client)
    shake_hands(*old)
    files.authority.renew(path)
    new = pair(credentials.server_context(), client)
    shake_hands(*new)
    assert old[1].peer_certificate != new[1].peer_certificate
    old[0].write(b"the old connection goes on")
    carry(*old)
    assert old[1].read() == b"the old connection goes on"

    Path(path).write_text("broken")
    for _ in range(2):
        shake_hands(*pair(credentials.server_context(), client))
    assert caplog.text.count("stays in use") == 1
    Path(path).unlink()
    shake_hands(*pair(credentials.server_context(), client))


def test_a_key_that_others_can_read_is_refused(files: TlsFiles) -> None:
    path = files.path(Role.SAFEKEEPER, "8")
    os.chmod(path, 0o640)
    with pytest.raises(Refused, match="chmod 600"):
        Credentials(path)


@pytest.mark.parametrize(
    "uris",
    [
        (),
        ("https://main/proposer/p1",),
        ("walkeeper://main/root/p1",),
        ("walkeeper://main/proposer",),
        ("walkeeper:///proposer/p1",),
        ("walkeeper://main/proposer/p1/x",),
        ("walkeeper://main/proposer/p\n1",),
        ("walkeeper://*/safekeeper/zero",),
        ("walkeeper://*/safekeeper/0",),
        ("walkeeper://*/safekeeper/65536",),
        ("walkeeper://main/proposer/p1", "walkeeper://*/monitor/p1"),
        ("walkeeper://main/proposer/p1", "walkeeper://main/monitor/p2"),
    ],
)
def test_a_certificate_that_states_no_clear_identity_has_none(uris: tuple[str, ...]) -> None:
    with pytest.raises(Refused):
        identity_of_certificate({"subjectAltName": tuple(("URI", uri) for uri in uris)})
