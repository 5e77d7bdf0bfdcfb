"""Three safekeepers and a proposer as processes, for a PostgresServer; run as an operator would.

    with Cluster.create(primary) as cluster:       made, streaming, attached
        cluster.safekeepers[0].kill(); cluster.safekeepers[0].start()

The daemons are processes, which start by a fork of a Python that has imported them (forked.py).
`create`, `attach` and `status` run as their commands do, but inside the test: a process for each
of them costs more than the work. Tests of the commands start processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support import forked
from tests.support.passwords import users_file_of
from tests.support.postgres_server import PostgresServer, server_environment
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_admin.create import CreateSettings, create
from walkeeper_admin.primary.attach import AttachSettings, attach
from walkeeper_admin.status import gather
from walkeeper_common.errors import WalkeeperError
from walkeeper_lab.local.tcp_ports import free_port

WALKEEPER = (sys.executable, "-m", "walkeeper_cli")
TOLD = 4_000  # characters of each daemon in the report of a failed test
# On a busy machine, safekeepers answer within this time. A frozen one costs all of it.
ANSWER_S = 30.0
open_clusters = weakref.WeakSet["Cluster"]()


def lsn_of(text: str) -> int:
    """Return PostgreSQL's `0/3000060` as a number."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def walkeeper(*arguments: str, timeout_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run one command to its end and return its result, which the caller checks."""
    environment = server_environment()
    if forked.starts_by_fork(WALKEEPER[-1], arguments, environment):
        return forked.run(WALKEEPER[-1], arguments, environment, timeout_s)
    return subprocess.run(
        [*WALKEEPER, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


class Daemon:
    """One `walkeeper …` process that can be started again with the same arguments.

    `prefix` has words before the command, which become it (same pid). `environment` adds variables.
    """

    command: Sequence[str] = WALKEEPER

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        *,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.arguments, self.log = name, tuple(arguments), log
        self._prefix, self._environment = tuple(prefix), dict(environment or {})
        self.process: forked.Process | None = None
        self._start_bytes = 0  # length of the log when this run began

    def start(self, *more: str, wait: bool = True) -> None:
        """Start the process; `more` arguments are for this run alone."""
        assert not self.is_running, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._start_bytes = log.tell()
            self.process = self._started([*self.arguments, *more], log.fileno())
        if wait:
            self.wait_ready()

    def _started(self, words: Sequence[str], log: int) -> forked.Process:
        """Start the process, by a fork where that makes no difference."""
        environment, module = server_environment() | self._environment, self.command[-1]
        is_plain = not self._prefix and self.command == (*WALKEEPER[:-1], module)
        if is_plain and forked.starts_by_fork(module, words, environment):
            return forked.start(module, words, environment, log, log)
        return subprocess.Popen(
            [*self._prefix, *self.command, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def wait_ready(self, timeout_s: float = LIMIT_S) -> None:
        """Wait until this run has printed its `ready:` line."""
        wait_until(self._is_ready, timeout_s)

    def _is_ready(self) -> bool:
        assert self.is_running, f"{self.name} ended: {self.output()}"
        return any(line.startswith("ready: ") for line in self.output().splitlines())

    def output(self) -> str:
        """Return the output of the latest run."""
        with self.log.open("rb") as file:
            file.seek(self._start_bytes)
            return file.read().decode(errors="replace")

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None, f"{self.name} was never started"
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def ended(self, timeout_s: float = LIMIT_S) -> int:
        """Return the exit code of a process that ends by itself."""
        assert self.process is not None, f"{self.name} was never started"
        wait_until(lambda: not self.is_running, timeout_s)
        return self.process.wait()

    def most_memory_mb(self) -> float:
        """Return its greatest resident memory since its start."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024

    def terminate(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ended()


class Cluster:
    """A primary's safekeepers and proposers. Use `create`, or start the parts one by one.

    With `passwords`, the safekeepers ask PostgreSQL's clients of these names for a password. `tls`
    returns the TLS file of a safekeeper.
    """

    def __init__(
        self,
        primary: PostgresServer,
        *,
        name: str = "main",
        passwords: Mapping[str, str] | None = None,
        tls: Callable[[int], str] | None = None,
    ) -> None:
        open_clusters.add(self)
        self.primary, self.name = primary, name
        self.directory = Path(tempfile.mkdtemp(prefix="walkeeper_cluster_"))
        self._users: tuple[str, ...] = ()
        self._tls = tls
        if passwords:
            self._users = ("--users", users_file_of(self.directory / "users", **passwords))
        self.ports = [free_port() for _ in range(3)]
        self.safekeepers = [
            self.new_safekeeper(number, port) for number, port in enumerate(self.ports, 1)
        ]
        self.proposers: list[Daemon] = []
        self.proposer = self.new_proposer("proposer")

    @classmethod
    @contextlib.contextmanager
    def create(
        cls,
        primary: PostgresServer,
        *,
        attach: bool = True,
        passwords: Mapping[str, str] | None = None,
        tls: Callable[[int], str] | None = None,
    ) -> Iterator[Self]:
        """Make the whole cluster, and yield it once commits wait for the quorum.

        Each safekeeper has the WAL so far: a quorum may be killed, and the one left goes on. The
        attached proposer forgets WAL that a quorum has, so a later one would wait for a donor.
        TLS is for a cluster with passwords.
        """
        cluster = cls(primary) if passwords is None else cls(primary, passwords=passwords, tls=tls)
        try:
            cluster.start_safekeepers()
            cluster.make_log()
            cluster.proposer.start()
            if attach:
                cluster.attach()
                cluster.wait_all_joined()
            yield cluster
        except BaseException:
            sys.stdout.write(cluster.told())
            raise
        finally:
            cluster.close()

    def new_safekeeper(self, number: int, port: int, data_dir: Path | None = None) -> Daemon:
        """Return a safekeeper that is not started."""
        where = data_dir or self.data_dir(number)
        name = f"safekeeper{number}"
        arguments = ("safekeeper", "--id", str(number), "--data-dir", str(where))
        listen = ["--listen", f"127.0.0.1:{port}", *self._users]
        if self._tls is not None:
            listen += ["--tls", self._tls(number)]
        return Daemon(name, (*arguments, *listen), self.directory / f"{name}_{port}.log")

    def new_proposer(
        self, name: str, *options: str, dsn: str | None = None, cluster: str | None = None
    ) -> Daemon:
        """Return a proposer that is not started; it ends with the cluster."""
        arguments = ("proposer", "--safekeepers", self.addresses, "--dsn")
        which = (dsn or self.primary.dsn(), "--cluster", cluster or self.name)
        log = self.directory / f"{name}.log"
        self.proposers.append(Daemon(name, (*arguments, *which, *options), log))
        return self.proposers[-1]

    @property
    def addresses(self) -> str:
        """For --safekeepers."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def data_dir(self, number: int) -> Path:
        """Return the data directory of this safekeeper."""
        return self.directory / f"safekeeper{number}"

    def wal_dir(self, number: int) -> Path:
        return self.data_dir(number) / self.name / "wal"

    def start_safekeepers(self) -> None:
        for safekeeper in self.safekeepers:
            safekeeper.start(wait=False)
        for safekeeper in self.safekeepers:
            safekeeper.wait_ready()

    def make_log(self) -> None:
        """Create the log as the command does, without its process."""
        asyncio.run(create(CreateSettings(self.pairs(), self.primary.dsn(), self.name)))

    def attach(self) -> None:
        """Attach the primary as the command does, without its process."""
        try:
            asyncio.run(attach(AttachSettings(self.primary.dsn()), lambda line: None))
        except WalkeeperError as error:
            raise AssertionError(f"{error}\n{self.proposer.output()}") from error

    def command(self, name: str, *options: str) -> str:
        """Return the output of a command that takes --safekeepers and must succeed."""
        done = self.try_command(name, *options)
        assert done.returncode == 0, f"{done}"
        return done.stdout

    def try_command(self, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        return walkeeper(name, "--safekeepers", self.addresses, "--cluster", self.name, *options)

    def status(self) -> dict[str, Any]:
        """Return the document of `walkeeper status --json`; test_kills.py compares the two."""
        return asyncio.run(gather(list(self.pairs()), self.name, ANSWER_S))

    def pairs(self) -> tuple[tuple[str, int], ...]:
        pairs = [address.rpartition(":") for address in self.addresses.split(",")]
        return tuple((host, int(port)) for host, _, port in pairs)

    def settle(self, *options: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.command("settle", "--json", *options))
        return document

    def flush_lsns(self) -> dict[int, str]:
        """Return the flush_lsn of each safekeeper that answers, by id."""
        lines = self.status()["safekeepers"]
        return {line["id"]: line["flush_lsn"] for line in lines if line["reachable"]}

    def wait_all_joined(self) -> None:
        """Wait until every safekeeper has flushed as much as one of them has now."""
        reached = max(map(lsn_of, wait_until(self.flush_lsns).values()))

        def all_have() -> bool:
            found = self.flush_lsns().values()
            return len(found) == len(self.ports) and min(map(lsn_of, found)) >= reached

        wait_until(all_have)

    def wait_all_equal(self, timeout_s: float = LIMIT_S) -> str:
        """Wait until every safekeeper has flushed and committed all WAL; return its end."""
        end: str = self.primary.sql("SELECT pg_current_wal_flush_lsn()")

        def all_there() -> bool:
            nonlocal end
            end = self.primary.sql("SELECT pg_current_wal_flush_lsn()")
            lines = self.status()["safekeepers"]
            return all(line["flush_lsn"] == line["commit_lsn"] == end for line in lines)

        wait_until(all_there, timeout_s)
        return end

    def wait_caught_up(self, timeout_s: float = LIMIT_S) -> None:
        """Wait until every safekeeper has the WAL that is committed at the time of the call."""
        commit_lsn = lsn_of(self.status()["cluster"]["commit_lsn"])

        def all_there() -> bool:
            lines = self.status()["safekeepers"]
            return all(
                line["reachable"] and lsn_of(line["flush_lsn"]) >= commit_lsn for line in lines
            )

        wait_until(all_there, timeout_s)

    def told(self) -> str:
        """Return the last lines of each daemon, for the report of a test that failed."""
        daemons = [each for each in [*self.proposers, *self.safekeepers] if each.log.exists()]
        return "".join(
            f"{each.name} ({'runs' if each.is_running else 'ended'}):\n{each.output()[-TOLD:]}"
            for each in daemons
        )

    def close(self) -> None:
        """Kill all with SIGKILL, and remove all files."""
        open_clusters.discard(self)
        for daemon in [*self.proposers, *self.safekeepers]:
            daemon.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
