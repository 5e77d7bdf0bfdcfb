"""Floats as PostgreSQL prints them: the shortest text that reads back. Pure.

PostgreSQL's Ryu (d2s.c, f2s.c) leaves out texts that lie exactly halfway to the next float.
Python's repr takes them. Exponents begin at 1e+15 and 1e+06.
"""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np

_DIGITS_MAX, _EXPONENT_FROM = {8: 17, 4: 9}, {8: 15, 4: 6}


def float_text(value: float, size: int = 8) -> str:
    """Return the text of a float8, or of a float4 with `size` 4."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    sign, digits, exponent = Decimal(_shortest(value, size)).as_tuple()
    significant = "".join(map(str, digits)).rstrip("0")
    assert isinstance(exponent, int), f"{value=}"
    power, minus = exponent + len(digits) - 1, "-" if sign else ""
    if power < -4 or power >= _EXPONENT_FROM[size]:
        tail = f".{significant[1:]}" if len(significant) > 1 else ""
        return f"{minus}{significant[0]}{tail}e{power:+03d}"
    if power < 0:
        return f"{minus}0.{'0' * (-power - 1)}{significant}"
    padded = significant.ljust(power + 1, "0")
    tail = f".{padded[power + 1 :]}" if len(padded) > power + 1 else ""
    return f"{minus}{padded[: power + 1]}{tail}"


def _shortest(value: float, size: int) -> str:
    text = repr(value) if size == 8 else np.format_float_scientific(np.float32(value), trim="-")
    if _is_inside(text, value, size):
        return text
    digits = len(Decimal(text).as_tuple().digits)
    texts = (f"{value:.{n}e}" for n in range(max(digits - 1, 0), _DIGITS_MAX[size]))
    return next(other for other in texts if _is_inside(other, value, size))


def _is_inside(text: str, value: float, size: int) -> bool:
    """Return True if the text is strictly nearer to this float than to either neighbour."""
    exact, found = Decimal(value), Decimal(text)
    if found == exact:
        return True
    toward = math.inf if found > exact else -math.inf
    if size == 8:
        neighbour = math.nextafter(value, toward)
    else:
        with np.errstate(over="ignore"):
            neighbour = float(np.nextafter(np.float32(value), np.float32(toward)))
    if math.isinf(neighbour):
        return True
    return 2 * abs(found - exact) < abs(Decimal(neighbour) - exact)
