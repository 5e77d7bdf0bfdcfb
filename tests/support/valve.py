"""A forwarder before a port of this machine, which lets only so many bytes of the server through.

with Valve(primary.port) as valve:
    connect(valve.port)
    valve.allow(1 << 20)      the server's next MiB passes, and nothing after it
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

PIECE_BYTES = 1 << 16


class Valve:
    """The forwarder, which lets all through at first.

    When no more bytes are allowed, connections stay open and are silent.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets = list[socket.socket]()
        self._lock = threading.Lock()
        self._left_bytes: int | None = None

    def __enter__(self) -> Self:
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        shut_down(self._listener)  # wakes the thread in accept()
        self._accepting.join()
        for each in [self._listener, *self._sockets]:
            shut_down(each)
            each.close()

    def allow(self, size: int) -> None:
        """Let so many bytes of the server through from now on, over all connections."""
        with self._lock:
            self._left_bytes = size

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                far = socket.create_connection(("127.0.0.1", self._target_port))
                self._sockets.append(far)
                threading.Thread(target=self._ask, args=(near, far), daemon=True).start()
                threading.Thread(target=self._answer, args=(far, near), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(PIECE_BYTES):
                server.sendall(data)
        shut_down(client, server)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(PIECE_BYTES):
                size = self._taken(len(data))
                client.sendall(data[:size])
                if size < len(data):
                    return
        shut_down(server, client)

    def _taken(self, size: int) -> int:
        """Return how many of so many bytes may pass, and count them."""
        with self._lock:
            if self._left_bytes is None:
                return size
            taken = min(size, self._left_bytes)
            self._left_bytes -= taken
            return taken


def shut_down(*sides: socket.socket) -> None:
    """Shut sockets down both ways, which wakes the threads that wait for them."""
    for side in sides:
        with contextlib.suppress(OSError):  # it is not connected any more
            side.shutdown(socket.SHUT_RDWR)
