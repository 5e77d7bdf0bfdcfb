"""A time as people write it: `2024-05-01 12:30:00+02`; UTC unless it says otherwise. Pure.

Contract: ISO 8601 as the standard library reads it, but for the character between date and time:
any would do there, so that in `2024-05-01+02` the zone would be the hour.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_DATE_AND_TIME = re.compile(r"\d{4}-?(\d\d-?\d\d|W\d\d(-?\d)?)([Tt ].*)?")
_parse = datetime.fromisoformat


def parse_time(text: str) -> datetime:
    """ValueError: it is none."""
    if not _DATE_AND_TIME.fullmatch(text):
        raise ValueError(f"{text!r}: neither a date nor one with a time behind it")
    moment = _parse(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
