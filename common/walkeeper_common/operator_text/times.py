"""Times for people and JSON: Unix seconds as ISO 8601. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

EPOCH = datetime(1970, 1, 1)  # in UTC
UNIX_S_MAX = 1 << 37  # before the year 9999, the last one of a datetime


def shown_time(unix_s: int) -> str | None:
    """Return the time as `2026-11-25T23:59:59Z`, or None for 0 and for what no calendar has."""
    if not 0 < unix_s < UNIX_S_MAX:
        return None
    return (EPOCH + timedelta(seconds=unix_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
