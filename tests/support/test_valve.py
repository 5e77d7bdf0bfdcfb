"""A valve closes all that it accepted, also while nobody listens at its target."""

from __future__ import annotations

import socket

from tests.support.valve import Valve
from tests.support.waiting import wait_until


def test_a_connection_without_a_target_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with Valve(port) as valve:
        with socket.create_connection(("127.0.0.1", valve.port)):
            wait_until(lambda: bool(valve._sockets))
        (accepted,) = valve._sockets
    assert accepted.fileno() == -1
