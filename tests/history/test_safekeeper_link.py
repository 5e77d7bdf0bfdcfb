"""A safekeeper that is lost while it answers, or is none, raises Unavailable at its reader.

The pager then goes to the next one. Any other error would end it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.waiting import LIMIT_S
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import (
    Column,
    Keepalive,
    authentication_ok,
    copy_both_response,
    copy_data,
    parameter_status,
    ready_for_query,
    result,
)
from walkeeper_wal.sources.safekeeper_link import SafekeeperLink, Unavailable

GREETING = authentication_ok() + parameter_status("server_version", "15.18") + ready_for_query()
ENCRYPTION_REQUESTS = [(80877103).to_bytes(4, "big"), (80877104).to_bytes(4, "big")]
ASKS_FOR_REPLY = copy_data(Keepalive(Lsn(1), 0, reply_requested=True).pack())


def row(*values: str | bytes | None) -> bytes:
    columns = [Column(f"c{number}") for number in range(len(values))]
    return result(columns, [values], "SHOW") + ready_for_query()


def state(link: SafekeeperLink) -> None:
    link.state()


def history(link: SafekeeperLink) -> None:
    link.history(2)


def stream(link: SafekeeperLink) -> None:
    link.start_stream(0, 1)
    while link.next_of_stream(0, timeout_s=LIMIT_S) is not None:
        pass


class Server(threading.Thread):
    """Answers each command of each connection with the same bytes, and closes it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.answer, self.commands = b"", 1

    def run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    connection.settimeout(LIMIT_S)
                    while connection.recv(1 << 16)[4:] in ENCRYPTION_REQUESTS:
                        connection.sendall(b"N")
                    connection.sendall(GREETING)
                    for _ in range(self.commands):
                        connection.recv(1 << 16)
                        connection.sendall(self.answer)
                    connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join(1)


@contextmanager
def served() -> Iterator[Server]:
    server = Server()
    server.start()
    try:
        yield server
    finally:
        server.close()


LOST: dict[str, tuple[bytes, Callable[[SafekeeperLink], None]]] = {
    "its state": (row("7", "1", "0/1", None), state),
    "a history": (row("00000002.history", b"1\t0/1\tno\n"), history),
    "a stream": (copy_both_response() + ASKS_FOR_REPLY + ASKS_FOR_REPLY, stream),
}


@pytest.mark.parametrize("what", LOST)
def test_a_safekeeper_lost_at_any_byte_of_its_answer_is_unavailable(what: str) -> None:
    answer, ask = LOST[what]
    with served() as server:
        for size in range(len(answer)):
            server.answer = answer[:size]
            link = SafekeeperLink.open(server.address, "main")
            with pytest.raises(Unavailable):
                ask(link)
            link.close()


STRANGE: dict[str, tuple[bytes, Callable[[SafekeeperLink], None]]] = {
    "too few columns": (row("7"), state),
    "no number": (row("seven", "1", "0/1"), state),
    "no LSN": (row("7", "1", "here"), state),
    "no size": (row("7", "1", "0/1", "16"), state),
    "a history without content": (row("00000002.history"), history),
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_server_that_answers_in_another_form_is_unavailable(what: str) -> None:
    answer, ask = STRANGE[what]
    with served() as server:
        server.answer, server.commands = answer, 3
        link = SafekeeperLink.open(server.address, "main")
        with pytest.raises(Unavailable):
            ask(link)
