"""Values as PostgreSQL prints them: with DateStyle ISO, IntervalStyle postgres, in UTC. Pure.

    Printer(types).text(type_oid, datum) -> str    of a varlena: its bytes after the header

Contract: the printer guesses no value. A type prints as its bytes, \\x…, if one of its parts is not
known here. Text that is not in the database's encoding raises UnknownText, and so does an enum's
label that is not known. A name that is not known (regclass, regtype, …) prints as its OID, and is
counted. Elements of arrays, ranges and composites print by the same rules, quoted as array_out,
range_out and record_out do. Layouts: array.h, rangetypes.h, htup_details.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from walkeeper_replay.text.aclitem_text import aclitem_text
from walkeeper_replay.text.base_types import EXTENSIONS, INTERVAL, PRINTERS, finite_interval
from walkeeper_replay.text.builtin_types import MULTIRANGES, RANGES, builtin_rows, pseudo_rows
from walkeeper_replay.text.database_text import DamagedValue, Decode, UnknownText, decoded, fits
from walkeeper_replay.text.jsonb import jsonb_text
from walkeeper_replay.text.jsonpath_text import jsonpath_text
from walkeeper_replay.text.money_text import money_text
from walkeeper_replay.text.object_names import ObjectNames
from walkeeper_replay.text.search_text import tsquery_text, tsvector_text
from walkeeper_replay.text.xml_text import xml_text

_ALIGNMENTS = {"c": 1, "s": 2, "i": 4, "d": 8}
_RECORD_HEADER = 23
_DIMENSIONS_MAX = 6
_IS_COMPRESSED, _SIZE_MASK = 2, 0x3FFFFFFF
Unpack = Callable[[bytes, int, int], bytes | None]


@dataclass(frozen=True, slots=True)
class Type:
    """The layout and kind of a type's values."""

    oid: int
    name: str
    length: int
    alignment: int
    kind: str
    """b base, e enum, r range, m multirange, c composite, d domain."""
    element: int = 0
    base: int = 0
    relation: int = 0
    """The relation whose columns a composite type has."""
    schema: str = "pg_catalog"


@dataclass(frozen=True, slots=True)
class Field:
    """A column, as far as taking values apart needs it."""

    name: str
    type: int
    length: int
    alignment: int
    dropped: bool = False


@dataclass(slots=True)
class Types:
    """Types by number, with what the catalogs add: enum labels, ranges, composites' columns."""

    by_oid: dict[int, Type] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    enums: dict[int, int] = field(default_factory=dict)
    """The enum that has a label."""
    ranges: dict[int, int] = field(default_factory=lambda: dict(RANGES))
    """A range's subtype."""
    multiranges: dict[int, int] = field(default_factory=lambda: dict(MULTIRANGES))
    """A multirange's range."""
    fields: dict[int, list[Field]] = field(default_factory=dict)
    """By the relation of a composite type."""
    names: ObjectNames = field(default_factory=ObjectNames)
    """Names for the OIDs of regclass and its like (catalogs.catalog_names)."""
    roles: dict[int, str] = field(default_factory=dict)
    """Names of roles."""
    has_dollars: bool = False
    """True if money prints as money_text does."""
    major: int = 0
    """The server's version; 0 is the newest."""

    def base_of(self, oid: int) -> int:
        """Return the type below all domains."""
        found = self.by_oid.get(oid)
        while found is not None and found.kind == "d":
            oid = found.base
            found = self.by_oid.get(oid)
        return oid

    def parts(self, oid: int) -> list[int]:
        """Return the types that a value of this base type is made of."""
        known = self.by_oid.get(oid)
        if known is None or known.kind == "e":
            return []
        if known.kind in "rm":
            found = (self.ranges.get(oid), self.multiranges.get(oid))
            return [part for part in found if part is not None]
        if known.kind == "c":
            return [each.type for each in self.fields.get(known.relation, []) if not each.dropped]
        is_array = known.element and known.length == -1
        return [known.element] if is_array else []


def builtin_types() -> Types:
    found = Types()
    for oid, name, length, alignment, kind, element in builtin_rows():
        found.by_oid[oid] = Type(oid, name, length, _ALIGNMENTS[alignment], kind, element)
    return found


def pseudo_types() -> list[Type]:
    """Return the types that no column has, for their names."""
    rows = pseudo_rows()
    by_name = {name: oid for oid, name in rows}
    return [Type(oid, name, -1, 4, "p", by_name.get(name.removeprefix("_"), 0) * (name[0] == "_"))
            for oid, name in rows]  # fmt: skip


def _nothing(packed: bytes, size: int, method: int) -> None:
    """Return None: no method of compression is at hand."""


_TEXTS = (25, 1043, 1042, 114, 142, 194, 1790)
_CHAR, _NAME, _XML, _JSONPATH = 18, 19, 142, 4072
BPCHAR = 1042
MONEY, ACLITEM = 790, 1033
# Types that hold text, which is decoded from the database's encoding, too.
_ENCODED: dict[int, Callable[[bytes, Decode], str]] = {
    3802: jsonb_text, 3614: tsvector_text, 3615: tsquery_text,
}  # fmt: skip
REGPROC, REGPROCEDURE, REGOPER, REGOPERATOR, REGCOLLATION = 24, 2202, 2203, 2204, 4191
REGCLASS, REGTYPE, REGNAMESPACE, REGROLE = 2205, 2206, 4089, 4096
REGCONFIG, REGDICTIONARY = 3734, 3769
# Types that print as a name, and how their OID 0 prints.
NAMED = {REGPROC: "-", REGPROCEDURE: "-", REGOPER: "0", REGOPERATOR: "0", REGCLASS: "-",
         REGTYPE: "-", REGCONFIG: "-", REGDICTIONARY: "-", REGNAMESPACE: "-", REGROLE: "-",
         REGCOLLATION: "-"}  # fmt: skip


class Printer:
    """The texts of values, by their types. `encoding` is Python's name of the database's encoding.

    `unpack` takes (bytes, size, method) of a compressed part of a composite, and returns the part
    or None.
    """

    def __init__(self, types: Types, encoding: str = "utf-8", unpack: Unpack = _nothing) -> None:
        self.types, self.encoding, self._unpack = types, encoding, unpack
        self._known: dict[int, bool] = {}
        self._kinds: dict[int, frozenset[int]] = {}
        self.as_oids = 0
        """The number of names that were not known, so that their OIDs were printed."""

    def copy(self) -> Printer:
        """Return a printer with a count of its own."""
        return Printer(self.types, self.encoding, self._unpack)

    def text(self, oid: int, data: bytes) -> str:
        """Return a value's text. Raise UnknownText, or DamagedValue for bytes of another layout."""
        if not self.knows(oid):
            return "\\x" + data.hex()
        oid = self.types.base_of(oid)
        known = self.types.by_oid.get(oid)
        if known is not None and known.length > 0:
            fits(len(data) == known.length, known.name)
        try:
            return self._text(oid, data)
        except UnknownText:
            raise
        except RecursionError as error:
            raise UnknownText("a value with more levels than are shown") from error
        except (struct.error, LookupError, ValueError, OverflowError) as error:
            raise DamagedValue(str(error)) from error

    def _text(self, oid: int, data: bytes) -> str:
        if oid == _XML and not self.types.names.is_for_sql:
            return xml_text(self._decoded(data))
        if oid in _TEXTS:  # A server stores xml as SQL has it.
            return self._decoded(data)
        if oid == _JSONPATH:
            return jsonpath_text(data, self._decoded, self.types.major)
        if encoded := _ENCODED.get(oid):
            return encoded(data, self._decoded)
        if oid == _NAME:
            return self._decoded(data.split(b"\0")[0])
        if oid == _CHAR:  # beyond ASCII its text depends on the server's version
            return decoded(data.rstrip(b"\0"), "ascii")
        if oid in NAMED:
            return self._name(oid, int.from_bytes(data, "little"))
        if oid == ACLITEM:
            return aclitem_text(data, self.types.roles)
        if oid == MONEY:
            return money_text(data)
        if oid == INTERVAL and 0 < self.types.major < 17:
            return finite_interval(data)
        if simple := PRINTERS.get(oid):
            return simple(data)
        known = self.types.by_oid[oid]
        if known.kind == "e":
            number = int.from_bytes(data, "little")
            if number not in self.types.labels:
                raise UnknownText(f"{known.name} has no label {number} here")
            return self.types.labels[number]
        if known.kind == "r" and oid in self.types.ranges:
            return self._range(data, self.types.ranges[oid])
        if known.kind == "m" and oid in self.types.multiranges:
            return self._multirange(data, self.types.multiranges[oid])
        if known.kind == "c" and known.relation in self.types.fields:
            return self._composite(data, self.types.fields[known.relation])
        if known.element and known.length == -1 and known.kind == "b":
            return self._array(data, known.element)
        return EXTENSIONS[known.name](data, self._decoded)

    def _name(self, oid: int, number: int) -> str:
        """Return what regclass or its like prints; the OID, counted, if the name is not known."""
        if not number:
            return NAMED[oid]
        name = self.types.names.name(oid, number)
        self.as_oids += name is None
        return str(number) if name is None else name

    def has_names(self, oid: int) -> bool:
        """Return True if a value of the type has parts that print as names."""
        return bool(self.kinds_of_names(oid))

    def kinds_of_names(self, oid: int) -> frozenset[int]:
        """Return the types among a value's parts that print as names."""
        if oid not in self._kinds:
            base = self.types.base_of(oid)
            own = frozenset({base} & NAMED.keys())
            self._kinds[oid] = own.union(*map(self.kinds_of_names, self.types.parts(base)))
        return self._kinds[oid]

    def with_names_for(self, types: Iterable[int]) -> Printer:
        """Return a printer that knows the names of these types alone, and is cheaper to send."""
        kinds = frozenset().union(*map(self.kinds_of_names, types))
        own = replace(self.types, names=self.types.names.only(kinds))
        return Printer(own, self.encoding, self._unpack)

    def for_sql(self) -> Printer:
        """Return a printer of texts that a server reads with any search path, and stores alike."""
        own = replace(self.types, names=self.types.names.for_sql())
        return Printer(own, self.encoding, self._unpack)

    def _decoded(self, data: bytes) -> str:
        return decoded(data, self.encoding)

    def knows(self, oid: int) -> bool:
        """Return True if `text` is PostgreSQL's in all parts, and not bytes."""
        if oid not in self._known:
            self._known[oid] = self._finds_all(oid)
        return self._known[oid]

    def _finds_all(self, oid: int) -> bool:
        oid = self.types.base_of(oid)
        known = self.types.by_oid.get(oid)
        if oid in (*_TEXTS, _CHAR, _NAME, _JSONPATH) or oid in PRINTERS or oid in _ENCODED:
            return True
        if oid in NAMED or oid == ACLITEM:
            return True
        if oid == MONEY:
            return self.types.has_dollars
        if known is None:
            return False
        if known.kind in "rmc" or (known.element and known.length == -1 and known.kind == "b"):
            is_described = (
                known.kind == "b"
                or oid in (self.types.ranges.keys() | self.types.multiranges.keys())
                or known.relation in self.types.fields
            )
            return is_described and all(map(self.knows, self.types.parts(oid)))
        return known.kind == "e" or known.name in EXTENSIONS

    def _taken(self, oid: int, data: bytes, at: int, packed: bool) -> tuple[bytes, int]:
        """Take a value of a type at `at`, and return it and its end."""
        known = self.types.by_oid.get(self.types.base_of(oid))
        length, alignment = (known.length, known.alignment) if known else (-1, 4)
        return self._span(length, alignment, data, at, packed)

    def _span(
        self, length: int, alignment: int, data: bytes, at: int, packed: bool
    ) -> tuple[bytes, int]:
        """Take a value at `at` of a datum whose header was 4 bytes; return it and its end."""
        fits(0 <= at <= len(data), "the place of a part")
        if length == -1 and packed and at < len(data) and data[at] & 1:
            return _short(data, at)
        at = _aligned(at, alignment)
        if length >= 0:
            fits(at + length <= len(data), "a part of fixed length")
            return data[at : at + length], at + length
        if length == -2:
            end = data.index(b"\0", at)
            return data[at:end], end + 1
        if data[at] & 1:
            return _short(data, at)
        header = int.from_bytes(data[at : at + 4], "little")
        fits(4 <= header >> 2 <= len(data) - at, "a part with its length")
        value, end = data[at + 4 : at + (header >> 2)], at + (header >> 2)
        return (self._unpacked(value) if header & _IS_COMPRESSED else value), end

    def _unpacked(self, stored: bytes) -> bytes:
        """Return a value that a composite has in compressed form: varattrib_4b's va_compressed."""
        word = int.from_bytes(stored[:4], "little")
        found = self._unpack(stored[4:], word & _SIZE_MASK, word >> 30)
        if found is None:
            raise UnknownText("a compressed value that does not unpack")
        return found

    def _array(self, data: bytes, element: int) -> str:
        dimensions, offset = struct.unpack_from("<ii", data)
        fits(0 <= dimensions <= _DIMENSIONS_MAX, "an array")
        if not dimensions:
            return "{}"
        extents = struct.unpack_from(f"<{dimensions}i", data, 12)
        bounds = struct.unpack_from(f"<{dimensions}i", data, 12 + 4 * dimensions)
        count = 1
        for extent in extents:
            fits(extent > 0, "an extent")
            count *= extent
        fits(count <= 8 * len(data), "an array")
        nulls = data[12 + 8 * dimensions :] if offset else b""
        at = (offset or -(-(16 + 8 * dimensions) // 8) * 8) - 4
        items = []
        delimiter = ";" if self.types.base_of(element) == 603 else ","  # box, domains over it
        for k in range(count):
            if nulls and not nulls[k >> 3] >> (k & 7) & 1:
                items.append("NULL")
                continue
            value, at = self._taken(element, data, at, packed=False)
            items.append(_quoted_item(self.text(element, value), delimiter))
        for extent in reversed(extents):
            groups = range(0, len(items), extent)
            items = ["{" + delimiter.join(items[g : g + extent]) + "}" for g in groups]
        if any(bound != 1 for bound in bounds):
            spans = zip(bounds, extents, strict=True)
            return "".join(f"[{low}:{low + n - 1}]" for low, n in spans) + "=" + items[0]
        return items[0]

    def _range(self, data: bytes, element: int) -> str:
        return "empty" if data[-1] & 1 else self._bounds(data, 4, data[-1], element)[0]

    def _multirange(self, data: bytes, range_: int) -> str:
        """Print a multirange: count, offsets of all but the first, all flags, all bounds."""
        element = self.types.ranges[range_]
        known = self.types.by_oid.get(self.types.base_of(element))
        alignment = known.alignment if known else 4
        (count,) = struct.unpack_from("<I", data, 4)
        at = 4 + 4 * count
        fits(at + count <= len(data), "the flags of a multirange")
        all_flags, at = data[at : at + count], at + count
        shown = []
        for flags in all_flags:
            at = _aligned(at, alignment)
            text, at = self._bounds(data, at, flags, element)
            shown.append(text)
        return "{" + ",".join(shown) + "}"

    def _bounds(self, data: bytes, at: int, flags: int, element: int) -> tuple[str, int]:
        """Print a range that is not empty, and return the place after it."""
        lower = upper = ""
        if not flags & 0x28:
            value, at = self._taken(element, data, at, packed=True)
            lower = _quoted_field(self.text(element, value), "[]")
        if not flags & 0x50:
            value, at = self._taken(element, data, at, packed=True)
            upper = _quoted_field(self.text(element, value), "[]")
        opening, closing = "[" if flags & 2 else "(", "]" if flags & 4 else ")"
        return f"{opening}{lower},{upper}{closing}", at

    def _composite(self, data: bytes, fields: list[Field]) -> str:
        """Print a composite; `data` is a HeapTupleHeader after its first four bytes."""
        mask2, mask, hoff = struct.unpack_from("<HHB", data, 14)
        count, at = mask2 & 0x7FF, hoff - 4
        bitmap = data[_RECORD_HEADER - 4 :]
        texts = []
        for k, each in enumerate(fields):
            if k >= count or (mask & 1 and not bitmap[k >> 3] >> (k & 7) & 1):
                value = None
            else:
                # By the column's own facts, as a dropped one has no type any more.
                value, at = self._span(each.length, each.alignment, data, at, packed=True)
            if not each.dropped:
                texts.append("" if value is None else _quoted_field(self.text(each.type, value)))
        return "(" + ",".join(texts) + ")"


def _short(data: bytes, at: int) -> tuple[bytes, int]:
    """Take a value whose header is one byte."""
    size = data[at] >> 1
    fits(1 <= size <= len(data) - at, "a part with its length")
    return data[at + 1 : at + size], at + size


def _aligned(at: int, alignment: int) -> int:
    """Align a place in a datum whose header, which is not here, was 4 bytes."""
    return -4 + -(-(at + 4) // alignment) * alignment


def _quoted_item(text: str, delimiter: str) -> str:
    """Quote by array_out's rule."""
    special = set('{}"\\' + delimiter)
    plain = (
        text
        and text.upper() != "NULL"
        and not any(c in special or c in " \t\n\r\v\f" for c in text)
    )
    return text if plain else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _quoted_field(text: str, special: str = "") -> str:
    """Quote by record_out's rule; range_out quotes brackets, too."""
    if text and not any(c in '"\\(), \t\n\r\v\f' or c in special for c in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'
