"""A safekeeper's --http: the state of its logs and their figures. It reads and never decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from walkeeper_common.metrics import Sample, samples
from walkeeper_common.shell.http.http_endpoints import Endpoints
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_fastpath.switch import is_on, state
from walkeeper_safekeeper.hosting.hosted_log import HostedLog
from walkeeper_safekeeper.hosting.log_catalog import LogCatalog
from walkeeper_safekeeper.hosting.log_status import log_status
from walkeeper_safekeeper.safekeeper_metrics import (
    BROKEN,
    FAST_PATH,
    OF_ARCHIVE,
    OF_DISK,
    OF_LOG,
    REFUSALS,
    STANDBY_LAG,
    UNAUTHENTICATED,
)


def endpoints(
    catalog: LogCatalog, acceptor_id: int, audit: Audit, *, is_open: bool = False
) -> Endpoints:
    """Return the endpoints for `serve_http`. With `is_open`, strangers need no certificate."""

    def not_ready() -> str | None:
        refusing = {log.cluster: log.driver.acceptor.refusal for log in catalog.logs()}
        reasons = {**{name: why for name, why in refusing.items() if why}, **catalog.broken()}
        return "; ".join(f"{name}: {why}" for name, why in reasons.items()) or None

    def status() -> dict[str, object]:
        logs = {log.cluster: log_status(log) for log in catalog.logs()}
        known = {"fast_path": state(), "broken": catalog.broken()}
        return {"id": acceptor_id, "logs": logs, **known}

    def figures() -> Sequence[Sample]:
        opened = [sample for log in catalog.logs() for sample in _of_log(log, acceptor_id)]
        space = samples(OF_DISK, catalog.space, {"safekeeper": str(acceptor_id)})
        port = Sample(UNAUTHENTICATED, float(is_open), {"safekeeper": str(acceptor_id)})
        fast = Sample(FAST_PATH, float(is_on()), {"safekeeper": str(acceptor_id)})
        return [
            port,
            fast,
            *space,
            *opened,
            *_unopened(catalog, acceptor_id),
            *_refusals(audit, acceptor_id),
        ]

    return Endpoints(not_ready, status, figures)


def _refusals(audit: Audit, acceptor_id: int) -> Iterator[Sample]:
    for reason, count in audit.refusals.items():
        yield Sample(REFUSALS, count, {"reason": reason, "safekeeper": str(acceptor_id)})


def _unopened(catalog: LogCatalog, acceptor_id: int) -> Iterator[Sample]:
    """Yield the only figure of a log that cannot be opened."""
    broken = catalog.broken()
    for name in [*(log.cluster for log in catalog.logs()), *broken]:
        labels = {"cluster": name, "safekeeper": str(acceptor_id)}
        yield Sample(BROKEN, float(name in broken), labels)


def _of_log(log: HostedLog, acceptor_id: int) -> Iterator[Sample]:
    log.driver.settle()  # a commit that has returned is in the positions below
    labels = {"cluster": log.cluster, "safekeeper": str(acceptor_id)}
    yield from samples(OF_LOG, log, labels)
    if log.offload is not None:
        yield from samples(OF_ARCHIVE, log.offload, labels)
    for reader in log.readable.readers:
        behind = max(0, log.readable_lsn - reader.flush_lsn)
        yield Sample(STANDBY_LAG, behind, {**labels, "application_name": reader.application_name})
