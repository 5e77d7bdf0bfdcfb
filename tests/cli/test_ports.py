"""Ports for servers that are to be started: each is free, and goes to one process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from walkeeper_lab.local import tcp_ports

DRAW = (
    "from walkeeper_lab.local.tcp_ports import free_port; print(*(free_port() for _ in range(3)))"
)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[range]:
    """A block of 20 ports."""
    monkeypatch.setattr(tcp_ports, "PORTS", range(19_000, 19_040))
    monkeypatch.setattr(tcp_ports, "BLOCK_PORTS", 20)
    monkeypatch.setattr(tcp_ports, "_claimed", None)
    yield range(19_000, 19_040)
    assert tcp_ports._claimed is not None and tcp_ports._claimed.claim is not None
    os.close(tcp_ports._claimed.claim)


def test_two_calls_give_two_ports_before_any_server_listens(few: range) -> None:
    """Three safekeepers need theirs before the first one starts."""
    given = [tcp_ports.free_port() for _ in range(10)]
    assert len(set(given)) == 10 and set(given) <= set(few)


def test_ports_come_again_after_all_others_and_only_if_they_are_free(few: range) -> None:
    with socket.socket() as taken:
        taken.bind((tcp_ports.HOST, tcp_ports.free_port()))
        taken.listen()
        given = {tcp_ports.free_port() for _ in range(200)}
        assert taken.getsockname()[1] not in given and len(given) == 19


def test_a_block_without_a_free_port_is_an_error(few: range) -> None:
    listeners = [socket.socket() for _ in range(20)]
    for listener in listeners:
        listener.bind((tcp_ports.HOST, tcp_ports.free_port()))
        listener.listen()
    with pytest.raises(OSError, match="no port is free on"):
        tcp_ports.free_port()
    for listener in listeners:
        listener.close()


def test_another_process_draws_from_another_block() -> None:
    own = {tcp_ports.free_port() for _ in range(tcp_ports.BLOCK_PORTS)}
    done = subprocess.run([sys.executable, "-c", DRAW], capture_output=True, text=True, check=True)
    theirs = {int(port) for port in done.stdout.split()}
    assert len(theirs) == 3 and not own & theirs
