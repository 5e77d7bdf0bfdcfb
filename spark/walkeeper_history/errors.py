"""What can be wrong with archived WAL. The text names the file and, where there is one, the LSN."""

from __future__ import annotations

from walkeeper_common.errors import WalkeeperError


class HistoryError(WalkeeperError):
    """The archive cannot be read as asked."""


class DamagedWal(HistoryError):
    """WAL that should be there is missing or is not what PostgreSQL wrote."""
