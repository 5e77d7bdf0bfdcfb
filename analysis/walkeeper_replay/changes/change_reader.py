"""Row changes: who inserted, updated or deleted which row when, with old and new values.

    reader = ChangeReader(files, plan, history, database, base)
    reader.find(["public.t"], start_lsn, end_lsn)      -> FoundChanges; `read` gives them one by one

WAL of wal_level=replica says which tuple a record is about, and the page has the rest. After the
record, a deleted tuple's bytes are still there, and so are an update's old and new version. So this
needs only redo of the tables' pages, from the beginning of the WAL or a base backup on.

Contract: only committed changes, in the order of commits. Rows moved by VACUUM FULL, CLUSTER or a
rewriting ALTER TABLE are no changes. TRUNCATE is one, without the rows. Values are text as
PostgreSQL prints it, by column. A value or row that cannot be known is absent, and `coverage` says
so. Columns are those that the table had when the change was committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from walkeeper_common.lsn import Lsn
from walkeeper_history.segment_index import Facts, ProvenIndex
from walkeeper_replay.catalogs.catalog import Catalog, Database, Table
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_events import (
    TableFile,
    Tenure,
    emptied,
    is_emptied_again,
    taken_back,
    versions,
    where,
)
from walkeeper_replay.changes.change_rows import (
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    Change,
    FoundChanges,
    Piece,
    coverage_of_pairs,
    covered,
    rows_at,
)
from walkeeper_replay.changes.changed_values import changed_values
from walkeeper_replay.changes.described_tables import DescribedTables
from walkeeper_replay.changes.incomplete_changes import LOST, FirstLoss
from walkeeper_replay.changes.lost_changes import LostChanges
from walkeeper_replay.changes.table_owners import TableLife, TableOwners
from walkeeper_replay.changes.undescribed import (
    BEGAN_BEFORE,
    CUT_OFF_RANGE,
    Undescribed,
    described_files,
    large_objects,
    other_databases,
    range_of_unsure,
    range_without_loads,
    tables_of_other_methods,
    undescribed_files,
    unnamed_heirs,
)
from walkeeper_replay.columns.damaged_values import damaged_change
from walkeeper_replay.redo.apply import (
    DELETED,
    INSERTED,
    NEW,
    OLD,
    RECORD_CHANGES,
    RECORD_VERSIONS,
)
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.redo.heap_files import HeapFiles
from walkeeper_replay.redo.store import Events, PageStore, Relation
from walkeeper_replay.redo.wal_pass import Shortcut, pass_over
from walkeeper_replay.text.coverage import COMPLETE, reason
from walkeeper_replay.tuples.row_versions import joined
from walkeeper_replay.tuples.toast import Chunks, Fetch, nothing
from walkeeper_wal.records.segment import Column
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.sources.threaded_reading import OnProblem, raise_fatal
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import HistoryError

_OPERATIONS = np.zeros(8, np.uint8)  # by the kind of an event
_OPERATIONS[[INSERTED, NEW, DELETED]] = INSERT, UPDATE, DELETE
_IS_OF_ROW = np.zeros(8, bool)
_IS_OF_ROW[[INSERTED, DELETED, OLD, NEW]] = True
REWRITTEN = reason("the same transaction rewrote the table")
CUT_OFF = reason("its transaction began before this WAL, and what it did there is not known")


@dataclass
class ChangeReader:
    """Changes of some tables of one database, in a range of LSNs."""

    files: WalFiles
    plan: Plan
    history: CatalogHistory
    database: Database
    base: BaseDirectory | None = None
    on_problem: OnProblem = raise_fatal
    index: ProvenIndex | None = None
    later: Catalog | None = None
    """Catalogs that name labels, roles, and what regclass and its like print, or None."""
    _heaps: HeapFiles = field(default_factory=HeapFiles)
    lost_from: int | None = None
    """Where the pass for the catalogs met the first missing or damaged WAL, and read on."""

    def __post_init__(self) -> None:
        self._losses = FirstLoss(self.on_problem, self.lost_from)

    @cached_property
    def described(self) -> DescribedTables:
        """The tables as the catalogs have them."""
        return DescribedTables(self.history, self.database, self.later)

    def read(
        self,
        names: Sequence[str] = (),
        start_lsn: int = 0,
        end_lsn: int | None = None,
        *,
        share: tuple[int, int] = (0, 1),
    ) -> list[Change]:
        """Return the changes that `find` finds, one by one."""
        return self.find(names, start_lsn, end_lsn, share=share).changes()

    def find(
        self,
        names: Sequence[str] = (),
        start_lsn: int = 0,
        end_lsn: int | None = None,
        *,
        share: tuple[int, int] = (0, 1),
    ) -> FoundChanges:
        """Return the changes of the named tables, or without names of all users' tables.

        The commit records of their transactions end in (start_lsn, end_lsn]. Each transaction is
        complete, so each change is in one of two adjacent ranges. `share` is (number, count), and
        selects one of `count` shares. A share has whole tables, so that no change is in two. Raise
        HistoryError for a name without a table.
        """
        end = self.history.end_lsn if end_lsn is None else end_lsn
        files = self.shares(names, end, share[1], start_lsn)[share[0]]
        return self.found_in(self._replayed(files, end), files, start_lsn, end)

    def shares(
        self, names: Sequence[str], end: int, count: int, start: int = 0
    ) -> list[list[TableFile]]:
        """Return the files of the tables in `count` shares; the files of a table are in one share.

        A name means the tables that had it after `start`.
        """
        self._refuse_unknown(names, end)
        every = self._files(names, end, start)
        self.described.insists = bool(names)
        return [[file for file in every if file.oid % count == part] for part in range(count)]

    def found_in(
        self, store: PageStore, files: list[TableFile], start_lsn: int, end: int
    ) -> FoundChanges:
        """Return the changes of files that a store has replayed, in the order of commits."""
        store.take_events()
        store.events = [joined(store.events)]
        found = self.part_in(store, files, start_lsn, end)
        found.rewritten = self.rewritten_in(files, start_lsn, end)
        return found

    def rewritten_in(self, files: list[TableFile], start_lsn: int, end: int) -> dict[int, Table]:
        """Return the tables that a commit in the range, read before, gave rows of another file."""
        again = {oid for oid, lsn in self._rewriting(files) if start_lsn < lsn <= end}
        changed = {each.relfilenode for each in self._heaps.changed}
        again |= self._lost.note({file.oid for file in files}, start_lsn, end, changed)
        again |= {
            file.oid for file in files
            if file.tenure.is_taken_over and start_lsn < file.tenure.after <= end
            and self._lost.note_taken_over(file.oid, file.tenure.after)
        }  # fmt: skip
        return self.described.last(again)

    def part_in(
        self, store: PageStore, files: list[TableFile], start_lsn: int, end: int
    ) -> FoundChanges:
        """Return the changes of the events that a store has, of commits in (start, end]."""
        rewriting = self._rewriting(files)
        own = (self._of_file(store, piece, start_lsn, end, rewriting) for piece in files)
        found = FoundChanges([piece for pieces in own for piece in pieces])
        if cut_off := self.cut_off(start_lsn, end):
            found.doubt(lambda rows: np.isin(rows["top_xid"], cut_off), CUT_OFF)
        if self._losses.lsn is not None:
            lost_from = self._losses.lsn
            found.doubt(lambda rows: rows["commit_lsn"] > lost_from, LOST)
        return found

    def cut_off(self, start_lsn: int = 0, end_lsn: int | None = None) -> list[int]:
        """Return the transactions of the range that had begun before the WAL, or the base backup.

        Their changes from before are not known.
        """
        begin = max(self._begin_lsn, start_lsn)
        end, xids = self.history.end_lsn if end_lsn is None else end_lsn, self.history.xids
        commits = xids.commits.columns
        tops = np.unique(commits.top_xid[(commits.end_lsn > begin) & (commits.end_lsn <= end)])
        found: list[int] = tops[xids.began_before(tops)].tolist()
        return found

    @property
    def _begin_lsn(self) -> int:
        return self.plan.segments[0].begin_lsn if self.base is None else self.base.redo_lsn

    @property
    def _source(self) -> str:
        return "this WAL" if self.base is None else "the base backup"

    def cut_off_range(self) -> Undescribed:
        """Return the part of a range that lies before the WAL, or before the base backup."""
        return Undescribed(
            "range", f"before {Lsn(self._begin_lsn)}", CUT_OFF_RANGE.format(self._source)
        )

    def undescribed(
        self,
        start_lsn: int = 0,
        end_lsn: int | None = None,
        *,
        xid: int | None = None,
        others: bool = False,
        names: Sequence[str] = (),
    ) -> list[Undescribed]:
        """Return the places that were changed in the range, and that `find` could not show.

        Call `find` before. With `xid`, only changes of this transaction count. With `others`, all
        other databases count, and otherwise those that had this one's name. With `names`, the heirs
        of these tables count that are not named themselves.
        """
        oid = self.database.oid
        found = [self.cut_off_range()] if 0 < start_lsn < self._begin_lsn else []
        found += range_without_loads(self.history, start_lsn, end_lsn)
        found += undescribed_files(self.history, self._heaps, oid, start_lsn, xid)
        found += tables_of_other_methods(self.history, oid, names, start_lsn, end_lsn)
        found += self.undecoded(xid)
        found += [
            Undescribed("transaction", str(each), BEGAN_BEFORE.format(self._source))
            for each in self.cut_off(start_lsn, end_lsn)
            if xid in (None, each)
        ]
        if names:
            at = self.history.end_lsn if end_lsn is None else end_lsn
            found += unnamed_heirs(
                self.described.catalog(at), names, knows_all=self.base is not None
            )
        only = None if others else self._namesakes(start_lsn, end_lsn)
        return found + other_databases(self.history, self._heaps, oid, start_lsn, xid, only)

    def _namesakes(self, start_lsn: int, end_lsn: int | None) -> set[int]:
        """Return the other databases that had this one's name, if the caller names it so."""
        end = self.history.end_lsn if end_lsn is None else end_lsn
        own = self.database
        return set() if own.is_by_number else self.history.namesakes(own, start_lsn, end)

    def unsure(self, transactions: Iterable[int]) -> list[Undescribed]:
        """Return the range up to which some of these may have begun before the WAL."""
        return range_of_unsure(self.history, np.array(sorted(set(transactions)), np.int64))

    def undecoded(self, xid: int | None = None) -> list[Undescribed]:
        """Return the tables and files whose changes were left out, or are not in the WAL."""
        found = [
            Undescribed(*place, why) for place, why in sorted(self.described.undecoded.items())
        ]
        return found + self._lost.found(xid)

    def large_objects(self, start_lsn: int = 0, xid: int | None = None) -> list[Undescribed]:
        """Return pg_largeobject if the range changed it, which is in no change of a row."""
        return large_objects(self.history, self._heaps, self.database.oid, start_lsn, xid)

    def remarks(self, xid: int | None = None) -> list[Undescribed]:
        """Return the tables whose rows DDL gave other values, which is no change of a row."""
        return self._lost.remarks(xid)

    @cached_property
    def _lost(self) -> LostChanges:
        steps = self.history.file_steps(self.database.oid)
        return LostChanges(steps, self.history.xids.commits, self.described.catalog)

    def take_heaps(self, heaps: HeapFiles) -> None:
        """Use changed files that others have found, instead of those of `find`."""
        self._heaps = heaps

    @cached_property
    def owners(self) -> TableOwners:
        """The tables that had the files of this database."""
        return TableOwners.of(self.history, self.database)

    def _files(self, names: Sequence[str], end: int, start: int = 0) -> list[TableFile]:
        """Return every file before `end` of the tables that had one of the names after `start`.

        A table is its OID, until another one gets it. A table that was dropped before has no
        changes there.
        """
        steps, chosen = self.history.file_steps(self.database.oid), self.owners
        had = chosen.meant(names, start, end, may_go_on=True)
        found: dict[tuple[Relation, Tenure], TableFile] = {}
        nodes: dict[TableLife, set[tuple[int, Tenure]]] = {}
        for relation, named, tenure in chosen.until(end):
            table_life = chosen.life(named)
            if table_life not in had:
                continue
            place = relation, tenure
            if place in found:  # its row of pg_class was updated, the file is the same
                known = found[place]
                toasts = known.toasts or self.described.toasts_of(named)
                found[place] = replace(known, end=named.end, toasts=toasts)
                continue
            table = self.described.catalog(max(named.begin, 1)).classes.get(named.oid)
            if table is not None and table.persistence != "p":
                continue
            toasts = self.described.toasts_of(named)
            # A database that moves to another tablespace takes its files along, by their numbers.
            own = nodes.setdefault(table_life, set())
            node = relation.relfilenode
            follows = bool(own) and (node, tenure) not in own
            own.add((node, tenure))
            follows = follows and steps.began_empty(named.oid, node, named.begin)
            follows = follows and not tenure.is_taken_over
            found[place] = TableFile(
                relation, named.begin, named.end, named.oid, toasts, follows, tenure
            )
        return list(found.values())

    def _refuse_unknown(self, names: Sequence[str], end: int) -> None:
        """Raise HistoryError for a name without a table: the others' changes are no whole answer.

        A stream waits for such a table.
        """
        for name in names:
            if not self._files([name], end):
                raise HistoryError(self._absent(name, end))

    def _absent(self, name: str, end: int) -> str:
        if (refusal := self.described.catalog(end).refusal(name)) is not None:
            return refusal
        return (
            f"no table {name} in database {self.database.name} in this WAL "
            "(WAL has no rows of unlogged and temporary tables)"
        )

    def store_of(self, files: list[TableFile]) -> PageStore:
        """Return a store that replays these files."""
        tables = {f.relation: RECORD_CHANGES for f in files}
        toast = {relation: RECORD_VERSIONS for f in files for relation in f.toasts}
        return PageStore(
            wanted=[*tables, *toast],
            base=self.base,
            record_level=RECORD_CHANGES,
            levels={**tables, **toast},
        )

    def _replayed(self, files: list[TableFile], end: int) -> PageStore:
        store = self.store_of(files)
        pass_over(
            self.files, self.plan, [store.add, self._heaps.add],
            until=end, check_crc=False, on_problem=self._losses, shortcut=self._shortcut(store),
        )  # fmt: skip
        return store

    def _shortcut(self, store: PageStore) -> Shortcut | None:
        """Return a shortcut over segments without changes of this reader's or unnamed tables."""
        if self.index is None:
            return None
        described = described_files(self.history, self.database.oid)

        def is_needed(facts: Facts) -> bool:
            others = (Relation(*row) for row in facts.heap_files.tolist())
            return store.wants(facts) or not all(map(described, others))

        return Shortcut(self.index, is_needed)

    def _of_file(
        self,
        store: PageStore,
        file: TableFile,
        start: int,
        end: int,
        rewriting: set[tuple[int, int]],
    ) -> list[Piece]:
        events, relation = store.events[0], store.want(file.relation)
        rows = events.rows[events.rows["relation"] == relation]
        places = self.history.xids.commit_rows(rows["xid"])
        lsns = np.append(self._commit_lsns, 0)[places]
        kept = _IS_OF_ROW[rows["kind"]] & (places >= 0) & (lsns > start) & (lsns <= end)
        kept &= (rows["start_lsn"] >= emptied(store, file)) & (rows["start_lsn"] < end)
        kept &= (lsns > file.tenure.after) & (lsns <= file.tenure.until)
        kept &= ~taken_back(rows)
        rows, lsns = where(kept, rows, lsns)
        steps = self.history.file_steps(self.database.oid)
        place = file.oid, file.relation.relfilenode, file.begin
        if (swap_lsn := steps.rewritten.get(place)) is not None:
            copied = (lsns == file.begin) & (rows["start_lsn"] < swap_lsn)
            if start < file.begin <= end:
                has_copies = bool(copied.any())
                self._lost.note_rewrite(
                    file.oid, file.begin, has_copies=has_copies, is_asked=self.described.insists
                )
            if not steps.is_created_in(file.oid, file.begin):
                rows, lsns = where(~copied, rows, lsns)
        # A commit that rewrote the table has the new columns, and rows of older files the old ones.
        others = [lsn for oid, lsn in rewriting if (oid, file.begin < lsn) == (file.oid, True)]
        doubtful = np.isin(
            lsns, [lsn for lsn in others if not self.described.has_same_columns(file, lsn)]
        )
        changes = self._without_values(rows[doubtful & (rows["kind"] != OLD)], file)
        if not doubtful.all():
            fetch = self._fetch(store, file)
            known = where(~doubtful, rows, lsns)
            changes += self._decoded(events, *known, file, fetch)
        begun = emptied(store, file)
        is_emptied = file.follows or (
            is_emptied_again(store, file) and not steps.is_created_in(file.oid, file.begin)
        )
        if is_emptied and start < file.begin and begun < end:
            changes += self._truncation(file, begun)
        is_whole = store.extents[relation].begins_empty
        return [replace(piece, is_whole=is_whole) for piece in changes]

    @property
    def _commit_lsns(self) -> Column:
        return self.history.xids.commits.columns.end_lsn

    def _rewriting(self, files: list[TableFile]) -> set[tuple[int, int]]:
        """Return (table, commit's end) of each commit that rewrote one of the tables."""
        steps = self.history.file_steps(self.database.oid)
        return {(oid, lsn) for oid in {f.oid for f in files} for lsn in steps.rewriting(oid)}

    def _without_values(self, rows: Column, file: TableFile) -> list[Piece]:
        """Return changes by transactions that also rewrote the table."""
        made = self._made(rows)
        found = []
        for lsn in np.unique(made["commit_lsn"]).tolist():
            if (table := self.described.of_file(file, lsn)[1]) is not None:
                own = made[made["commit_lsn"] == lsn]
                found.append(Piece(table, own, None, covered(len(own), REWRITTEN)))
        return found

    def _made(self, rows: Column) -> Column:
        """Return events as rows of CHANGE_ROW."""
        operations = _OPERATIONS[rows["kind"]]
        return rows_at(self.history.xids.commits, rows["xid"], rows["start_lsn"], operations)

    def _truncation(self, file: TableFile, start: int) -> list[Piece]:
        """Return the truncation before a file, which its commit made; values are not in the WAL."""
        commit = self.history.xids.commits.at(file.begin)
        known = self.described.catalog(file.begin).classes.get(file.oid)
        if commit is None or known is None:
            return []
        table = self.described.table(self.described.catalog(file.begin), known)
        if table is None:
            return []
        one = np.array([commit.top_xid]), np.array([start]), np.array([TRUNCATE])
        return [Piece(table, rows_at(self.history.xids.commits, *one), None, covered(1, COMPLETE))]

    def _fetch(self, store: PageStore, file: TableFile) -> Fetch:
        """Return a function that finds the TOAST chunks of a value among all that were replayed."""
        if not file.toasts:
            return nothing
        events, numbers = store.events[0], [store.want(relation) for relation in file.toasts]
        rows = events.rows[np.isin(events.rows["relation"], numbers) & (events.rows["length"] > 0)]
        return Chunks(events.arena, rows["place"], rows["length"])

    def _decoded(
        self, events: Events, rows: Column, lsns: Column, file: TableFile, fetch: Fetch
    ) -> list[Piece]:
        """Return decoded rows, a piece for each form that the table had at their commits `lsns`."""
        places = self.history.last_changes(lsns)
        found: list[Piece] = []
        for place in np.unique(places).tolist():
            own, lsns_of = where(places == place, rows, lsns)
            catalog, table = self.described.of_file(file, int(lsns_of[0]))
            if table is not None:
                piece = self._paired(events, own, table, catalog, fetch)
                is_own = place in lsns_of and self.described.has_new_key(file, place)
                found.append(replace(piece, has_new_key=is_own))
        return found

    def _paired(
        self, events: Events, rows: Column, table: Table, catalog: Catalog, fetch: Fetch
    ) -> Piece:
        """Return changes; an update's two versions, which have the same record, are one change."""
        values = changed_values(events, rows, table, catalog, fetch)
        if len(damaged := values.damaged()):
            lsn = int(rows["start_lsn"][damaged[0]])
            self.described.undecoded["table", table.shown] = damaged_change(self.plan, lsn)
        shown, before, after = versions(rows)
        made = self._made(rows[shown])
        made["old"], made["new"] = before, after
        return Piece(table, made, values, coverage_of_pairs(values, shown, before))
