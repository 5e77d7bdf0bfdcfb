"""What a command does goes on when nobody reads what it says of it, and that is said in the end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres_server import PostgresServer
from tests.test_attach import Walkeeper, auto_conf, proposer, server, walkeeper

__all__ = ["server", "walkeeper"]
FULL = Path("/dev/full")


@contextlib.contextmanager
def unread(kind: str) -> Iterator[int]:
    """A descriptor that nothing can be written to."""
    if kind == "full":
        if not FULL.exists():
            pytest.skip("this system has no /dev/full")
        writing = os.open(FULL, os.O_WRONLY)
    else:
        reading, writing = os.pipe()
        os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


def run(*arguments: str, stdout: int, stderr: int = subprocess.PIPE) -> tuple[int, str]:
    """The exit code and what was said on stderr."""
    command = [sys.executable, "-m", "walkeeper_cli", *arguments]
    done = subprocess.run(command, stdout=stdout, stderr=stderr, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("kind", "said"),
    [("gone", ""), ("full", "walkeeper: error: <stdout>: No space left on device\n")],
)
def test_detach_does_all_that_it_was_told(
    server: PostgresServer, walkeeper: Walkeeper, kind: str, said: str
) -> None:
    with proposer(server), unread(kind) as output:
        assert walkeeper("attach", "--dsn", server.dsn()).code == 0
        done = run("detach", "--drop-slot", "--dsn", server.dsn(), stdout=output)
        assert done == (1, said)
    assert "synchronous_standby_names" not in auto_conf(server)
    assert server.sql("SELECT count(*) FROM pg_replication_slots") == 0


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["gone", "full"])
def test_attach_needs_nobody_who_reads_its_warnings(server: PostgresServer, kind: str) -> None:
    """Of wal_keep_size, for one."""
    with proposer(server), unread(kind) as output:
        code, _ = run("attach", "--dsn", server.dsn(), stdout=subprocess.DEVNULL, stderr=output)
        assert code == 0
        assert server.sql("SHOW synchronous_standby_names") == "FIRST 1 (walkeeper)"
