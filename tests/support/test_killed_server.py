"""A server that was killed and deleted leaves no shared memory behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until
from walkeeper_lab.local.shared_memory import segment_of

pytestmark = pytest.mark.postgres


def segments() -> set[int]:
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {int(line.split()[1]) for line in lines}


def test_the_shared_memory_of_a_servers_processes_lies_in_its_own_directory() -> None:
    """In /dev/shm it would outlive a killed server: a day's tests left 4.8 GB of memory there."""
    with PostgresServer.create(initdb_options=["--wal-segsize=1"]) as server:
        maps = Path(f"/proc/{server.postmaster_pid()}/maps").read_text()
    assert "/dev/shm/" not in maps and f"{server.data}/pg_dynshmem/" in maps


def test_the_segment_of_a_killed_server_is_removed() -> None:
    with PostgresServer.create(initdb_options=["--wal-segsize=1"]) as server:
        first = segment_of(server.data)
        assert first in segments()
        server.kill()
        assert first not in segments()
        server.start()
        second = segment_of(server.data)
        assert second in segments()
        server.signal_all(signal.SIGKILL)
        wait_until(lambda: not server.is_running)
        assert second in segments()
    assert second not in segments()
