"""May this primary write this log? The table of PROTOCOL.md section 5, for one timeline. Pure.

Asked on the greetings, before any ballot is bumped; again on the votes; and again on every new
connection to PostgreSQL, then with the end received so far in the place of C. Neon needs none of
this because it starts PostgreSQL from a base backup at exactly the consensus LSN; a stock primary
brings a pg_wal of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_common.history import History
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration
from walkeeper_proposer.proposer_events import PrimaryIdentity

# The first minor releases that end an aborted record with OVERWRITE_CONTRECORD (commit ff9f111).
OVERWRITE_CONTRECORD_SINCE = {13: 130005, 14: 140001}


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The log as the voters (or the greeted) know it: A and C of PROTOCOL.md section 2."""

    configuration: Configuration
    history: History  # the donor's, cut
    record_lsn: Lsn  # A
    flush_lsn: Lsn  # C

    @property
    def timeline(self) -> int:
        return self.history[-1].timeline


@dataclass(frozen=True, slots=True)
class Waivers:
    """What the operator allowed explicitly: `--resume`, and unsafe settings for tests."""

    resume: bool = False
    unsafe_settings: bool = False


def refusal(primary: PrimaryIdentity, log: LogEnd, waivers: Waivers) -> str | None:
    """Why this primary may not write this log, and what to do; None: compare bytes, then stream."""
    return (
        _another_cluster(primary, log.configuration)
        or _unfit(primary, waivers)
        or _another_position(primary, log)
        or _sealed(log, waivers)
    )


def _another_cluster(primary: PrimaryIdentity, configuration: Configuration) -> str | None:
    if primary.system_id != configuration.system_id:
        return (
            f"the primary has system identifier {primary.system_id}, but this log belongs to "
            f"{configuration.system_id}; check --dsn, --safekeepers and --cluster"
        )
    if primary.segment_bytes != configuration.segment_bytes:
        return (
            f"the primary has WAL segments of {primary.segment_bytes} bytes, the log of "
            f"{configuration.segment_bytes}; it is another cluster, or was remade with another "
            "--wal-segsize"
        )
    return None


def _unfit(primary: PrimaryIdentity, waivers: Waivers) -> str | None:
    if primary.in_recovery:
        return "the server is in recovery: a standby writes no WAL; point --dsn at the primary"
    since = OVERWRITE_CONTRECORD_SINCE.get(primary.server_version_num // 10000)
    if since is not None and primary.server_version_num < since:
        return (
            f"PostgreSQL {primary.server_version} cannot mark a record that a crash cut off; "
            f"upgrade to {since // 10000}.{since % 100} or later"
        )
    off = [n for n in ("fsync", "full_page_writes") if not getattr(primary, n)]
    if off and not waivers.unsafe_settings:
        return f"the primary runs with {' and '.join(off)} off and may lose WAL; switch it on"
    return None


def _another_position(primary: PrimaryIdentity, log: LogEnd) -> str | None:
    if primary.timeline < log.timeline:
        return (
            f"the primary is on timeline {primary.timeline}, behind a promotion: the log is on "
            f"timeline {log.timeline}; pg_rewind or rebuild this server"
        )
    if primary.timeline > log.timeline:
        return (
            f"the primary is on timeline {primary.timeline}, the log on {log.timeline}; "
            "following a promotion is not available in this version"
        )
    if primary.flush_lsn < log.record_lsn:
        lost = log.record_lsn - primary.flush_lsn
        return (
            f"the primary's WAL ends at {primary.flush_lsn}, the log at {log.record_lsn}: this "
            f"primary lost {lost} bytes that may have been acknowledged; restore it from the "
            "safekeepers"
        )
    return None


def _sealed(log: LogEnd, waivers: Waivers) -> str | None:
    if log.history[-1].sealed and not waivers.resume:
        return (
            f"timeline {log.timeline} was sealed by `walkeeper settle --seal` for a failover; "
            "start the proposer at the promoted server, or with --resume to go on here"
        )
    return None


def warning(primary: PrimaryIdentity, log: LogEnd) -> str | None:
    """What an operator should know although the primary is accepted."""
    if primary.flush_lsn < log.flush_lsn:
        return (
            f"the primary's WAL ends at {primary.flush_lsn}, inside a record of which the "
            f"safekeepers have bytes up to {log.flush_lsn}; nothing of it was acknowledged"
        )
    return None
