"""numeric's bytes as the text that PostgreSQL prints. Pure. Layout and rules: numeric.c."""

from __future__ import annotations

from walkeeper_replay.text.database_text import fits

_SIGN_MASK, _NEGATIVE, _SHORT, _SPECIAL = 0xC000, 0x4000, 0x8000, 0xC000
_SPECIALS = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}


def numeric_text(data: bytes) -> str:
    """Return the text of a datum without its varlena header."""
    fits(len(data) >= 2 and len(data) % 2 == 0, "a number's header or digits")
    header = int.from_bytes(data[:2], "little")
    kind = header & _SIGN_MASK
    if kind == _SPECIAL:
        return _SPECIALS.get(header & 0xF000, "NaN")
    if kind == _SHORT:
        negative, scale = header & 0x2000, header >> 7 & 0x3F
        weight = header & 0x3F
        if header & 0x40:
            weight -= 64
        begin = 2
    else:
        fits(len(data) >= 4, "a number's weight")
        negative, scale = kind == _NEGATIVE, header & 0x3FFF
        weight = int.from_bytes(data[2:4], "little", signed=True)
        begin = 4
    groups = [int.from_bytes(data[p : p + 2], "little") for p in range(begin, len(data) - 1, 2)]
    whole = "".join(f"{groups[k] if k < len(groups) else 0:04d}" for k in range(weight + 1)).lstrip(
        "0"
    )
    text = ("-" if negative else "") + (whole or "0")
    if scale:
        first = weight + 1
        count = -(-scale // 4)
        places = (k for k in range(first, first + count))
        digits = "".join(f"{groups[k] if 0 <= k < len(groups) else 0:04d}" for k in places)
        text += "." + digits[:scale]
    return text
