"""Our durable files: the control file and the slots, behind the CRC of their envelope.

Promises: only CorruptWal is raised, and it names the file. A file that was read is written again as
the same bytes, so it has one meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from struct import Struct

from crc32c import crc32c

from tests.proof.fuzz.contract import Mutation, Target, require
from tests.safekeeper.test_control_file import FULL, PREPARED
from walkeeper_common.errors import CorruptWal
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.replication.physical_slots import FILE_MAGIC, FILE_VERSION, Slots
from walkeeper_safekeeper.storage import control_file

FRONT = Struct("!8sII")
NAME = "main/file"


def run_control(data: bytes) -> None:
    try:
        durable = control_file.decode(data, NAME)
    except CorruptWal as error:
        require(NAME in str(error), "{} names no file", error)
        return
    require(control_file.encode(durable) == data, "{} is written as other bytes", durable)


def run_slots(data: bytes) -> None:
    try:
        slots = Slots(data, NAME)
    except CorruptWal as error:
        require(NAME in str(error), "{} names no file", error)
        return
    if FRONT.unpack_from(data)[1] == FILE_VERSION:  # an older file has no ids, and gets some
        require(slots.image().data == data, "{} is written as other bytes", list(slots))


def sealing(magic: bytes, version: int = 1) -> Mutation:
    """Return a mutation that gives a body its right front and CRC."""

    def seal(data: bytes, random: Random) -> bytes:
        body = data[FRONT.size : -4]
        found = int.from_bytes(data[8:12].ljust(4, b"\0"), "big")
        whole = FRONT.pack(magic, version if random.randrange(20) else found, len(body)) + body
        return whole + crc32c(whole).to_bytes(4, "big")

    return seal


def _control_seeds() -> Iterable[bytes]:
    yield control_file.encode(PREPARED)
    yield control_file.encode(FULL)
    yield control_file.encode(replace(FULL, configuration=None, history=FULL.history * 20))


def _slots_seeds() -> Iterable[bytes]:
    slots = Slots(None)
    yield slots.image().data
    for name, lsn in (("a", None), ("backup_1", Lsn(1 << 24)), ("z" * 63, Lsn(8))):
        slots.create(name, temporary=False, restart_lsn=lsn, pid=1)
        yield slots.image().data
    slots.drop("a", pid=1)
    yield slots.image().data


CONTROL = Target(
    name="control_file",
    about="the control file, behind its CRC",
    run=run_control,
    seeds=_control_seeds,
    bytes_max=4096,
    repair=sealing(control_file.MAGIC),
)
SLOTS = Target(
    name="slots_file",
    about="the replication slots' file, behind its CRC",
    run=run_slots,
    seeds=_slots_seeds,
    bytes_max=1024,
    repair=sealing(FILE_MAGIC, FILE_VERSION),
)
