"""The weight of a line in the operator's log, which a core may give its notes. Pure."""

from __future__ import annotations

from enum import Enum


class Severity(Enum):
    """The words are PostgreSQL's."""

    LOG = "LOG"
    WARNING = "WARNING"
    ERROR = "ERROR"
