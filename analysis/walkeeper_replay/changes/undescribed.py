"""Places that were changed in a range of WAL and are missing from its changes. Pure.

    undescribed_files(history, heaps, database) -> [Undescribed("file", "1663/5/16400", …), …]

Contract: a place is named if a committed transaction changed it and the WAL does not say enough to
show how. A place too many may be named: an unnamed file may be one of a TOAST table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from walkeeper_common.lsn import Lsn
from walkeeper_history.rows.heap_changes import LARGE_OBJECTS
from walkeeper_replay.catalogs.catalog import FIRST_NORMAL_OID, HEAP, KINDS_WITH_ROWS, Catalog
from walkeeper_replay.catalogs.catalog_history import CatalogHistory, Named
from walkeeper_replay.catalogs.table_names import meant
from walkeeper_replay.redo.heap_files import HeapFiles
from walkeeper_replay.redo.store import Relation
from walkeeper_wal.records.segment import Column
from walkeeper_wal.sources.plan import Problem

UNNAMED = (
    "this WAL does not say whose it is; if it is a table's, its changes are missing; give a base "
    "backup (--base, in Spark the option base)"
)
NOT_ASKED = (
    "it was changed here and is not looked at; name it (--database, in Spark the option database)"
)
CUT_OFF_RANGE = (
    "the range that was asked for may begin before {}, which has no changes from there; give older "
    "WAL or an earlier backup"
)
HEIR = "it inherits from {}, and its changes are not there; name it, too"
HEIRS_NOT_KNOWN = (
    "tables may inherit from it, which this WAL does not name, and their changes are not there; "
    "give a base backup (--base, in Spark the option base)"
)
BULK_LOADS = (
    "WAL from {} on is of wal_level = minimal, without bulk loads: rows that COPY, CREATE TABLE AS "
    "and their like brought there may be missing"
)
NOT_HEAP = (
    "it is of access method {} (pg_am.oid), and not of heap: what was changed there is missing"
)
MAY_HAVE_BEGUN_BEFORE = (
    "transaction {} may have begun before this WAL, and so may others that committed there. The "
    "WAL lacks what such a transaction had changed by then. Give a base backup (--base, in Spark "
    "the option base), or a start after this LSN"
)
LARGE_OBJECTS_CHANGED = (
    "large objects were changed (lo_put, lo_unlink and the like), and no command shows "
    "such a change or takes it back; a recovery has them"
)
BEGAN_BEFORE = "it began before {}, and what it changed there is missing"


class Undescribed(NamedTuple):
    """A file, table, database or transaction, or a range's part before, up to or from an LSN."""

    kind: str
    place: str
    reason: str
    is_read_again: bool = False
    """A mirror, which reads such a table again, lacks nothing of it."""


def problems_of(
    missing: Iterable[Undescribed], remarks: Iterable[Undescribed],
    span: tuple[int | None, int | None] = (None, None),
) -> Iterator[Problem]:  # fmt: skip
    """Yield a problem for each place that changes lack, and for each that they may lack.

    `span` is the range of commits in which they were met, if it is known.
    """
    for fatal, places in ((True, missing), (False, remarks)):
        for each in places:
            yield Problem(each.place, *span, f"{each.kind}: {each.reason}", fatal)


def undescribed_files(
    history: CatalogHistory, heaps: HeapFiles, database: int, start_lsn: int, xid: int | None
) -> list[Undescribed]:
    """Return the changed or dropped files of a database that no known row of pg_class names.

    A TRUNCATE drops a file, and may be all that a range has of it. A file that one transaction
    made, filled and dropped is left out: no snapshot sees its rows.
    """
    known, commits = history.names(), history.xids.commits

    def is_passing(relation: Relation, xids: set[int]) -> bool:
        if relation not in heaps.made:
            return False
        own = {heaps.made[relation], *xids} & commits.keys()
        return {commits[each].top_xid for each in own} == {heaps.dropped.get(relation)}

    unnamed = sorted(
        relation
        for relation, xids in heaps.touched().items()
        if relation.database == database
        and relation not in known
        and not history.is_catalogs(relation)
        and not _has_large_objects(known, relation)
        and not is_passing(relation, xids)
        and _is_asked_for(history, xids, start_lsn, xid)
    )
    return [Undescribed("file", "/".join(map(str, relation)), UNNAMED) for relation in unnamed]


def large_objects(
    history: CatalogHistory, heaps: HeapFiles, database: int, start_lsn: int, xid: int | None
) -> list[Undescribed]:
    """Return pg_largeobject if transactions of the range changed it, else nothing."""
    known = history.names()
    is_changed = any(
        relation.database == database
        and _has_large_objects(known, relation)
        and _is_asked_for(history, xids, start_lsn, xid)
        for relation, xids in heaps.touched().items()
    )
    place = "pg_catalog.pg_largeobject"
    return [Undescribed("table", place, LARGE_OBJECTS_CHANGED)] if is_changed else []


def _has_large_objects(known: Mapping[Relation, Sequence[Named]], relation: Relation) -> bool:
    """Return whether a file is that of pg_largeobject, which VACUUM FULL gives another one."""
    owners = known.get(relation, [])
    return relation.relfilenode == LARGE_OBJECTS or any(o.oid == LARGE_OBJECTS for o in owners)


def range_without_loads(
    history: CatalogHistory, start_lsn: int, end_lsn: int | None
) -> list[Undescribed]:
    """Return the part of a range whose WAL lacks bulk loads."""
    since, until = history.loads.unlogged_since, history.loads.unlogged_until
    if since is None or (until is not None and until <= start_lsn):
        return []
    if end_lsn is not None and end_lsn <= since:
        return []
    return [Undescribed("range", f"from {Lsn(since)}", BULK_LOADS.format(Lsn(since)))]


def range_of_unsure(history: CatalogHistory, xids: Column) -> list[Undescribed]:
    """Return the range where those of the transactions committed that may have begun before."""
    known = history.xids
    unsure = xids[known.may_have_begun_before(xids) & ~known.began_before(xids)]
    if not len(unsure):
        return []
    ends = known.commits.columns.end_lsn[known.commits.rows(unsure)]
    last = int(ends.argmax())
    reason = MAY_HAVE_BEGUN_BEFORE.format(int(unsure[last]))
    return [Undescribed("range", f"up to {Lsn(int(ends[last]))}", reason)]


def tables_of_other_methods(
    history: CatalogHistory, database: int, names: Sequence[str], start_lsn: int,
    end_lsn: int | None,
) -> list[Undescribed]:  # fmt: skip
    """Return the tables that were not heap's in a range, whether they were changed or not.

    Their WAL is that of an extension, which need not say which of them it is about.
    """
    end = history.end_lsn if end_lsn is None else end_lsn
    found = {
        (named.schema, named.name, named.oid): named.access_method
        for file, owned in history.names().items()
        for named in owned
        if file.database == database and named.access_method != HEAP
        and named.kind in KINDS_WITH_ROWS and named.persistence == "p"
        and named.begin <= end and named.end > start_lsn
    }  # fmt: skip
    known = list(found)
    asked = known if not names else [each for name in names for each in meant(name, known)]
    return [
        Undescribed("table", f"{each[0]}.{each[1]}", NOT_HEAP.format(found[each]))
        for each in sorted(set(asked))
    ]


def unnamed_heirs(catalog: Catalog, names: Sequence[str], *, knows_all: bool) -> list[Undescribed]:
    """Return the tables that inherit from those named and are not among them.

    With `knows_all`, a table has no heirs but those that the catalog has.
    """
    tables = [(each.schema, each.name, each.oid) for each in catalog.tables()]
    asked = {oid for name in names for _, _, oid in meant(name, tables)}
    found, after = dict[int, str](), sorted(asked)
    unknown = []
    while after:
        oid = after.pop()
        known = catalog.classes.get(oid)
        shown = str(oid) if known is None else f"{known.schema}.{known.name}"
        heirs = [heir for heir in catalog.heirs.get(oid, []) if heir not in asked | found.keys()]
        found.update((heir, shown) for heir in heirs)
        after += heirs
        if known is not None and known.has_heirs and oid not in catalog.heirs and not knows_all:
            unknown.append(Undescribed("table", shown, HEIRS_NOT_KNOWN))
    return unknown + [
        Undescribed("table", _shown(catalog, heir), HEIR.format(parent))
        for heir, parent in sorted(found.items())
    ]


def _shown(catalog: Catalog, oid: int) -> str:
    known = catalog.classes.get(oid)
    return str(oid) if known is None else f"{known.schema}.{known.name}"


def described_files(history: CatalogHistory, database: int) -> Callable[[Relation], bool]:
    """Return a test for changed files that none of the lists here could name.

    They are those of this database with a row of pg_class, and catalogs but pg_largeobject.
    """
    known = history.names()

    def is_described(relation: Relation) -> bool:
        owners = known.get(relation, [])
        if _has_large_objects(known, relation):
            return False
        if relation.database == database:
            return bool(owners) or history.is_catalogs(relation)
        return bool(owners) and all(owner.oid < FIRST_NORMAL_OID for owner in owners)

    return is_described


def other_databases(
    history: CatalogHistory,
    heaps: HeapFiles,
    database: int,
    start_lsn: int,
    xid: int | None,
    only: set[int] | None = None,
) -> list[Undescribed]:
    """Return the databases but this one, or `only` these, in which users' tables were changed."""
    known, names = history.names(), history.databases(history.end_lsn)

    def has_no_rows(relation: Relation) -> bool:
        owners = known.get(relation, [])
        return _has_large_objects(known, relation) or (
            bool(owners)
            and all(
                owner.oid < FIRST_NORMAL_OID or owner.kind not in KINDS_WITH_ROWS
                for owner in owners
            )
        )

    changed = {
        relation.database
        for relation, xids in heaps.touched().items()
        if relation.database not in (0, database)
        and (only is None or relation.database in only)
        and not has_no_rows(relation)
        and _is_asked_for(history, xids, start_lsn, xid)
    }
    shown = [names[oid].name if oid in names else str(oid) for oid in sorted(changed)]
    return [Undescribed("database", name, NOT_ASKED) for name in shown]


def _is_asked_for(
    history: CatalogHistory, xids: set[int], start_lsn: int, only: int | None
) -> bool:
    """Return True if one of them was committed after `start_lsn`, and is or belongs to `only`."""
    commits = history.xids.commits
    return any(
        commits[xid].end_lsn > start_lsn and only in (None, xid, commits[xid].top_xid)
        for xid in xids & commits.keys()
    )
