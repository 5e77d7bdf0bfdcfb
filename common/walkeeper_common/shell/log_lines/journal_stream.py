"""Log lines with the priorities of journald: `<3>` before a line that is an ERROR. A shell.

journald stores each line without one as information, and `journalctl -p warning` shows none of
them. sd-daemon(3) has the form.
"""

from __future__ import annotations

import logging
import os

VARIABLE = "JOURNAL_STREAM"
PRIORITIES = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)
DEBUG_PRIORITY = 7


class JournalFormatter(logging.Formatter):
    """The lines of another formatter, each with its priority: a traceback has many."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        found = (priority for level, priority in PRIORITIES if record.levelno >= level)
        mark = f"<{next(found, DEBUG_PRIORITY)}>"
        return "\n".join(mark + line for line in self._inner.format(record).split("\n"))


def is_journal(descriptor: int) -> bool:
    """Return whether what is written there goes to journald.

    systemd names the device and inode in JOURNAL_STREAM. A child whose output goes elsewhere has
    the variable too."""
    try:
        found = os.fstat(descriptor)
    except OSError:  # closed
        return False
    return os.environ.get(VARIABLE) == f"{found.st_dev}:{found.st_ino}"
