"""The names that one database's catalogs give to objects, by the types that print them. Pure.

    names = CatalogNames(rows, schemas, major, …).made()  -> ObjectNames; rows("pg_proc") -> rows

Contract: no rows are read before a name is wanted. Names are all known only if `has_system`, and if
the rows have an object that initdb makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from walkeeper_replay.catalogs.shown_names import Collation, Namer, Owned
from walkeeper_replay.text.object_names import NamesOfKind, ObjectNames, Shown
from walkeeper_replay.text.value_text import (
    REGCLASS,
    REGCOLLATION,
    REGCONFIG,
    REGDICTIONARY,
    REGNAMESPACE,
    REGOPER,
    REGOPERATOR,
    REGPROC,
    REGPROCEDURE,
    REGROLE,
    REGTYPE,
    Type,
)

Rows = Callable[[str], Iterable[Mapping[str, Any]]]
"""Returns the rows of a catalog, with the columns of catalog_layouts.WANTED."""
# By type: an object that each server has.
_EVERYWHERE = {
    REGCLASS: 1259, REGTYPE: 16, REGPROC: 1242, REGPROCEDURE: 1242, REGOPER: 96, REGOPERATOR: 96,
    REGCOLLATION: 100, REGCONFIG: 3748, REGDICTIONARY: 3765, REGNAMESPACE: 11, REGROLE: 10,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CatalogNames:
    """See the module."""

    rows: Rows
    classes: Callable[[], Sequence[Owned]]
    types: Callable[[], Sequence[Type]]
    schemas: Mapping[int, str]
    """By number, those that initdb makes among them."""
    roles: Mapping[int, str]
    major: int
    encoding: int
    has_system: bool

    def made(self) -> ObjectNames:
        """Return the names, each kind of which is made when it is wanted."""
        return ObjectNames({
            REGCLASS: self._classes, REGTYPE: self._types, REGPROC: self._functions,
            REGPROCEDURE: self._procedures, REGOPER: self._operators,
            REGOPERATOR: self._operators_with_types, REGCOLLATION: self._collations,
            REGCONFIG: lambda: self._searched(REGCONFIG, "pg_ts_config"),
            REGDICTIONARY: lambda: self._searched(REGDICTIONARY, "pg_ts_dict"),
            REGNAMESPACE: lambda: self._plain(REGNAMESPACE, self.schemas),
            REGROLE: lambda: self._plain(REGROLE, self.roles),
        })  # fmt: skip

    def _namer(self, kind: int, oids: Iterable[int]) -> Namer:
        return Namer(self.major, self.has_system and _EVERYWHERE[kind] in oids)

    def _owned(self, catalog: str) -> list[Owned]:
        """Return the objects of a catalog: its rows are an OID, a name, a schema, arguments."""
        return [
            Owned(oid, self._schema(schema), name, _arguments(rest))
            for oid, name, schema, *rest in (tuple(row.values()) for row in self.rows(catalog))
        ]

    def _schema(self, oid: int) -> str:
        return self.schemas.get(oid, str(oid))

    def _classes(self) -> NamesOfKind:
        owned = list(self.classes())
        namer = self._namer(REGCLASS, {each.oid for each in owned})
        shown = namer.shown(owned, are_system_named=True)
        return NamesOfKind(shown, namer.qualified(owned), namer.has_system)

    def _types(self) -> NamesOfKind:
        types = self.types()
        namer = self._namer(REGTYPE, {each.oid for each in types})
        owned = [Owned(each.oid, each.schema, each.name) for each in types]
        shown = namer.types(types, namer.shown(owned, are_system_named=True))
        return NamesOfKind(shown, namer.types(types, namer.qualified(owned)), namer.has_system)

    def _routines(self, kind: int, catalog: str) -> tuple[list[Owned], Namer]:
        owned = self._owned(catalog)
        return owned, self._namer(kind, {each.oid for each in owned})

    def _functions(self) -> NamesOfKind:
        owned, namer = self._routines(REGPROC, "pg_proc")
        return NamesOfKind(namer.unique(owned), namer.unique_for_sql(owned), namer.has_system)

    def _procedures(self) -> NamesOfKind:
        owned, namer = self._routines(REGPROCEDURE, "pg_proc")
        types = self._types()
        shown = namer.functions(owned, namer.shown(owned), types.shown)
        for_sql = namer.functions(owned, namer.qualified(owned), types.for_sql)
        return NamesOfKind(shown, for_sql, namer.has_system)

    def _operators(self) -> NamesOfKind:
        owned, namer = self._routines(REGOPER, "pg_operator")
        for_sql = namer.unique_for_sql(owned, are_operators=True)
        return NamesOfKind(namer.unique(owned, are_operators=True), for_sql, namer.has_system)

    def _operators_with_types(self) -> NamesOfKind:
        owned, namer = self._routines(REGOPERATOR, "pg_operator")
        types = self._types()
        shown, for_sql = (
            namer.operators(owned, each, for_sql=is_sql)
            for each, is_sql in ((types.shown, False), (types.for_sql, True))
        )
        return NamesOfKind(shown, for_sql, namer.has_system)

    def _collations(self) -> NamesOfKind:
        each = [tuple(row.values()) for row in self.rows("pg_collation")]
        owned = [
            Collation(oid, self._schema(schema), name, encoding, provider)
            for oid, name, schema, provider, encoding in each
        ]
        namer = self._namer(REGCOLLATION, {one.oid for one in owned})
        return NamesOfKind(*namer.collations(owned, self.encoding), namer.has_system)

    def _searched(self, kind: int, catalog: str) -> NamesOfKind:
        owned, namer = self._routines(kind, catalog)
        return NamesOfKind(namer.shown(owned), namer.qualified(owned), namer.has_system)

    def _plain(self, kind: int, named: Mapping[int, str]) -> NamesOfKind:
        namer = self._namer(kind, named)
        shown: Shown = {oid: namer.quoted(name) for oid, name in named.items()}
        return NamesOfKind(shown, shown, namer.has_system)


def _arguments(columns: list[Any]) -> tuple[int, ...]:
    """Return the types of an operator's sides, or of a function's arguments (an oidvector)."""
    if len(columns) != 1:
        return tuple(columns)
    (found,) = columns
    if not isinstance(found, bytes):
        return tuple(found or ())
    return tuple(np.frombuffer(found[20 : 20 + (len(found) - 20) // 4 * 4], "<u4").tolist())
