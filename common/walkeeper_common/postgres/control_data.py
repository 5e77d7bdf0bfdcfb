"""PostgreSQL's pg_control: the last checkpoint, and how far recovery has come. Pure.

    parse_control_data(content) -> ControlData

Contract: a content whose CRC is not right is refused, because a server may be writing the file.
Layout: pg_control.h of 13 to 18 on a little-endian machine. The fields that are read here have the
same offsets in all of them; the versions differ only after these fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from crc32c import crc32c

from walkeeper_common.lsn import ZERO_LSN, Lsn, is_segment_size

VERSION_MIN, VERSION_MAX = 1300, 1899
HEAD = Struct("<QIII4xqQ")  # system id, version, catalog version, state, time, checkpoint
CHECKPOINT = slice(40, 128)  # checkPointCopy
RECOVERY = Struct("<QI")  # minRecoveryPoint and its timeline
RECOVERY_OFFSET = 136
SIZES = Struct("<dIIII")  # floatFormat, blcksz, relseg_size, xlog_blcksz, xlog_seg_size
FLOAT_FORMAT = Struct("<d").pack(1234567.0)
CRC_OFFSETS = range(232, 512, 4)
CHECKPOINT_HEAD = Struct("<QI")  # redo, timeline
# fullPageWrites is one byte; the rest of its word is another field in later versions.
# PostgreSQL moves nextXid in pg_control on during recovery (xlog_redo), so it need not be the
# record's own.
COMPARED = (slice(0, 17), slice(32, 60), slice(64, 84))


class InvalidControlData(ValueError):
    """These bytes are no pg_control, or were read while the server wrote it."""


class State(IntEnum):
    """DBState of pg_control.h."""

    STARTING = 0
    SHUT_DOWN = 1
    SHUT_DOWN_IN_RECOVERY = 2
    SHUTTING_DOWN = 3
    IN_CRASH_RECOVERY = 4
    IN_ARCHIVE_RECOVERY = 5
    IN_PRODUCTION = 6


@dataclass(frozen=True, slots=True)
class ControlData:
    """`checkpoint` is pg_control's copy of the record at `checkpoint_lsn`.

    `min_recovery_lsn` is 0/0 for a server that was a primary last.
    """

    system_id: int
    state: State
    checkpoint_lsn: Lsn
    checkpoint: bytes
    min_recovery_lsn: Lsn
    min_recovery_timeline: int
    segment_bytes: int
    block_bytes: int
    """The size of a page of a table."""
    file_blocks: int
    """The pages in each file of a table, but for the last one."""

    @property
    def checkpoint_timeline(self) -> int:
        return int(CHECKPOINT_HEAD.unpack_from(self.checkpoint)[1])

    @property
    def redo_lsn(self) -> Lsn:
        """The LSN from which PostgreSQL replays."""
        return Lsn(CHECKPOINT_HEAD.unpack_from(self.checkpoint)[0])


def parse_control_data(content: bytes) -> ControlData:
    """Return the fields; raise InvalidControlData if the content is not whole."""
    if len(content) < CRC_OFFSETS.start + 4:
        raise InvalidControlData(f"pg_control has {len(content)} bytes")
    system_id, version, _, state, _, checkpoint_lsn = HEAD.unpack_from(content)
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise InvalidControlData(
            f"pg_control has version {version}: only those of PostgreSQL 13 to 18 are known"
        )
    if not _has_its_crc(content):
        raise InvalidControlData("pg_control is being written, or is damaged: its CRC is wrong")
    at = content.find(FLOAT_FORMAT)
    if at < 0:
        raise InvalidControlData("pg_control is of another kind of machine")
    _, block_bytes, file_blocks, _, segment_bytes = SIZES.unpack_from(content, at)
    if not is_segment_size(segment_bytes) or state not in list(State):
        raise InvalidControlData(f"pg_control has {segment_bytes=} {state=}")
    min_recovery_lsn, timeline = RECOVERY.unpack_from(content, RECOVERY_OFFSET)
    return ControlData(
        system_id=system_id,
        state=State(state),
        checkpoint_lsn=Lsn(checkpoint_lsn),
        checkpoint=content[CHECKPOINT],
        min_recovery_lsn=Lsn(min_recovery_lsn) if min_recovery_lsn else ZERO_LSN,
        min_recovery_timeline=timeline if min_recovery_lsn else 0,
        segment_bytes=segment_bytes,
        block_bytes=block_bytes,
        file_blocks=file_blocks,
    )


def is_same_checkpoint(copy: bytes, payload: bytes) -> bool:
    """Return True if pg_control's copy is of the record with this payload."""
    return len(copy) == len(payload) and all(copy[part] == payload[part] for part in COMPARED)


def _has_its_crc(content: bytes) -> bool:
    """Return True if a CRC ends the fields; versions have different numbers of fields."""
    return any(
        crc32c(content[:at]) == int.from_bytes(content[at : at + 4], "little")
        for at in CRC_OFFSETS
        if at + 4 <= len(content)
    )
