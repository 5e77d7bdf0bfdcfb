"""Tuples as Arrow columns, of the types that Spark and Parquet have.

    made = RowColumns(table, printer, fetch); made.arrays(data, places, lengths) -> {name: array}

Integers, floats, booleans, dates and timestamps come as such, bytea as binary. Every other type is
text, as PostgreSQL prints it. numeric is text too, since Arrow's decimals have no NaN and fewer
digits. infinity of dates and times is the type's largest value.

Contract: a value that is not known is null and counted in `unknown`. An example is one whose TOAST
chunks are from before the WAL. A value that is no text in the database's encoding, or a timestamp
beyond Arrow's, is null and counted in `unreadable`. A value whose bytes do not have the layout of
its type is null and in `damaged_places`. Rows with more bytes than an Arrow column holds raise
LargeColumn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from walkeeper_replay.catalogs.catalog import Attribute, Table
from walkeeper_replay.columns.numeric_columns import damaged_numerics, numeric_strings
from walkeeper_replay.text.coverage import reason
from walkeeper_replay.text.database_text import DamagedValue, UnknownText, fits
from walkeeper_replay.text.times_text import INT32_MAX, INT64_MAX
from walkeeper_replay.text.value_text import Printer
from walkeeper_replay.tuples.deform import ABSENT, EXTERNAL, MALFORMED, PLAIN, deform, varlena
from walkeeper_replay.tuples.toast import Fetch, nothing, plain
from walkeeper_replay.tuples.tuple_loops import loops
from walkeeper_wal.records.gather import MICROSECONDS_1970_TO_2000
from walkeeper_wal.records.segment import Bytes, Column
from walkeeper_wal.wal_errors import HistoryError

COLUMN_MAX_BYTES = (1 << 31) - 1
"""The bytes of an Arrow column: its offsets have 32 bits, and greater ones would wrap around."""
DAYS_1970_TO_2000 = 10957
# By type: the bytes in a tuple, and the type of the column.
_FIXED: dict[int, tuple[str, Any]] = {
    16: ("?", pa.bool_()), 21: ("<i2", pa.int16()), 23: ("<i4", pa.int32()),
    20: ("<i8", pa.int64()), 26: ("<u4", pa.int64()), 28: ("<u4", pa.int64()),
    700: ("<f4", pa.float32()), 701: ("<f8", pa.float64()), 1082: ("<i4", pa.date32()),
    1114: ("<i8", pa.timestamp("us")), 1184: ("<i8", pa.timestamp("us", "UTC")),
}  # fmt: skip
_TEXT = frozenset({25, 1042, 1043, 114})
BYTEA, NUMERIC = 17, 1700
UNREADABLE = reason(
    "values that cannot be shown (not text in the database's encoding, an enum's label or an "
    "aclitem's role that is not known, or a timestamp from 294247-01-10 04:00:54.775807 on)"
)
AS_OIDS = reason(
    "names (of regclass, regtype and their like) as OIDs, not being known", has_values=True
)


def arrow_type(oid: int) -> Any:
    """Return the Arrow type for a column of this type, which must not be a domain."""
    if oid in _FIXED:
        return _FIXED[oid][1]
    return pa.binary() if oid == BYTEA else pa.string()


class LargeColumn(HistoryError):
    """The values of a column are more than an Arrow column holds, so fewer rows have to do."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"column {name} has more than 2 GiB of values in rows that are read together: name a "
            "smaller range"
        )


class RowColumns:
    """The columns of one table, and the counts and places of values that are not known."""

    def __init__(self, table: Table, printer: Printer, fetch: Fetch = nothing) -> None:
        self.table, self._printer, self._fetch = table, printer.copy(), fetch
        self.unknown = 0
        self.as_bytes = 0
        """The number of values whose type is not known."""
        self.unknown_places: list[tuple[int, str]] = []
        """(row, column) of each unknown value in the last call of `arrays`."""
        self.unreadable = 0
        self.unreadable_places: list[tuple[int, str]] = []
        self.damaged_places: list[tuple[int, str]] = []
        """(row, column) of each value in the last call that does not have its type's layout."""
        self.as_oids = 0
        """The number of names (of regclass and its like) that are not known."""
        self.as_oids_places: list[tuple[int, str]] = []
        self._types = {a.name: printer.types.base_of(a.type) for a in table.columns}

    @property
    def schema(self) -> Any:
        return pa.schema([(a.name, arrow_type(self._types[a.name])) for a in self.table.columns])

    def arrays(self, data: Bytes, places: Column, lengths: Column) -> dict[str, Any]:
        """Return an Arrow column for each column of the table."""
        attributes = self.table.attributes
        found = deform(
            data, places, lengths, [a.length for a in attributes], [a.alignment for a in attributes]
        )
        self.unknown_places, self.unreadable_places, self.as_oids_places = [], [], []
        self.damaged_places = []
        made: dict[str, Any] = {}
        for attribute, at in zip(attributes, found, strict=True):
            if attribute.name not in self._types:
                continue
            self._note_damaged(attribute.name, np.flatnonzero(at == MALFORMED))
            array = self._array(attribute, data, at)
            array = made[attribute.name] = self._with_missing(attribute, array, at)
            if not self._printer.knows(attribute.type):
                self.as_bytes += len(array) - array.null_count
        return made

    def _array(self, attribute: Attribute, data: Bytes, places: Column) -> Any:
        oid = self._types[attribute.name]
        if attribute.length == -1:
            return self._varlena(attribute.name, data, places)
        if attribute.length > 0:
            return self._fixed(attribute.name, attribute.length, data, places)
        ends = [data[p:].tobytes().split(b"\0")[0] if p >= 0 else None for p in places.tolist()]
        texts = pa.array(self._texts(attribute.name, oid, ends), pa.string())
        return self._noted(attribute.name, texts, places < 0)

    def _text(self, oid: int, value: bytes) -> str | None:
        """Return the value as text, or None if it cannot be printed. Raise DamagedValue."""
        try:
            return self._printer.text(oid, value)
        except DamagedValue:
            raise
        except UnknownText:
            return None

    def _texts(self, name: str, oid: int, values: Iterable[bytes | None]) -> list[str | None]:
        """Return a text for each value. Note values that are damaged, or have an unknown name."""
        texts: list[str | None] = []
        damaged: list[int] = []
        for row, value in enumerate(values):
            before, text = self._printer.as_oids, None
            try:
                text = None if value is None else self._printer.text(oid, value)
            except DamagedValue:
                damaged.append(row)
            except UnknownText:
                pass
            texts.append(text)
            if self._printer.as_oids != before:
                self._note_oids(name, [row])
        self._note_damaged(name, damaged)
        return texts

    def _note_damaged(self, name: str, rows: Iterable[int]) -> None:
        self.damaged_places += [(int(row), name) for row in rows]

    def _note_oids(self, name: str, rows: list[int]) -> None:
        self.as_oids += len(rows)
        self.as_oids_places += [(row, name) for row in rows]

    def _noted(self, name: str, array: Any, absent: Column) -> Any:
        """Return the column. Note its values that are there and cannot be printed."""
        if array.null_count == np.count_nonzero(absent):
            return array
        damaged = {row for row, column in self.damaged_places if column == name}
        found = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False) & ~absent).tolist()
        lost = [row for row in found if row not in damaged]
        self.unreadable += len(lost)
        self.unreadable_places += [(row, name) for row in lost]
        return array

    def _fixed(self, name: str, size: int, data: Bytes, places: Column) -> Any:
        oid = self._types[name]
        raw = np.empty((len(places), size), np.uint8)
        loops.gather(data, np.ascontiguousarray(places), raw)
        absent = places < 0
        if oid in _FIXED:
            dtype, type_ = _FIXED[oid]
            return self._noted(name, typed(raw.reshape(-1).view(dtype), type_, absent), absent)
        # Enums above all: few values, many rows.
        if size == 4 and len(places) > 100 and not self._printer.has_names(oid):
            codes = raw.reshape(-1).view("<u4")
            unique, back = np.unique(codes, return_inverse=True)
            texts = [self._text(oid, int(code).to_bytes(4, "little")) for code in unique.tolist()]
            array = pa.array(texts, pa.string()).take(pa.array(back, mask=absent))
            return self._noted(name, array, absent)
        rows = zip(raw, absent.tolist(), strict=True)
        texts = self._texts(name, oid, (None if a else r.tobytes() for r, a in rows))
        return self._noted(name, pa.array(texts, pa.string()), absent)

    def _varlena(self, name: str, data: Bytes, places: Column) -> Any:
        begins, sizes, kinds = varlena(data, places)
        absent = places < 0
        inline = kinds == PLAIN
        other = np.flatnonzero(~inline)
        values: list[bytes] = []
        size = 0
        for row in other.tolist():
            span = int(begins[row]), int(sizes[row]), int(kinds[row])
            value = plain(data, *span, self._fetch)
            if value is None:
                absent[row] = True
                if span[2] == EXTERNAL:
                    self.unknown += 1
                    self.unknown_places.append((row, name))
                else:
                    self._note_damaged(name, [row])
            values.append(value or b"")
            size += len(values[-1])
            _refuse_large(size, name)
        if len(other):  # after the pages' bytes, where all are found by one rule
            ends = np.cumsum([0, *(len(value) for value in values)])
            begins[other], sizes[other] = ends[:-1], np.diff(ends)
        offsets = np.zeros(len(places) + 1, np.int64)
        np.cumsum(np.where(absent, 0, sizes), out=offsets[1:])
        _refuse_large(int(offsets[-1]), name)
        joined = np.empty(int(offsets[-1]), np.uint8)
        extra = np.frombuffer(b"".join(values) or b"\0", np.uint8)
        _copy(data, extra, inline, begins, offsets, joined)
        array = self._of_bytes(name, joined, offsets, absent)
        if isinstance(array, pa.ChunkedArray):  # the texts are longer than the bytes
            raise LargeColumn(name)
        return array

    def _of_bytes(self, name: str, joined: Bytes, offsets: Column, absent: Column) -> Any:
        oid = self._types[name]
        if oid == NUMERIC:
            damaged = damaged_numerics(joined, offsets) & ~absent
            self._note_damaged(name, np.flatnonzero(damaged))
            absent = absent | damaged
            return numeric_strings(joined, offsets, absent)
        utf8 = self._printer.encoding == "utf-8"
        if oid == BYTEA or (oid in _TEXT and utf8):
            array = _binary(joined, offsets, absent, pa.binary() if oid == BYTEA else pa.string())
            if array is not None:
                return array
        spans = zip(offsets[:-1].tolist(), offsets[1:].tolist(), absent.tolist(), strict=True)
        raw = joined.tobytes()
        texts = self._texts(name, oid, (None if a else raw[b:e] for b, e, a in spans))
        return self._noted(name, pa.array(texts, pa.string()), absent)

    def _with_missing(self, attribute: Attribute, array: Any, places: Column) -> Any:
        """Give tuples from before the column was added the value that was its default then."""
        absent = places == ABSENT
        if attribute.lacks_missing and absent.any():
            self.unknown += int(absent.sum())
            self.unknown_places += [
                (row, attribute.name) for row in np.flatnonzero(absent).tolist()
            ]
        if attribute.missing is None or not absent.any():
            return array
        oid = self._types[attribute.name]
        try:
            value = _only_element(attribute.missing, attribute.length)
        except DamagedValue:
            self._note_damaged(attribute.name, np.flatnonzero(absent))
            return array
        if oid in _FIXED:
            dtype, type_ = _FIXED[oid]
            one = typed(np.frombuffer(value, dtype), type_, np.array([False]))
        elif oid == BYTEA:
            one = pa.array([value])
        else:
            before = self._printer.as_oids
            try:
                one = pa.array([self._text(oid, value)], pa.string())
            except DamagedValue:
                self._note_damaged(attribute.name, np.flatnonzero(absent))
                return array
            if self._printer.as_oids != before:
                self._note_oids(attribute.name, np.flatnonzero(absent).tolist())
        if one.null_count:
            self.unreadable += int(absent.sum())
            lost = np.flatnonzero(absent).tolist()
            self.unreadable_places += [(row, attribute.name) for row in lost]
        both = pa.concat_arrays([array, one])
        return both.take(pa.array(np.where(absent, len(array), np.arange(len(array)))))


def _refuse_large(size: int, name: str) -> None:
    if size > COLUMN_MAX_BYTES:
        raise LargeColumn(name)


def _only_element(array: bytes, length: int) -> bytes:
    """Return the value of an array of one element without nulls: attmissingval.

    Its head is: dimensions 1, no nulls, element type, extent 1, bound 1.
    """
    element = array[20:]
    fits(len(element) >= (4 if length == -1 else length) or element[:1] > b"\1", "a default")
    if length != -1:
        return element[:length]
    is_short = element[0] & 1
    head, size = (
        (1, element[0] >> 1) if is_short else (4, int.from_bytes(element[:4], "little") >> 2)
    )
    fits(head <= size <= len(element), "a default")
    return element[head:size]


def typed(values: Column, type_: Any, absent: Column) -> Any:
    """Return values of tuples as an Arrow column.

    PostgreSQL's times count from 2000, and Arrow's from 1970. So the last 30 years of PostgreSQL's
    timestamps do not fit, and are null.
    """
    if type_ == pa.date32():
        shifted = values.astype(np.int64) + DAYS_1970_TO_2000
        edge = (values == INT32_MAX) | (values == -INT32_MAX - 1)
        shifted = np.where(edge, values, shifted).clip(-INT32_MAX - 1, INT32_MAX)
        return pa.array(shifted.astype(np.int32), pa.int32(), mask=absent).cast(type_)
    if pa.types.is_timestamp(type_):
        edge = (values == INT64_MAX) | (values == -INT64_MAX - 1)
        beyond = (values >= INT64_MAX - MICROSECONDS_1970_TO_2000) & ~edge
        shifted = values + np.where(edge | beyond, 0, MICROSECONDS_1970_TO_2000)
        return pa.array(shifted, pa.int64(), mask=absent | beyond).cast(type_)
    return pa.array(values, mask=absent).cast(type_)


def _copy(
    data: Any, extra: Any, inline: Column, begins: Column, offsets: Column, into: Any
) -> None:
    for source, own in ((data, inline), (extra, ~inline)):
        loops.copy_values(source, np.flatnonzero(own), begins, offsets, into)


def _binary(joined: Bytes, offsets: Column, absent: Column, type_: Any) -> Any:
    """Return the column, or None if the values are not all text."""
    valid = pa.array(~absent).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(joined)]
    array = pa.Array.from_buffers(type_, len(absent), buffers)
    if type_ == pa.string():
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            return None
    return array
