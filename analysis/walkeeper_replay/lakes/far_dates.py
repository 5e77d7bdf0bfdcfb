"""Dates that delta-rs cannot write into the statistics of a Delta table's file.

    far_dates(rows) -> {"until"}       columns with infinity, or with a year of six digits
    columns_with_statistics(schema, key)      the others, as text of a property

delta-rs writes the least and the greatest date of a file as text, and panics at a date that its
library cannot have. The property delta.dataSkippingStatsColumns names the columns of which a table
has statistics. Contract: a table that has had such a date has no statistics of its dates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

STATISTICS = "delta.dataSkippingStatsColumns"
_DAYS_MAX = 90_000_000
_COLUMNS_MAX = 32  # as without the property


def far_dates(rows: Any) -> set[str]:
    """Return the columns of an Arrow table that have such a date."""
    found = set[str]()
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_date32(column.type) and len(column):
            least, greatest = pc.min_max(column.cast(pa.int32())).as_py().values()
            if least is not None and max(-least, greatest) > _DAYS_MAX:
                found.add(name)
    return found


def columns_with_statistics(fields: Iterable[Any], key: Sequence[str]) -> str:
    """Return the property's text: all columns but dates, those of the key first."""
    names = [each.name for each in fields if not pa.types.is_date32(each.type)]
    names.sort(key=lambda name: name not in key)
    return ",".join(map(in_backticks, names[:_COLUMNS_MAX]))


def in_backticks(name: str) -> str:
    """Return a column's name as delta-rs reads it."""
    return "`{}`".format(name.replace("`", "``"))
