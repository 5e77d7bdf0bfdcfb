"""PostgreSQL's dates and times as text: ISO, intervals in its own style. Source: datetime.c."""

from __future__ import annotations

DAY_US = 86_400_000_000
INT64_MAX, INT32_MAX = (1 << 63) - 1, (1 << 31) - 1
_JULIAN_2000 = 2_451_545


def _civil(days: int) -> tuple[int, int, int]:
    """Return year (0 is 1 BC), month, day of days since 2000-01-01, as j2date() does."""
    julian = days + _JULIAN_2000 + 32044
    quad = julian // 146097
    extra = (julian - quad * 146097) * 4 + 3
    julian += 60 + quad * 3 + extra // 146097
    quad = julian // 1461
    julian -= quad * 1461
    year = julian * 4 // 1461
    julian = (julian + 305) % 365 + 123 if year else (julian + 306) % 366 + 123
    year += quad * 4
    quad = julian * 2141 // 65536
    return year - 4800, (quad + 10) % 12 + 1, julian - 7834 * quad // 256


def _date(days: int) -> tuple[str, str]:
    year, month, day = _civil(days)
    era = " BC" if year <= 0 else ""
    return f"{1 - year if year <= 0 else year:04d}-{month:02d}-{day:02d}", era


def date_text(days: int) -> str:
    if days in (INT32_MAX, -INT32_MAX - 1):
        return "infinity" if days > 0 else "-infinity"
    return "".join(_date(days))


def time_text(microseconds: int) -> str:
    seconds, part = divmod(microseconds, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{part:06d}".rstrip("0") if part else text


def timestamp_text(microseconds: int, zone: str) -> str:
    if microseconds in (INT64_MAX, -INT64_MAX - 1):
        return "infinity" if microseconds > 0 else "-infinity"
    days, rest = divmod(microseconds, DAY_US)
    date, era = _date(days)
    return f"{date} {time_text(rest)}{zone}{era}"


def interval_text(microseconds: int, days: int, months: int, *, has_infinity: bool = True) -> str:
    """Return an interval's text in IntervalStyle postgres.

    A field's sign is shown if it, or the field before, is negative. Before 17 the greatest and the
    least interval are no infinity.
    """
    extremes = (INT64_MAX, INT32_MAX, INT32_MAX), (-INT64_MAX - 1, -INT32_MAX - 1, -INT32_MAX - 1)
    if has_infinity and (microseconds, days, months) in extremes:
        return "infinity" if days > 0 else "-infinity"
    years, rest = divmod(abs(months), 12)
    sign = -1 if months < 0 else 1
    parts: list[str] = []
    before_negative = False
    for value, unit in ((sign * years, "year"), (sign * rest, "mon"), (days, "day")):
        if value:
            plus = "+" if before_negative and value > 0 else ""
            parts.append(f"{plus}{value} {unit}{'' if value == 1 else 's'}")
            before_negative = value < 0
    if microseconds or not parts:
        mark = "-" if microseconds < 0 else "+" if before_negative else ""
        parts.append(mark + time_text(abs(microseconds)))
    return " ".join(parts)
