"""Find the filters of a query that the reader can use.

    take_filter(filter, table, wanted) -> (narrowed wanted, True if Spark need not apply it again)

Contract: the narrowed `wanted` leaves out no row that passes the filter. Spark need not apply the
filter again only if the reader returns exactly the rows that pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from walkeeper_history.rows.row_filters import Wanted

_STARTS = ("start_lsn", "checkpoint_lsn")
_TIMES = {"xacts": "time", "checkpoints": "checkpoint_time"}
_SETS = {"timeline": "timelines", "resource_manager": "resource_managers", "xid": "xids",
         "relfilenode": "relfilenodes"}  # fmt: skip
# A row of a table of sums starts with its segment's first record. A range of LSNs would cut off
# records, and with them a part of the sums.
_ONE_ROW_A_RECORD = ("records", "blocks", "xacts", "checkpoints", "locks", "messages")
_CHOOSES_ROWS = ("records", "blocks")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def take_filter(each: Filter, table: str, wanted: Wanted) -> tuple[Wanted, bool]:
    """Return `wanted` narrowed by a filter, and True if Spark need not apply the filter again.

    Leave unknown filters to Spark.
    """
    attribute = getattr(each, "attribute", None)
    if attribute is None or len(attribute) != 1:
        return wanted, False
    (name,) = attribute
    if name in _STARTS and table in _ONE_ROW_A_RECORD:
        first, last = _bounds(each, lambda value: int(value))
        found = first is not None or last is not None
        end = None if last is None else last + 1
        # A range also has the values between those that an IN lists, so Spark looks again.
        return (wanted.lsns(first, end), not isinstance(each, In)) if found else (wanted, False)
    if name == "end_lsn" and table in _ONE_ROW_A_RECORD:
        # A record starts before it ends.
        _, last = _bounds(each, lambda value: int(value))
        return (wanted if last is None else wanted.lsns(None, last)), False
    if name == _TIMES.get(table):
        return wanted.between(*_bounds(each, _microseconds)), False
    of_sums = {"relations": "relfilenode", "stats": "resource_manager"}.get(table)
    if name in _SETS and (table in _ONE_ROW_A_RECORD or name == of_sums):
        return _take_set(each, table, name, wanted)
    return wanted, False


def _take_set(each: Filter, table: str, name: str, wanted: Wanted) -> tuple[Wanted, bool]:
    match each:
        case EqualTo(_, value):
            values = frozenset([value])
        case In(_, several):
            values = frozenset(several)
        case _:
            return wanted, False
    if any(value is None for value in values):
        return wanted, False
    field = _SETS[name]
    before: frozenset[Any] | None = getattr(wanted, field)
    both = values if before is None else values & before
    changed: dict[str, Any] = {field: both}
    return replace(wanted, **changed), table in _CHOOSES_ROWS and name in (
        "resource_manager",
        "xid",
    )


def _bounds(each: Filter, number: Callable[[Any], int | None]) -> tuple[int | None, int | None]:
    """Return the first and the last value that pass, or None for a side without a bound."""
    if isinstance(each, In):
        values = [number(value) for value in each.value if value is not None]
        known = [value for value in values if value is not None]
        # A value that is not known may be outside the range of the known ones.
        return (min(known), max(known)) if known and len(known) == len(values) else (None, None)
    value = number(each.value) if hasattr(each, "value") and each.value is not None else None
    if value is None:
        return None, None
    match each:
        case EqualTo():
            return value, value
        case GreaterThanOrEqual():
            return value, None
        case GreaterThan():
            return value + 1, None
        case LessThan():
            return None, value - 1
        case LessThanOrEqual():
            return None, value
    return None, None


def _microseconds(value: Any) -> int | None:
    """Return microseconds since 1970, or None for a time without its zone.

    Spark gives times with their zone, or in the session's, which is unknown here.
    """
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    passed = value - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
