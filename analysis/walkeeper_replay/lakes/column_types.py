"""The types of a mirror's columns, of which some texts are others after an ALTER TABLE.

    types = ColumnTypes(notes, "s3://lake/shop")
    types.refuse_others(table)          before a row of the table is written

ALTER TABLE … TYPE leaves the rows as they are if their bytes are the same, and WAL has no change of
them. A row of cidr `10.1.2.3/32` is then `10.1.2.3` as inet. If the rows are written anew, or
are gone by TRUNCATE, the table has another file. Contract: the notes have the types and their file.
Other types of the same file are refused, unless their texts are alike. So are other texts of a key
(mirrored_keys).
"""

from __future__ import annotations

import json
from typing import Any

from walkeeper_replay.catalogs.catalog import Attribute, Table
from walkeeper_replay.lakes.mirrored_keys import MirroredKeys, Notes
from walkeeper_replay.text.builtin_types import builtin_rows
from walkeeper_wal.wal_errors import HistoryError

_ALIKE = (("text", "varchar", "bpchar"), ("_text", "_varchar", "_bpchar"),
          ("bit", "varbit"), ("_bit", "_varbit"))  # fmt: skip


class ColumnTypes:
    """The types in the notes of a place."""

    def __init__(self, notes: Notes, shown: str) -> None:
        self._notes, self._shown = notes, shown
        self._names = {oid: name for oid, name, *_ in builtin_rows()}
        self._last: dict[int, str] = {}
        self._keys = MirroredKeys(notes, shown)

    def refuse_others(self, table: Table) -> None:
        """Note the types. Raise HistoryError if rows of this file had others with other texts."""
        self._keys.refuse_others(table)
        types = {each.name: each.type for each in table.columns}
        own = json.dumps({"file": table.file.relfilenode, "types": types})
        if self._last.get(table.oid) == own:
            return
        name = f"{table.oid}.types"
        found = self._notes.keep(name, own)
        if found != own:
            before = json.loads(found)
            if before["file"] == table.file.relfilenode:
                self._refuse(table, before["types"])
            self._notes.put(name, own)
        self._last[table.oid] = own

    def _refuse(self, table: Table, before: dict[str, int]) -> None:
        for each in table.columns:
            first = before.get(each.name, each.type)
            if self._kind(first) != self._kind(each.type):
                raise HistoryError(
                    f"{table.shown}: column {each.name} in {self._shown} was of type "
                    f"{self._shown_type(first)}, and now it is of type "
                    f"{self._shown_type(each.type)}. ALTER TABLE wrote no row anew, so "
                    "WAL does not have the new texts of earlier rows, and a mirror does not follow "
                    "this; begin anew with another --to"
                )

    def _kind(self, oid: int) -> str:
        """Return one name for all types with the same texts."""
        shown = self._shown_type(oid)
        return next((alike[0] for alike in _ALIKE if shown in alike), shown)

    def _shown_type(self, oid: int) -> str:
        return self._names.get(oid, f"{oid} (oid of pg_type)")


def differences(
    known: dict[str, Any], own: dict[str, Any], attributes: dict[str, Attribute]
) -> list[str]:
    """Return what a mirror with `known` columns cannot follow in a table's own ones."""
    found = [f"column {name} is gone" for name in known if name not in own]
    for name, type_ in own.items():
        if name not in known:
            if attributes[name].missing is not None or attributes[name].lacks_missing:
                found.append(f"column {name} was added with a default")
        elif known[name] != type_:
            found.append(f"column {name} was {known[name]} and is {type_}")
    return found
