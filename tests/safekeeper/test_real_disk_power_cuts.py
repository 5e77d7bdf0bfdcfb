"""The shipping RealDisk and a power cut: what it calls durable is there afterwards.

Each test runs on a machine that forgets all unsynced data, wherever the tests run. Where root may
mount one, it also runs on ext4 whose power is cut. The first shows each missing fsync, the second
that the first is no stricter than what a safekeeper promises.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.forgetful_machine import ForgetfulMachine
from walkeeper_safekeeper.disk.real_disk import RealDisk, claim_data_directory
from walkeeper_safekeeper.storage.disk_port import HALF_MADE

SEGMENT = "000000010000000000000001"
SEGMENT_BYTES = 1 << 20
WAL = b"acknowledged" * 10
ROUNDS = 3


class Machine(Protocol):
    """`path` is a durable directory of it."""

    @property
    def path(self) -> Path: ...
    def settle(self) -> None: ...
    def power_cut(self) -> None: ...


class Ext4Machine:
    """A loop device; its power is cut without a flush of ext4's journal."""

    def __init__(self, folder: Path) -> None:
        # The copies of the source that test_mutants.py makes have no tests/proof/chaos.
        from tests.proof.chaos.loop_disk import LoopDisk

        self._disk = LoopDisk(folder / "image", folder / "mounted")
        self._disk.make()
        self.path = self._disk.mount_point

    def settle(self) -> None:
        os.sync()

    def power_cut(self) -> None:
        self._disk.power_cut()
        self._disk.restore_power()

    def close(self) -> None:
        self._disk.close()


def why_no_ext4() -> str | None:
    """Return why no file system can be made and mounted here, or None."""
    if os.geteuid() != 0:
        return "only root may mount the ext4 whose power is cut"
    if shutil.which("mkfs.ext4") is None:
        return "mkfs.ext4 is not installed (Debian: e2fsprogs)"
    return None


@pytest.fixture(params=["forgetful", "ext4"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    if request.param == "forgetful":
        (tmp_path / "machine").mkdir()
        forgetful = ForgetfulMachine(tmp_path / "machine")
        with forgetful.recording():
            yield forgetful
        return
    if (reason := why_no_ext4()) is not None:
        pytest.skip(reason)
    from tests.proof.chaos.verdicts import CannotRun

    ext4 = None
    try:
        ext4 = Ext4Machine(tmp_path)
    except CannotRun as error:
        pytest.skip(f"no loop device can be mounted here: {error}")
    try:
        yield ext4
    finally:
        ext4.close()


def disk_on(machine: Machine) -> RealDisk:
    return RealDisk(str(machine.path / "log"), reserve_bytes=4096)


def test_a_control_file_that_was_replaced_is_the_new_one(machine: Machine) -> None:
    """A candidate learns of a promise when `replace` returns."""
    for number in range(ROUNDS):
        disk = disk_on(machine)
        disk.replace("control", b"older promise %d" % number)
        machine.settle()
        disk.replace("control", b"promise %d" % number)
        disk.close()
        machine.power_cut()
        assert (machine.path / "log" / "control").read_bytes() == b"promise %d" % number


def test_a_log_of_a_new_directory_is_there(machine: Machine) -> None:
    claim_data_directory(str(machine.path / "data"), 7).release()
    disk = RealDisk(str(machine.path / "data" / "main" / "wal"), reserve_bytes=0)
    disk.replace("control", b"created")
    disk.close()
    machine.power_cut()
    assert (machine.path / "data" / "main" / "wal" / "control").read_bytes() == b"created"
    assert (machine.path / "data" / "safekeeper").read_bytes() == b"walkeeper safekeeper 7\n"


def make_segment(disk: RealDisk) -> None:
    with suppress(FileNotFoundError):
        os.unlink(Path(disk.path) / SEGMENT)
    disk.allocate(SEGMENT + HALF_MADE, SEGMENT_BYTES)
    disk.rename(SEGMENT + HALF_MADE, SEGMENT)
    disk.sync_directory()


def test_a_fresh_segment_is_whole_and_has_its_name(machine: Machine) -> None:
    for _ in range(ROUNDS):
        disk = disk_on(machine)
        make_segment(disk)
        disk.close()
        machine.power_cut()
        assert (machine.path / "log" / SEGMENT).read_bytes() == bytes(SEGMENT_BYTES)
        assert not (machine.path / "log" / (SEGMENT + HALF_MADE)).exists()


def test_small_wal_that_its_writer_synced_is_there(machine: Machine) -> None:
    for number in range(ROUNDS):
        disk = disk_on(machine)
        make_segment(disk)
        machine.settle()
        writer = disk.writer(SEGMENT)
        assert writer.write(WAL, number) == len(WAL)
        writer.sync()
        writer.close()
        disk.close()
        machine.power_cut()
        assert (machine.path / "log" / SEGMENT).read_bytes()[number:].startswith(WAL)


def test_wal_that_was_synced_is_there(machine: Machine) -> None:
    disk = disk_on(machine)
    make_segment(disk)
    machine.settle()
    disk.write_at(SEGMENT, 9000, [WAL, WAL])
    disk.sync_data(SEGMENT)
    disk.close()
    machine.power_cut()
    assert (machine.path / "log" / SEGMENT).read_bytes()[9000:].startswith(WAL + WAL)


def test_names_that_were_synced_are_there_and_those_removed_are_not(machine: Machine) -> None:
    disk = disk_on(machine)
    for name in ("old", "gone"):
        disk.replace(name, name.encode())
    machine.settle()
    disk.rename("old", "new")
    disk.unlink("gone")
    disk.sync_directory()
    disk.close()
    machine.power_cut()
    folder = machine.path / "log"
    assert (folder / "new").read_bytes() == b"old"
    assert not (folder / "old").exists() and not (folder / "gone").exists()


def test_bytes_that_were_not_synced_are_lost(machine: Machine) -> None:
    """Show that each test here can fail."""
    disk = disk_on(machine)
    make_segment(disk)
    disk.replace("old", b"old")
    machine.settle()
    disk.write_at(SEGMENT, 0, [WAL])
    disk.rename("old", "new")
    disk.close()
    machine.power_cut()
    assert (machine.path / "log" / SEGMENT).read_bytes() == bytes(SEGMENT_BYTES)
    assert (machine.path / "log" / "old").exists() and not (machine.path / "log" / "new").exists()
