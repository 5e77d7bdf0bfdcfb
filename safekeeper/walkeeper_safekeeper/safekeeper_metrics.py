"""The figures of a safekeeper's /metrics, in tables. They read and never decide."""

from __future__ import annotations

from walkeeper_common.metrics import Figure, counter, gauge, histogram
from walkeeper_safekeeper.archiving.offload import Offload
from walkeeper_safekeeper.disk.disk_space import DiskSpace
from walkeeper_safekeeper.hosting.hosted_log import HostedLog

OWN = ("safekeeper",)
LABELS = ("cluster", "safekeeper")

OF_DISK: tuple[Figure[DiskSpace], ...] = (
    Figure(
        gauge(
            "walkeeper_safekeeper_free_bytes",
            "Free space of the data directory's file system.",
            OWN,
            unit="bytes",
        ),
        lambda space: space.free_bytes,
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_size_bytes",
            "Size of the data directory's file system.",
            OWN,
            unit="bytes",
        ),
        lambda space: space.size_bytes,
    ),
)

BROKEN = gauge(
    "walkeeper_safekeeper_broken",
    "1 if the log cannot be opened, or its disk has failed; /ready has the reason.",
    LABELS,
)
FAST_PATH = gauge(
    "walkeeper_safekeeper_fast_path",
    "1 if the compiled fast path is on; `walkeeper --version` says why not.",
    OWN,
)
UNAUTHENTICATED = gauge(
    "walkeeper_safekeeper_unauthenticated",
    "1 if peers from everywhere need no certificate (--allow-unauthenticated).",
    OWN,
)
REFUSALS = counter(
    "walkeeper_safekeeper_refusals_total",
    "Peers and requests refused since the start; the audit lines have them.",
    ("reason", "safekeeper"),
)
STANDBY_LAG = gauge(
    "walkeeper_standby_flush_lag_bytes",
    "WAL that a reader of this safekeeper has not flushed.",
    (*LABELS, "application_name"),
    unit="bytes",
)

OF_LOG: tuple[Figure[HostedLog], ...] = (
    Figure(
        gauge("walkeeper_safekeeper_term", "The greatest term promised.", LABELS),
        lambda log: log.driver.acceptor.durable.ballot.term,
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_flush_lsn_bytes",
            "The end of durable WAL.",
            LABELS,
            unit="bytes",
        ),
        lambda log: log.driver.acceptor.flush_lsn,
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_commit_lsn_bytes",
            "The end of WAL that a quorum has.",
            LABELS,
            unit="bytes",
        ),
        lambda log: log.driver.acceptor.commit_lsn,
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_restart_lsn_bytes",
            "The end of WAL that every member has.",
            LABELS,
            unit="bytes",
        ),
        lambda log: log.driver.acceptor.restart_lsn,
    ),
    Figure(
        gauge("walkeeper_safekeeper_first_lsn_bytes", "The oldest WAL kept.", LABELS, unit="bytes"),
        lambda log: log.driver.store.first_lsn,
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_wal_queued_bytes",
            "WAL received and not yet written.",
            LABELS,
            unit="bytes",
        ),
        lambda log: log.driver.queued_bytes,
    ),
    Figure(
        counter("walkeeper_safekeeper_wal_syncs_total", "Groups written and fsynced.", LABELS),
        lambda log: log.driver.groups_written,
    ),
    Figure(
        counter(
            "walkeeper_safekeeper_truncations_total", "Cuts of WAL that no quorum had.", LABELS
        ),
        lambda log: log.driver.acceptor.truncations,
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_failed",
            "1 if this log's disk failed; it acknowledges nothing.",
            LABELS,
        ),
        lambda log: bool(log.driver.acceptor.failure),
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_refusing_wal",
            "1 if it takes no WAL, as for want of space; /ready has the reason.",
            LABELS,
        ),
        lambda log: bool(log.driver.acceptor.refusal),
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_proposer_connected",
            "1 if an elected proposer is connected.",
            LABELS,
        ),
        lambda log: log.driver.acceptor.appender is not None,
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_closed",
            "1 if the log was closed: it takes no more WAL, and no proposer leads it.",
            LABELS,
        ),
        lambda log: log.driver.acceptor.timelines.closed_lsn is not None,
    ),
    Figure(
        gauge("walkeeper_safekeeper_readers", "PostgreSQL clients that stream.", LABELS),
        lambda log: len(log.readable.readers),
    ),
    Figure(
        gauge("walkeeper_safekeeper_slots", "Physical replication slots.", LABELS),
        lambda log: len(log.readable.slots.slots),
    ),
    Figure(
        histogram("walkeeper_safekeeper_write_seconds", "Time of a write of WAL.", LABELS),
        lambda log: log.times.write,
    ),
    Figure(
        histogram(
            "walkeeper_safekeeper_fsync_seconds", "Time of an fdatasync of written WAL.", LABELS
        ),
        lambda log: log.times.fsync,
    ),
    Figure(
        counter("walkeeper_safekeeper_scrubs_total", "Passes of the scrub.", LABELS),
        lambda log: log.scrub.passes,
    ),
    Figure(
        counter("walkeeper_safekeeper_scrub_repairs_total", "Segments that it rewrote.", LABELS),
        lambda log: log.scrub.repairs,
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_scrub_differences",
            "Segments of which another member or the archive has a copy that differs.",
            LABELS,
        ),
        lambda log: log.scrub.differences,
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_damaged",
            "1 if the last pass of the scrub found damaged WAL on this disk.",
            LABELS,
        ),
        lambda log: log.scrub.flaw is not None,
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_lacks_bytes",
            "Older WAL that is still to be copied to this disk from other members.",
            LABELS,
            unit="bytes",
        ),
        lambda log: log.lacks_bytes,
    ),
)

OF_ARCHIVE: tuple[Figure[Offload], ...] = (
    Figure(
        gauge(
            "walkeeper_safekeeper_archived_lsn_bytes",
            "The end of archived WAL.",
            LABELS,
            unit="bytes",
        ),
        lambda offload: offload.plan.archived_lsn,
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_archive_segments_due", "Whole segments not archived yet.", LABELS
        ),
        lambda offload: offload.plan.due_segments,
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_archive_still_seconds",
            "Seconds for which the archive has not moved, while WAL is due.",
            LABELS,
            unit="seconds",
        ),
        lambda offload: offload.still_s,
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_archive_tail_lsn_bytes",
            "The end of the archived tail, as seen here.",
            LABELS,
            unit="bytes",
        ),
        lambda offload: offload.tail_lsn or 0,
    ),
    Figure(
        counter(
            "walkeeper_safekeeper_archive_segments_put_total",
            "Segments that this process has archived.",
            LABELS,
        ),
        lambda offload: offload.segments_put,
    ),
    Figure(
        counter(
            "walkeeper_safekeeper_archive_failures_total",
            "Requests of the archive that failed.",
            LABELS,
        ),
        lambda offload: offload.failures,
    ),
    Figure(
        gauge(
            "walkeeper_safekeeper_archive_failing",
            "1 if the last request of the archive failed.",
            LABELS,
        ),
        lambda offload: offload.failure is not None,
    ),
)

METRICS = (
    *(figure.metric for figure in OF_DISK),
    FAST_PATH,
    UNAUTHENTICATED,
    BROKEN,
    REFUSALS,
    *(figure.metric for figure in OF_LOG),
    *(figure.metric for figure in OF_ARCHIVE),
    STANDBY_LAG,
)
