"""Columns of rows as the text that COPY writes: for CSV, SQL and comparisons.

text_column(array) -> an Arrow array of strings      texts(array) -> list of str or None
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from walkeeper_replay.columns.columns_of_rows import DAYS_1970_TO_2000
from walkeeper_replay.text.float_text import float_text
from walkeeper_replay.text.times_text import DAY_US, INT32_MAX, INT64_MAX, date_text, timestamp_text
from walkeeper_wal.records.gather import MICROSECONDS_1970_TO_2000

_DAYS = (-719_162, 2_932_897)  # 0001-01-01 and 10000-01-01, in days since 1970
_MICROSECONDS = (_DAYS[0] * DAY_US, _DAYS[1] * DAY_US)


def _date(days: int) -> str:
    edge = days in (INT32_MAX, -INT32_MAX - 1)
    return date_text(days if edge else days - DAYS_1970_TO_2000)


def _timestamp(value: int, zone: str) -> str:
    edge = value in (INT64_MAX, -INT64_MAX - 1)
    return timestamp_text(value if edge else value - MICROSECONDS_1970_TO_2000, zone)


def text_column(array: Any) -> Any:
    """Return the texts of an array of any type that columns_of_rows makes, as Arrow strings."""
    type_ = array.type
    if type_ == pa.string():
        return array
    if type_ == pa.bool_():
        return pc.if_else(array, "t", "f")
    if pa.types.is_integer(type_):
        return array.cast(pa.string())
    if type_ == pa.date32():
        days = array.cast(pa.int32())
        if _lies_within(days, _DAYS):
            return array.cast(pa.string())
        return _each(days, _date)
    if pa.types.is_timestamp(type_):
        zone, values = "+00" if type_.tz else "", array.cast(pa.int64())
        if _lies_within(values, _MICROSECONDS):
            shown = values.cast(pa.timestamp("us")).cast(pa.string())
            return pc.binary_join_element_wise(
                pc.replace_substring_regex(shown, r"\.?0+$", ""), zone, ""
            )
        return _each(values, lambda value: _timestamp(value, zone))
    if pa.types.is_floating(type_):
        size = 4 if type_ == pa.float32() else 8
        return _each(array, lambda value: float_text(value, size))
    assert type_ == pa.binary(), f"{type_=}"
    return _each(array, lambda value: "\\x" + value.hex())


def _lies_within(numbers: Any, years: tuple[int, int]) -> bool:
    """Return True if all values are in years that Arrow shows as PostgreSQL does: 1 to 9999."""
    found = pc.min_max(numbers).as_py()
    return found["min"] is None or (years[0] <= found["min"] and found["max"] < years[1])


def _each(array: Any, show: Callable[[Any], str]) -> Any:
    shown = [None if value is None else show(value) for value in array.to_pylist()]
    return pa.array(shown, pa.string())


def texts(array: Any) -> list[str | None]:
    """Return `text_column` as a list."""
    found: list[str | None] = text_column(array).to_pylist()
    return found


def rows_of_text(table: Any) -> list[tuple[str | None, ...]]:
    """Return an Arrow table's rows as texts."""
    columns = [[text for chunk in c.chunks for text in texts(chunk)] for c in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows
