"""`walkeeper pager get | status` where something else listens: an error in one line."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tls_files import TlsFiles
from walkeeper_cli.program import run
from walkeeper_common.access.certificate_identity import identity_of_certificate
from walkeeper_common.access.http_access import NO_TOKEN
from walkeeper_common.access.identity import Identity, Role
from walkeeper_common.shell.http.http_locks import use_http_token, use_https
from walkeeper_common.shell.tls.credentials import Credentials
from walkeeper_common.shell.tls.own_credentials import use_credentials

TOKEN = "0123456789abcdef" * 2
HTTP = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"

RECEIVED, PEERS = list[bytes](), list[Identity]()


@contextmanager
def answering(answer: bytes, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Send `answer` to the first client that connects, and hang up."""
    PEERS.clear()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_side=True)
                talk(connection)

        def talk(connection: socket.socket) -> None:
            with connection:
                if isinstance(connection, ssl.SSLSocket):
                    PEERS.append(identity_of_certificate(connection.getpeercert() or {}))
                RECEIVED.append(connection.recv(1 << 16))
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"E\0\0\0\x20SFATAL\0this is a walkeeper safekeeper\0", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "does not speak HTTP"),
        (HTTP % (2, b"{}"), "it is no pager"),
        (HTTP % (4, b"\xff\xfe[]"), "it is no pager"),
        (b"", "does not speak HTTP"),
    ],
)
@pytest.mark.parametrize("command", [("status",), ("get", "base/5/16384", "0")])
def test_another_service_at_the_address_gets_one_line(
    command: tuple[str, ...], answer: bytes, text: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # not asked for what is near
    with answering(answer) as address:
        assert run(["pager", *command, "--at", address]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("walkeeper: error: ") and text in said[0]


# Tokens and TLS


@pytest.fixture
def token_file(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(f"{TOKEN}\n")
    yield str(path)
    use_http_token(None)


def test_the_client_proves_the_token(token_file: str) -> None:
    answer = b'{"applied_lsn": "0/1"}'
    with answering(HTTP % (len(answer), answer)) as address:
        assert run(["pager", "status", "--at", address, "--http-token", token_file]) == 0
    assert f"Authorization: Bearer {TOKEN}".encode() in RECEIVED[-1]


def test_a_client_without_the_token_is_told_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = NO_TOKEN.text.encode()
    head = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
    with answering(head % (len(refusal), refusal)) as address:
        assert run(["pager", "get", "base/5/16384", "0", "--at", address]) == 1
    assert "a token is missing or wrong" in capsys.readouterr().err
    assert b"Authorization" not in RECEIVED[-1]


def test_the_client_speaks_tls_and_believes_its_own_authority_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, others = TlsFiles(tmp_path / "own"), TlsFiles(tmp_path / "other")
    answer = b'{"applied_lsn": "0/1"}'
    own, other = files.path(Role.PAGER, "reader"), others.path(Role.PAGER, "reader")
    context = Credentials(files.path(Role.SAFEKEEPER, "1")).https_context()
    try:
        with answering(HTTP % (len(answer), answer), context) as address:
            command = ["pager", "status", "--http-tls", "--at", address, "--tls"]
            assert run([*command, own]) == 0
            (identity,) = PEERS
            assert identity.roles == {Role.PAGER}
        with answering(b"", context) as address:
            assert run([*command[:3], "--at", address, "--tls", other]) == 1
        assert "certificate verify failed" in capsys.readouterr().err
    finally:
        use_credentials(None)
        use_https(is_on=False)


def test_a_pager_beyond_loopback_needs_a_lock(
    tmp_path: Path, token_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pager", "--safekeepers", "127.0.0.1:1", "--base", str(tmp_path)]
    words += ["--data-dir", str(tmp_path / "pager"), "--http", "0.0.0.0:0"]
    assert run(words) == 1
    said = capsys.readouterr().err
    assert "read every table" in said and "add --http-token FILE" in said
    assert run([*words, "--http-token", token_file]) == 1
    assert "no authentication" not in capsys.readouterr().err, "the base is no base backup"
