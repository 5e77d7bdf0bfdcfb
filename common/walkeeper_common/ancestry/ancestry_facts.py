"""The facts of a comparison of branches (R23): what a server and a log show, and the verdict.

Pure. branch_comparison.py compares them. The readers of a data directory, of an archive and of a
safekeeper make them.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from walkeeper_common.history import History
from walkeeper_common.lsn import Lsn


class Side(Enum):
    """The side whose bytes the comparison needs."""

    SERVER = "the server"
    LOG = "the log"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for [begin_lsn, end_lsn), in one segment or record, answered whole or by None."""

    side: Side
    begin_lsn: Lsn
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last checkpoint that pg_control names; `copy` is the record's payload."""

    lsn: Lsn
    timeline: int
    copy: bytes


@dataclass(frozen=True, slots=True)
class Server:
    """The server as its data directory or SQL shows it. `timeline` is the newest in data or pg_wal.

    `timeline_file` is that timeline's .history, or None if it is missing. `end_lsn` is where the
    last whole record in pg_wal ends, or None if there is none. `checkpoint` and `min_recovery_lsn`
    (with its timeline) are unknown if the server answers over SQL.
    """

    system_id: int
    segment_bytes: int
    timeline: int
    timeline_file: bytes | None
    end_lsn: Lsn | None
    checkpoint: Checkpoint | None = None
    min_recovery_lsn: Lsn | None = None
    min_recovery_timeline: int = 0

    @property
    def positions(self) -> list[tuple[int, Lsn]]:
        """(timeline, LSN) of all that this server has, or may have, applied."""
        found = [] if self.end_lsn is None else [(self.timeline, self.end_lsn)]
        if self.checkpoint is not None:
            found.append((self.checkpoint.timeline, self.checkpoint.lsn))
        if self.min_recovery_lsn is not None:
            found.append((self.min_recovery_timeline, self.min_recovery_lsn))
        return found


@dataclass(frozen=True, slots=True)
class Log:
    """The log as a vote quorum knows it.

    WAL can be read from `oldest_lsn` to `end_lsn`, and is committed. WAL up to `record_lsn` may
    have been acknowledged.
    """

    system_id: int
    segment_bytes: int
    history: History
    oldest_lsn: Lsn
    end_lsn: Lsn
    record_lsn: Lsn

    @property
    def creation_lsn(self) -> Lsn:
        return self.history[0].start_lsn


@dataclass(frozen=True, slots=True)
class SameBranch:
    """All bytes that could be compared are equal, with a telling record among them.

    `ahead_bytes` is the size of the server's WAL that is not known to be committed.
    """

    through_lsn: Lsn
    ahead_bytes: int = 0


@dataclass(frozen=True, slots=True)
class AnotherBranch:
    """The server has WAL of another branch: `text` says what differs, `lsn` where, if known.

    `can_rewind` is True if pg_rewind finds the point of divergence by the timelines' numbers.
    """

    text: str
    lsn: Lsn | None = None
    can_rewind: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    """The branches could not be compared: `text` says what is missing.

    `out_of_reach` is True if the log keeps no WAL that this server has. Another attempt then
    changes nothing before the server has other WAL.
    """

    text: str
    out_of_reach: bool = False


Verdict: TypeAlias = SameBranch | AnotherBranch | Unknown
Comparing: TypeAlias = Generator[Ask, bytes | None, Verdict]


def same_number(server: Server) -> str:
    """Return the beginning of a verdict's text about a branch whose timeline has equal numbers."""
    return f"another branch with the same number {server.timeline}: "


def remedy(found: AnotherBranch) -> str:
    """Return what to do with a server on another branch, for the operator."""
    if found.can_rewind:
        return (
            "rebuild it with pg_basebackup from the primary; or stop it, run CHECKPOINT on the "
            "primary, and run pg_rewind --target-pgdata=ITS_DATA_DIRECTORY "
            "--source-server='THE PRIMARY'"
        )
    return (
        "rebuild it with pg_basebackup from the primary. Do not use pg_rewind: it compares the "
        "numbers of timelines, finds them equal and leaves the other branch in place"
    )
