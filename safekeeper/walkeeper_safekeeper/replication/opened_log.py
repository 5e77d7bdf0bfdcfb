"""The logs that a PostgreSQL client may open: ports, which the daemon provides.

`served_log` has one log's bytes. A logical log is built on these, so it is named here, above both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from walkeeper_safekeeper.replication.logical_log import LogicalLog
from walkeeper_safekeeper.replication.served_log import ServedLog


class OpenedLog(ServedLog, Protocol):
    """One log, of either kind."""

    @property
    def logical(self) -> LogicalLog | None:
        """The logical log, whose LSNs are positions, or None if this is a physical log."""
        ...


class Catalog(Protocol):
    """The logs of one safekeeper."""

    def clusters(self) -> Sequence[str]:
        """Return every cluster with a log here, also one that cannot be served now."""
        ...

    def logical_databases(self) -> Mapping[str, str]:
        """Return the database of each logical log that can be served now, or "" if unknown."""
        ...

    def open_log(self, cluster: str) -> OpenedLog:
        """Return the log of one of `clusters()`; raise Refused with the reason if it cannot be
        served."""
        ...
