"""TCP ports for servers that have to be told one before they start. A shell."""

from __future__ import annotations

import secrets
import socket

HOST = "127.0.0.1"
# Below those that Linux gives to connections: whoever connects meanwhile takes none of them.
PORTS = range(20_000, 32_000)

_given = set[int]()  # since all of them were


def free_port() -> int:
    """Nobody listens there now: neither PostgreSQL nor the other side of a connection can be told
    0. Drawn, so that processes that ask at the same time get different ones; and each once, as
    whoever asked before may not listen yet."""
    while True:
        if len(_given) >= len(PORTS):
            _given.clear()
        port = secrets.choice(PORTS)
        if port in _given:
            continue
        _given.add(port)
        with socket.socket() as listener:
            try:
                listener.bind((HOST, port))
            except OSError:
                continue
        return port
