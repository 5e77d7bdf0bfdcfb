"""hstore's bytes as the text that PostgreSQL prints. Pure. Layout: contrib/hstore/hstore.h."""

from __future__ import annotations

import struct

from walkeeper_replay.text.database_text import Decode, UnknownText, fits

_COUNT, _HAS_NEW_LAYOUT = 0x0FFFFFFF, 0x80000000
_END, _IS_NULL = 0x3FFFFFFF, 0x40000000


def hstore_text(data: bytes, decode: Decode) -> str:
    """Return a datum's text; `data` lacks the varlena header, `decode` is the database's."""
    (size,) = struct.unpack_from("<I", data)
    count = size & _COUNT
    if count and not size & _HAS_NEW_LAYOUT:
        raise UnknownText("an hstore from before PostgreSQL 9.0")
    entries = struct.unpack_from(f"<{2 * count}I", data, 4)
    begin, texts = 4 + 8 * count, []
    ends = [0, *(entry & _END for entry in entries)]
    for entry, first, end in zip(entries, ends, ends[1:], strict=False):
        fits(first <= end <= len(data) - begin, "a key or a value")
        text = decode(data[begin + first : begin + end])
        texts.append("NULL" if entry & _IS_NULL else _quoted(text))
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return ", ".join(f"{key}=>{value}" for key, value in pairs)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
