"""jsonb's bytes as the text that PostgreSQL prints. Pure. Layout: jsonb.h, jsonb_util.c."""

from __future__ import annotations

import json

from walkeeper_replay.text.database_text import Decode, fits
from walkeeper_replay.text.numerics import numeric_text

_COUNT, _SCALAR, _OBJECT, _ARRAY = 0x0FFFFFFF, 0x10000000, 0x20000000, 0x40000000
_OFFSET_MASK, _TYPE_MASK, _HAS_OFFSET = 0x0FFFFFFF, 0x70000000, 0x80000000
_STRING, _NUMERIC, _FALSE, _TRUE, _NULL, _CONTAINER = 0, 1, 2, 3, 4, 5
_ESCAPES = {
    "\\": "\\\\",
    '"': '\\"',
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}


def jsonb_text(data: bytes, decode: Decode) -> str:
    """Return a datum's text; `data` lacks the varlena header, `decode` is the database's."""
    return _container(data, 0, len(data), decode)


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def quoted(text: str) -> str:
    """Return a JSON string as escape_json() does: control characters become \\n or \\u00XX."""
    return (
        '"' + "".join(_ESCAPES.get(c) or (f"\\u{ord(c):04x}" if c < " " else c) for c in text) + '"'
    )


def _container(data: bytes, at: int, limit: int, decode: Decode) -> str:
    """Return a container between two places. Its parts lie one after another within it."""
    header = _u32(data, at)
    count = header & _COUNT
    items = 2 * count if header & _OBJECT else count
    body = at + 4 + 4 * items
    fits(body <= limit, "the head of a container")
    texts, offset = [], 0
    for k in range(items):
        entry = _u32(data, at + 4 + 4 * k)
        low = entry & _OFFSET_MASK
        end = low if entry & _HAS_OFFSET else offset + low
        fits(offset <= end <= limit - body, "a part of a container")
        kind = (entry & _TYPE_MASK) >> 28
        if kind == _STRING:
            texts.append(quoted(decode(data[body + offset : body + end])))
        elif kind == _CONTAINER:
            texts.append(_container(data, _aligned(body, offset), body + end, decode))
        else:
            texts.append(_scalar(data, _aligned(body, offset), body + end, kind))
        offset = end
    if header & _OBJECT:
        pairs = zip(texts[:count], texts[count:], strict=True)
        return "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
    if header & _SCALAR:
        return texts[0]
    return "[" + ", ".join(texts) + "]"


def _aligned(body: int, offset: int) -> int:
    """Return a place aligned to 4 within the datum, as numbers and containers are.

    The datum's header is 4 bytes.
    """
    return body + (offset + 3) // 4 * 4


def _scalar(data: bytes, begin: int, limit: int, kind: int) -> str:
    if kind in (_FALSE, _TRUE, _NULL):
        return json.dumps({_FALSE: False, _TRUE: True, _NULL: None}[kind])
    fits(begin < limit, "a number")
    is_short = data[begin] & 1
    size, head = (data[begin] >> 1, 1) if is_short else (_u32(data, begin) >> 2, 4)
    fits(begin + size <= limit, "a number")
    return numeric_text(data[begin + head : begin + size])
