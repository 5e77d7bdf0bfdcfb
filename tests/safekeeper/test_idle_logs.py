"""A safekeeper with many idle logs has no more threads than one with a few, also after a start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof.many_logs import Host
from tests.support.waiting import wait_until
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration, LogKind

MANY = 60
THREADS_MAX = 10  # as many as with two logs, and what the loop itself may use


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path, 1)
    made.daemon.start()
    try:
        yield made
    finally:
        made.close()


def test_threads_do_not_grow_with_idle_logs(host: Host) -> None:
    like = Configuration(
        log_uuid=bytes(16), generation=1, kind=LogKind.PHYSICAL, system_id=7,
        segment_bytes=1 << 20, members=("1@made",),
        ack_quorum=1, creation_lsn=Lsn(1 << 20), timeline=1, server_version="150000",
    )  # fmt: skip
    host.add_idle(like, MANY)
    wait_until(lambda: host.figures()["Threads"] <= THREADS_MAX)
    host.daemon.kill()
    host.daemon.start()
    wait_until(lambda: host.figures()["Threads"] <= THREADS_MAX)
    assert len(list((host.directory / "safekeeper1").glob("idle*"))) == MANY
