"""The place and the remedy of values whose bytes do not have the layout of their type. Pure.

damaged_change(plan, lsn)        a change's value, by the LSN where its record starts
damaged_rows(…) -> a reason for `coverage`, with the first place of a table's page
"""

from __future__ import annotations

from walkeeper_common.lsn import Lsn
from walkeeper_replay.columns.columns_of_rows import RowColumns
from walkeeper_replay.redo.store import Relation
from walkeeper_replay.text.coverage import Coverage, reason
from walkeeper_replay.tuples.visible import Tuples
from walkeeper_wal.records.segment import Bytes
from walkeeper_wal.sources.plan import Plan

PAGE_BYTES = 8192
_REMEDY = "this copy of the WAL or of the base backup is damaged: read another copy of them"


def _file_of(plan: Plan, lsn: int) -> str:
    """Return the WAL file with an LSN, or a word for what came before the WAL."""
    found = (each.path for each in plan.segments if each.first_lsn <= lsn < each.first_lsn
             + each.segment_bytes)  # fmt: skip
    return next(found, "the base backup")


def damaged_change(plan: Plan, lsn: int) -> str:
    """Return the reason why changes of a table are not whole, by the record of the first one."""
    return (
        f"a value of the record at {Lsn(lsn)} in {_file_of(plan, lsn)} does not have the layout "
        f"of its type; {_REMEDY}"
    )


def damaged_rows(
    made: RowColumns, tuples: Tuples, pages: Bytes, file: Relation, plan: Plan
) -> Coverage:
    """Return the reason for a table's rows, with the first place of these tuples' values."""
    row, column = made.damaged_places[0]
    begin = int(tuples.places[row]) // PAGE_BYTES * PAGE_BYTES
    high, low = pages[begin : begin + 8].view("<u4").tolist()
    lsn = high << 32 | low
    place = "/".join(map(str, file))
    return reason(
        f"damaged values: column {column} in block {int(tuples.block[row])} of file {place}, last "
        f"changed by {Lsn(lsn)} in {_file_of(plan, lsn)}, does not have the layout of its type; "
        f"{_REMEDY}"
    )
