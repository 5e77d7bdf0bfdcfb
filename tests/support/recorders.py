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

from tests.support.valve import shut_down

PIECE_BYTES = 1 << 16


class Recorders:
    """One forwarder for each port of this machine, with threads of its own."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._targets = list(ports)
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in ports]
        self.ports = [listener.getsockname()[1] for listener in self._listeners]
        self._seen = [bytearray() for _ in ports]
        self._sockets = list[socket.socket]()

    def __enter__(self) -> Self:
        self._accepting = [
            threading.Thread(target=self._accept, args=(number,), daemon=True)
            for number in range(len(self._targets))
        ]
        for each in self._accepting:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        shut_down(*self._listeners)  # wakes the threads in accept()
        for thread in self._accepting:
            thread.join()
        for each in [*self._listeners, *self._sockets]:
            shut_down(each)
            each.close()

    def seen(self) -> list[bytes]:
        """Return what has passed until now, for each port."""
        return [bytes(data) for data in self._seen]

    def _accept(self, number: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listeners[number].accept()
                self._sockets.append(near)
                far = socket.create_connection(("127.0.0.1", self._targets[number]))
                self._sockets.append(far)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(number, *pair), daemon=True).start()

    def _pump(self, number: int, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                self._seen[number] += data
                target.sendall(data)
        shut_down(source, target)
