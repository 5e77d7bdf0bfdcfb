"""One database's tables and types, as its catalogs had them at one LSN.

    catalog.find("public.accounts") -> Table     columns with dropped ones, toast, primary key
    catalog.types                                 for value_text.Printer

Contract: a catalog invents no facts that its source lacks. It refuses a table by name if some of
its columns are not known. The source is replayed catalogs (catalog_history), or rows of a live
server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from walkeeper_replay.catalogs.catalog_names import CatalogNames, Rows
from walkeeper_replay.catalogs.key_texts import PLAIN, KeyTexts, key_texts
from walkeeper_replay.catalogs.shown_names import Owned
from walkeeper_replay.catalogs.table_names import meant
from walkeeper_replay.redo.store import Relation
from walkeeper_replay.text.database_text import codec_of
from walkeeper_replay.text.value_text import (
    ACLITEM,
    Field,
    Printer,
    Type,
    Types,
    builtin_types,
    pseudo_types,
)
from walkeeper_replay.tuples.toast import unpacked
from walkeeper_wal.wal_errors import HistoryError

KINDS_WITH_ROWS = ("r", "m", "t")
_WITHOUT_ROWS = {
    "p": "{} is partitioned; its rows are in its partitions: name one of them",
    "v": "{} is a view, without rows of its own: name the tables behind it",
    "S": "{} is a sequence, and no table: a base backup and a recovery have its value",
    "f": "{} is a foreign table: its rows are not in this server's WAL",
    "i": "{} is an index: name its table",
    "I": "{} is an index: name its table",
    "c": "{} is a composite type, without rows",
}
_NOT_LOGGED = {
    "u": "{} is unlogged: its rows are not in WAL",
    "t": "{} is temporary: its rows are not in WAL",
}
HEAP = 2
"""The number of the access method heap, on each server."""
ACLITEMS = 1034
OTHER_LAYOUT = (
    "the layout of column {1} of {0} in pg_attribute is not that of its type {2}: this copy of the "
    "WAL or of the base backup is damaged: read another copy of them"
)
OTHER_METHOD = (
    "{} is of access method {} (pg_am.oid), and not of heap: its rows are not known from WAL, and "
    "none of them is shown; read it on a server that was recovered to that place"
)
FIRST_NORMAL_OID = 16384
SHOWN_MAX = 20
_ALIGNMENTS = {"c": 1, "s": 2, "i": 4, "d": 8}
_BUILTIN_SCHEMAS = {11: "pg_catalog", 99: "pg_toast", 2200: "public"}


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column. `missing` is the value of tuples that are older than it, as its array's bytes."""

    name: str
    number: int
    type: int
    typmod: int
    length: int
    alignment: int
    dropped: bool = False
    missing: bytes | None = None
    generated: str = ""
    not_null: bool = False
    lacks_missing: bool = False
    """Older tuples have a default that is not at hand."""

    @property
    def is_virtual(self) -> bool:
        """True if it is computed when it is read (18): no tuple has a value of it."""
        return self.generated == "v"


@dataclass(frozen=True, slots=True)
class Class:
    """A row of pg_class."""

    oid: int
    name: str
    schema: str
    kind: str
    relfilenode: int
    tablespace: int
    toast: int
    natts: int
    persistence: str
    row_type: int
    has_heirs: bool = False
    access_method: int = HEAP


@dataclass(frozen=True, slots=True)
class Table:
    """The facts that reading a relation's rows needs."""

    oid: int
    schema: str
    name: str
    file: Relation
    attributes: tuple[Attribute, ...]
    toast: Relation | None
    key: tuple[str, ...]
    """The primary key's columns; empty without one, or if it is DEFERRABLE.

    Within a transaction two rows may have the same value of a DEFERRABLE key.
    """
    has_heirs: bool = False
    """Tables inherit from it, or did until it was vacuumed last. SELECT shows their rows, too."""
    later_columns: tuple[str, ...] = ()
    """Columns that came after a change of it: see later_names."""
    key_texts: KeyTexts = PLAIN
    """Labels and the like, which the texts of the primary key's values follow."""

    @property
    def shown(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def columns(self) -> tuple[Attribute, ...]:
        """The columns that have values in WAL."""
        return tuple(a for a in self.attributes if not a.dropped and not a.is_virtual)

    @property
    def virtual(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.attributes if a.is_virtual and not a.dropped)


@dataclass(frozen=True, slots=True)
class Database:
    oid: int
    name: str
    encoding: int = 6
    tablespace: int = 1663
    is_by_number: bool = False
    """True if the caller names it by its number, which no other database has."""


@dataclass(slots=True)
class Catalog:
    """See the module."""

    database: Database
    lsn: int
    classes: dict[int, Class] = field(default_factory=dict)
    attributes: dict[int, list[Attribute]] = field(default_factory=dict)
    types: Types = field(default_factory=builtin_types)
    schemas: dict[int, str] = field(default_factory=dict)
    """The schemas that are known; the schemas that initdb makes have their usual names."""
    keys: dict[int, list[int]] = field(default_factory=dict)
    """By table: the numbers of its primary key's columns."""
    key_indexes: dict[int, int] = field(default_factory=dict)
    """By table: the index of its primary key, which is another one if the key was made anew."""
    heirs: dict[int, list[int]] = field(default_factory=dict)
    """By table: those that inherit from it, as far as their rows of pg_inherits are known."""
    has_system: bool = False
    """True if the catalogs have all objects of pg_catalog: from a base backup or a server."""

    @property
    def printer(self) -> Printer:
        return Printer(self.types, codec_of(self.database.encoding), unpacked)

    def file_of(self, found: Class) -> Relation:
        space = found.tablespace or self.database.tablespace
        return Relation(space, 0 if space == 1664 else self.database.oid, found.relfilenode)

    def tables(self) -> list[Class]:
        """Return the relations with rows of their own, in the order of their names."""
        kinds = [c for c in self.classes.values() if c.kind in ("r", "m")]
        return sorted(kinds, key=lambda c: (c.schema, c.name))

    def find(self, name: str | int) -> Table:
        """Find a table by `schema.table`, by `table` if one schema has it, or by OID.

        A number is an OID, also where a table has it for a name.
        """
        if isinstance(name, int) and name in self.classes:
            return self.table(self.classes[name])
        name = str(name)
        found = [c for c in self._meant(name, KINDS_WITH_ROWS) if c.persistence != "t"]
        if len(found) > 1:
            found = [c for c in found if c.schema == "public"] or found
        if not found:
            raise HistoryError(self._absent(name))
        if len(found) > 1:
            shown = ", ".join(f"{c.schema}.{c.name}" for c in found)
            raise HistoryError(f"several tables are called {name}: {shown}")
        return self.table(found[0])

    def _meant(self, name: str, kinds: tuple[str, ...]) -> list[Class]:
        known = [(c.schema, c.name, c.oid) for c in self.classes.values() if c.kind in kinds]
        return [self.classes[oid] for _, _, oid in meant(name, known)]

    def refusal(self, name: str) -> str | None:
        """Return why a relation has no rows in WAL, or None without one of this name."""
        for found in self._meant(name, tuple(_WITHOUT_ROWS)):
            return _WITHOUT_ROWS[found.kind].format(name)
        texts = (_NOT_LOGGED.get(c.persistence) for c in self._meant(name, KINDS_WITH_ROWS))
        return next((text.format(name) for text in texts if text is not None), None)

    def _absent(self, name: str) -> str:
        if (refusal := self.refusal(name)) is not None:
            return refusal
        own = [c for c in self.tables() if not c.schema.startswith(("pg_", "information_schema"))]
        shown = ", ".join(f"{c.schema}.{c.name}" for c in own[:SHOWN_MAX])
        if len(own) > SHOWN_MAX:
            shown += f" and {len(own) - SHOWN_MAX} more"
        return (
            f"no table {name} in database {self.database.name} at this LSN; "
            f"known there: {shown or 'none (is a --base or --dsn needed?)'}"
        )

    def table(self, found: Class) -> Table:
        shown = f"{found.schema}.{found.name}"
        if found.access_method != HEAP:
            raise HistoryError(OTHER_METHOD.format(shown, found.access_method))
        attributes = self._columns_of(found)
        if not _are_all(attributes, found):
            raise HistoryError(
                f"{shown} has {found.natts} columns, of which this WAL "
                f"describes {len(attributes)}: give a base backup (--base) or a server (--dsn)"
            )
        if (text := _NOT_LOGGED.get(found.persistence)) is not None:
            raise HistoryError(text.format(shown))
        for each in attributes:
            own = self.types.by_oid.get(each.type)
            if own is None or each.dropped:
                continue
            if (own.length, own.alignment) != (each.length, each.alignment):
                raise HistoryError(OTHER_LAYOUT.format(shown, each.name, own.name))
        toast = self.classes.get(found.toast)
        by_number = {a.number: a for a in attributes}
        key = [by_number[n] for n in self.keys.get(found.oid, []) if n in by_number]
        return Table(
            found.oid, found.schema, found.name, self.file_of(found), tuple(attributes),
            self.file_of(toast) if toast is not None else None,
            tuple(each.name for each in key), found.has_heirs,
            key_texts=key_texts(self.types, [each.type for each in key]),
        )  # fmt: skip

    def _columns_of(self, found: Class) -> list[Attribute]:
        return sorted(self.attributes.get(found.oid, []), key=lambda a: a.number)

    def in_names_of(self, later: Catalog | None) -> Catalog:
        """Print labels, roles and the names of regclass and its like for SQL, as of `later`.

        An object that is not there later prints as its OID.
        """
        if later is not None:
            self.types.labels.update(later.types.labels)
            self.types.names, self.types.roles = later.types.names.for_sql(), later.types.roles
        return self

    def finish(self, major: int, roles: Mapping[int, str], rows: Rows) -> None:
        """Give composite types their columns, and OIDs their names, once all rows are there.

        A composite type of which the WAL describes a part of the columns stays without any. Its
        values are bytes, and the answer is not complete. `rows` returns the rows of the catalogs
        of functions and the like, when they are wanted.
        """
        if major < 16:
            known = self.types.by_oid[ACLITEM]
            self.types.by_oid[ACLITEM] = replace(known, length=12, alignment=4)
            self.types.by_oid[ACLITEMS] = replace(self.types.by_oid[ACLITEMS], alignment=4)
        self.types.roles, self.types.major = dict(roles), major
        self.types.names = CatalogNames(
            rows,
            classes=lambda: [Owned(c.oid, c.schema, c.name) for c in self.classes.values()],
            types=lambda: self._named_types(rows),
            schemas=_BUILTIN_SCHEMAS | self.schemas,
            roles=self.types.roles,
            major=major,
            encoding=self.database.encoding,
            has_system=self.has_system,
        ).made()
        for found in self.classes.values():
            if found.kind in ("c", "r", "p", "v", "m") and found.oid >= FIRST_NORMAL_OID:
                own = self._columns_of(found)
                if _are_all(own, found):
                    self.types.fields[found.oid] = [
                        Field(a.name, a.type, a.length, a.alignment, a.dropped) for a in own
                    ]

    def _named_types(self, rows: Rows) -> list[Type]:
        """Return the types that have names: with those that no column has, such as `trigger`."""
        if self.has_system:
            return [type_of(row, self.schemas) for row in rows("pg_type")]
        return [*self.types.by_oid.values(), *pseudo_types()]


def _are_all(attributes: list[Attribute], found: Class) -> bool:
    """Return whether these are all columns that pg_class counts (relnatts)."""
    return [a.number for a in attributes] == list(range(1, found.natts + 1))


def attribute_of(row: dict[str, object]) -> Attribute:
    """Return the attribute of a row of pg_attribute; only user columns."""
    missing = row.get("attmissingval")
    return Attribute(
        str(row["attname"]), _int(row["attnum"]), _int(row["atttypid"]), _int(row["atttypmod"]),
        _int(row["attlen"]), _ALIGNMENTS[str(row["attalign"])], bool(row["attisdropped"]),
        missing if isinstance(missing, bytes) and row["atthasmissing"] else None,
        str(row["attgenerated"]), bool(row["attnotnull"]),
        bool(row["atthasmissing"]) and not isinstance(missing, bytes),
    )  # fmt: skip


def class_of(row: dict[str, object], schemas: dict[int, str]) -> Class:
    schema = _int(row["relnamespace"])
    return Class(
        _int(row["oid"]), str(row["relname"]),
        schemas.get(schema) or _BUILTIN_SCHEMAS.get(schema, str(schema)),
        str(row["relkind"]), _int(row["relfilenode"]), _int(row["reltablespace"]),
        _int(row["reltoastrelid"]), _int(row["relnatts"]), str(row["relpersistence"]),
        _int(row["reltype"]), bool(row["relhassubclass"]),
        _int(row["relam"]),
    )  # fmt: skip


def type_of(row: Mapping[str, object], schemas: Mapping[int, str]) -> Type:
    schema = _int(row["typnamespace"])
    return Type(
        _int(row["oid"]), str(row["typname"]), _int(row["typlen"]),
        _ALIGNMENTS[str(row["typalign"])], str(row["typtype"]), _int(row["typelem"]),
        _int(row["typbasetype"]), _int(row["typrelid"]),
        schemas.get(schema) or _BUILTIN_SCHEMAS.get(schema, str(schema)),
    )  # fmt: skip


def _int(value: object) -> int:
    assert isinstance(value, int), f"{value=}"
    return value
