"""jsonpath's bytes as the text that PostgreSQL prints. Pure. Layout: jsonpath.h, jsonpath.c.

A path is a tree of items. An item refers to others by their distance from its own start.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from walkeeper_replay.text.database_text import Decode, UnknownText, fits
from walkeeper_replay.text.jsonb import quoted
from walkeeper_replay.text.numerics import numeric_text

_IS_LAX, _NO_LIMIT = 0x80000000, 0xFFFFFFFF
_NULL, _STRING, _NUMERIC, _BOOL = range(4)
_NOT, _IS_UNKNOWN, _PLUS, _MINUS = 6, 7, 19, 20
_ANY_ARRAY, _ANY_KEY, _INDEX, _ANY, _KEY, _CURRENT, _ROOT, _VARIABLE = range(21, 29)
_FILTER, _EXISTS, _LAST, _LIKE_REGEX, _DECIMAL = 29, 30, 40, 42, 46
_BINARY = {
    4: "&&", 5: "||", 8: "==", 9: "!=", 10: "<", 11: ">", 12: "<=", 13: ">=", 14: "+", 15: "-",
    16: "*", 17: "/", 18: "%", 41: "starts with",
}  # fmt: skip
_PRIORITIES = {
    5: 0, 4: 1, **dict.fromkeys((*range(8, 14), 41), 2), 14: 3, 15: 3, 16: 4, 17: 4, 18: 4,
    _PLUS: 5, _MINUS: 5,
}  # fmt: skip
_PLAIN = {_NULL: "null", _ANY_ARRAY: "[*]", _CURRENT: "@", _ROOT: "$", _LAST: "last"}
_METHODS = {
    31: "type", 32: "size", 33: "abs", 34: "floor", 35: "ceiling", 36: "double", 38: "keyvalue",
    43: "bigint", 44: "boolean", 45: "date", 47: "integer", 48: "number", 49: "string",
}  # fmt: skip
_WITH_ARGUMENT = {37: "datetime", 50: "time", 51: "time_tz", 52: "timestamp", 53: "timestamp_tz"}
_FLAGS = "ismxq"


def jsonpath_text(data: bytes, decode: Decode, major: int) -> str:
    """Return the text of a datum after its varlena header, as this major version prints it.

    Raise UnknownText for an item of a later version.
    """
    (header,) = struct.unpack_from("<I", data)
    mode = "" if header & _IS_LAX else "strict "
    return mode + _Path(data, decode, major).item(4, in_key=False, in_brackets=True)


@dataclass(frozen=True, slots=True)
class _Path:
    """The items of one datum, by where they start."""

    data: bytes
    decode: Decode
    major: int
    _shown_items: list[int] = field(default_factory=list)

    def _content(self, at: int) -> int:
        """Return where an item's content begins: after its kind and its successor."""
        return (at + 1 + 3) // 4 * 4 + 4

    def _number(self, at: int) -> int:
        return int(struct.unpack_from("<I", self.data, at)[0])

    def _text(self, at: int) -> str:
        size = self._number(at)
        fits(at + 4 + size <= len(self.data), "a text")
        return quoted(self.decode(self.data[at + 4 : at + 4 + size]))

    def item(self, at: int, *, in_key: bool, in_brackets: bool) -> str:
        """Return an item and its successors, as printJsonPathItem does."""
        self._shown_items.append(at)
        fits(len(self._shown_items) <= len(self.data), "a tree of items")
        content = self._content(at)
        following = self._number(content - 4)
        shown = self._shown(at, content, in_key, in_brackets, bool(following))
        if following:
            shown += self.item(at + following, in_key=True, in_brackets=True)
        return shown

    def _shown(self, at: int, content: int, in_key: bool, in_brackets: bool, has_next: bool) -> str:
        kind, dot = self.data[at], "." if in_key else ""
        if kind in _PLAIN:
            return _PLAIN[kind]
        if kind == _STRING:
            return self._text(content)
        if kind == _NUMERIC:
            size = self._number(content) >> 2
            number = numeric_text(self.data[content + 4 : content + size])
            return f"({number})" if has_next and self.major not in (13, 14) else number
        if kind == _BOOL:
            return "true" if self.data[content] else "false"
        if kind in (_ANY_KEY, _ANY, _KEY):
            return dot + self._step(kind, content)
        if kind == _VARIABLE:
            return "$" + self._text(content)
        if kind == _INDEX:
            return "[" + ",".join(self._subscripts(at, content)) + "]"
        if kind in _METHODS:
            return f".{_METHODS[kind]}()"
        if kind in _WITH_ARGUMENT:
            return f".{_WITH_ARGUMENT[kind]}({self._inner(at, content)})"
        if kind == _DECIMAL:
            right = self._inner(at, content + 4)
            return f".decimal({self._inner(at, content)}{',' + right if right else ''})"
        return self._predicate(kind, at, content, in_brackets)

    def _predicate(self, kind: int, at: int, content: int, in_brackets: bool) -> str:
        if kind == _NOT:
            return f"!({self._inner(at, content)})"
        if kind == _IS_UNKNOWN:
            return f"({self._inner(at, content)}) is unknown"
        if kind == _FILTER:
            return f"?({self._inner(at, content)})"
        if kind == _EXISTS:
            return f"exists ({self._inner(at, content)})"
        if kind in _BINARY:
            left, right = (self._operand(kind, at, place) for place in (content, content + 4))
            text = f"{left} {_BINARY[kind]} {right}"
        elif kind in (_PLUS, _MINUS):
            text = ("+" if kind == _PLUS else "-") + self._operand(kind, at, content)
        elif kind == _LIKE_REGEX:
            flags = self._number(content)
            letters = "".join(c for n, c in enumerate(_FLAGS) if flags >> n & 1)
            text = f"{self._operand(kind, at, content + 4)} like_regex {self._text(content + 8)}"
            text += f' flag "{letters}"' if letters else ""
        else:
            raise UnknownText(f"an item {kind} of a jsonpath")
        return f"({text})" if in_brackets else text

    def _inner(self, at: int, place: int) -> str:
        """Return an argument without brackets, or an empty text."""
        distance = self._number(place)
        return self.item(at + distance, in_key=False, in_brackets=False) if distance else ""

    def _operand(self, kind: int, at: int, place: int) -> str:
        start = at + self._number(place)
        of_own, of_parent = (_PRIORITIES.get(k, 6) for k in (self.data[start], kind))
        return self.item(start, in_key=False, in_brackets=of_own <= of_parent)

    def _step(self, kind: int, content: int) -> str:
        if kind == _ANY_KEY:
            return "*"
        if kind == _KEY:
            return self._text(content)
        first, last = (self._number(content + 4 * n) for n in range(2))
        if (first, last) == (0, _NO_LIMIT):
            return "**"
        low, high = ("last" if n == _NO_LIMIT else str(n) for n in (first, last))
        return f"**{{{low}}}" if first == last else f"**{{{low} to {high}}}"

    def _subscripts(self, at: int, content: int) -> list[str]:
        found = []
        for number in range(self._number(content)):
            place = content + 4 + 8 * number
            low, high = self._inner(at, place), self._inner(at, place + 4)
            found.append(f"{low} to {high}" if high else low)
        return found
