"""Ports for servers that are to be started: each is free, and given once."""

from __future__ import annotations

import socket

import pytest

from walkeeper_cli.local import ports


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PORTS", range(20_100, 20_120))
    monkeypatch.setattr(ports, "_given", set[int]())


def test_who_asks_twice_gets_two_before_anybody_listens() -> None:
    """Three safekeepers are told theirs before the first one starts."""
    given = [ports.free_port() for _ in range(10)]
    assert len(set(given)) == 10 and set(given) <= set(ports.PORTS)


def test_when_all_were_given_those_that_are_free_are_given_again() -> None:
    with socket.socket() as taken:
        taken.bind((ports.HOST, ports.free_port()))
        taken.listen()
        given = {ports.free_port() for _ in range(200)}
        assert taken.getsockname()[1] not in given and len(given) >= 15
