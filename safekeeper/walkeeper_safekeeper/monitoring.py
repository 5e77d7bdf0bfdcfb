"""A safekeeper's --http: the state of its logs and their figures. It reads and never decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from walkeeper_common.shell.audit import Audit
from walkeeper_common.shell.http_endpoints import Endpoints, Gauge
from walkeeper_fastpath.switch import is_on, state
from walkeeper_safekeeper.hosted_log import HostedLog
from walkeeper_safekeeper.log_catalog import LogCatalog
from walkeeper_safekeeper.log_status import log_status


def endpoints(catalog: LogCatalog, acceptor_id: int, audit: Audit) -> Endpoints:
    """Return the endpoints for `serve_http`."""

    def not_ready() -> str | None:
        refusing = {log.cluster: log.driver.acceptor.refusal for log in catalog.logs()}
        told = {**{name: why for name, why in refusing.items() if why}, **catalog.broken()}
        return "; ".join(f"{name}: {why}" for name, why in told.items()) or None

    def status() -> dict[str, object]:
        logs = {log.cluster: log_status(log) for log in catalog.logs()}
        known = {"fast_path": state(), "broken": catalog.broken()}
        return {"id": acceptor_id, "logs": logs, **known}

    def gauges() -> Sequence[Gauge]:
        opened = [gauge for log in catalog.logs() for gauge in _gauges(log, acceptor_id)]
        text = "1: the compiled fast path is on; `walkeeper --version` says why not."
        labels = {"safekeeper": str(acceptor_id)}
        fast = Gauge("walkeeper_safekeeper_fast_path", text, float(is_on()), labels)
        return [*opened, *_unopened(catalog, acceptor_id), *_refusals(audit, acceptor_id), fast]

    return Endpoints(not_ready, status, gauges)


def _refusals(audit: Audit, acceptor_id: int) -> Iterator[Gauge]:
    for reason, count in audit.refusals.items():
        labels = {"reason": reason, "safekeeper": str(acceptor_id)}
        text = "Peers and requests refused since the start; see the audit lines."
        yield Gauge("walkeeper_safekeeper_refusals", text, count, labels)


def _unopened(catalog: LogCatalog, acceptor_id: int) -> Iterator[Gauge]:
    """Yield the only figure of a log that cannot be opened."""
    broken = catalog.broken()
    for name in [*(log.cluster for log in catalog.logs()), *broken]:
        labels = {"cluster": name, "safekeeper": str(acceptor_id)}
        text = "1: the log cannot be opened; see /ready."
        yield Gauge("walkeeper_safekeeper_broken", text, float(name in broken), labels)


def _gauges(log: HostedLog, acceptor_id: int) -> Iterator[Gauge]:
    acceptor = log.driver.acceptor
    labels = {"cluster": log.cluster, "safekeeper": str(acceptor_id)}
    figures: list[tuple[str, str, float]] = [
        ("term", "The greatest term promised.", acceptor.durable.ballot.term),
        ("flush_lsn_bytes", "The end of durable WAL.", acceptor.flush_lsn),
        ("commit_lsn_bytes", "The end of WAL that a quorum has.", acceptor.commit_lsn),
        ("restart_lsn_bytes", "The end of WAL that every member has.", acceptor.restart_lsn),
        ("first_lsn_bytes", "The oldest WAL kept.", acceptor.first_lsn),
        ("wal_queued_bytes", "WAL received and not yet written.", log.driver.queued_bytes),
        ("wal_syncs", "Groups written and fsynced since the start.", log.driver.groups_written),
        ("truncations", "Cuts of WAL that no quorum had.", acceptor.truncations),
        ("failed", "1: this log's disk failed, it acknowledges nothing.", bool(acceptor.failure)),
        ("refusing_wal", "1: for want of space, say; see /ready.", bool(acceptor.refusal)),
        ("proposer_connected", "1: an elected proposer is heard.", acceptor.appender is not None),
        ("readers", "PostgreSQL clients that stream.", len(log.readers)),
        ("slots", "Physical replication slots.", len(log.slots.slots)),
    ]
    if log.offload is not None:
        plan, failures = log.offload.plan, log.offload.failures
        tail_lsn = log.offload.tail_lsn
        figures += [
            ("archived_lsn_bytes", "The end of archived WAL.", plan.archived_lsn),
            ("archive_segments_due", "Whole segments not archived yet.", plan.due_segments),
            ("archive_still_seconds", "How long it has not moved, WAL due.", log.offload.still_s),
            ("archive_tail_lsn_bytes", "The tail's end there, as seen here.", tail_lsn or 0),
            ("archive_segments_put", "Put by this process.", log.offload.segments_put),
            ("archive_failures", "Requests of the archive that failed.", failures),
            ("archive_failing", "1: the last request failed.", log.offload.failure is not None),
        ]
    for name, text, value in figures:
        yield Gauge(f"walkeeper_safekeeper_{name}", text, float(value), labels)
    for reader in log.readers:
        behind = max(0, log.commit_lsn - reader.flush_lsn)
        named = {**labels, "application_name": reader.application_name}
        yield Gauge("walkeeper_standby_flush_lag_bytes", "Behind commit_lsn.", behind, named)
