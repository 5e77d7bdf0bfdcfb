"""Forwarders before ports, which keep all bytes that pass in either direction.

with Recorders(ports) as recorders:
    connect(recorders.ports[0])
    recorders.seen()
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Self

PIECE_BYTES = 1 << 16


class Recorders:
    """One forwarder for each port of this machine, with threads of its own."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._targets = list(ports)
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in ports]
        self.ports = [listener.getsockname()[1] for listener in self._listeners]
        self._seen = [bytearray() for _ in ports]
        self._sockets = list[socket.socket]()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        for number in range(len(self._targets)):
            threading.Thread(target=self._accept, args=(number,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in [*self._listeners, *self._sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def seen(self) -> list[bytes]:
        """Return what has passed until now, for each port."""
        return [bytes(data) for data in self._seen]

    def _accept(self, number: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listeners[number].accept()
                far = socket.create_connection(("127.0.0.1", self._targets[number]))
                with self._lock:
                    self._sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(number, *pair), daemon=True).start()

    def _pump(self, number: int, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                self._seen[number] += data
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
