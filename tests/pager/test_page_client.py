"""`walkeeper pager get | status` where something else listens: an error in one line."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from walkeeper_cli.program import run

HTTP = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Send `answer` to the first client that connects, and hang up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
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
