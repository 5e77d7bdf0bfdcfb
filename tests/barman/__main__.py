"""Barman follows over two promotions, with WAL from the safekeepers: docs/barman.conf, as it is.

    python -m tests.barman [--password]

Barman (from PyPI) runs `receive-wal` from the safekeepers. Twice the primary is killed under load
and a standby promoted. Once receive-wal stays attached, once it is killed with the primary and
begins again after the promotion. In the end every segment and each `.history` file that Barman has
archived is the safekeepers', byte for byte. There is no gap on any of the three timelines.

With --password the safekeepers have a users file and TLS. The standbys give the password in
primary_conninfo. Barman (psycopg2 and pg_receivewal) takes it from ~/.pgpass, and believes the
safekeepers' authority alone (sslmode=verify-full).

Half a minute. Exit codes: 0 it is so, 1 it is not, 3 Barman could not be installed, and why.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.cluster import Cluster, Daemon
from tests.support.installations import Unavailable
from tests.support.journal import Journal
from tests.support.postgres_server import (
    PostgresServer,
    binary_directory,
    make_directory,
    own,
    server_environment,
    server_user,
)
from tests.support.program_parser import program_parser
from tests.support.python_tools import tool_programs
from tests.support.standbys import fail_over, standby_of
from tests.support.waiting import wait_until
from tests.tls_files import TlsFiles
from walkeeper_cli.certs.authority import CA_CERTIFICATE
from walkeeper_common.access.identity import Role

EXAMPLE = Path(__file__).parents[2] / "docs" / "barman.conf"
BARMAN = ("barman-3.19.1", ["barman==3.19.1", "psycopg2-binary"])
COMMAND_S = 120
PASSWORD = "made_for_tests"
LOG_IN = """
import sys, psycopg2, psycopg2.extras
kind = psycopg2.extras.PhysicalReplicationConnection
try:
    psycopg2.connect(*sys.argv[1:], connection_factory=kind).close()
    print("admitted")
except psycopg2.OperationalError as error:
    print(error)
"""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Barman:
    """Its home, its configuration, its commands; as the servers' user."""

    def __init__(
        self, home: Path, servers: Sequence[PostgresServer], cluster: Cluster, over_tls: str
    ) -> None:
        self.home, self.said = home, home / "receive-wal.log"
        self._over_tls = over_tls
        self._program = str(tool_programs(*BARMAN) / "barman")
        self._configuration = home / "barman.conf"
        text = EXAMPLE.read_text()
        ports = [server.port for server in servers]
        for example, hosts, meant in (
            ("10.0.0.11,10.0.0.12,10.0.0.13", len(ports), ("5432,5432,5432", ports)),
            ("10.0.0.21,10.0.0.22,10.0.0.23", 3, ("5454,5454,5454", cluster.ports)),
        ):
            assert example in text and meant[0] in text, f"{EXAMPLE}: {example}"
            text = text.replace(example, ",".join(["127.0.0.1"] * hosts))
            text = text.replace(meant[0], ",".join(map(str, meant[1])))
        where = f"port={','.join(map(str, cluster.ports))} user=barman"
        assert where in text, f"{EXAMPLE}: wal_streaming_conninfo"
        text = text.replace(where, f"{where} {over_tls}".rstrip())
        text = text.replace("user=barman", "user=postgres")
        text = text.replace("/usr/lib/postgresql/15/bin", str(binary_directory()))
        user = server_user() or pwd.getpwuid(os.geteuid()).pw_name
        (home / ".pgpass").touch(0o600)
        head = f"[barman]\nbarman_home = {home}\nbarman_user = {user}\nlog_file = {home}/log\n"
        self._configuration.write_text(f"{head}barman_lock_directory = {home}\n{text}")
        own(home)

    def prove(self, password: str) -> None:
        """Give the password of the safekeepers to psycopg2 and libpq."""
        (self.home / ".pgpass").write_text(f"*:*:*:postgres:{password}\n")

    def log_in(self, port: int, password: str) -> str:
        """Return what psycopg2 of Barman's environment says to a login at a safekeeper."""
        python = Path(self._program).with_name("python")
        where = f"host=127.0.0.1 port={port} user=postgres password={password} dbname=replication"
        where = f"{where} {self._over_tls}"
        done = subprocess.run(
            [python, "-c", LOG_IN, where], capture_output=True, text=True, timeout=COMMAND_S
        )
        return done.stdout + done.stderr

    def _popen(self, *words: str, output: int | None = None) -> subprocess.Popen[str]:
        user = server_user()
        with self.said.open("a") as said:
            return subprocess.Popen(
                [self._program, "-c", str(self._configuration), *words],
                env=server_environment() | {"HOME": str(self.home)},
                user=user,
                group=pwd.getpwnam(user).pw_gid if user else None,
                extra_groups=[] if user else None,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=said if output is None else output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def run(self, *words: str, check: bool = True) -> str:
        process = self._popen(*words, output=subprocess.PIPE)
        said = process.communicate(timeout=COMMAND_S)[0]
        assert not check or process.returncode == 0, f"{words}: {process.returncode}\n{said}"
        return said

    @contextlib.contextmanager
    def receiving(self) -> Iterator[None]:
        """Start receive-wal, which is expected to stay."""
        process = self._popen("receive-wal", "shop")
        try:
            yield
            assert process.poll() is None, "receive-wal has ended"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # pg_receivewal is its child
            process.wait()

    def archived(self) -> dict[str, bytes]:
        """Return the files that `archive-wal` has taken in, by name."""
        self.run("archive-wal", "shop")
        wals = (self.home / "shop" / "wals").rglob("0*")
        return {path.name: path.read_bytes() for path in wals if path.is_file()}


def compare(cluster: Cluster, archived: dict[str, bytes]) -> bool:
    """Compare them with every safekeeper's files."""
    good = True
    for number in (1, 2, 3):
        for name, wal in archived.items():
            path = cluster.wal_dir(number) / name.removesuffix(".partial")
            if ".backup" not in name and (not path.exists() or path.read_bytes() != wal):
                say(f"safekeeper {number}: {name} differs")
                good = False
    return good


def gaps(archived: dict[str, bytes]) -> list[str]:
    """List segments that are missing between the first and the last of a timeline (of 1 MB)."""
    missing = []
    for timeline in ("00000001", "00000002", "00000003"):
        numbers = sorted(
            int(name[8:16], 16) << 12 | int(name[16:24], 16)
            for name in archived
            if name.startswith(timeline) and len(name) == 24
        )
        holes = set(range(numbers[0], numbers[-1])) - set(numbers) if numbers else set()
        missing += [f"{timeline} {number:X}" for number in sorted(holes)]
    return missing


@contextlib.contextmanager
def cluster_of(
    primary: PostgresServer, password: str, directory: Path
) -> Iterator[tuple[Cluster, str]]:
    """Yield a cluster, and libpq's parameters for its safekeepers: with a password, over TLS."""
    if not password:
        with Cluster.create(primary) as cluster:
            yield cluster, ""
        return
    files = TlsFiles(directory)
    with Cluster.create(
        primary,
        passwords={"postgres": password},
        tls=lambda number: files.path(Role.SAFEKEEPER, str(number)),
    ) as cluster:
        ca = directory / "ca" / CA_CERTIFICATE
        yield cluster, f"sslmode=verify-full sslrootcert={ca} channel_binding=require"


def play(password: str) -> bool:
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(PostgresServer.create(initdb_options=["--wal-segsize=1"]))
        home = make_directory("walkeeper_barman_")
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        cluster, over_tls = stack.enter_context(cluster_of(primary, password, home))
        second = stack.enter_context(standby_of(primary, cluster.ports[0], password))
        third = stack.enter_context(standby_of(primary, cluster.ports[1], password))
        barman = Barman(home, (primary, second, third), cluster, over_tls)
        if password:
            barman.prove(password)
            assert barman.log_in(cluster.ports[0], password) == "admitted\n"
            refusal = barman.log_in(cluster.ports[0], "wrong")
            assert 'password authentication failed for user "postgres"' in refusal, refusal
            say("psycopg2 is admitted by its password, and refused by a wrong one")
        try:
            return follow(barman, cluster, (primary, second, third))
        except AssertionError:
            say(barman.said.read_text()[-4000:])
            log = home / "log"
            say(log.read_text()[-4000:] if log.exists() else "no log")
            raise


def follow(barman: Barman, cluster: Cluster, servers: Sequence[PostgresServer]) -> bool:
    first, second, third = servers
    with barman.receiving():
        lose(first, cluster.proposer)
        proposer = fail_over(cluster, second)
        lose(second, proposer, commits=100)  # while it streams what the new timeline has
    fail_over(cluster, third)
    with barman.receiving(), Journal(third, record_bytes=100_000) as journal:
        journal.wait_for_more(300)
        third.sql("SELECT pg_switch_wal()")
        journal.wait_for_more(10)

        def all_there() -> dict[str, bytes]:
            found = barman.archived()
            is_there = any(name.startswith("00000003") and len(name) == 24 for name in found)
            return found if is_there else {}

        archived = wait_until(all_there, 60)
        checked = barman.run("check", "shop", check=False).splitlines()
        say("\n".join(line for line in checked if "receive" in line or "FAILED" in line))
    histories = sorted(name for name in archived if name.endswith(".history"))
    segments = sorted(name for name in archived if len(name) == 24)
    say(f"archived by Barman: {len(segments)} segments, {', '.join(histories)}")
    good = compare(cluster, archived) and not gaps(archived)
    say(f"missing between them: {gaps(archived) or 'none'}")
    return good and histories == ["00000002.history", "00000003.history"]


def lose(server: PostgresServer, proposer: Daemon, *, commits: int = 300) -> None:
    """Kill the primary under load."""
    with Journal(server, record_bytes=100_000) as journal:
        journal.wait_for_more(commits)
        server.kill()
        proposer.kill()


def main(arguments: Sequence[str]) -> int:
    parser = program_parser("tests.barman", __doc__)
    parser.add_argument("--password", action="store_true", help="the safekeepers ask for one")
    asked = parser.parse_args(arguments)
    try:
        return 0 if play(PASSWORD if asked.password else "") else 1
    except Unavailable as why:
        say(f"Barman could not be installed: {why}")
        return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
