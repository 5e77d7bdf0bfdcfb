"""The last lines of a daemon's log, for its web page. Bounded; a handler of the logging module."""

from __future__ import annotations

import logging
from collections import deque

from walkeeper_common.operator_text.printable import printable
from walkeeper_common.operator_text.times import shown_time
from walkeeper_common.shell.log_lines.audit import AUDIT_LOGGER

EVENTS_MAX = 50
TEXT_MAX = 500


class RecentEvents(logging.Handler):
    """Keeps EVENTS_MAX lines. Audit lines stay in the log, since they name peers."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._events: deque[dict[str, str | None]] = deque(maxlen=EVENTS_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != AUDIT_LOGGER:
            self.add(record.levelname, record.getMessage(), int(record.created))

    def add(self, level: str, text: str, time_s: int) -> None:
        """Keep one line; `time_s` is Unix time."""
        shown = printable(text)[:TEXT_MAX]
        self._events.append({"time": shown_time(time_s), "level": level, "text": shown})

    def shown(self) -> list[dict[str, str | None]]:
        """Return the lines, oldest first."""
        return list(self._events)
