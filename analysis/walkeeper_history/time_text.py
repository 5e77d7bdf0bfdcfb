"""A time as people write it, such as `2024-05-01 12:30:00+02`; UTC is the default. Pure.

Contract: ISO 8601 as the standard library reads it. An offset may also follow a date alone, as in
PostgreSQL: `2024-05-01+02` is two hours before midnight of UTC. More than six digits of a fraction
are rounded as PostgreSQL rounds them. A text that both read is one moment to both.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_DATE = r"\d{4}-?(?:\d\d-?\d\d|W\d\d(?:-?\d)?)"
_TIME = r"[Tt ]\d\d(?::?\d\d(?::?\d\d([.,]\d+)?)?)?"
_ZONE = r"Z|UTC|[+-]\d\d(?::?\d\d){0,2}"
_DATE_AND_TIME = re.compile(rf"({_DATE})({_TIME})? ?({_ZONE})?", re.ASCII)
_OFFSET_MAX = timedelta(hours=16)  # PostgreSQL's: more is a mistake, such as a year
_parse = datetime.fromisoformat


def parse_time(text: str) -> datetime:
    """Return the moment of a text; raise ValueError if the text is none."""
    found = _DATE_AND_TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r}: neither a date nor a date with a time after it")
    date, clock, fraction, zone = found.groups("")
    whole = clock.removesuffix(fraction) if fraction else clock
    moment = _parse(date + (whole or "T00") + zone.replace("UTC", "Z"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if abs(moment.utcoffset() or timedelta()) >= _OFFSET_MAX:
        raise ValueError(f"{text!r}: {zone} is no offset of a time zone")
    try:
        return moment + timedelta(microseconds=round(float(f"0.{fraction[1:]}0") * 1e6))
    except OverflowError:
        raise ValueError(f"{text!r}: past the year 9999") from None
