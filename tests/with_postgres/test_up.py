"""`walkeeper up` on an existing server: attached while it runs, resumed, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.cluster import Daemon, walkeeper
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_lab.local.tcp_ports import free_port

pytestmark = pytest.mark.postgres

TOKEN = "0123456789abcdef"
SETTING = "SHOW synchronous_standby_names"
ATTACHED = "FIRST 1 (walkeeper)"
COMMANDS = ("walkeeper_cli safekeeper", "walkeeper_cli proposer")
WELL = "status: ok: every safekeeper has what is committed; primary: walkeeper streaming as sync"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create() as made:
        made.sql("CREATE TABLE t (i int)")
        yield made


class Up(Daemon):
    """`walkeeper up`; started when it says that commits wait."""

    def __init__(self, directory: Path, base_port: int, dsn: str) -> None:
        self.directory = directory / "up"
        arguments = ("up", "--data-dir", str(self.directory), "--base-port", str(base_port))
        super().__init__("up", (*arguments, "--dsn", dsn), directory / "up.out")

    def read_by(self, output: str) -> None:
        """Let bash lead its stdout there; keep stderr."""
        self._prefix = ("bash", "-c", f'exec "$@" > {output}', "bash")

    def wait_ready(self, timeout_s: float = LIMIT_S) -> None:
        self.wait_said(WELL, timeout_s)

    def wait_said(self, text: str, timeout_s: float = LIMIT_S) -> None:
        def said() -> bool:
            assert text in self.output() or self.is_running, self.output()
            return text in self.output()

        wait_until(said, timeout_s)

    def daemons(self) -> dict[str, int]:
        """Return them by the words after `walkeeper`, of this directory or these ports."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().decode().replace("\0", " ")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            ours = parent == self.pid or str(self.directory) in words
            for command in COMMANDS:
                if command in words and ours:
                    found[words.partition("walkeeper_cli ")[2][:17].strip()] = int(entry.name)
        return found

    def interrupt(self) -> int:
        self.signal(signal.SIGINT)
        return self.ended()


@pytest.fixture
def up(server: PostgresServer, tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path, base_port_with_three_free(), server.dsn())
    try:
        yield made
    finally:
        made.kill()
        walkeeper("detach", "--drop-slot", "--dsn", server.dsn())


def base_port_with_three_free() -> int:
    """Return the first of three neighbouring ports, all of this process's block."""
    three = [free_port() for _ in range(3)]
    while three[2] - three[0] != 2:
        three = [*three[1:], free_port()]
    return three[0]


def page_of(address: str) -> dict[str, Any]:
    """Return the document that the web page of `up` shows."""
    asked = Request(f"http://{address}/status", headers={"Authorization": f"Bearer {TOKEN}"})
    with urlopen(asked, timeout=20) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_up_attaches_heals_and_leaves_the_server_as_it_was(
    up: Up, server: PostgresServer, tmp_path: Path
) -> None:
    address, token = f"127.0.0.1:{free_port()}", tmp_path / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    up.start("--http", address, "--http-token", str(token))
    attached = up.output().partition("attached: ")[2]
    assert "no commit waits" not in attached, "it has asked the primary since the attach"
    assert server.sql(SETTING) == ATTACHED
    wait_until(lambda: page_of(address)["verdict"]["state"] == "OK")
    assert "page: http://" in str(page_of(address)["events"])
    with pytest.raises(HTTPError, match="401"):
        urlopen(f"http://{address}/", timeout=20)
    first = up.daemons()
    assert sorted(first) == ["proposer --safeke", "safekeeper --id 1", "safekeeper --id 2",
                             "safekeeper --id 3"]  # fmt: skip
    for name, said in (("safekeeper --id 2", "safekeeper 2"), ("proposer --safeke", "proposer")):
        os.kill(first[name], signal.SIGKILL)
        up.wait_said(f"{said} was killed by SIGKILL; starting it again in 0.5 s")
        up.wait_said(f"started again: {said} ")
        server.sql("INSERT INTO t VALUES (1)")
    assert up.interrupt() == 0, up.output()
    assert "detached: " in up.output() and "stopped" in up.output()
    assert TOKEN not in up.output(), "the output is a file here"
    assert server.sql(SETTING) == ""
    assert not up.daemons() and not (up.directory / "attached").exists()
    assert {path.stat().st_mode & 0o77 for path in (up.directory, up.directory / "lock")} == {0}


def test_up_makes_certificates_and_admits_no_peer_without_one(
    up: Up, server: PostgresServer
) -> None:
    """A local user without a file cannot depose the leader or read the WAL."""
    up.start()
    base_port = int(up.arguments[up.arguments.index("--base-port") + 1])
    where = ",".join(f"127.0.0.1:{base_port + number}" for number in range(3))
    files = up.directory / "tls"
    assert {path.stat().st_mode & 0o77 for path in (files, *files.rglob("*.key"))} == {0}
    refused = walkeeper("status", "--safekeepers", where)
    assert refused.stdout.count("with a certificate only") >= 3, refused
    admin = ("--tls", str(files / "admin.pem"))
    allowed = walkeeper("status", "--safekeepers", where, *admin)
    assert allowed.returncode == 0 and "certificate" not in allowed.stdout, allowed
    before = (files / "proposer.pem").read_bytes()
    assert up.interrupt() == 0
    up.start()
    assert (files / "proposer.pem").read_bytes() == before, "it is renewed when it is due"
    server.sql("INSERT INTO t VALUES (5)")
    assert up.interrupt() == 0


def test_a_killed_up_leaves_no_daemon_and_the_next_one_resumes_and_detaches(
    up: Up, server: PostgresServer
) -> None:
    up.start()
    second = walkeeper(*up.arguments)
    assert second.returncode == 1 and "another `walkeeper up` runs" in second.stderr
    up.kill()
    wait_until(lambda: not up.daemons())
    assert server.sql(SETTING) == ATTACHED  # no process was there to detach it
    up.start()
    assert "resuming the log" in up.output() and "already attached" in up.output()
    server.sql("INSERT INTO t VALUES (2)")
    assert up.interrupt() == 0 and server.sql(SETTING) == ""


@pytest.mark.parametrize("output", ["/dev/full", pytest.param(">(true)", marks=pytest.mark.soak)])
def test_an_up_that_nobody_reads_goes_on_and_detaches(
    up: Up, server: PostgresServer, output: str
) -> None:
    up.read_by(output)
    up.start(wait=False)
    wait_until(lambda: server.sql(SETTING) == ATTACHED)
    server.sql("INSERT INTO t VALUES (4)")
    assert up.interrupt() == 0, up.output()
    assert server.sql(SETTING) == "" and not up.daemons()


@pytest.mark.soak
def test_stay_attached_is_for_the_next_up(up: Up, server: PostgresServer) -> None:
    up.start("--stay-attached")
    assert up.interrupt() == 0
    assert "commits hang until the next `walkeeper up`" in up.output()
    assert server.sql(SETTING) == ATTACHED and not up.daemons()
    up.start()
    assert up.interrupt() == 0 and server.sql(SETTING) == ""


def test_a_primary_that_is_down_at_the_end_is_left_for_the_next_up(
    up: Up, server: PostgresServer
) -> None:
    up.start()
    server.stop()
    up.wait_said("primary: DOWN (no SQL connection to the primary: ")
    server.start()
    server.sql("INSERT INTO t VALUES (3)")  # the proposer has come back by itself
    server.stop()
    try:
        assert up.interrupt() == 1 and "could not detach: no SQL conn" in up.output(), up.output()
    finally:
        server.start()
    assert server.sql(SETTING) == ATTACHED and not up.daemons()
    up.start()
    assert up.interrupt() == 0 and server.sql(SETTING) == ""


def test_a_primary_that_somebody_else_has_attached_stays_attached(
    up: Up, server: PostgresServer
) -> None:
    up.start("--stay-attached")
    assert up.interrupt() == 0
    (up.directory / "attached").unlink()  # as if `walkeeper attach` had done it
    up.start()
    assert up.interrupt() == 0, up.output()
    assert "detach" not in up.output() and server.sql(SETTING) == ATTACHED


def test_a_setting_of_somebody_else_is_refused_before_anything_is_made(
    up: Up, server: PostgresServer
) -> None:
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (another)'")
    server.reload()
    try:
        up.start(wait=False)
        assert up.ended() == 1
    finally:
        server.sql("ALTER SYSTEM RESET synchronous_standby_names")
        server.reload()
    assert "'FIRST 1 (another)' already; --replace puts" in up.output()
    assert not (up.directory / "safekeeper1").exists()


def test_a_taken_port_ends_it_with_the_reason_and_leaves_nothing(
    up: Up, server: PostgresServer
) -> None:
    base_port = int(up.arguments[up.arguments.index("--base-port") + 1])
    with socket.create_server(("127.0.0.1", base_port + 1)):
        up.start(wait=False)
        assert up.ended() == 1
    assert re.search(r"error: safekeeper 2 ended with code 1: .*in use", up.output()), up.output()
    assert not up.daemons() and server.sql(SETTING) == ""


def test_unsuitable_settings_are_an_error_with_every_line_to_set(tmp_path: Path) -> None:
    small = {"wal_level": "minimal", "max_wal_senders": "0", "max_replication_slots": "0"}
    with PostgresServer.create(small) as unsuitable:
        arguments = ("up", "--data-dir", str(tmp_path / "up"), "--dsn", unsuitable.dsn())
        done = walkeeper(*arguments)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert f"In {unsuitable.data}/postgresql.conf set: " in done.stderr
    for line in ("wal_level = replica", "max_wal_senders = 10", "max_replication_slots = 10"):
        assert line in done.stderr
    assert not (tmp_path / "up" / "safekeeper1").exists()
