"""Columns of rows as the text that COPY writes: for CSV, SQL and comparisons.

texts(array) -> list of str or None
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from walkeeper_history.records.gather import MICROSECONDS_1970_TO_2000
from walkeeper_replay.columns.columns_of_rows import DAYS_1970_TO_2000
from walkeeper_replay.text.float_text import float_text
from walkeeper_replay.text.times_text import INT32_MAX, INT64_MAX, date_text, timestamp_text


def _date(days: int) -> str:
    edge = days in (INT32_MAX, -INT32_MAX - 1)
    return date_text(days if edge else days - DAYS_1970_TO_2000)


def _timestamp(value: int, zone: str) -> str:
    edge = value in (INT64_MAX, -INT64_MAX - 1)
    return timestamp_text(value if edge else value - MICROSECONDS_1970_TO_2000, zone)


def texts(array: Any) -> list[str | None]:
    """Return the texts of an array of any type that columns_of_rows makes."""
    type_ = array.type
    if type_ == pa.bool_():
        return [None if v is None else "t" if v else "f" for v in array.to_pylist()]
    if type_ == pa.binary():
        return [None if v is None else "\\x" + v.hex() for v in array.to_pylist()]
    if type_ == pa.date32():
        return [None if v is None else _date(v) for v in array.cast(pa.int32()).to_pylist()]
    if pa.types.is_timestamp(type_):
        zone = "+00" if type_.tz else ""
        values = array.cast(pa.int64()).to_pylist()
        return [None if v is None else _timestamp(v, zone) for v in values]
    if pa.types.is_floating(type_):
        size = 4 if type_ == pa.float32() else 8
        return [None if v is None else float_text(v, size) for v in array.to_pylist()]
    return [None if v is None else str(v) for v in array.to_pylist()]


def rows_of_text(table: Any) -> list[tuple[str | None, ...]]:
    """Return an Arrow table's rows as texts."""
    columns = [
        texts(pa.concat_arrays(c.chunks) if c.num_chunks else pa.array([], c.type))
        for c in table.columns
    ]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows
