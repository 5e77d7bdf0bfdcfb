"""The operator's log, in PostgreSQL's form: `2026-11-21 03:03:10.104 UTC [pid] LOG:  message`."""

from __future__ import annotations

import logging
import sys
import time

LEVELS = {"DEBUG": "DEBUG", "INFO": "LOG", "WARNING": "WARNING", "ERROR": "ERROR"}


class PostgresFormatter(logging.Formatter):
    """PostgreSQL's words for the levels, UTC times with milliseconds."""

    converter = time.gmtime  # type: ignore[assignment]
    default_time_format = "%Y-%m-%d %H:%M:%S"
    default_msec_format = "%s.%03d UTC"

    def format(self, record: logging.LogRecord) -> str:
        level = LEVELS.get(record.levelname, "FATAL")
        text = f"{self.formatTime(record)} [{record.process}] {level}:  {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def log_to_stderr(level: str = "INFO") -> None:
    """For the daemons; called once."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PostgresFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def log_note(logger: logging.Logger, text: str, facts: object) -> None:
    """A core's Note: its text, then its facts as key=value."""
    pairs = facts if isinstance(facts, list | tuple) else ()
    shown = " ".join(f"{name}={value}" for name, value in pairs)
    logger.info("%s%s%s", text, ": " if shown else "", shown)
