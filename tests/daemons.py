"""walkeeper's daemons as processes, and a whole cluster of them for a PostgresServer.

    with PostgresServer() as primary, Cluster(primary) as cluster:
        cluster.walkeeper("attach", "--dsn", primary.dsn)
        cluster.safekeepers[0].kill9()
        cluster.safekeepers[0].start()

Everything runs through the command line, as an operator would; nothing of walkeeper is imported.
A daemon has started when it prints its `ready:` line. Output goes to one file per daemon.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.postgres_server import PostgresServer, clean_environment, free_port
from tests.waiting import wait_until

WALKEEPER = (sys.executable, "-m", "walkeeper_cli")
START_S = 30.0
STOP_S = 20.0
RUN_S = 60.0


def walkeeper(
    *arguments: str, timeout_s: float = RUN_S, **environment: str
) -> subprocess.CompletedProcess[str]:
    """One command to its end; the caller checks `returncode`, `stdout` and `stderr`."""
    return subprocess.run(
        [*WALKEEPER, *arguments],
        env=clean_environment(**environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


class Daemon:
    """One `walkeeper …` process, restartable with the same arguments."""

    def __init__(self, name: str, arguments: Sequence[str], log_file: Path) -> None:
        self.name, self.arguments, self.log_file = name, tuple(arguments), log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._ready_lines = 0

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *more: str, wait: bool = True) -> None:
        """Until its ready line, unless `wait` is off. `more` arguments are for this start only."""
        assert not self.is_running, f"{self.name} is running already"
        self._ready_lines = self._count_ready()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*WALKEEPER, *self.arguments, *more],
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if wait:
            self.wait_ready()

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Until the ready line of the latest start."""
        wait_until(self._is_ready, timeout_s, f"{self.name} prints its ready line")

    def _count_ready(self) -> int:
        if not self.log_file.exists():
            return 0
        return sum(line.startswith("ready: ") for line in self.output().splitlines())

    def _is_ready(self) -> bool:
        if self._count_ready() > self._ready_lines:
            return True
        assert self.is_running, f"{self.name} ended: {self.tail()}"
        return False

    def output(self) -> str:
        """Everything it has printed since the first start."""
        return self.log_file.read_text(errors="replace")

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.output().splitlines()[-lines:])

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP and SIGCONT make a partition."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill9(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self, timeout_s: float = STOP_S) -> int:
        """SIGTERM; the exit code (0 for a clean stop)."""
        self.signal(signal.SIGTERM)
        return self.wait_ended(timeout_s)

    def wait_ended(self, timeout_s: float = STOP_S) -> int:
        """The exit code of a daemon that ends by itself."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} still runs after {timeout_s:g} s: {self.tail()}"
            ) from None


class Cluster:
    """Three safekeepers, a log made by `create`, and a proposer, on free ports of 127.0.0.1."""

    def __init__(
        self,
        primary: PostgresServer,
        *,
        safekeepers: int = 3,
        name: str = "main",
        dsn: str | None = None,
        proposer_options: Sequence[str] = (),
        start: bool = True,
    ) -> None:
        """`dsn`: for create and proposer in place of the superuser's."""
        self.primary, self.name, self.dsn = primary, name, dsn or primary.dsn
        self.directory = Path(tempfile.mkdtemp(prefix="walkeeper-cluster-"))
        self.ports = [free_port() for _ in range(safekeepers)]
        self.safekeepers = [self._safekeeper(i, port) for i, port in enumerate(self.ports, 1)]
        self.proposer = self.new_proposer("proposer", *proposer_options)
        if start:
            self.start()

    @property
    def addresses(self) -> str:
        """For --safekeepers."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def application_name(self) -> str:
        return "walkeeper" if self.name == "main" else f"walkeeper_{self.name}"

    def _safekeeper(self, number: int, port: int) -> Daemon:
        where = ("--data-dir", str(self.data_dir(number)), "--listen", f"127.0.0.1:{port}")
        name = f"safekeeper{number}"
        arguments = ("safekeeper", "--id", str(number), *where)
        return Daemon(name, arguments, self.directory / f"{name}.log")

    def data_dir(self, number: int) -> Path:
        """Of safekeeper 1, 2, 3, …; its log is in data_dir / cluster name / "wal"."""
        return self.directory / f"safekeeper{number}"

    def new_proposer(self, name: str, *options: str, dsn: str | None = None) -> Daemon:
        """Another proposer of this cluster, not started; the caller ends it."""
        base = ("proposer", "--safekeepers", self.addresses, "--dsn", dsn or self.dsn)
        arguments = (*base, "--cluster", self.name, *options)
        return Daemon(name, arguments, self.directory / f"{name}.log")

    def start(self) -> None:
        """Everything from nothing, until the proposer streams."""
        try:
            for safekeeper in self.safekeepers:
                safekeeper.start(wait=False)
            for safekeeper in self.safekeepers:
                safekeeper.wait_ready()
            self.create()
            self.proposer.start()
            self.wait_streaming()
        except BaseException:
            self.close()
            raise

    def create(self, *options: str) -> str:
        return self.walkeeper("create", "--dsn", self.dsn, *options)

    def walkeeper(self, command: str, *options: str, timeout_s: float = RUN_S) -> str:
        """A command about this cluster; its output. AssertionError if it fails.

        --safekeepers and --cluster are added for the commands that know them.
        """
        given: tuple[str, ...] = ()
        if command not in ("attach", "detach"):
            given = ("--safekeepers", self.addresses, "--cluster", self.name)
        done = walkeeper(command, *given, *options, timeout_s=timeout_s)
        assert done.returncode == 0, f"{command}: {done.returncode} {done.stdout}{done.stderr}"
        return done.stdout

    def attach(self, *options: str) -> str:
        return self.walkeeper("attach", "--dsn", self.primary.dsn, *options)

    def wait_streaming(self, timeout_s: float = START_S) -> None:
        """Until the primary sees the proposer stream and report a flush position."""
        sql = (
            "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' "
            f"AND flush_lsn IS NOT NULL AND application_name = '{self.application_name}'"
        )

        def streams() -> bool:
            assert self.proposer.is_running, f"the proposer ended: {self.proposer.tail()}"
            return self.primary.psql(sql) == "1" or _not_yet(self.proposer.tail(5))

        wait_until(streams, timeout_s, "the proposer streams")

    def close(self) -> None:
        """SIGKILL to whatever runs; removes all files."""
        for daemon in [self.proposer, *self.safekeepers]:
            daemon.kill9()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _not_yet(why: str) -> bool:
    raise AssertionError(why)
