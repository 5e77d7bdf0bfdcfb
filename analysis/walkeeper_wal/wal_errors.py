"""Errors of archived WAL. The text names the file and the LSN, if there is one."""

from __future__ import annotations

from walkeeper_common.errors import WalkeeperError
from walkeeper_common.operator_text.printable import printable

LOGICAL_LOG = (
    "this is a logical log: it has decoded changes and no WAL. Read it with `walkeeper history "
    "changes` or Spark's tables changes and row_history, or name the primary's physical log"
)


class HistoryError(WalkeeperError):
    """The archive cannot be read as the caller asks. Names in its text are made printable.

    `reason` is the text without the file, if `file` names one."""

    def __init__(self, reason: str, file: str = "") -> None:
        super().__init__(reason, file)  # both, so that a copy from another process has both
        self.reason, self.file = reason, file

    def __str__(self) -> str:
        return printable(f"{self.file}: {self.reason}" if self.file else self.reason)


class Gone(HistoryError):
    """A file that was listed is not there any more."""


class DamagedWal(HistoryError):
    """WAL that should be there is missing or is not what PostgreSQL wrote."""


class NotCompiled(HistoryError):
    """The installation has no compiled loops, which this work needs."""

    def __init__(self, work: str, why: str) -> None:
        super().__init__(
            f"{work} needs compiled loops, which this installation lacks: {why}. Install a wheel "
            "of walkeeper, or install gcc and Python's headers (on Debian python3-dev) and then "
            "walkeeper again"
        )
