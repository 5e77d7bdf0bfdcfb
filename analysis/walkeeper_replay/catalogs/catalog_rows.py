"""The rows of catalogs, decoded from their tuples: dictionaries of the columns that are wanted.

    rows_of(versions, chosen, "pg_class", major=17, codec=…) -> [{"oid": 16384, "relname": …}, …]

The layouts of catalogs are PostgreSQL's own and differ by major version (catalog_layouts). So no
catalog is needed to read one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from walkeeper_replay.catalogs.catalog import FIRST_NORMAL_OID
from walkeeper_replay.catalogs.catalog_layouts import WANTED, layout
from walkeeper_replay.catalogs.damaged_catalogs import DamagedRow
from walkeeper_replay.text.database_text import UnknownText, decoded, decoded_name
from walkeeper_replay.tuples.deform import MALFORMED, deform, varlena
from walkeeper_replay.tuples.row_versions import Versions
from walkeeper_replay.tuples.toast import nothing, plain
from walkeeper_wal.records.segment import Column

Keep: TypeAlias = Callable[[Any, Column, list[str]], Column]
"""Selects rows by (arena, the places of their columns, the names of these)."""
_DECIDING = ("oid", "attrelid", "attnum")  # by which Keep selects rows
FIRST_USER_TYPE = 10_000  # below: genbki's, which are in builtin_types
_CHARACTERS = frozenset(
    ["relkind", "relpersistence", "typtype", "typalign", "attalign", "attgenerated", "collprovider"]
)
_KNOWN_CHARACTERS = {
    "relkind": "rmvSfcpiIt", "relpersistence": "put", "typtype": "bcdemprs", "typalign": "csid",
    "attalign": "csid", "attgenerated": "\0sv",
}  # fmt: skip
_SIGNED = frozenset({"typlen", "attlen", "attnum", "typtypmod", "atttypmod", "collencoding"})
_NAME_BYTES = 64


def rows_of(
    versions: Versions,
    chosen: Column,
    name: str,
    *,
    major: int,
    codec: Callable[[], str],
    keep: Keep | None = None,
) -> list[dict[str, Any]]:
    """Return rows as dictionaries, of the columns that are wanted and that this version has.

    Raise DamagedRow with the place of one in `chosen` that does not have the catalog's layout.
    """
    columns = layout(name, major)
    places = deform(
        versions.arena, versions.place[chosen], versions.length[chosen],
        [length for _, length, _ in columns], [alignment for *_, alignment in columns],
    )  # fmt: skip
    names = [column[0] for column in columns]
    made: dict[str, list[Any]] = {}
    kept = np.arange(len(chosen))
    if keep is not None:
        for each in filter(names.__contains__, _DECIDING):
            _refuse(places[names.index(each)] < 0, kept, each)
        kept = np.flatnonzero(keep(versions.arena, places, names))
        places = places[:, kept]
    for column in filter(names.__contains__, WANTED[name]):
        at = names.index(column)
        length = columns[at][1]
        _refuse((places[at] == MALFORMED) | (places[at] < 0) & (length > 0), kept, column)
        made[column] = _values(versions.arena, column, length, places[at], codec)
        if column in _KNOWN_CHARACTERS:
            is_known = np.frombuffer(_KNOWN_CHARACTERS[column].encode(), np.uint8)
            _refuse(~np.isin(versions.arena[places[at]], is_known), kept, column)
    return [dict(zip(made, row, strict=True)) for row in zip(*made.values(), strict=True)]


def _refuse(is_damaged: Column, kept: Column, column: str) -> None:
    if is_damaged.any():
        raise DamagedRow(column, int(kept[np.flatnonzero(is_damaged)[0]]))


def _values(
    arena: Any, column: str, length: int, places: Column, codec: Callable[[], str]
) -> list[Any]:
    if length == -1:
        begins, sizes, kinds = varlena(arena, places)
        spans = zip(begins.tolist(), sizes.tolist(), kinds.tolist(), places.tolist(), strict=True)
        return [plain(arena, b, n, kind, nothing) if at >= 0 else None for b, n, kind, at in spans]
    if length == _NAME_BYTES:
        encoding = codec()
        raw = [arena[p : p + length].tobytes() if p >= 0 else b"" for p in places.tolist()]
        read = _label if column == "enumlabel" else decoded_name
        return [read(value.split(b"\0")[0], encoding) for value in raw]
    at = np.maximum(places, 0)
    value = np.zeros(len(places), np.int64)
    for k in range(length):
        value |= arena[at + k].astype(np.int64) << 8 * k
    if column in _SIGNED:
        value = value - ((value >> (8 * length - 1)) << 8 * length)
    if column in _CHARACTERS:
        return [chr(code) if code else "" for code in value.tolist()]
    found: list[Any] = value.tolist()
    return found


def _label(data: bytes, codec: str) -> str | None:
    try:
        return decoded(data, codec)
    except UnknownText:
        return None


def user_columns(arena: Any, places: Column, names: list[str]) -> Column:
    """Select the columns of tables that people made, without system columns."""
    relation, number = places[names.index("attrelid")], places[names.index("attnum")]
    oids = sum(arena[relation + k].astype(np.int64) << 8 * k for k in range(4))
    found: Column = (oids >= FIRST_NORMAL_OID) & (arena[number + 1] < 128)
    return found


def user_types(arena: Any, places: Column, names: list[str]) -> Column:
    """Select the types that are not in every PostgreSQL."""
    place = places[names.index("oid")]
    oids = sum(arena[place + k].astype(np.int64) << 8 * k for k in range(4))
    found: Column = oids >= FIRST_USER_TYPE
    return found
