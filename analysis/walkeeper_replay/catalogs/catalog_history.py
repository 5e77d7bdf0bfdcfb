"""Catalogs through time, replayed from WAL, over a base backup where there is one.

    history = CatalogHistory.read(files, plan, base=None, until=None)
    history.at(lsn, database) -> Catalog            tables, columns and types as they were
    history.names() -> {(tablespace, database, relfilenode): [Named(begin, end, schema, name)]}

Contract: objects that were made within the WAL are known whole. Without a base, a row that initdb
or work before the WAL made is known only if a page image brings it. The cost is one walk over the
WAL, or two where catalogs themselves were rewritten, and memory for the catalogs' changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from walkeeper_history.segment_index import ProvenIndex
from walkeeper_replay.catalogs.catalog import (
    FIRST_NORMAL_OID,
    Catalog,
    Database,
    attribute_of,
    class_of,
    type_of,
)
from walkeeper_replay.catalogs.catalog_files import CatalogMaps, Nodes, nodes_by_rows
from walkeeper_replay.catalogs.catalog_layouts import OIDS, SHARED
from walkeeper_replay.catalogs.catalog_rows import Keep, rows_of, user_columns, user_types
from walkeeper_replay.catalogs.damaged_catalogs import (
    Key,
    broken_blocks,
    damage_named,
    doubled_key,
    refuse_broken,
    refuse_doubled,
)
from walkeeper_replay.catalogs.file_steps import ClassVersion, FileSteps
from walkeeper_replay.catalogs.schema_names import SchemaNames
from walkeeper_replay.redo.apply import RECORD_VERSIONS
from walkeeper_replay.redo.base import (
    DEFAULT_TABLESPACE,
    GLOBAL_TABLESPACE,
    BaseDirectory,
    Consistency,
)
from walkeeper_replay.redo.bulk_loads import BulkLoads
from walkeeper_replay.redo.page_resets import PageResets
from walkeeper_replay.redo.parallel_pass import CatalogFiles, Taken, pass_in_parallel
from walkeeper_replay.redo.store import PageStore, Relation
from walkeeper_replay.redo.wal_pass import Consumer, Passed, Shortcut, pass_over
from walkeeper_replay.text.database_text import codec_of
from walkeeper_replay.text.money_text import is_known
from walkeeper_replay.tuples.few_ends import FewEnds
from walkeeper_replay.tuples.row_versions import Versions, versions_of
from walkeeper_replay.tuples.xids import NEVER, Xids
from walkeeper_wal.records.segment import Column
from walkeeper_wal.sources.plan import Plan, Problem
from walkeeper_wal.sources.threaded_reading import OnProblem, Part, raise_fatal
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import HistoryError

PASSES_MAX = 4
Decode = Callable[[CatalogFiles], Iterable[Part[Taken]]]
"""Returns the records of the plan, up to the same LSN, that these catalogs need."""
_MAPPED = ("pg_class", "pg_type", "pg_attribute", "pg_proc", "pg_database")


@dataclass(frozen=True, slots=True)
class Named:
    """A file's owner, from the commit at `begin` up to that at `end`."""

    begin: int
    end: int
    schema: str
    name: str
    kind: str
    oid: int
    persistence: str
    access_method: int


class CatalogHistory:
    """See the module."""

    def __init__(self, store: PageStore, xids: Xids, major: int, passed: Passed) -> None:
        self.xids, self.major, self.end_lsn = xids, major, passed.end_lsn
        self.is_whole = passed.is_reached
        """True if the WAL goes on up to the `until` of the walk."""
        store.take_events()
        self.loads = BulkLoads()
        """Where what was loaded in bulk is not in the WAL."""
        self.lc_monetary: str | None = None
        """The setting of the base's configuration files, or None if it is not known."""
        self.resets = PageResets()
        """See CatalogHistory.read: none, if the walk did not note them."""
        self.has_gaps = False
        """True if damaged or missing WAL was passed over."""
        self.store = store
        self._versions: Versions = versions_of(store.events, xids, store.dropped)
        spans = np.concatenate([self._versions.begin, self._versions.end])
        self._changed = np.unique(spans[spans != NEVER])
        self._steps: dict[int, FileSteps] = {}
        self._codecs: dict[int, str] | None = None
        self._spaces_of: dict[int, list[tuple[int, int, int]]] = {}
        self._numbers = {relation: n for n, relation in enumerate(store.relations)}
        self._maps, self._map_count = CatalogMaps(store.map_log), len(store.map_log)
        self._names: dict[Relation, list[Named]] | None = None
        self._broken = broken_blocks(store)

    def is_like(self, other: CatalogHistory) -> bool:
        """Return whether both have the same rows with the same spans: no catalog has changed."""
        own, before = self._versions, other._versions
        same = (self._map_count, len(own.begin)) == (other._map_count, len(before.begin))
        return same and all(
            np.array_equal(getattr(own, name), getattr(before, name))
            for name in ("begin", "end", "place", "relation")
        )

    def take_names(self, other: CatalogHistory) -> None:
        """Use the names that a history like this one has read."""
        self._names = other._names

    @classmethod
    def read(
        cls,
        files: WalFiles,
        plan: Plan,
        *,
        base: BaseDirectory | None = None,
        until: int | None = None,
        keeps_commits: bool = True,
        engine_name: str = "auto",
        on_problem: OnProblem = raise_fatal,
        index: ProvenIndex | None = None,
        decode: Decode | None = None,
        reads_ahead: bool = False,
        notes_resets: bool = False,
    ) -> CatalogHistory:
        """Walk over the WAL up to `until`, without segments that an `index` knows enough of.

        With `decode`, others decode the segments, each one once in a walk, and few ends are kept.
        With `notes_resets`, a later walk up to the same place can leave out redo.
        """
        if base is not None:
            base.refuse_wal(plan)
        extra: set[Relation] = set()
        noted = _Noted(on_problem)
        for _ in range(PASSES_MAX):
            store = _store_of(base, extra)
            chosen = set(store.relations)
            redo_lsn = None if base is None else base.redo_lsn
            kept = Xids if decode is None else FewEnds
            xids = kept(base, keeps_commits=keeps_commits, redo_lsn=redo_lsn)
            consistency, loads = None if base is None else Consistency(base), BulkLoads()
            others, resets = [loads.add, *([consistency.add] if consistency else [])], PageResets()
            others += [resets.add] if notes_resets else []
            consumers: list[Consumer] = [xids.add, store.add, *others]
            if decode is not None:
                wanted = CatalogFiles(store.low_nodes, list(chosen))
                passed = pass_in_parallel(
                    decode(wanted), files, plan, consumers, until=until, on_problem=noted
                )
            else:
                passed = pass_over(
                    files, plan, consumers,
                    until=until, engine_name=engine_name, on_problem=noted,
                    shortcut=None if index is None else _shortcut(index, xids, store),
                    reads_ahead=reads_ahead,
                )  # fmt: skip
            if store.major is None:
                raise HistoryError(f"{files.shown('')}: no records in the range asked for")
            if consistency is not None:
                reached = until if until is not None and passed.is_reached else passed.end_lsn
                consistency.refuse_before(reached)
            history = cls(store, xids, store.major, passed)
            history.loads, history.has_gaps, history.resets = loads, noted.has_gaps, resets
            history.lc_monetary = None if base is None else base.lc_monetary()
            # A copied database brings files, of which others have not chosen the later records.
            further = history.rewritten() - (set(store.relations) if decode is None else chosen)
            if not further:
                return history
            extra |= further
        raise HistoryError("catalogs that were rewritten over and over: narrow the range of LSNs")

    def databases(self, lsn: int) -> dict[int, Database]:
        """Return the databases by number. One without a known row has its number for a name."""
        numbers = {relation.database for relation in self._numbers if relation.database}
        found = {oid: Database(oid, self._initdbs(oid) or str(oid)) for oid in sorted(numbers)}
        for row in self._rows("pg_database", 0, lsn):
            found[row["oid"]] = Database(
                row["oid"], row["datname"], row["encoding"], row["dattablespace"]
            )
        return found

    def namesakes(self, database: Database, start_lsn: int, end_lsn: int) -> set[int]:
        """Return the other databases that had a database's name within a range."""
        return {
            row["oid"] for (begin, end), row in self._all("pg_database", 0)
            if row["datname"] == database.name and begin <= end_lsn and end > start_lsn
        } - {database.oid}  # fmt: skip

    def _initdbs(self, oid: int) -> str | None:
        """Name the databases that initdb makes: not in WAL, but with fixed numbers since 15."""
        return {1: "template1", 4: "template0", 5: "postgres"}.get(oid if self.major >= 15 else 0)

    def database(self, lsn: int, name: str | None) -> Database:
        """Find a database by name or number, or the only one with users' tables."""
        known = list(self.databases(lsn).values())
        if name is not None:
            found = [d for d in known if name in (d.name, str(d.oid))]
            # A database that initdb made has no name in WAL alone; the only one such is meant.
            found = found or [d for d in known if d.name == str(d.oid)]
        else:
            found = [d for d in known if self._has_tables(lsn, d)]
        if len(found) == 1:
            return replace(found[0], is_by_number=name == str(found[0].oid))
        shown = ", ".join(sorted(d.name for d in known))
        what = f"no database {name}" if name is not None else "name one database"
        nothing = "none (give a base backup, or an earlier part of the WAL)"
        raise HistoryError(f"{what}; known at this LSN: {shown or nothing}")

    def _has_tables(self, lsn: int, database: Database) -> bool:
        return any(table.oid >= FIRST_NORMAL_OID for table in self.at(lsn, database).tables())

    def at(self, lsn: int, database: Database) -> Catalog:
        """Return the catalogs of a database at one LSN."""
        oid = database.oid
        space = self._space_at(oid, lsn) or database.tablespace
        catalog = Catalog(replace(database, tablespace=space), lsn)
        schemas = {row["oid"]: row["nspname"] for row in self._rows("pg_namespace", oid, lsn)}
        for row in self._rows("pg_class", oid, lsn):
            row["relfilenode"] = row["relfilenode"] or self._maps.node(oid, row["oid"], lsn)
            catalog.classes[row["oid"]] = class_of(row, schemas)
        for row in self._rows("pg_attribute", oid, lsn, user_columns):
            catalog.attributes.setdefault(row["attrelid"], []).append(attribute_of(row))
        for row in self._rows("pg_type", oid, lsn, user_types):
            catalog.types.by_oid[row["oid"]] = type_of(row, schemas)
        for row in self._rows("pg_enum", oid, lsn):
            if row["enumlabel"] is not None:
                catalog.types.labels[row["oid"]] = row["enumlabel"]
                catalog.types.enums[row["oid"]] = row["enumtypid"]
        for row in self._rows("pg_range", oid, lsn):
            catalog.types.ranges[row["rngtypid"]] = row["rngsubtype"]
            if multirange := row.get("rngmultitypid"):
                catalog.types.multiranges[multirange] = row["rngtypid"]
        for row in self._rows("pg_inherits", oid, lsn):
            catalog.heirs.setdefault(row["inhparent"], []).append(row["inhrelid"])
        for row in self._rows("pg_index", oid, lsn):
            is_key = row["indisprimary"] and row["indimmediate"]
            if is_key and isinstance(row["indkey"], bytes):
                numbers = np.frombuffer(row["indkey"][20:], np.uint8)
                numbers = numbers[: len(numbers) // 2 * 2].view("<i2")[: row["indnkeyatts"]]
                catalog.keys[row["indrelid"]] = numbers.tolist()
                catalog.key_indexes[row["indrelid"]] = row["indexrelid"]
        catalog.schemas, catalog.has_system = schemas, self.store.base is not None
        roles = {row["oid"]: row["rolname"] for row in self._rows("pg_authid", 0, lsn)}
        catalog.finish(self.major, roles, lambda name: self._rows(name, oid, lsn))
        catalog.types.has_dollars = self._has_dollars(lsn)
        return catalog

    def _has_dollars(self, lsn: int) -> bool:
        """Return whether money has its known form: by the base's files, and no other setting."""
        settings = [row["setconfig"] for row in self._rows("pg_db_role_setting", 0, lsn)]
        is_set = any(each is None or b"lc_monetary=" in each for each in settings)
        return is_known(self.lc_monetary) and not is_set

    def names(self) -> dict[Relation, list[Named]]:
        """Return the owners of every file that a known row of pg_class names, with their times."""
        if self._names is None:
            self._names = self._read_names()
        return self._names

    def _read_names(self) -> dict[Relation, list[Named]]:
        found: dict[Relation, list[Named]] = {}
        for database in self.databases(self.end_lsn).values():
            in_spaces: dict[int, Catalog] = {}
            classes = self._all("pg_class", database.oid)
            own = nodes_by_rows(OIDS["pg_namespace"], classes)
            schemas = SchemaNames.of(self._all("pg_namespace", database.oid, own))
            for span, row in classes:
                for begin, end, schema in schemas.within(row["relnamespace"], *span):
                    known = class_of(row, {row["relnamespace"]: schema} if schema else {})
                    if not known.relfilenode:
                        continue
                    space = self._space_at(database.oid, begin) or database.tablespace
                    if space not in in_spaces:  # a catalog costs a millisecond
                        in_spaces[space] = Catalog(replace(database, tablespace=space), 0)
                    file = in_spaces[space].file_of(known)
                    named = Named(
                        begin, end, known.schema, known.name, known.kind, known.oid,
                        known.persistence, known.access_method,
                    )  # fmt: skip
                    found.setdefault(file, []).append(named)
        return {file: sorted(owners, key=lambda n: n.begin) for file, owners in found.items()}

    def moved_from(self, file: Relation) -> list[Relation]:
        """List the files that a file may be a copy of, if its database changed its tablespace."""
        spaces = {r.tablespace for r in self._numbers if r.database == file.database}
        return [
            Relation(space, file.database, file.relfilenode)
            for space in sorted(spaces - {file.tablespace})
        ]

    def file_steps(self, database: int) -> FileSteps:
        """Return how the tables of a database came by their files."""
        if database not in self._steps:
            found, unseen = list[ClassVersion](), set[int]()
            nodes = self._maps.nodes(database, OIDS["pg_class"])
            for relation, number in self._numbers.items():
                if relation.database == database and relation.relfilenode in nodes:
                    chosen, own = self._versions.all_of(number), self._versions
                    columns = (own.first_lsn[chosen], own.begin[chosen], own.are_updates(chosen))
                    rows = self._taken("pg_class", database, chosen)
                    found += map(ClassVersion, *(column.tolist() for column in columns), rows)
                    unseen |= own.unseen.get(number, frozenset())
            self._steps[database] = FileSteps.of(found, unseen)
        return self._steps[database]

    def last_changes(self, lsns: Column) -> Column:
        """Return for each LSN the last commit up to it that changed a catalog, or 0."""
        places = np.searchsorted(self._changed, lsns, "right")
        found: Column = np.append(0, self._changed)[places]
        return found

    def _all(
        self, name: str, database: int, nodes: Nodes | None = None
    ) -> list[tuple[tuple[int, int], dict[str, Any]]]:
        """Return every version of a catalog's rows that was ever visible, with its span.

        `nodes` are the catalog's files if it is not a mapped one.
        """
        found = []
        if nodes is None:
            nodes = self._maps.nodes(database, OIDS[name])
        for relation, number in self._numbers.items():
            if relation.database == database and relation.relfilenode in nodes:
                refuse_broken(self._broken, self.store, number, name)
                chosen, own = self._versions.of(number), self._versions
                ends = np.minimum(own.end[chosen], nodes[relation.relfilenode])
                spans = zip(own.begin[chosen].tolist(), ends.tolist(), strict=True)
                for span, row in zip(spans, self._taken(name, database, chosen), strict=True):
                    found += [(part, row) for part in self._within(relation, *span)]
        return found

    def _spaces(self, database: int) -> list[tuple[int, int, int]]:
        """List (begin, end, tablespace) of a database through time, as far as its row is known."""
        if database not in self._spaces_of:
            self._spaces_of[database] = [
                (begin, end, row["dattablespace"])
                for (begin, end), row in (self._all("pg_database", 0) if database else [])
                if row["oid"] == database
            ]
        return self._spaces_of[database]

    def _space_at(self, database: int, lsn: int) -> int | None:
        """Return the tablespace at an LSN, or None for shared catalogs or if it is not known."""
        known = (space for begin, end, space in self._spaces(database) if begin <= lsn < end)
        return next(known, None)

    def _within(self, relation: Relation, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the part of a span in which a catalog's file was its database's. A database that
        was moved to another tablespace has all of its files in both."""
        spaces = self._spaces(relation.database)
        first = min((since for since, *_ in spaces), default=NEVER)
        parts = [(begin, min(end, first))]  # where the tablespace is not known
        parts += [
            (max(begin, since), min(end, until))
            for since, until, space in spaces
            if space == relation.tablespace
        ]
        return [part for part in parts if part[0] < part[1]]

    def is_catalogs(self, file: Relation) -> bool:
        """Return whether a map of catalogs has, or once had, this file."""
        return self._maps.has(file)

    def _rows(
        self, name: str, database: int, lsn: int, keep: Keep | None = None
    ) -> list[dict[str, Any]]:
        """Return a catalog's rows that are visible at `lsn`."""
        database = 0 if name in SHARED else database
        node = self._maps.node(database, OIDS[name], lsn)
        if not node and name not in _MAPPED:
            own = [r for r in self._rows("pg_class", database, lsn) if r["oid"] == OIDS[name]]
            node = own[0]["relfilenode"] if own else 0
        node = node or OIDS[name]
        space = self._space_at(database, lsn)
        numbers = [
            number
            for relation, number in self._numbers.items()
            if relation.database == database
            and relation.relfilenode == node
            and space in (None, relation.tablespace)
        ]
        for number in numbers:
            refuse_broken(self._broken, self.store, number, name)
        chosen = [self._versions.alive(number, lsn) for number in numbers]
        if not chosen:
            return []
        rows = self._taken(name, database, np.concatenate(chosen), keep)
        # A database that was moved has copies where its tablespace is not known.
        if len(chosen) == 1 and not self.has_gaps and (key := doubled_key(rows, name)):
            self._refuse_doubled(name, key, numbers[0], lsn)
        return rows

    def _refuse_doubled(self, name: str, key: Key, number: int, lsn: int) -> None:
        """Raise HistoryError if two rows of one key are visible, and neither by a guess."""
        own = self._versions
        chosen = own.alive(number, lsn)
        if self.store.base is None:
            chosen = chosen[own.are_certain(chosen)]
        rows = self._taken(name, self.store.relations[number].database, chosen)
        refuse_doubled(rows, chosen, key, own, self.store, name)

    def _taken(
        self, name: str, database: int, chosen: Column, keep: Keep | None = None
    ) -> list[dict[str, Any]]:
        """Return the chosen rows of a catalog as dictionaries."""
        codec = partial(self._codec, database)
        with damage_named(self._versions, chosen, self.store, name):
            return rows_of(self._versions, chosen, name, major=self.major, codec=codec, keep=keep)

    def _codec(self, database: int) -> str:
        """Name a database's encoding, which never changes; the shared catalogs have none."""
        if self._codecs is None:
            self._codecs = {0: codec_of(Database(0, "").encoding)}
            rows = [row for _, row in self._all("pg_database", 0)]
            self._codecs |= {row["oid"]: codec_of(row["encoding"]) for row in rows}
        return self._codecs.get(database, self._codecs[0])

    def rewritten(self) -> set[Relation]:
        """Return the files that catalogs moved to, as maps and pg_class say."""
        spaces: dict[int, set[int]] = {}
        for each in self._numbers:
            spaces.setdefault(each.database, set()).add(each.tablespace)
        nodes = self._maps.rewritten()
        for database in filter(None, spaces):
            for _, row in self._all("pg_class", database):
                if row["oid"] in OIDS.values() and row["relfilenode"] not in (0, row["oid"]):
                    nodes.add((database, row["relfilenode"]))
        # A database that was moved had them in each of its tablespaces.
        return {
            Relation(space, database, node)
            for database, node in nodes
            for space in spaces.get(
                database, (DEFAULT_TABLESPACE if database else GLOBAL_TABLESPACE,)
            )
        }


class _Noted:
    """An OnProblem that notes whether the caller's one passed over a fatal problem."""

    def __init__(self, on_problem: OnProblem) -> None:
        self._on_problem, self.has_gaps = on_problem, False

    def __call__(self, problem: Problem) -> None:
        self._on_problem(problem)
        self.has_gaps |= problem.fatal


def _shortcut(index: ProvenIndex, xids: Xids, store: PageStore) -> Shortcut:
    """Take ends of transactions from an index where no catalog was changed."""
    return Shortcut(
        index,
        lambda facts: not xids.is_settled or store.wants(facts),
        lambda facts: xids.take(facts.ended),
    )


def _store_of(base: BaseDirectory | None, extra: set[Relation]) -> PageStore:
    """Return the pages of all catalogs, and of `extra` files, as they are before the WAL."""
    store = PageStore(
        wanted=[*_catalogs_of(base), *extra],
        low_nodes=tuple(OIDS.values()),
        base=base,
        record_level=RECORD_VERSIONS,
    )
    if base is not None:
        for space, database in [(GLOBAL_TABLESPACE, 0), *base.databases()]:
            store.maps[database] = base.map_of(space, database)
            store.map_log.append((0, database, store.maps[database]))
    return store


def _catalogs_of(base: BaseDirectory | None) -> list[Relation]:
    """List the catalogs' files in a base backup, also those never touched by WAL."""
    if base is None:
        return []
    found = []
    for space, database in [(GLOBAL_TABLESPACE, 0), *base.databases()]:
        nodes = base.map_of(space, database)
        for name, oid in OIDS.items():
            if (name in SHARED) == (database == 0):
                found.append(Relation(space, database, nodes.get(oid, oid)))
    return found
