"""Data directories of earlier commits: today's safekeepers open them and serve the same bytes.

A scene in tests/old_data/<commit> has a .tar.xz with the data directories of three safekeepers.
Its .json has the facts from that time. The digest is that of the primary's own files in pg_wal,
so it owes nothing to a safekeeper's code.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.change_consumer import Replica, receive, transactions
from tests.support.cluster import Daemon, lsn_of
from tests.support.postgres_server import make_directory
from tests.support.raw_client import RawClient, close_all_clients
from tests.support.waiting import LIMIT_S
from walkeeper_admin.status import gather
from walkeeper_common.lsn import Lsn
from walkeeper_lab.local.tcp_ports import free_port
from walkeeper_proposer.settling import settle

pytestmark = pytest.mark.postgres

SCENES = Path(__file__).parent.parent / "old_data"
PHYSICAL = ("killed", "promoted")
STATUS_S, SETTLE_S = 30.0, 40.0


def unpack(packed: Path, directory: Path) -> None:
    """Write one scene's files. `extractall` wants a filter from 3.12 on, and 3.11.2 has none."""
    with tarfile.open(packed) as file:
        for member in file:
            path = directory / member.name
            if member.isdir():
                path.mkdir(mode=0o700)
            elif content := file.extractfile(member):
                path.write_bytes(content.read())


class OldSafekeepers:
    """The three of one scene, run by the code of today."""

    def __init__(self, scene: Path, directory: Path) -> None:
        self.directory = directory
        self.facts: dict[str, Any] = json.loads(scene.with_suffix(".json").read_text())
        unpack(scene.with_suffix(".tar.xz"), directory)
        self.ports = [free_port() for _ in range(3)]
        self.daemons = [self._daemon(number, port) for number, port in enumerate(self.ports, 1)]

    def _daemon(self, number: int, port: int) -> Daemon:
        name = f"safekeeper{number}"
        where = ("--data-dir", str(self.directory / name), "--listen", f"127.0.0.1:{port}")
        log = self.directory / f"{name}.log"
        return Daemon(name, ("safekeeper", "--id", str(number), *where), log)

    def start(self) -> None:
        for daemon in self.daemons:
            daemon.start(wait=False)
        for daemon in self.daemons:
            daemon.wait_ready()

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.kill()

    def members(self) -> dict[str, dict[str, Any]]:
        """Return each safekeeper's part of the status, by its id."""
        addresses = [("127.0.0.1", port) for port in self.ports]
        status = asyncio.run(gather(addresses, self.facts["cluster"], STATUS_S))
        return {str(line["id"]): line for line in status["safekeepers"] if line["reachable"]}

    def settle(self) -> Lsn:
        """Elect a leader, as `walkeeper settle` does; return the end of the log.

        The command itself refuses a logical log, which has no standby to promote.
        """
        addresses = [("127.0.0.1", port) for port in self.ports]
        settling = settle(addresses, self.facts["cluster"], seal=False, timeout_s=SETTLE_S)
        return asyncio.run(settling).consensus_lsn

    def wal_digest(self, port: int) -> str:
        """Return the SHA-256 of the WAL in the scene's range, streamed as to a standby."""
        begin, size = self.facts["begin_lsn"], self._wal_bytes()

        async def read() -> bytes:
            client = await RawClient.connect(port)
            await client.start(f"START_REPLICATION {begin} TIMELINE {self.facts['timeline']}")
            found = await client.wal(size)
            await close_all_clients()
            return found[:size]

        wal = asyncio.run(asyncio.wait_for(read(), LIMIT_S))
        return hashlib.sha256(wal).hexdigest()

    def _wal_bytes(self) -> int:
        return lsn_of(self.facts["end_lsn"]) - lsn_of(self.facts["begin_lsn"])


def commits() -> list[str]:
    return sorted(path.name for path in SCENES.iterdir() if path.is_dir())


@pytest.fixture(params=commits())
def commit(request: pytest.FixtureRequest) -> Path:
    return SCENES / str(request.param)


@pytest.fixture
def directory() -> Iterator[Path]:
    made = make_directory("walkeeper_old_data_")
    try:
        yield made
    finally:
        shutil.rmtree(made)


def opened(scene: Path, directory: Path) -> Iterator[OldSafekeepers]:
    safekeepers = OldSafekeepers(scene, directory)
    try:
        safekeepers.start()
        yield safekeepers
    finally:
        safekeepers.close()


@pytest.fixture(params=PHYSICAL)
def physical(
    request: pytest.FixtureRequest, commit: Path, directory: Path
) -> Iterator[OldSafekeepers]:
    yield from opened(commit / request.param, directory)


@pytest.fixture
def logical(commit: Path, directory: Path) -> Iterator[OldSafekeepers]:
    yield from opened(commit / "logical", directory)


def check_state(safekeepers: OldSafekeepers) -> None:
    """Compare the term, the log end and the slots with those at the time of the kill."""
    members = safekeepers.members()
    assert len(members) == 3, members
    for number, then in safekeepers.facts["members"].items():
        now = members[number]
        assert (now["term"], now["flush_lsn"]) == (then["term"], then["flush_lsn"]), now
    slots = {slot["slot_name"] for slot in members["1"]["slots"] or ()}
    assert set(safekeepers.facts["slots"]) <= slots, slots


def test_every_commit_has_all_scenes() -> None:
    """Prove that no scene is left out: the tests below take the folders that exist."""
    assert "399c733" in commits()
    for name in commits():
        scenes = {path.name for path in (SCENES / name).iterdir()}
        expected = {f"{s}.{kind}" for s in (*PHYSICAL, "logical") for kind in ("json", "tar.xz")}
        assert scenes == expected, name


def test_old_wal_is_opened_and_streamed_byte_for_byte(physical: OldSafekeepers) -> None:
    check_state(physical)
    end_lsn = physical.facts["end_lsn"]
    assert str(physical.settle()) == end_lsn
    members = physical.members()
    for number, port in enumerate(physical.ports, 1):
        if lsn_of(members[str(number)]["commit_lsn"]) >= lsn_of(end_lsn):
            assert physical.wal_digest(port) == physical.facts["sha256"], number
    after = [member for member in members.values() if member["commit_lsn"] == end_lsn]
    assert len(after) >= 2, members
    assert all(
        m["term"] > max(t["term"] for t in physical.facts["members"].values()) for m in after
    )


def test_an_old_logical_log_is_opened_and_consumed_to_its_end(logical: OldSafekeepers) -> None:
    check_state(logical)
    assert str(logical.settle()) == logical.facts["members"]["1"]["flush_lsn"]
    replica = Replica()
    for transaction in transactions(receive(logical.ports[0], "feed", logical.facts["until_lsn"])):
        replica.apply(transaction)
    keys = [int(dict(row)["i"] or 0) for row in replica.rows("public.t")]
    assert (len(keys), sum(keys)) == (logical.facts["rows"], int(logical.facts["sum"]))
