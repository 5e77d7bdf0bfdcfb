"""The cluster under fault: a primary, three safekeepers, two seats for a proposer, a standby.

    with ChaosCluster.create(directory) as cluster:      made, streaming, attached
        cluster.wait(condition, timeout_s)               restarts a proposer that has ended

Each daemon runs in a network namespace. Each safekeeper has a disk of its own that can be filled,
steered and cut from its power. Only faults restart a safekeeper or PostgreSQL.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.proof.chaos.loop_disk import LoopDisk
from tests.proof.chaos.namespace_servers import NamespacedServer
from tests.proof.chaos.namespaces import Network, Node
from tests.proof.chaos.steered_disk import SteeredDisk, compiled_library
from tests.proof.chaos.verdicts import DaemonBroke, Violation
from tests.support.cluster import Cluster, Daemon, lsn_of, walkeeper
from tests.support.postgres_server import PostgresServer, initialised_directory
from tests.support.waiting import NotInTime

NUMBERS = (1, 2, 3)
SAFEKEEPER_PORT, HTTP_PORT = 5454, 7676
SEATS = ("proposer1", "proposer2")
REPAIR_GRACE_S = 4
SPARE = "spare"  # a fourth safekeeper, for faults that change members
COPIES = ("copy1", "copy2")  # copies of the standby, which a fault promotes by mistake
SEGMENT_BYTES = 1 << 20
WAL_KEPT = "2GB"  # more than is written between two base backups
ASK_S = 1.0
PAUSE_S = 0.05
RESTART_S = 0.3
LAG_BYTES_MAX = 2 * SEGMENT_BYTES
PRIMARY_SETTINGS = {
    "checkpoint_timeout": "30s",
    "max_wal_size": "256MB",
    "wal_sender_timeout": "10s",
    "synchronous_commit": "on",
    "deadlock_timeout": "200ms",
}
STANDBY_SETTINGS = {
    "wal_receiver_timeout": "5s",
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "200ms",
    "hot_standby_feedback": "on",
    # In place of the value that attach writes into the primary: a standby waits for no server.
    "synchronous_standby_names": "",
}


class ChaosCluster(Cluster):
    """`proposer` is the one that is supervised, on one of two seats."""

    primary: NamespacedServer

    def __init__(self, directory: Path, network: Network) -> None:
        self.name, self.directory, self.network = "main", directory, network
        library = compiled_library(directory)
        self.disks = [
            LoopDisk(directory / f"safekeeper{n}.ext4", directory / f"safekeeper{n}")
            for n in NUMBERS
        ]
        self.steered = [SteeredDisk(directory / f"safekeeper{n}.orders", library) for n in NUMBERS]
        self.primary = NamespacedServer(directory / "primary", network["primary"], PRIMARY_SETTINGS)
        self.standby = NamespacedServer(directory / "standby", network["standby"], STANDBY_SETTINGS)
        self.safekeepers = [self.new_safekeeper(n, SAFEKEEPER_PORT) for n in NUMBERS]
        self._seats = [self._new_seat(name) for name in SEATS]
        self.proposers = self._seats
        self.proposer = self._seats[0]
        self.restarts: list[str] = []  # the last line of each proposer that had to be started again
        self._ended_at_s: float | None = None
        self.spare_directory = directory / SPARE
        self.spare = self._new_keeper(4, SPARE, SAFEKEEPER_PORT, self.spare_directory, {})
        self.long_transactions: dict[int, int] = {}  # acknowledged ones: rows by id

    @classmethod
    @contextlib.contextmanager
    def running(cls, directory: Path) -> Iterator[ChaosCluster]:
        """Make the whole cluster, and yield it once commits wait for the quorum."""
        names = ("primary", *(f"safekeeper{n}" for n in NUMBERS), *SEATS, "standby", SPARE, *COPIES)
        with Network.create(names) as network:
            cluster = cls(directory, network)
            try:
                cluster._make()
                yield cluster
            finally:
                cluster.close()

    def _make(self) -> None:
        for disk in self.disks:
            disk.make()
        self.primary.adopt(initialised_directory(("--wal-segsize=1",)))
        self.primary.start()
        self.start_safekeepers()
        self.make_log()
        self.proposer.start()
        self.attach()
        self._make_standby()

    def _make_standby(self) -> None:
        backup = self.primary.base_backup()
        try:
            self.standby.adopt(backup.data)
        finally:
            backup.delete()
        (self.standby.data / "postgresql.auto.conf").write_text("")
        hosts = ",".join(self.node(f"safekeeper{n}").address for n in NUMBERS)
        conninfo = f"host={hosts} port={SAFEKEEPER_PORT} user=replica application_name=standby"
        timeouts = "connect_timeout=2 tcp_user_timeout=5000"
        self.standby.configure({"primary_conninfo": f"{conninfo} {timeouts}"})
        (self.standby.data / "standby.signal").touch()
        self.standby.start()

    def node(self, name: str) -> Node:
        return self.network[name]

    @property
    def addresses(self) -> str:
        names = [f"safekeeper{n}" for n in NUMBERS]
        return ",".join(f"{self.node(name).address}:{SAFEKEEPER_PORT}" for name in names)

    def data_dir(self, number: int) -> Path:
        return self.disks[number - 1].mount_point / "data"

    def new_safekeeper(self, number: int, port: int, data_dir: Path | None = None) -> Daemon:
        where = data_dir or self.data_dir(number)
        environment = self.steered[number - 1].environment()
        return self._new_keeper(number, f"safekeeper{number}", port, where, environment)

    def _new_keeper(
        self, number: int, name: str, port: int, data_dir: Path, environment: Mapping[str, str]
    ) -> Daemon:
        node = self.node(name)
        return Daemon(
            name,
            [
                *("safekeeper", "--id", str(number), "--data-dir", str(data_dir)),
                *("--listen", f"{node.address}:{port}", "--allow-unauthenticated"),
                *("--http", f"{node.address}:{HTTP_PORT}", "--wal-keep-size", WAL_KEPT),
            ],
            self.directory / f"{name}.log",
            prefix=node.prefix,
            environment=environment,
        )

    def _new_seat(self, name: str) -> Daemon:
        node = self.node(name)
        # A partition outlasts this, so that reconnections happen too.
        dsn = self.primary.dsn(tcp_user_timeout=4000, connect_timeout=2)
        http = ("--http", f"{node.address}:{HTTP_PORT}", "--allow-unauthenticated")
        arguments = ["proposer", "--safekeepers", self.addresses, "--dsn", dsn, *http]
        arguments += ["--repair-grace", str(REPAIR_GRACE_S)]  # without spares it has no effect
        return Daemon(name, arguments, self.directory / f"{name}.log", prefix=node.prefix)

    def proposer_node(self) -> Node:
        """Return the supervised proposer's node."""
        return self.node(self.proposer.name)

    def other_seat(self) -> Daemon:
        return next(seat for seat in self._seats if seat is not self.proposer)

    def wait(self, condition: Callable[[], Any], timeout_s: float) -> Any:
        """Return the first true value; meanwhile start a proposer that has ended again.

        Raise NotInTime after `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        while not (value := condition()):
            if time.monotonic() > deadline_s:
                raise NotInTime(f"{condition} gave {value!r} after {timeout_s:g} s")
            self.supervise()
            time.sleep(PAUSE_S)
        return value

    def hold(self, seconds: float) -> None:
        """Let a fault last; start a proposer that has ended again."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.supervise()
            time.sleep(PAUSE_S)

    def supervise(self) -> None:
        """Start a proposer that has ended again after a pause, for any reason, as systemd does."""
        if self.proposer.is_running:
            self._ended_at_s = None
            return
        if self._ended_at_s is None:
            said = self.proposer.output().strip()
            self._ended_at_s = time.monotonic()
            self.restarts.append(said.splitlines()[-1] if said else "(killed in silence)")
            if "Traceback" in said:
                raise DaemonBroke(f"{self.proposer.name}: {said[-3000:]}")
        elif time.monotonic() - self._ended_at_s > RESTART_S:
            self.proposer.start(wait=False)
            self._ended_at_s = None

    def cut_power(self, numbers: Sequence[int]) -> None:
        """Kill these safekeepers, and lose all bytes that they had not synced."""
        keepers = [self.safekeepers[number - 1] for number in numbers]
        for keeper in keepers:  # they send no message more
            keeper.signal(signal.SIGSTOP)
        for number in numbers:
            self.disks[number - 1].power_cut()
        for keeper in keepers:
            keeper.kill()

    def restore_power(self, numbers: Sequence[int]) -> None:
        """Start these safekeepers, without a wait for them."""
        for number in numbers:
            self.disks[number - 1].restore_power()
            self.safekeepers[number - 1].start(wait=False)

    def check_safekeepers_run(self) -> None:
        """Check that no safekeeper has ended by itself: its promises would end with it."""
        for safekeeper in self.safekeepers:
            said = safekeeper.output()
            if "Traceback" in said:
                raise DaemonBroke(f"{safekeeper.name}: {said[-3000:]}")
            if not safekeeper.is_running:
                raise Violation(f"{safekeeper.name} ended by itself: {said[-3000:]}")

    def log_status(self, number: int) -> dict[str, Any] | None:
        """Return the log's HTTP status of safekeeper 1, 2 or 3, or None if it does not answer."""
        document = self._ask(self.node(f"safekeeper{number}"))
        return document["logs"].get(self.name) if document else None

    def proposer_status(self) -> dict[str, Any] | None:
        return self._ask(self.proposer_node())

    def _ask(self, node: Node) -> dict[str, Any] | None:
        url = f"http://{node.address}:{HTTP_PORT}/status"
        try:
            with urllib.request.urlopen(url, timeout=ASK_S) as answer:
                document: dict[str, Any] = json.load(answer)
        except (OSError, urllib.error.URLError, ValueError):
            return None
        return document

    def why_not_whole(self) -> str | None:
        """Return the part that is not running, attached or caught up yet, or None if all are."""
        statuses = [self.log_status(number) for number in NUMBERS]
        if None in statuses:
            return f"safekeeper {statuses.index(None) + 1} does not answer"
        known = [status for status in statuses if status is not None]
        for number, status in zip(NUMBERS, known, strict=True):
            if status["failure"]:
                return f"safekeeper {number}: {status['failure']}"
        proposer = self.proposer_status()
        if proposer is None or proposer["commit_lsn"] is None:
            return f"no proposer leads: {proposer}"
        if absent := [m["address"] for m in proposer["safekeepers"] if not m["attached"]]:
            return f"not attached: {absent}"
        ends = [lsn_of(status["flush_lsn"]) for status in known]
        lag = max(lsn_of(proposer["received_lsn"]), *ends) - min(ends)
        return f"{lag} bytes behind" if lag > LAG_BYTES_MAX else None

    def settle(self, *options: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.command("settle", "--json", *options))
        return document

    def rebuild_primary(self, backup: PostgresServer, wal: Path) -> None:
        """Replace a lost primary, on the same timeline, by a crash recovery."""
        self.primary.kill()
        self.primary.adopt(backup.data)
        pg_wal = self.primary.data / "pg_wal"
        for old in pg_wal.iterdir():
            if old.is_file():
                old.unlink()
        for segment in wal.iterdir():
            shutil.copy2(segment, pg_wal / segment.name)
            shutil.chown(pg_wal / segment.name, "postgres", "postgres")
        self.primary.start()
        # A base backup has no slots.
        slot = "SELECT pg_create_physical_replication_slot('walkeeper', true)"
        self.primary.sql(slot)

    def close(self) -> None:
        """Kill all with SIGKILL; the files stay."""
        for daemon in [*self._seats, *self.safekeepers, self.spare]:
            daemon.kill()
        for server in (self.standby, self.primary):
            with contextlib.suppress(FileNotFoundError):
                server.kill()
        for disk in self.disks:
            disk.close()


def status_command(cluster: ChaosCluster) -> str:
    """Return the output of `status` for a report, as an operator would read it first."""
    done = walkeeper("status", "--safekeepers", cluster.addresses, timeout_s=30)
    return done.stdout + done.stderr
