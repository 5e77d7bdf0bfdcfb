"""The columns that tables share, named as in pg_walinspect, and how a view makes each.

LSNs are bigint, so that they sort, subtract and join. `segment` and `timeline` show a row's origin.
Types are those that Spark has: signed integers, UTC microseconds, small offsets, and lists whose
items are called `element`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from walkeeper_history.records.gather import binaries, names
from walkeeper_history.records.segment import Column
from walkeeper_history.records.versions import WalVersion, rmgr_names
from walkeeper_history.rows.relation_names import RelationNames
from walkeeper_history.rows.view import View

TIMESTAMP = pa.timestamp("us", "UTC")


def list_of(item: Any) -> Any:
    return pa.list_(pa.field("element", item, nullable=True))


@dataclass(frozen=True, slots=True)
class ColumnOf:
    """One column: its type, and its values for a view's records (or block references)."""

    type: Any
    make: Callable[[View], Any]


def whole(column: Column, type_: Any) -> Any:
    """Return a pyarrow array of a numpy column, widened to an integer type that numpy has, too."""
    return pa.array(np.ascontiguousarray(column.astype(str(type_), copy=False)), type_)


def bigint(make: Callable[[View], Column]) -> ColumnOf:
    return ColumnOf(pa.int64(), lambda view: whole(make(view), pa.int64()))


def integer(make: Callable[[View], Column]) -> ColumnOf:
    return ColumnOf(pa.int32(), lambda view: whole(make(view), pa.int32()))


def nullable_xid(make: Callable[[View], Column]) -> ColumnOf:
    """Return a column in which 0, PostgreSQL's "no transaction", is null."""

    def made(view: View) -> Any:
        column = make(view).astype(np.int64)
        return pa.array(column, pa.int64(), mask=column == 0)

    return ColumnOf(pa.int64(), made)


def text(make: Callable[[View], Any]) -> ColumnOf:
    return ColumnOf(pa.string(), make)


def constant(value: Callable[[View], str]) -> ColumnOf:
    return text(lambda view: pa.repeat(pa.scalar(value(view), pa.string()), len(view)))


_BLOCK_ITEM = pa.struct(
    [
        ("block_id", pa.int16()),
        ("reltablespace", pa.int64()),
        ("reldatabase", pa.int64()),
        ("relfilenode", pa.int64()),
        ("relforknumber", pa.int16()),
        ("relblocknumber", pa.int64()),
        ("block_data_length", pa.int32()),
        ("block_fpi_length", pa.int32()),
        ("block_fpi_info", list_of(pa.string())),
    ]
)


@cache
def _fpi_info_lists(version: WalVersion) -> tuple[Any, Any]:
    """Return the names of each value of an image's flags, as pg_walinspect lists them."""
    flags = {0x01: "HAS_HOLE", version.image_apply_flag: "APPLY"}
    flags |= {flag: f"COMPRESS_{m.upper()}" for flag, m in version.image_methods().items()}
    lists = [[name for flag, name in flags.items() if value & flag] for value in range(256)]
    return pa.array([*lists, None], list_of(pa.string())), np.int64(256)


def fpi_info(blocks: Column, version: WalVersion) -> Any:
    """Return the names of each image's flags, null without an image."""
    lists, absent = _fpi_info_lists(version)
    codes = np.where(blocks["flags"] & 0x10 != 0, blocks["image_info"].astype(np.int64), absent)
    return lists.take(pa.array(codes))


def block_arrays(blocks: Column, version: WalVersion) -> dict[str, Any]:
    """Return a block reference's own columns."""
    return {
        "block_id": whole(blocks["block_id"], pa.int16()),
        "reltablespace": whole(blocks["tablespace"], pa.int64()),
        "reldatabase": whole(blocks["database"], pa.int64()),
        "relfilenode": whole(blocks["relfilenode"], pa.int64()),
        "relforknumber": whole(blocks["flags"] & 0x0F, pa.int16()),
        "relblocknumber": whole(blocks["block_number"], pa.int64()),
        "block_data_length": whole(blocks["data_length"], pa.int32()),
        "block_fpi_length": whole(blocks["image_length"], pa.int32()),
        "block_fpi_info": fpi_info(blocks, version),
    }


def _blocks_list(view: View) -> Any:
    arrays = block_arrays(view.blocks, view.batch.version)
    items = pa.StructArray.from_arrays(list(arrays.values()), fields=list(_BLOCK_ITEM))
    ends = np.zeros(len(view) + 1, np.int32)
    np.cumsum(view.records["block_count"], out=ends[1:])
    return pa.ListArray.from_arrays(pa.array(ends), items, type=list_of(_BLOCK_ITEM))


def _record_type(view: View) -> Any:
    return names(view.batch.version.record_names(), view.kind)


def _main_data(view: View) -> Any:
    records = view.records
    return binaries(view.payload, records["main_offset"], records["main_length"])


RECORD_COLUMNS: dict[str, ColumnOf] = {
    "start_lsn": bigint(lambda view: view.start_lsn),
    "end_lsn": bigint(lambda view: view.end_lsn),
    "prev_lsn": bigint(lambda view: view.records["prev_lsn"]),
    "timeline": integer(lambda view: view.timeline),
    "xid": bigint(lambda view: view.records["xid"]),
    "toplevel_xid": nullable_xid(lambda view: view.records["toplevel_xid"]),
    "resource_manager": text(lambda view: names(rmgr_names(), view.records["rmid"])),
    "record_type": text(_record_type),
    "record_length": integer(lambda view: view.records["length"]),
    "main_data_length": integer(lambda view: view.records["main_length"]),
    "fpi_length": integer(lambda view: view.records["fpi_length"]),
    "origin": integer(lambda view: view.records["origin"]),
    "blocks": ColumnOf(list_of(_BLOCK_ITEM), _blocks_list),
    "main_data": ColumnOf(pa.binary(), _main_data),
    "segment": constant(lambda view: view.batch.segment.name),
}
_OF_RECORD = (
    "start_lsn", "end_lsn", "prev_lsn", "timeline", "xid", "resource_manager", "record_type",
    "record_length", "main_data_length", "segment",
)  # fmt: skip


def _repeated(name: str) -> ColumnOf:
    """Return a record's column, once for each of its block references."""
    column = RECORD_COLUMNS[name]

    def make(view: View) -> Any:
        return column.make(view).take(pa.array(view.blocks["record"]))

    return ColumnOf(column.type, make)


def _of_block(name: str) -> ColumnOf:
    type_ = _BLOCK_ITEM.field(name).type
    return ColumnOf(type_, lambda view: block_arrays(view.blocks, view.batch.version)[name])


def _block_bytes(place: str, length: str) -> ColumnOf:
    def make(view: View) -> Any:
        return binaries(view.payload, view.blocks[place], view.blocks[length])

    return ColumnOf(pa.binary(), make)


BLOCK_COLUMNS: dict[str, ColumnOf] = {
    **{name: _repeated(name) for name in _OF_RECORD},
    **{_BLOCK_ITEM.field(n).name: _of_block(_BLOCK_ITEM.field(n).name) for n in range(9)},
    "block_data": _block_bytes("data_offset", "data_length"),
    "block_fpi_data": _block_bytes("image_offset", "image_length"),
}

NAME_COLUMNS = ("database_name", "relation_name")


def name_arrays(names: RelationNames, spaces: Column, databases: Column, nodes: Column) -> Any:
    """Return the columns NAME_COLUMNS of some relations, null without a known name."""
    found = pa.array(names.find(spaces, databases, nodes))
    return [pa.array(column, pa.string()).take(found) for column in names.columns]


def name_columns(names: RelationNames) -> dict[str, ColumnOf]:
    """Return the name columns of block references."""

    def arrays(view: View) -> Any:
        blocks = view.blocks
        return name_arrays(names, blocks["tablespace"], blocks["database"], blocks["relfilenode"])

    def make(number: int) -> ColumnOf:
        return text(lambda view: view.kept("names", arrays)[number])

    return {name: make(number) for number, name in enumerate(NAME_COLUMNS)}
