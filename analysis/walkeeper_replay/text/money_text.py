"""money as PostgreSQL prints it with lc_monetary C, POSIX or en_US. Pure. Source: cash_out."""

from __future__ import annotations

import re

_KNOWN = re.compile(r"(C|POSIX|en_US)(\.[\w-]+)?")


def is_known(lc_monetary: str | None) -> bool:
    """Return True if money of this setting has the form that `money_text` gives it."""
    return lc_monetary is not None and _KNOWN.fullmatch(lc_monetary) is not None


def money_text(data: bytes) -> str:
    """Return dollars, commas between thousands, and cents."""
    cents = int.from_bytes(data, "little", signed=True)
    whole, rest = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}${whole:,}.{rest:02d}"
