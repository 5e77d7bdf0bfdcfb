"""A PostgreSQL server that `demo` or `bench` makes, runs and destroys. A shell.

The server listens on loopback and has a password of its own, since other users of the machine can
reach the port. fsync and full_page_writes are on. Without them the demo would prove nothing, and a
benchmark would measure nothing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import asyncpg

from walkeeper_common.errors import Refused
from walkeeper_lab.local import shared_memory
from walkeeper_lab.local.child_process import ChildProcess
from walkeeper_lab.local.programs import Programs
from walkeeper_lab.local.tcp_ports import HOST, free_port
from walkeeper_proposer.postgres.primary_sql import LOST

USER = "postgres"
START_S = 60.0
POLL_S = 0.05
SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    # Shared memory is in the data directory, because a killed server would leave it in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
    "max_connections": "40",
    "max_wal_senders": "10",
    "wal_keep_size": "64MB",
    "logging_collector": "off",
    "log_destination": "stderr",
}


class PostgreSQL:
    """The data directory `directory`/`name`, with its postmaster. `make` or `copy` fills it."""

    def __init__(self, programs: Programs, directory: Path, name: str, password: str) -> None:
        self.programs, self.name, self.password = programs, name, password
        self.data, self.port = directory / name, free_port()
        self.is_wanted = False  # True since its start: from then on no answer means that it is down
        self._process = ChildProcess(
            f"PostgreSQL ({name})",
            (str(programs.bindir / "postgres"), "-D", str(self.data)),
            directory / "logs" / f"{name}.log",
            environment={"LC_ALL": "C"},
            user=programs.user,
            cwd=str(directory),
            death_signal=signal.SIGQUIT,
        )

    @property
    def dsn(self) -> str:
        """The DSN with its password, for a process's environment and not for its command line."""
        return f"host={HOST} port={self.port} user={USER} dbname=postgres password={self.password}"

    async def make(self) -> None:
        """Create the data directory with initdb."""
        directory = self.data.parent
        secret = directory / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        self.programs.own(secret)
        self._make_directory()
        await self.programs.run(
            "initdb",
            *("-D", str(self.data), "-U", USER, "-A", "scram-sha-256", "--pwfile", str(secret)),
            *("-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"),
            directory=directory,
        )
        secret.unlink()
        self.configure({**SETTINGS, "port": str(self.port)})

    async def copy(self, source: PostgreSQL) -> None:
        """Fill the data directory with a base backup of a running server."""
        self._make_directory()
        await self.programs.run(
            "pg_basebackup",
            *("-h", HOST, "-p", str(source.port), "-U", USER, "-D", str(self.data)),
            *("-c", "fast", "-X", "stream", "--no-sync"),
            directory=self.data.parent,
            PGPASSWORD=self.password,
        )
        self.configure({"port": str(self.port)})

    def _make_directory(self) -> None:
        self.data.mkdir(mode=0o700)
        self.programs.own(self.data)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Add settings for the next start to postgresql.auto.conf, as ALTER SYSTEM does."""
        with (self.data / "postgresql.auto.conf").open("a") as file:
            for name, value in settings.items():
                file.write(f"{name} = '{value.replace(chr(39), 2 * chr(39))}'\n")

    def serve_tls(self, key_and_chain: Path) -> None:
        """Serve TLS to clients that ask for it, from the next reload on."""
        own = self.data / "server.pem"
        own.touch(mode=0o600)
        own.write_bytes(key_and_chain.read_bytes())
        self.programs.own(own)
        self.configure({"ssl": "on", "ssl_cert_file": own.name, "ssl_key_file": own.name})

    async def start(self) -> None:
        """Start the server and wait until it answers queries; raise Refused if it does not."""
        await self._process.launch()
        deadline_s = asyncio.get_running_loop().time() + START_S
        while True:
            try:
                await (await self.connect()).close()
                self.is_wanted = True
                return
            except (asyncpg.PostgresError, *LOST) as error:
                late = asyncio.get_running_loop().time() > deadline_s
                if late or not self._process.is_running:
                    words = self._process.last_words()
                    raise Refused(f"{self._process.name} does not answer: {words}") from error
            await asyncio.sleep(POLL_S)

    async def connect(self) -> asyncpg.Connection:
        """Return a new connection, which the caller closes.

        It asks for no TLS. asyncpg waits for that answer in a future of its own. If a server is
        killed and nobody waits any more, the loop would report the error of that future.
        """
        return await asyncpg.connect(
            host=HOST,
            port=self.port,
            user=USER,
            password=self.password,
            database="postgres",
            ssl=False,
            timeout=10,
            command_timeout=60,
            server_settings={"application_name": "demo"},
        )

    async def value(self, query: str, *arguments: object) -> object:
        """Run a query and return the first column of its first row.

        Its commit never waits for synchronous replication.
        """
        connection = await self.connect()
        try:
            await connection.execute("SET synchronous_commit = local")
            return await connection.fetchval(query, *arguments)
        finally:
            await connection.close()

    async def shut_down(self) -> None:
        """Shut the server down as `pg_ctl -m fast stop` does, and wait for its end."""
        self.is_wanted = False
        self._process.send(signal.SIGINT)
        async with asyncio.timeout(START_S):
            await self._process.ended()

    async def kill(self) -> None:
        """Send SIGKILL to the postmaster and its processes, and wait until all are gone."""
        victims = self._children() if self._process.is_running else []
        segment = shared_memory.segment_of(self.data)
        await self._process.kill()
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        while any(map(_runs, victims)):  # noqa: ASYNC110  (they are not our children)
            await asyncio.sleep(POLL_S)
        if victims:
            shared_memory.remove(segment)

    async def destroy(self) -> None:
        """Kill the server and delete its data directory."""
        await self.kill()
        await asyncio.to_thread(shutil.rmtree, self.data)

    def _children(self) -> list[int]:
        pid = self._process.pid
        try:
            return [int(child) for child in _proc(f"{pid}/task/{pid}/children").split()]
        except OSError:
            return []  # without /proc: they end by themselves when their postmaster is gone


def _proc(name: str) -> str:
    return Path("/proc", name).read_text()


def _runs(pid: int) -> bool:
    """Return True if the process is neither gone nor a zombie."""
    try:
        return _proc(f"{pid}/stat").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
