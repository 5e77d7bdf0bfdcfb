"""The stage of one incident: primary, standby, three safekeepers, proposer, archive, Prometheus.

    with Stage.ready(directory) as stage:     commits wait for the quorum, the standby streams

A stage serves one incident, so no incident inherits anything from another one.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.proof.chaos.steered_disk import SteeredDisk, compiled_library
from tests.proof.drill.memory_disk import MemoryDisk
from tests.proof.drill.prometheus import Prometheus
from tests.support.cluster import Cluster, Daemon, walkeeper
from tests.support.postgres_server import PostgresServer
from tests.support.standbys import standby_of
from tests.support.waiting import wait_until
from walkeeper_lab.local.tcp_ports import free_port

NUMBERS = (1, 2, 3)
KEPT = "8MB"
SCRUB = "20MB"
ASK_S = 5.0
ARCHIVE_BYTES = 2 << 30  # it takes memory only for what it holds
SETTINGS = {"wal_log_hints": "on"}  # as pg_rewind needs it
FILL = "SELECT pg_logical_emit_message(true, 'fill', repeat(md5(random()::text), 16384))"


class Stage(Cluster):
    """`started_s` is when the incident began; `acknowledged` are the rows that must stay."""

    prometheus: Prometheus | None
    standby: PostgresServer

    def __init__(self, primary: PostgresServer, directory: Path) -> None:
        self._library = compiled_library(directory)
        self._disks_directory = directory
        self.disks = [MemoryDisk(directory, directory / f"disk{n}") for n in NUMBERS]
        self.archive_disk = MemoryDisk(directory, directory / "archive", ARCHIVE_BYTES)
        self.steered = [SteeredDisk(directory / f"disk{n}.orders", self._library) for n in NUMBERS]
        self.http: dict[str, int] = {}
        self.started_s = 0.0
        self._marks: dict[Path, int] = {}
        self.acknowledged: list[int] = []
        super().__init__(primary)

    @classmethod
    @contextlib.contextmanager
    def ready(cls, directory: Path) -> Iterator[Stage]:
        """Make all parts from nothing; kill and unmount them at the end."""
        with (
            contextlib.ExitStack() as stack,
            PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as primary,
        ):
            stage = cls(primary, directory)
            stack.callback(stage.close)
            stage._make(stack)
            yield stage

    def _make(self, stack: contextlib.ExitStack) -> None:
        for disk in (*self.disks, self.archive_disk):
            disk.make()
        self.start_safekeepers()
        self.make_log()
        self.proposer.start()
        self.primary.sql("CREATE TABLE kept (id int PRIMARY KEY)")
        self.standby = stack.enter_context(standby_of(self.primary, self.ports[1]))
        self.attach()
        watching = Prometheus.watching(self._disks_directory / "prometheus", self.http)
        self.prometheus = stack.enter_context(watching)
        self.commit()

    def data_dir(self, number: int) -> Path:
        return self.disks[number - 1].mount_point / "data"

    @property
    def archive_url(self) -> str:
        return f"file://{self.archive_disk.mount_point}"

    def new_safekeeper(self, number: int, port: int, data_dir: Path | None = None) -> Daemon:
        made = super().new_safekeeper(number, port, data_dir)
        more = ("--archive", self.archive_url, "--archive-tail-interval", "1s")
        scrub = ("--scrub-rate", SCRUB, "--wal-keep-size", KEPT)
        arguments = (*made.arguments, *self._http(made.name), *more, *scrub)
        environment = self.environment(number)
        return Daemon(made.name, arguments, made.log, environment=environment)

    def environment(self, number: int) -> dict[str, str]:
        """Return the variables with which this safekeeper's disk can be steered."""
        return self.steered[number - 1].environment() if number <= len(self.steered) else {}

    def steer(self, number: int) -> SteeredDisk:
        """Return the steered disk of a newcomer, for a safekeeper that is made later."""
        assert number == len(self.steered) + 1, f"{number=}"
        made = SteeredDisk(self._disks_directory / f"disk{number}.orders", self._library)
        self.steered.append(made)
        return made

    def restart_with(self, number: int, environment: Mapping[str, str]) -> None:
        """Restart a safekeeper with variables in place of its own; let the time begin."""
        old = self.safekeepers[number - 1]
        old.terminate()
        arguments, log = old.arguments, old.log
        self.safekeepers[number - 1] = Daemon(old.name, arguments, log, environment=environment)
        self.begin()
        self.safekeepers[number - 1].start()

    def new_proposer(
        self, name: str, *options: str, dsn: str | None = None, cluster: str | None = None
    ) -> Daemon:
        return super().new_proposer(name, *self._http(name), *options, dsn=dsn, cluster=cluster)

    def _http(self, name: str) -> Sequence[str]:
        port = self.http.setdefault(name, free_port())
        return ("--http", f"127.0.0.1:{port}")

    def mark(self) -> None:
        """Let `logs` begin here."""
        self._marks = {each.log: _size(each.log) for each in self.daemons()}

    def begin(self) -> None:
        """Let the incident's time begin now."""
        self.started_s = time.monotonic()

    def commit(self) -> None:
        """Commit one row, and remember it."""
        number = len(self.acknowledged) + 1
        self.primary.sql(f"INSERT INTO kept VALUES ({number})")
        self.acknowledged.append(number)

    def fill(self, half_megabytes: int) -> None:
        """Commit this much WAL."""
        for _ in range(half_megabytes):
            self.primary.sql(FILL)

    def waiting_commit(self) -> subprocess.Popen[str]:
        """Start a commit in a process of its own."""
        return self.primary.psql("-c", "CREATE TABLE IF NOT EXISTS waits (i int)")

    def missing_rows(self, server: PostgresServer) -> set[int]:
        """Return the acknowledged rows that this server lacks."""
        found = {row[0] for row in server.rows("SELECT id FROM kept")}
        return set(self.acknowledged) - found

    def daemons(self) -> list[Daemon]:
        return [*self.safekeepers, *self.proposers]

    def logs(self) -> str:
        """Return the logs of all daemons since the mark, each line with the daemon's name."""
        lines = []
        for daemon in self.daemons():
            data = daemon.log.read_bytes() if daemon.log.exists() else b""
            text = data[self._marks.get(daemon.log, 0) :].decode(errors="replace")
            lines += [f"{daemon.name}: {line}" for line in text.splitlines()]
        return "\n".join(lines)

    def asked(self, path: str) -> str:
        """Return each daemon's answer to GET `path`, behind its name and its HTTP status."""
        return "\n".join(f"{name}: {_got(port, path)}" for name, port in self.http.items())

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a remedy's command, which must succeed."""
        done = walkeeper(*words, "--safekeepers", self.addresses, "--cluster", self.name)
        assert done.returncode == 0, f"{done}"
        return done

    def run_at_primary(self, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run a remedy's command that takes --dsn, which must succeed."""
        done = walkeeper(name, "--dsn", self.primary.dsn(), *options)
        assert done.returncode == 0, f"{done}"
        return done

    def lose_archive(self) -> None:
        """Take the file system of the archive away."""
        where = self.archive_disk.mount_point
        self._away.mkdir()
        self.archive_disk.move(self._away)
        where.rmdir()

    def find_archive(self) -> None:
        """Mount the file system of the archive again."""
        self.archive_disk.mount_point.mkdir(exist_ok=True)
        self.archive_disk.move_back(self._away)

    @property
    def _away(self) -> Path:
        return self.archive_disk.mount_point.with_name("away")

    def signal_primary(self, number: signal.Signals) -> None:
        self.primary.signal_all(number)

    def verdict(self) -> dict[str, Any]:
        """Return the verdict of `status --json`."""
        found: dict[str, Any] = self.status()["verdict"]
        return found

    def wait_well(self) -> None:
        """Wait until `status` finds nothing wrong."""
        wait_until(lambda: self.verdict()["state"] == "OK")

    def close(self) -> None:
        super().close()
        for disk in (*self.disks, self.archive_disk):
            disk.close()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _got(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=ASK_S) as answer:
            return f"{answer.status} {answer.read().decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"
    except OSError as error:
        return f"no answer: {error}"
