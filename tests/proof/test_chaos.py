"""The fault runner, short, and the proofs that it can fail: its faults hurt, its checker turns red.

`make chaos` is the long form.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof.chaos.checked_loads import Loads
from tests.proof.chaos.checker import PrimaryIsLost, check_ids, check_segments
from tests.proof.chaos.faulted_cluster import NUMBERS, SEGMENT_BYTES, ChaosCluster
from tests.proof.chaos.kinds import KINDS
from tests.proof.chaos.loop_disk import LoopDisk
from tests.proof.chaos.member_faults import MembersFault
from tests.proof.chaos.namespaces import Network, Node, remove_leftovers, run, why_not
from tests.proof.chaos.steered_disk import SteeredDisk, compiled_library
from tests.proof.chaos.verdicts import Violation
from tests.support.cluster import lsn_of
from tests.support.segment_files import segments, start_of
from tests.support.waiting import wait_until

needs_root = pytest.mark.usefixtures("network_works")
SHORT_KINDS = ("power_cut_of_all", "cut_off_and_succeeded", "failing_sync", "two_full_disks")
SHORT_S = 240  # alone on two cores it takes 30
SLOW_MS = 150
SYNC = "import os, sys; d = os.open(sys.argv[1], os.O_RDWR); os.fdatasync(d)"
WRITE = "import os, sys; d = os.open(sys.argv[1], os.O_RDWR); os.pwritev(d, [b'x', b'y'], 0)"


@pytest.fixture(scope="module")
def network_works() -> None:
    """Skips with the reason where the runner refuses to run."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def steered(tmp_path: Path) -> SteeredDisk:
    return SteeredDisk(tmp_path / "orders", compiled_library(tmp_path))


def test_a_change_of_members_is_followed_by_a_newer_base_backup() -> None:
    """Three new members keep no WAL of the first backup: the checker took that for a loss."""
    kinds = [kind for kind in KINDS if issubclass(kind, MembersFault)]
    assert len(kinds) > 3 and all(kind.renews_members for kind in kinds)


def under(disk: SteeredDisk, program: str, file: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, as a safekeeper is one."""
    return subprocess.run(
        [sys.executable, "-c", program, str(file)],
        env=os.environ | disk.environment(),
        capture_output=True,
        text=True,
        timeout=20,
    )


@pytest.mark.skipif(shutil.which("gcc") is None, reason="it is compiled when it is used: gcc")
def test_a_steered_disk_is_slow_fails_and_lies_for_the_files_that_are_meant(
    steered: SteeredDisk, tmp_path: Path
) -> None:
    meant, other = tmp_path / "wal_file", tmp_path / "other"
    for file in (meant, other):
        file.write_bytes(b"--")
    steered.slow(SLOW_MS, match="/wal_file")
    began_s = time.monotonic()
    assert under(steered, SYNC, meant).returncode == 0
    assert time.monotonic() - began_s > SLOW_MS / 1000 and steered.delayed == 1
    steered.fail_syncs(match="/wal_file")
    assert under(steered, SYNC, other).returncode == 0 and steered.failed == 0
    assert "Input/output error" in under(steered, SYNC, meant).stderr and steered.failed == 1
    assert under(steered, SYNC, meant).returncode == 0, "one failure was ordered"
    steered.fail_writes(match="/wal_file")
    assert "Input/output error" in under(steered, WRITE, meant).stderr
    assert meant.read_bytes() == b"--"
    assert under(steered, WRITE, meant).returncode == 0 and meant.read_bytes() == b"xy"
    steered.lie(match="/wal_file")
    assert under(steered, SYNC, meant).returncode == 0 and steered.lied == 1


@needs_root
def test_a_power_cut_takes_what_was_not_synced_and_nothing_else(tmp_path: Path) -> None:
    disk = LoopDisk(tmp_path / "image", tmp_path / "disk")
    disk.make()
    try:
        file = disk.mount_point / "file"
        file.write_bytes(b"-" * 8192)
        os.sync()
        descriptor = os.open(file, os.O_RDWR)
        os.pwrite(descriptor, b"synced", 0)
        os.fdatasync(descriptor)
        os.pwrite(descriptor, b"unsynced", 4096)
        disk.power_cut()
        os.close(descriptor)
        disk.restore_power()
        assert file.read_bytes() == b"synced".ljust(8192, b"-")
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.mount_point / "more").write_bytes(b"-" * 8192)
        disk.release()
        (disk.mount_point / "more").write_bytes(b"-" * 8192)
    finally:
        disk.close()


@needs_root
def test_a_one_way_partition_lets_the_other_direction_through() -> None:
    def arrives(sender: Node, receiver: Node) -> bool:
        """Send a datagram, so that no answer is needed. The receiver listens in its namespace.

        The receiver sends itself another one afterwards. So it receives one in any case."""
        code = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
        listen = "s.bind(('', 9)); print('up', flush=True); print(s.recv(9).decode())"
        with subprocess.Popen(
            [*receiver.prefix, sys.executable, "-c", code + listen],
            stdout=subprocess.PIPE,
            text=True,
        ) as listener:
            assert listener.stdout is not None and listener.stdout.readline()
            for node, text in ((sender, "sent"), (receiver, "end")):
                to = f"s.sendto(b'{text}', ('{receiver.address}', 9))"
                node.run(sys.executable, "-c", code + to)
            return listener.stdout.readline() == "sent\n"

    with Network.create(("a", "b")) as network:
        a, b = network["a"], network["b"]
        assert arrives(a, b) and arrives(b, a)
        network.deafen(a, b)
        assert arrives(a, b) and not arrives(b, a)
        network.heal()
        assert arrives(b, a)
    assert not remove_leftovers()


@needs_root
def test_no_bridge_is_where_the_machine_may_drop_what_it_forwards() -> None:
    """As it does where Docker runs, which asks iptables about what any bridge forwards."""
    bridges = ("ip", "-o", "link", "show", "type", "bridge")
    before = run(*bridges)
    with Network.create(("a", "b")) as network:
        assert run(*bridges) == before and network["a"].run(*bridges) == ""


def test_every_kind_of_fault_has_a_name_of_its_own_and_says_what_it_is() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 30


@needs_root
@pytest.mark.soak
@pytest.mark.postgres
def test_no_commit_is_lost_while_power_network_and_disks_fail(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    chosen = [word for kind in SHORT_KINDS for word in ("--only", kind)]
    command = [
        sys.executable,
        "-m",
        "tests.proof.chaos",
        "--rounds-per-fault",
        "1",
        "--json",
        str(file),
    ]
    done = subprocess.run(
        [*command, "--check-every", "3", *chosen], capture_output=True, text=True, timeout=SHORT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(file.read_text())
    assert figures["lost"] == 0 and figures["restores"] == 6, figures
    assert sorted(figures["kinds"]) == sorted(SHORT_KINDS)


@pytest.fixture
def directory() -> Iterator[Path]:
    """PostgreSQL's user must be able to traverse it."""
    with tempfile.TemporaryDirectory(prefix="walkeeper_red_") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@needs_root
@pytest.mark.postgres
@pytest.mark.soak
def test_the_checker_turns_red_for_a_lost_id_a_forked_byte_and_disks_that_lied(
    directory: Path,
) -> None:
    with ChaosCluster.running(directory) as cluster:
        loads = Loads(cluster.primary, cluster.standby, directory)
        disaster = PrimaryIsLost(cluster, loads)
        with loads:
            loads.journals[0].wait_for_more(100)
            _ids_that_nobody_has_turn_it_red(loads)
            _a_byte_that_differs_turns_it_red(cluster)
            for steered in cluster.steered:
                steered.lie()
            loads.journals[0].wait_for_more(300)
            with pytest.raises(Violation):
                disaster.play()
        assert all(steered.lied for steered in cluster.steered)
        disaster.close()


def _ids_that_nobody_has_turn_it_red(loads: Loads) -> None:
    journal = loads.journals[0]
    promised = journal.acknowledged
    check_ids(journal, promised, set(promised), "here")
    with pytest.raises(Violation, match="1 acknowledged lost"):
        check_ids(journal, promised, promised - {min(promised)}, "here")
    with pytest.raises(Violation, match="nobody wrote"):
        check_ids(journal, promised, promised | {max(promised) + 10**6}, "here")


def _a_byte_that_differs_turns_it_red(cluster: ChaosCluster) -> None:
    """Change a byte in the oldest segment, which nobody reads again."""
    file = cluster.wal_dir(2) / segments(cluster.wal_dir(2))[0]
    beyond = start_of(file.name, SEGMENT_BYTES) + SEGMENT_BYTES

    def committed() -> bool:
        statuses = [cluster.log_status(number) for number in NUMBERS]
        return all(status and lsn_of(status["commit_lsn"]) > beyond for status in statuses)

    wait_until(committed, 30)
    assert check_segments(cluster, primary=None)
    with file.open("r+b") as opened:
        opened.seek(9000)
        right = opened.read(1)
        opened.seek(9000)
        opened.write(bytes([right[0] ^ 1]))
        opened.flush()
        with pytest.raises(Violation, match="forked"):
            check_segments(cluster, primary=None)
        opened.seek(9000)
        opened.write(right)
