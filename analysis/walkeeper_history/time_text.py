"""A time as people write it, such as `2024-05-01 12:30:00+02`; UTC is the default. Pure.

Contract: ISO 8601 as the standard library reads it. An offset may also follow a date alone, as in
PostgreSQL: `2024-05-01+02` is two hours before midnight of UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_DATE = r"\d{4}-?(?:\d\d-?\d\d|W\d\d(?:-?\d)?)"
_DATE_AND_TIME = re.compile(rf"({_DATE})([Tt ]\d\S*)? ?(Z|UTC|[+-]\d\d(?::?\d\d){{0,2}})?")
_parse = datetime.fromisoformat


def parse_time(text: str) -> datetime:
    """Return the moment of a text. Raises ValueError if it is none."""
    found = _DATE_AND_TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r}: neither a date nor one with a time behind it")
    date, time, zone = found.groups("")
    moment = _parse(date + (time or "T00") + zone.replace("UTC", "Z"))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
