"""Damage in catalogs: where it is, and what to do. Pure.

    refuse_broken(store, relation, name)             pages that are not as a server wrote them
    refuse_doubled(rows, chosen, key, …)             two visible rows of one key
    with damage_named(versions, chosen, store, name): …     a row that has no layout of its catalog

Contract: the text names the catalog's file and block. A row of the WAL has its LSN, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from walkeeper_common.lsn import Lsn
from walkeeper_replay.redo.apply import BROKEN, SLOTS
from walkeeper_replay.redo.store import PageStore
from walkeeper_replay.tuples.row_versions import Versions
from walkeeper_wal.records.segment import Column
from walkeeper_wal.wal_errors import HistoryError

_REMEDY = "this copy of the WAL or of the base backup is damaged: read another copy of them"


Key: TypeAlias = tuple[int, ...]
_KEYS = {
    "pg_attribute": ("attrelid", "attnum"), "pg_index": ("indexrelid",),
    "pg_inherits": ("inhrelid", "inhparent"), "pg_range": ("rngtypid",),
    "pg_db_role_setting": ("setdatabase", "setrole"),
}  # fmt: skip


class DamagedRow(ValueError):
    """A row has no value where its catalog always has one, or another one than it can have."""

    def __init__(self, column: str, row: int) -> None:
        super().__init__(column)
        self.column, self.row = column, row


def broken_blocks(store: PageStore) -> dict[int, int]:
    """Return the first broken block of each relation that has one, by its number."""
    slots = store.slots[: store.counts[SLOTS]]
    slots = slots[slots["state"] == BROKEN]
    found: dict[int, int] = {}
    for number, block in zip(slots["relation"].tolist(), slots["block"].tolist(), strict=True):
        found[number] = min(block, found.get(number, block))
    return found


def refuse_broken(broken: dict[int, int], store: PageStore, number: int, name: str) -> None:
    """Raise HistoryError if a catalog has a broken page: rows of it may be missing."""
    if number in broken:
        file = "/".join(map(str, store.relations[number]))
        raise HistoryError(
            f"{name}: block {broken[number]} of file {file} is not as a server wrote it (its "
            f"layout, its checksum, or a record that does not fit it); {_REMEDY}"
        )


def doubled_key(rows: list[dict[str, Any]], name: str) -> Key | None:
    """Return a key that several rows of a catalog have, or None if there is none."""
    counts = Counter(_keys(rows, name))
    return next((key for key, count in counts.items() if count > 1), None)


def refuse_doubled(
    rows: list[dict[str, Any]],
    chosen: Column,
    key: Key,
    versions: Versions,
    store: PageStore,
    name: str,
) -> None:
    """Raise HistoryError if several rows have this key: no rule says which one counts."""
    found = [row for row, own in zip(chosen, _keys(rows, name), strict=True) if own == key]
    if len(found) > 1:
        file = "/".join(map(str, store.relations[int(versions.relation[found[0]])]))
        places = " and ".join(f"{versions.block[row]}/{versions.number[row]}" for row in found)
        raise HistoryError(
            f"{name}: the rows {places} (block/row) of file {file} are visible, and both have the "
            f"key {', '.join(map(str, key))}; {_REMEDY}"
        )


def _keys(rows: list[dict[str, Any]], name: str) -> list[Key]:
    columns = _KEYS.get(name, ("oid",))
    return [tuple(row[column] for column in columns) for row in rows]


@contextmanager
def damage_named(versions: Versions, chosen: Column, store: PageStore, name: str) -> Iterator[None]:
    """Raise HistoryError with the place of a damaged row among those that are chosen."""
    try:
        yield
    except DamagedRow as error:
        row = int(chosen[error.row])
        file = "/".join(map(str, store.relations[int(versions.relation[row])]))
        lsn = int(versions.first_lsn[row])
        since = f"shown first by the record at {Lsn(lsn)}" if lsn else "from the base backup"
        raise HistoryError(
            f"{name}: row {int(versions.number[row])} in block {int(versions.block[row])} of file "
            f"{file}, {since}, has a damaged {error.column}; {_REMEDY}"
        ) from error
