"""The relay of `bench --round-trip`: every byte, in order, late by the set time and never early."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

from walkeeper_lab.bench.bench_server import Throughput, ascending_ms
from walkeeper_lab.bench.cables import Cables
from walkeeper_lab.bench.delay_line import HELD_BYTES_MAX, HOST, DelayLine, Direction

PATIENCE_S = 30.0
ONE_WAY_S = 0.05


@contextlib.contextmanager
def ends(one_way_s: float) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a connection through a line: who connects, and who accepts."""
    with socket.create_server((HOST, 0)) as target:
        line = DelayLine(0, target.getsockname()[1], one_way_s)
        stopping = threading.Event()

        def relay() -> None:
            while not stopping.is_set():
                line.step()

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        near = socket.create_connection((HOST, line.port), timeout=PATIENCE_S)
        far, _ = target.accept()
        far.settimeout(PATIENCE_S)
        try:
            with near, far:
                yield near, far
        finally:
            stopping.set()
            with socket.create_connection((HOST, line.port)):  # the relay's loop wakes up
                thread.join(PATIENCE_S)
            assert not thread.is_alive()
            line.close()


def received(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := end.recv(size - len(data))):
        data += piece
    return data


def test_each_way_takes_the_set_time() -> None:
    with ends(ONE_WAY_S) as (near, far):
        for sender, receiver in ((near, far), (far, near)):
            began_s = time.monotonic()
            sender.sendall(b"WAL")
            assert received(receiver, 3) == b"WAL"
            assert time.monotonic() - began_s >= ONE_WAY_S


def test_bytes_stay_in_order_and_many_are_under_way() -> None:
    data, one_way_s = bytes(range(256)) * 4096, 10 * ONE_WAY_S
    with ends(one_way_s) as (near, far):
        began_s = time.monotonic()
        for at in range(0, len(data), 1 << 14):
            near.sendall(data[at : at + (1 << 14)])
        assert received(far, len(data)) == data
        # 64 pieces that waited for one another would need 64 times the way.
        assert time.monotonic() - began_s < 32 * one_way_s


def test_the_end_of_one_direction_leaves_the_other_one_open() -> None:
    with ends(ONE_WAY_S) as (near, far):
        near.sendall(b"last")
        began_s = time.monotonic()
        near.shutdown(socket.SHUT_WR)
        assert received(far, 5) == b"last"
        assert time.monotonic() - began_s >= ONE_WAY_S
        far.sendall(b"answer")
        assert received(near, 6) == b"answer"


def test_a_killed_peer_ends_the_connection_later() -> None:
    with ends(ONE_WAY_S) as (near, far):
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        began_s = time.monotonic()
        near.close()  # with a reset, as that of a killed process with unread bytes
        assert received(far, 1) == b""
        assert time.monotonic() - began_s >= ONE_WAY_S


def test_a_peer_that_does_not_read_stops_the_reading() -> None:
    one, source = socket.socketpair()
    sink, other = socket.socketpair()
    with one, source, sink, other:
        source.setblocking(False)
        direction, held_bytes = Direction(source, sink, ONE_WAY_S), 0
        while direction.reads:
            one.sendall(bytes(1 << 16))
            direction.receive(0.0)
            held_bytes += 1 << 16
        assert held_bytes == HELD_BYTES_MAX


def test_without_a_distance_there_is_no_relay() -> None:
    assert Cables().to(5432) == 5432 and str(Cables()) == ""
    assert Cables(0.001).to(5432) != 5432 and str(Cables(0.001)) == ", receivers 1 ms away"


def test_the_latency_that_999_of_1000_kept() -> None:
    log = [f"0 {number} {1000 * number} 0 1700000000 1" for number in range(1, 1001)]
    assert Throughput(1, 1, ascending_ms(reversed(log))).p999_ms == 1000.0
    assert Throughput(1, 1, ascending_ms(log[:998])).p999_ms == 998.0
    assert ascending_ms(["0 7 2500 0 1700000000 1", "0 8 1500 0 1700000000 1"]) == [1.5, 2.5]
