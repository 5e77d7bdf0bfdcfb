"""May this primary write this log? The table of docs/steps.md#check-of-the-primary. Pure.

The core asks on the greetings, before it bumps any ballot, and again on the votes. It also asks on
every new connection to PostgreSQL, with the end received so far in the place of C. Neon needs no
such check, because it starts PostgreSQL from a base backup at exactly the consensus LSN. A stock
primary brings a pg_wal of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_common.history import Ballot, History, closed_lsn, cut
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration
from walkeeper_common.timelines import Ends, Timelines
from walkeeper_proposer.consensus.proposer_events import PrimaryIdentity

# The first minor releases that end an aborted record with OVERWRITE_CONTRECORD (commit ff9f111).
OVERWRITE_CONTRECORD_SINCE = {13: 130005, 14: 140001}
# Before PostgreSQL 16 pg_rewind takes the new primary's timeline from its control file, which
# has the old one until the first checkpoint after the promotion. No --write-recovery-conf: the new
# primary would feed this server, which could then be ahead of the log.
# pg_rewind takes two timelines with one number for the same one (R23). Only bytes can tell them
# apart.
REWIND = (
    "stop this server and ask `walkeeper standby-check -D ITS_DATA_DIRECTORY`; if it names "
    "pg_rewind, run CHECKPOINT on the new primary, then pg_rewind "
    "--target-pgdata=ITS_DATA_DIRECTORY --source-server='THE NEW PRIMARY' (with -c if WAL is "
    "missing here), else rebuild it with pg_basebackup; then start it as a standby of a safekeeper"
)


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The log as the voters (or the greeted) know it: A and C of docs/protocol.md#glossary."""

    configuration: Configuration
    history: History  # the donor's, cut
    record_lsn: Lsn  # A
    flush_lsn: Lsn  # C

    @property
    def borne_out(self) -> History:
        """The history as far as A: on a new connection the leader's may run past it."""
        return cut(self.history, self.record_lsn)

    @property
    def timeline(self) -> int:
        """The timeline of that history's last entry: L of docs/steps.md."""
        return self.borne_out[-1].timeline


@dataclass(frozen=True, slots=True)
class Waivers:
    """The explicit permissions of the operator: `--resume`, and unsafe settings for tests."""

    resume: bool = False
    unsafe_settings: bool = False


def refusal(primary: PrimaryIdentity, log: LogEnd, waivers: Waivers) -> str | None:
    """Return why this primary may not write this log, and what to do.

    Return None if the bytes are to be compared, and then streamed.
    """
    return (
        refusal_at_sight(primary, log, waivers)
        or lost_wal(primary, log)
        or _sealed(primary, log, waivers)
    )


def refusal_at_sight(primary: PrimaryIdentity, log: LogEnd, waivers: Waivers) -> str | None:
    """Return the refusal that needs no comparison of bytes, or None."""
    return (
        another_system(primary, log.configuration)
        or _another_segment_size(primary, log.configuration)
        or unsafe(primary, waivers)
        or _cannot_mark_cuts(primary)
        or _another_branch(primary, log)
        or (_left_out(primary, log) if primary.timeline > log.timeline else None)
    )


def kept_out_by(live: Ballot, primary: PrimaryIdentity | None, log: LogEnd) -> str:
    """Return the refusal while another proposer leads; name the promotion that deposed this server.

    The end of this server's WAL does not matter: the other leader may send more at this moment.
    """
    deposed = None
    if primary is not None and primary.system_id == log.configuration.system_id:
        deposed = _another_branch(primary, log)
    return deposed or f"another proposer ({live}) is live; stop it, or start with --take-over"


def another_system(primary: PrimaryIdentity, configuration: Configuration) -> str | None:
    """Return the refusal of a server of another database system, or None."""
    if primary.system_id == configuration.system_id:
        return None
    return (
        f"the primary has system identifier {primary.system_id}, but this log belongs to "
        f"{configuration.system_id}; check --dsn, --safekeepers and --cluster"
    )


def _another_segment_size(primary: PrimaryIdentity, configuration: Configuration) -> str | None:
    if primary.segment_bytes != configuration.segment_bytes:
        return (
            f"the primary has WAL segments of {primary.segment_bytes} bytes, the log of "
            f"{configuration.segment_bytes}; it is another cluster, or was remade with another "
            "--wal-segsize"
        )
    return None


def unsafe(primary: PrimaryIdentity, waivers: Waivers) -> str | None:
    """Return the refusal of a standby, or of a server that may lose WAL, or None."""
    if primary.in_recovery:
        return "the server is in recovery: a standby writes no WAL; point --dsn at the primary"
    off = [n for n in ("fsync", "full_page_writes") if not getattr(primary, n)]
    if off and not waivers.unsafe_settings:
        return f"the primary runs with {' and '.join(off)} off and may lose WAL; switch it on"
    return None


def _cannot_mark_cuts(primary: PrimaryIdentity) -> str | None:
    since = OVERWRITE_CONTRECORD_SINCE.get(primary.server_version_num // 10000)
    if since is not None and primary.server_version_num < since:
        return (
            f"PostgreSQL {primary.server_version} cannot mark a record that a crash cut off; "
            f"upgrade to {since // 10000}.{since % 100} or later"
        )
    return None


def lost_wal(primary: PrimaryIdentity, log: LogEnd) -> str | None:
    """Return what a primary on the log's timeline lacks, or None.

    With equal numbers it may as well be another branch (R23). So the caller compares bytes before
    it reports this.
    """
    if primary.timeline != log.timeline or primary.flush_lsn >= log.record_lsn:
        return None
    lost = log.record_lsn - primary.flush_lsn
    return (
        f"the primary's WAL ends at {primary.flush_lsn}, the log at {log.record_lsn}: this primary "
        f"lost {lost} bytes that may have been acknowledged; restore it from the safekeepers"
    )


def _another_branch(primary: PrimaryIdentity, log: LogEnd) -> str | None:
    """Return the refusal of a server on a timeline that the log has left, or of another branch."""
    forks = Timelines(log.borne_out).ends()
    if primary.timeline < log.timeline:
        parted = dict(forks).get(primary.timeline)
        where = f", which parted from it at {parted}" if parted is not None else ""
        return (
            f"the primary is on timeline {primary.timeline}, behind a promotion: the log is on "
            f"timeline {log.timeline}{where}; {REWIND}"
        )
    ends = dict(primary.timeline_ends)
    wanted = [*forks, (log.timeline, None)] if primary.timeline > log.timeline else forks
    for timeline, end_lsn in wanted:
        if timeline not in ends:
            return (
                f"the primary on timeline {primary.timeline} does not descend from the log's "
                f"timeline {timeline}: another branch; {REWIND}"
            )
        if end_lsn is not None and ends[timeline] != end_lsn:
            return (
                f"the primary's history left timeline {timeline} at {ends[timeline]}, the log's "
                f"at {end_lsn}: another branch; {REWIND}"
            )
    return None


def _left_out(primary: PrimaryIdentity, log: LogEnd) -> str | None:
    """Return the refusal of a promotion that left out WAL below A, which may be acknowledged."""
    fork_lsn = dict(primary.timeline_ends)[log.timeline]
    if fork_lsn >= log.record_lsn:
        return None
    return (
        f"the primary was promoted to timeline {primary.timeline} at {fork_lsn}, but the log has "
        f"WAL of timeline {log.timeline} up to {log.record_lsn}: the promotion left out "
        f"{log.record_lsn - fork_lsn} bytes from {fork_lsn} on that may have been acknowledged; "
        f"let another standby replay up to {log.record_lsn} (walkeeper settle prints it) and "
        "promote that one, then pg_rewind or rebuild this server"
    )


def successors(primary: PrimaryIdentity, timeline: int) -> Ends:
    """Return (timeline, LSN of its end) from the log's timeline on, up to the primary's parent."""
    ends = primary.timeline_ends
    numbers = [number for number, _ in ends]
    return ends[numbers.index(timeline) :] if timeline in numbers else []


def _sealed(primary: PrimaryIdentity, log: LogEnd, waivers: Waivers) -> str | None:
    is_same = primary.timeline == log.timeline  # a promoted server is what the seal waits for
    if is_same and log.borne_out[-1].sealed and not waivers.resume:
        return (
            f"timeline {log.timeline} was sealed by `walkeeper settle --seal` for a failover; "
            "start the proposer at the promoted server, or with --resume to go on here"
        )
    return None


def closed(log: LogEnd) -> str | None:
    """Return the refusal of every primary if the log was closed (M7). None is examined first."""
    end_lsn = closed_lsn(log.borne_out)
    if end_lsn is None:
        return None
    return (
        f"the log was closed at {end_lsn} by `walkeeper logs close`, and takes no more WAL: let "
        "the primary write a new log (`walkeeper create --cluster NEW`, docs/members.md), or "
        "`walkeeper detach` it"
    )


def warning(primary: PrimaryIdentity, log: LogEnd) -> str | None:
    """Return a warning for the operator of an accepted primary, or None."""
    if primary.flush_lsn < log.flush_lsn:
        return (
            f"the primary's WAL ends at {primary.flush_lsn}, inside a record of which the "
            f"safekeepers have bytes up to {log.flush_lsn}; nothing of it was acknowledged"
        )
    return None
