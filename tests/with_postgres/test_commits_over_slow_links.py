"""A commit over links that need longer for one append than a safekeeper may be silent (R26)."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.cluster import Cluster
from tests.support.postgres_server import PostgresServer
from tests.support.valve import shut_down

pytestmark = pytest.mark.postgres

BYTES_A_SECOND = 10_000  # 128 KiB in 13 s; a safekeeper is silent for 10 s at most
STEP_BYTES = 500
REPORT_BYTES_MAX = 4096  # a report of the primary's state has a connection of its own
WRITE = "INSERT INTO t SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 200) i"


class SlowProxy:
    """Carries BYTES_A_SECOND each way to one port once `is_slow` is set, and keeps little back."""

    def __init__(self, target_port: int) -> None:
        self.is_slow = threading.Event()
        self.lost = 0  # connections that carried WAL and ended
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        self.port: int = self._listener.getsockname()[1]
        self._sides: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def _begin(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._sides.append(near)
                far = socket.create_connection(("127.0.0.1", self._target_port))
                self._sides.append(far)
                far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
                for pair in ((near, far), (far, near)):
                    self._begin(self._carry, *pair)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        carried = 0
        with contextlib.suppress(OSError):
            while data := source.recv(STEP_BYTES if self.is_slow.is_set() else 1 << 16):
                carried += len(data)
                target.sendall(data)
                if self.is_slow.is_set():
                    time.sleep(len(data) / BYTES_A_SECOND)
        self.lost += carried > REPORT_BYTES_MAX
        shut_down(source, target)

    def close(self) -> None:
        """Close all sockets, after the threads that use them have ended."""
        self.is_slow.clear()
        shut_down(self._listener)  # wakes the thread in accept()
        self._threads[0].join()
        shut_down(*self._sides)
        for thread in self._threads:
            thread.join()
        for side in (self._listener, *self._sides):
            side.close()


@contextlib.contextmanager
def slow_proxies(*ports: int) -> Iterator[list[SlowProxy]]:
    proxies = [SlowProxy(port) for port in ports]
    try:
        yield proxies
    finally:
        for proxy in proxies:
            proxy.close()


@pytest.mark.soak
def test_a_commit_over_slow_links_takes_its_time_and_no_connection(
    primary: PostgresServer,
) -> None:
    cluster = Cluster(primary)
    with slow_proxies(*cluster.ports[1:]) as proxies:
        try:
            cluster.start_safekeepers()
            cluster.make_log()
            ports = [cluster.ports[0], *(proxy.port for proxy in proxies)]
            addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
            arguments = [addresses if a == cluster.addresses else a
                         for a in cluster.proposer.arguments]  # fmt: skip
            cluster.proposer.arguments = tuple(arguments)
            cluster.proposer.start()
            cluster.attach()
            primary.sql("CREATE TABLE t (i int, v text)", "INSERT INTO t VALUES (1)")
            for proxy in proxies:
                proxy.is_slow.set()
            writing = primary.psql("-c", WRITE)
            text, _ = writing.communicate(timeout=90)
            assert writing.returncode == 0, text
            assert [proxy.lost for proxy in proxies] == [0, 0], cluster.proposer.output()
        finally:
            cluster.close()
