"""A throw-away PostgreSQL for tests: a directory, a free port, a superuser `postgres` with trust.

    with PostgresServer.create() as server:        initdb, started; stopped and deleted at the end
        server.sql("SELECT 1"); server.stop("immediate"); server.start()

PostgreSQL refuses to run as root. So as root its programs run as `postgres` and its directories
belong to that user. They are under a directory of the system's temporary one that everybody may
traverse. initdb runs once per process and set of options; a server starts from a copy of its
result. Settings favour tests: one buffer's worth of memory, no autovacuum, and fsync **on**.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_lab.local import shared_memory
from walkeeper_lab.local.tcp_ports import free_port

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "16MB",
    "max_connections": "40",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "wal_level": "replica",
    "autovacuum": "off",
    # Compilers of queries are large, and no test has a query that needs one. pg_rewind's takes it.
    "jit": "off",
    # A checkpoint or a running-xacts record in the middle would move LSNs under a test.
    "checkpoint_timeout": "1h",
    "max_wal_size": "10GB",
    # The other kinds of shared memory stay on the machine when a server is killed.
    "dynamic_shared_memory_type": "mmap",
    "log_line_prefix": "%m [%p] %a ",
    "log_replication_commands": "on",
}
_initialised: dict[tuple[str, ...], Path] = {}
_chosen: list[Path] = []


@contextlib.contextmanager
def installation(binaries: Path) -> Iterator[None]:
    """Take programs from `binaries`, with the libraries beside it, for as long as it lasts."""
    _chosen.append(binaries)
    try:
        yield
    finally:
        _chosen.pop()


def binary_directory() -> Path:
    """Return the chosen installation's directory, Debian's newest, else where pg_ctl is found."""
    if _chosen:
        return _chosen[-1]
    versions = Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")
    if newest := sorted(versions, key=lambda path: int(path.parts[-3])):
        return newest[-1].parent
    found = shutil.which("pg_ctl")
    assert found, "no PostgreSQL server is installed; `make install` as root installs it"
    return Path(found).parent


def program(name: str) -> str:
    return str(binary_directory() / name)


def server_user() -> str | None:
    """Return the user that PostgreSQL's programs run as, or None if that is us."""
    return "postgres" if os.geteuid() == 0 else None


def server_environment() -> dict[str, str]:
    """Return our environment without PG* and WALKEEPER_*: no settings of ours reach a server."""
    ours = ("PG", "WALKEEPER_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    chosen = {"LD_LIBRARY_PATH": str(_chosen[-1].parent / "lib")} if _chosen else {}
    return {**kept, **chosen, "LC_ALL": "C", "PGCONNECT_TIMEOUT": "10"}


def run_as_server_user(
    arguments: Sequence[str], *, check: bool = True, timeout_s: float = LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Run a program of PostgreSQL's, as the user that owns the data directories."""
    return run_program([*as_server_user(), *arguments], check=check, timeout_s=timeout_s)


def as_server_user() -> tuple[str, ...]:
    """Return the words before a command that make it the server user's.

    With subprocess's own `user`, Python copies the tables of all memory of the test's process.
    """
    user = server_user()
    if user is None:
        return ()
    group = pwd.getpwnam(user).pw_gid
    return ("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--")


def run_program(
    arguments: Sequence[str], *, check: bool = True, timeout_s: float = LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in the servers' environment."""
    done = subprocess.run(
        arguments,
        env=server_environment(),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert not check or done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}"
    return done


def make_directory(prefix: str = "walkeeper_pg_") -> Path:
    """Make an empty directory that the server's user owns and everybody may traverse."""
    path = Path(tempfile.mkdtemp(prefix=prefix))
    path.chmod(0o755)
    own(path)
    return path


def own(path: Path) -> None:
    """Give a directory's tree to the server's user, but for files that go meanwhile."""
    user = server_user()
    if user is None:
        return
    entry = pwd.getpwnam(user)
    for directory, _, files in os.walk(path):
        for name in (directory, *(os.path.join(directory, file) for file in files)):
            with contextlib.suppress(FileNotFoundError):
                os.lchown(name, entry.pw_uid, entry.pw_gid)


def initialised_directory(options: tuple[str, ...]) -> Path:
    """Return the directory that initdb made for these options, once per process."""
    key = (str(binary_directory()), *options)
    if key not in _initialised:
        directory = make_directory("walkeeper_initdb_")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        run_as_server_user(
            [
                program("initdb"),
                *("-D", str(directory / "data"), "-U", "postgres", "-A", "trust"),
                *("-E", "UTF8", "--locale=C", "--no-sync", *options),
            ]
        )
        _initialised[key] = directory / "data"
    return _initialised[key]


class PostgresServer:
    """One cluster: `create` makes it, `close` stops and deletes it. Blocking calls throughout."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.log = directory / "log"
        self.port = free_port()
        sockets = {"port": str(self.port), "unix_socket_directories": str(directory)}
        self.configure({**SETTINGS, **sockets, **(settings or {})})

    @classmethod
    @contextlib.contextmanager
    def create(
        cls,
        settings: Mapping[str, str] | None = None,
        *,
        initdb_options: Sequence[str] = (),
        start: bool = True,
    ) -> Iterator[PostgresServer]:
        """Make a server. For small segments pass `initdb_options=["--wal-segsize=1"]`.

        A cluster has its own identifier only per set of options. Copies of one initdb share theirs,
        as a restored backup does.
        """
        directory = make_directory()
        try:
            source = initialised_directory(tuple(initdb_options))
            run_as_server_user(["cp", "-a", str(source), str(directory / "data")])
            server = cls(directory, settings)
            try:
                if start:
                    server.start()
                yield server
            finally:
                server.kill()
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Append to postgresql.conf: the last entry counts, from the next start or reload."""
        quoted = (
            f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n"
            for name, value in settings.items()
        )
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(quoted)

    def pg_ctl(self, *arguments: str, check: bool = True) -> str:
        command = [program("pg_ctl"), "-D", str(self.data), *arguments]
        return run_as_server_user(command, check=check).stdout

    def start(self) -> None:
        """Start, and wait for connections. The error is the log of a server that fails."""
        command = ("-l", str(self.log), "-w", "-t", f"{LIMIT_S:.0f}", "start")
        output = self.pg_ctl(*command, check=False)
        assert "server started" in output, f"{output}\n{self.log_text()[-3000:]}"

    def stop(self, mode: str = "fast", *, timeout_s: float = LIMIT_S) -> None:
        """Stop in the mode smart, fast or immediate."""
        self.pg_ctl("-m", mode, "-w", "-t", f"{timeout_s:.0f}", "stop")

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def reload(self) -> None:
        self.pg_ctl("reload")

    def promote(self) -> None:
        self.pg_ctl("-w", "-t", f"{LIMIT_S:.0f}", "promote")

    def wait_unused(self, slot: str) -> None:
        """Wait until no walsender uses the slot: it learns late that its client has gone."""
        query = "SELECT bool_or(active) IS NOT true FROM pg_replication_slots WHERE slot_name = "
        wait_until(lambda: self.sql(f"{query}'{slot}'"))

    def freeze_background_writer(self) -> None:
        """Stop the process that logs the running transactions every 15 s, until the server ends.

        The end of WAL then stays where the last statement has left it."""
        query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'"
        os.kill(wait_until(lambda: self.sql(query)), signal.SIGSTOP)

    def kill(self) -> None:
        """Send SIGKILL to the postmaster and all its processes; do nothing if it is not running."""
        segment = shared_memory.segment_of(self.data)
        if not self.is_running:
            shared_memory.remove(segment)  # a test may have killed the server in its own way
            return
        victims = self.signal_all(signal.SIGKILL)
        wait_until(lambda: not any(map(_is_alive, victims)))
        shared_memory.remove(segment)
        # A zombie that nobody has reaped yet still counts as a live owner of the lock files.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        (self.directory / f".s.PGSQL.{self.port}.lock").unlink(missing_ok=True)

    def signal_all(self, number: signal.Signals) -> list[int]:
        """Signal the postmaster, so that it starts no more, then its children; return them all."""
        pid = self.postmaster_pid()
        assert pid is not None, f"{self.data}: not running"
        children = set(children_of(pid))  # before: a dead parent has none
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        children |= set(children_of(pid))  # after: a stopped one makes none
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        return [pid, *children]

    def postmaster_pid(self) -> int | None:
        try:
            pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        except (FileNotFoundError, IndexError):
            return None
        return pid if _is_alive(pid) else None

    @property
    def is_running(self) -> bool:
        return self.postmaster_pid() is not None

    def dsn(self, **parameters: str | int) -> str:
        """Return libpq's form; also asyncpg's, through walkeeper_proposer.postgres.primary_sql."""
        given: dict[str, str | int] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "postgres",
            "dbname": "postgres",
        }
        return psycopg.conninfo.make_conninfo("", **{**given, **parameters})

    def connect(self, **parameters: str | int) -> psycopg.Connection[Any]:
        """Open an autocommitting connection, which the caller closes. No statement hangs a test."""
        given: dict[str, str | int] = {"options": f"-c statement_timeout={LIMIT_S:.0f}s"}
        return psycopg.connect(self.dsn(**{**given, **parameters}), autocommit=True)

    def sql(self, *statements: str, **parameters: str | int) -> Any:
        """Return the first column of the last statement's first row, or None without one."""
        with self.connect(**parameters) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(statement.encode()).fetchall()

    def psql(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a psql of its own process, for statements that are expected to hang."""
        command = [program("psql"), "-XAt", "-d", self.dsn(), *arguments]
        return subprocess.Popen(
            command,
            env=server_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def base_backup(
        self, settings: Mapping[str, str] | None = None, *, options: Iterable[str] = ()
    ) -> PostgresServer:
        """Make a stopped copy in its own directory; the caller starts, kills and deletes it."""
        directory = make_directory("walkeeper_backup_")
        target = str(directory / "data")
        run_as_server_user(
            [
                program("pg_basebackup"),
                *("-d", self.dsn(), "-D", target, "-c", "fast", "--no-sync", *options),
            ]
        )
        return PostgresServer(directory, settings)

    def delete(self) -> None:
        """Kill it and remove its directory: for what `base_backup` made."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def make_tablespace(self, name: str) -> None:
        """Make a tablespace in the server's directory."""
        place = self.directory / name
        place.mkdir()
        own(place)
        self.sql(f"CREATE TABLESPACE {name} LOCATION '{place}'")

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wal_file(self, name: str) -> bytes:
        return (self.data / "pg_wal" / name).read_bytes()


def children_of(pid: int) -> list[int]:
    """List the processes whose parent is `pid`, from /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid:
                found.append(int(entry.name))
    return found


def _is_alive(pid: int) -> bool:
    """Return True if the process is neither gone nor a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"
