"""Text search's values as PostgreSQL prints them. Pure. Layout: ts_type.h, tsvector.c, tsquery.c.

`decode` is from the database's encoding. It raises for bytes that are no text in it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from walkeeper_replay.text.database_text import Decode, fits

_VALUE = 1
_NOT, _AND, _OR, _PHRASE = 1, 2, 3, 4
_PRIORITIES = {_OR: 1, _AND: 2, _PHRASE: 3, _NOT: 4}
_WEIGHTS = ("", "C", "B", "A")  # a position's; D is not printed
_ITEM = 12


def _quoted(lexeme: str) -> str:
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"


def tsvector_text(data: bytes, decode: Decode) -> str:
    """Return the text of a datum without its varlena header."""
    (count,) = struct.unpack_from("<I", data)
    begin = 4 + 4 * count
    fits(begin <= len(data), "the head of a tsvector")
    shown = []
    for (entry,) in struct.iter_unpack("<I", data[4:begin]):
        place, length = entry >> 12, entry >> 1 & 0x7FF
        fits(begin + place + length <= len(data), "a lexeme")
        text = _quoted(decode(data[begin + place : begin + place + length]))
        if entry & 1:
            at = begin + place + length + (place + length & 1)
            (number,) = struct.unpack_from("<H", data, at)
            positions = struct.unpack_from(f"<{number}H", data, at + 2)
            text += ":" + ",".join(f"{p & 0x3FFF}{_WEIGHTS[p >> 14]}" for p in positions)
        shown.append(text)
    return " ".join(shown)


def tsquery_text(data: bytes, decode: Decode) -> str:
    """Return the text of a datum without its varlena header."""
    (count,) = struct.unpack_from("<i", data)
    return _Query(data, 4 + _ITEM * count, decode).infix() if count else ""


@dataclass(slots=True)
class _Query:
    """Items in Polish notation; an operator's right operand comes before its left one."""

    data: bytes
    operands: int
    decode: Decode
    at: int = 4

    def infix(self, above: int = 0, *, right_of_phrase: bool = False) -> str:
        """Return this item and its operands, in brackets if the operator `above` needs it."""
        kind, operator, distance = struct.unpack_from("<bbh", self.data, self.at)
        if kind == _VALUE:
            return self._operand()
        self.at += _ITEM
        priority = _PRIORITIES[operator]
        if operator == _NOT:
            text = "!" + self.infix(priority)
        else:
            right = self.infix(priority, right_of_phrase=operator == _PHRASE)
            sign = {_AND: "&", _OR: "|"}.get(operator, f"<{'-' if distance == 1 else distance}>")
            text = f"{self.infix(priority)} {sign} {right}"
        is_bracketed = priority < above or (operator == _PHRASE and right_of_phrase)
        return f"( {text} )" if is_bracketed else text

    def _operand(self) -> str:
        weights, is_prefix, place = struct.unpack_from("<xB?x4xI", self.data, self.at)
        self.at += _ITEM
        begin = self.operands + (place >> 12)
        fits(begin + (place & 0xFFF) <= len(self.data), "a lexeme")
        text = _quoted(self.decode(self.data[begin : begin + (place & 0xFFF)]))
        marks = "*" * is_prefix
        marks += "".join(letter for bit, letter in enumerate("DCBA") if weights >> bit & 1)[::-1]
        return f"{text}:{marks}" if marks else text
