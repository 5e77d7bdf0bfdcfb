"""Patroni starts a primary that crashed with a commit of its own, which no quorum has.

    ClosedStarts(site, proposer, say).play() -> bool       True: no reader saw it too early

node1 leads alone. A commit waits, with two safekeepers away. First PostgreSQL alone is killed, and
Patroni starts it as a primary. Meanwhile Patroni writes its files anew, and is killed and started.
Then the whole machine is lost for a while, with its proposer, and the safekeeper that has the
commit is lost for good. Patroni recovers the server in single-user mode, starts it as a standby and
promotes it. A reader tries to get in all the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg

from tests.patroni.nodes import PASSWORD, Node, Site
from tests.support.cluster import Daemon
from tests.support.crashed_primary import Reader
from tests.support.waiting import wait_until

UP_S = 90.0
TRIES = 50
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


class ClosedStarts:
    """The steps on the first node of a site that has begun."""

    def __init__(self, site: Site, proposer: Daemon, say: Callable[[str], None]) -> None:
        self._cluster, self._node, self._proposer = site.cluster, site.nodes[0], proposer
        self._say = say

    def play(self) -> bool:
        """Return True if the reader saw nothing that no quorum had."""
        self._node.sql(
            f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'",
            "CREATE TABLE t AS SELECT 1 AS i",
            "GRANT SELECT ON t TO reader",
        )
        return self._server_crashes() and self._machine_crashes()

    def _server_crashes(self) -> bool:
        node = self._node
        self._begin_to_insert(2, node.kill_server)
        with Reader(node) as reader:
            self._refused(reader)
            wait_until(lambda: node.is_leader, UP_S)
            node.reload()
            self._refused(reader)
            node.patroni.kill()
            node.start()
            wait_until(lambda: node.is_leader, UP_S)
            self._refused(reader)
            asks = "pending_restart" in node.ask()
            self._say(f"node1 leads behind a crash; Patroni asks for a restart: {asks}")
            return self._open("the server", 2, reader, self._start_two) and not asks

    def _machine_crashes(self) -> bool:
        node = self._node
        self._begin_to_insert(3, node.kill)
        self._proposer.kill()
        self._cluster.safekeepers[0].kill()
        self._start_two()
        # Both were away and no proposer leads: `restore` waits for one, as its line says.
        self._cluster.settle()
        with Reader(node) as reader:
            node.start()
            wait_until(lambda: node.is_leader, UP_S)
            self._refused(reader)
            self._say(f"node1 was promoted to timeline {node.timeline}, without a proposer")
            return self._open("the machine", 3, reader, lambda: self._proposer.start(wait=False))

    def _begin_to_insert(self, row: int, kill: Callable[[], None]) -> None:
        """Leave a row on the primary and on the first safekeeper alone, and kill the primary."""
        node = self._node
        self._cluster.wait_all_equal()
        for safekeeper in self._cluster.safekeepers[1:]:
            safekeeper.kill()
        waiting = threading.Thread(target=_insert, args=(node, row), daemon=True)
        waiting.start()
        wait_until(lambda: node.sql(WAITING) == 1, UP_S)
        kill()
        waiting.join()

    def _start_two(self) -> None:
        for safekeeper in self._cluster.safekeepers[1:]:
            safekeeper.start()

    def _open(self, what: str, row: int, reader: Reader, mend: Callable[[], None]) -> bool:
        """Let a quorum have all; return True if the reader had seen nothing before."""
        shown = self._node.sql("SELECT max(i) FROM t")
        early, began_s = set(reader.seen), time.monotonic()
        mend()
        wait_until(lambda: row in reader.seen, UP_S)
        self._say(
            f"{what} crashed: Patroni saw row {shown}, a reader {sorted(early) or 'none'} in "
            f"{reader.refused} attempts that were refused; open with row {row} "
            f"{time.monotonic() - began_s:.1f} s after the quorum was back"
        )
        return not early

    def _refused(self, reader: Reader) -> None:
        """Wait until the reader was refused some more times, or sees something."""
        before = reader.refused
        wait_until(lambda: reader.refused > before + TRIES or reader.seen, UP_S)


def _insert(node: Node, row: int) -> None:
    with suppress(psycopg.Error), node.connect() as connection:
        connection.execute(f"INSERT INTO t VALUES ({row})".encode())
