"""A table as of an LSN: its pages replayed up to there, and the rows that a snapshot there sees.

    past = TableAt.open(path, plan, "public.accounts", lsn=…, base=…, database=…)
    past.read(part, parts) -> record batches of one share of the blocks; past.whole() -> all rows

Contract: rows are those of SELECT on a server recovered to that LSN (inclusive). The exceptions are
in `coverage_column`, the last column of every batch: "complete", or the reasons. The table that
`whole` makes has them in its metadata, since it may have no rows: `coverage_of`. A share replays
its own blocks alone, but reads all of the WAL for itself. So shares can be read on different
machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.counts import counted
from walkeeper_history.segment_index import ProvenIndex
from walkeeper_replay.catalogs.catalog import Catalog, Table
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.columns.columns_of_rows import AS_OIDS, UNREADABLE, LargeColumn, RowColumns
from walkeeper_replay.columns.damaged_values import damaged_rows
from walkeeper_replay.redo.apply import BROKEN, KNOWN
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.redo.chosen_records import Share
from walkeeper_replay.redo.page_resets import PageResets
from walkeeper_replay.redo.store import PageStore, Relation
from walkeeper_replay.redo.wal_pass import Shortcut, pass_over
from walkeeper_replay.text.coverage import COMPLETE, Coverage, reason, together
from walkeeper_replay.text.value_text import Printer
from walkeeper_replay.tuples.toast import Chunks, Fetch, nothing
from walkeeper_replay.tuples.visible import Visible, all_tuples, known_slots, visible_tuples
from walkeeper_replay.tuples.xids import Xids
from walkeeper_wal.records.segment import Bytes, Column
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.sources.threaded_reading import OnProblem, raise_fatal
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import HistoryError

NO_IMAGE = reason("made before this WAL, which has no image of it")
PAGES_PER_BATCH = 1 << 10
HEIRS = reason("rows of tables that inherit from it are in those tables alone", has_all=True)
# In the metadata of an Arrow table's schema, and so of Parquet's.
_COVERAGE = b"walkeeper.coverage"
_HAS_ALL, _HAS_VALUES = b"walkeeper.has_all", b"walkeeper.has_values"


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of some pages, and the counts of rows and values that are not known."""

    count: int
    columns: list[Any]
    assumed: int
    taken: int
    made: RowColumns
    damaged: Coverage | None


@dataclass(slots=True)
class TableAt:
    """A table's description at an LSN, with everything to read its rows. Can be pickled."""

    path: str
    plan: Plan
    lsn: int
    table: Table
    printer: Printer
    xids: Xids
    base: BaseDirectory | None
    moved_from: tuple[Relation, ...] = ()
    """Files of the table and its TOAST before the database went to another tablespace."""
    unlogged_since: int | None = None
    """See BulkLoads."""
    ends_before: int | None = None
    """The end of the WAL, if that is before the LSN that the caller wanted."""
    index: ProvenIndex | None = None
    resets: PageResets = field(default_factory=PageResets)
    """The walk for catalogs noted them."""

    @classmethod
    def open(
        cls,
        path: str,
        plan: Plan,
        name: str | int,
        *,
        lsn: int | None = None,
        database: str | None = None,
        base: BaseDirectory | None = None,
        history: CatalogHistory | None = None,
        catalog: Catalog | None = None,
        later: Catalog | None = None,
        is_of_a_time: bool = False,
        is_for_sql: bool = False,
        on_problem: OnProblem = raise_fatal,
        index: ProvenIndex | None = None,
    ) -> TableAt:
        """Return the table at `lsn`, with the catalogs replayed up to it or to the WAL's end.

        Names and columns are those of `catalog`, if it is given. Values that are names, such as
        those of enums and regclass, are printed as `later` has them, if it is given. With
        `is_of_a_time`, the user named a time, and `lsn` is its place. With `is_for_sql`, these
        values are as a server reads them back.
        """
        refuse_before(base, plan, lsn)
        if history is None:
            history = CatalogHistory.read(
                open_files(path),
                plan,
                base=base,
                until=lsn,
                keeps_commits=False,
                on_problem=on_problem,
                index=index,
                notes_resets=True,
            )
        at = history.end_lsn if lsn is None else lsn
        if lsn is not None and history.end_lsn == 0:
            raise HistoryError(f"no WAL up to {Lsn(lsn)}: it begins later")
        catalog = catalog or history.at(at, history.database(at, database))
        catalog.in_names_of(later)
        table = catalog.find(name)
        printer = catalog.printer.with_names_for(a.type for a in table.columns)
        files = [table.file] if table.toast is None else [table.file, table.toast]
        moved = tuple(source for file in files for source in history.moved_from(file))
        return cls(
            path,
            plan,
            at,
            table,
            printer.for_sql() if is_for_sql else printer,
            history.xids,
            base,
            moved,
            history.loads.unlogged_since,
            None if history.is_whole or (lsn is None and not is_of_a_time) else history.end_lsn,
            index,
            history.resets,
        )

    @property
    def until(self) -> int:
        """The end of the last record to redo. The walk for catalogs checked the CRCs up to it."""
        return self.lsn if self.ends_before is None else min(self.lsn, self.ends_before)

    @property
    def schema(self) -> Any:
        columns = RowColumns(self.table, self.printer).schema
        return columns.append(pa.field(self.coverage_column, pa.string()))

    @property
    def coverage_column(self) -> str:
        """`coverage`, with enough `_` before it to be no column's name, since Spark folds case."""
        taken, name = {a.name.casefold() for a in self.table.columns}, "coverage"
        while name in taken:
            name = "_" + name
        return name

    def share(self, part: int, parts: int) -> Share:
        """Return the records of the WAL that part `part` of `parts` needs."""
        toast = [self.table.toast] if self.table.toast is not None else []
        nodes = {relation[1:] for relation in toast}
        whole = frozenset(r for r in (*toast, *self.moved_from) if r[1:] in nodes)
        return Share(frozenset([self.table.file, *toast, *self.moved_from]), whole, part, parts)

    def store(self, part: int, parts: int) -> PageStore:
        """Return the pages of a share as they are before the WAL."""
        share, toast = self.share(part, parts), self.table.toast
        return PageStore(
            wanted=[self.table.file, *([] if toast is None else [toast]), *self.moved_from],
            part=part,
            parts=parts,
            base=self.base,
            whole=share.whole,
        )

    def replayed(
        self,
        part: int,
        parts: int,
        on_problem: OnProblem = raise_fatal,
        *,
        reads_ahead: bool = False,
    ) -> PageStore:
        """Return one share of the table's pages, and all of its TOAST relation's."""
        store = self.store(part, parts)
        store.resets = self.resets.last_of(store.relations, self.until)
        files: WalFiles = open_files(self.path)
        shortcut = None if self.index is None else Shortcut(self.index, store.wants)
        pass_over(
            files, self.plan, [store.add],
            until=self.until, check_crc=False, on_problem=on_problem, shortcut=shortcut,
            reads_ahead=reads_ahead,
        )  # fmt: skip
        return store

    def read(self, part: int = 0, parts: int = 1) -> Iterator[Any]:
        """Yield record batches with the rows of one share of the blocks, in the table's order."""
        yield from self.rows_of(self.replayed(part, parts), part, parts)[0]

    def rows_of(
        self, store: PageStore, part: int, parts: int, threads: int = 1
    ) -> tuple[list[Any], Coverage]:
        """Return the rows of a share whose pages are replayed, and their coverage.

        PAGES_PER_BATCH pages at a time become rows, because their memory fits into the caches.
        """
        slots, rows_of_pages = known_slots(store, 0), partial(self._rows, store, self._fetch(store))
        shares = [slots[b : b + PAGES_PER_BATCH] for b in range(0, len(slots), PAGES_PER_BATCH)]
        if threads == 1 or len(shares) < 2:
            found = list(map(rows_of_pages, shares))
        else:
            with ThreadPoolExecutor(threads, thread_name_prefix="rows") as pool:
                found = list(pool.map(rows_of_pages, shares))
        pieces = [piece for several in found for piece in several]
        shown = together(self._doubts(store, part, parts, pieces))
        made_of = []
        for piece in pieces:
            if piece.count:
                texts = pa.repeat(pa.scalar(shown, pa.string()), piece.count)
                columns = [*piece.columns, texts]
                made_of.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        return made_of, shown

    def _rows(self, store: PageStore, fetch: Fetch, slots: Column) -> list[_Rows]:
        visible = visible_tuples(store, slots, self.xids)
        return self._pieces(store.pages.reshape(-1), visible, fetch)

    def _pieces(self, data: Bytes, visible: Visible, fetch: Fetch) -> list[_Rows]:
        """Return the rows of these tuples, in halves where they are too many for a column."""
        tuples, count = visible.tuples, len(visible.tuples.places)
        made = RowColumns(self.table, self.printer, fetch)
        try:
            columns = list(made.arrays(data, tuples.places, tuples.lengths).values())
        except LargeColumn:
            if count < 2:
                raise
            halves = np.array_split(np.arange(count), 2)
            first, second = (tuples.narrowed(half) for half in halves)
            before = self._pieces(data, replace(visible, tuples=first), fetch)
            return before + self._pieces(data, Visible(second, assumed=0, taken=0), fetch)
        damaged = None
        if made.damaged_places:
            damaged = damaged_rows(made, tuples, data, self.table.file, self.plan)
        return [_Rows(count, columns, visible.assumed, visible.taken, made, damaged)]

    def _doubts(
        self, store: PageStore, part: int, parts: int, pieces: list[_Rows]
    ) -> list[Coverage]:
        """Return the reasons for which the rows are not those of a server, in their order."""
        doubts = coverage(store, 0, part, parts)
        if self.table.has_heirs:
            doubts.append(HEIRS)
        if self.unlogged_since is not None:
            place = Lsn(self.unlogged_since)
            doubts.append(
                reason(f"WAL from {place} on is of wal_level = minimal, without bulk loads")
            )
        if self.ends_before is not None:
            end = Lsn(self.ends_before)
            doubts.append(reason(f"the WAL ends at {end}, before what was asked for"))
        if assumed := sum(piece.assumed for piece in pieces):
            text = f"{counted(assumed, 'row', 'rows')} of transactions that ended before this WAL"
            doubts.append(reason(text))
        if taken := sum(piece.taken for piece in pieces):
            rows = counted(taken, "row", "rows")
            text = f"{rows} taken away by transactions that ended before this WAL"
            doubts.append(reason(text))
        doubts += [piece.damaged for piece in pieces if piece.damaged is not None][:1]
        made = [piece.made for piece in pieces]
        if unknown := sum(each.unknown for each in made):
            doubts.append(reason(f"{unknown} values whose bytes are from before this WAL"))
        if unreadable := sum(each.unreadable for each in made):
            doubts.append(reason(f"{unreadable} {UNREADABLE}"))
        if as_bytes := sum(each.as_bytes for each in made):
            doubts.append(reason(f"{as_bytes} values of a type that is not known, as bytes"))
        if as_oids := sum(each.as_oids for each in made):
            doubts.append(reason(f"{as_oids} {AS_OIDS}", has_values=AS_OIDS.has_values))
        return doubts

    def _fetch(self, store: PageStore) -> Fetch:
        if self.table.toast is None:
            return nothing
        chunks = all_tuples(store, store.want(self.table.toast))
        return Chunks(store.pages.reshape(-1), chunks.places, chunks.lengths)

    def whole(self, threads: int = 1) -> Any:
        """Return all rows as one Arrow table, in the order of the table.

        With several threads, one decodes WAL ahead of the other's redo, and all make rows.
        """
        store = self.replayed(0, 1, reads_ahead=threads > 1)
        made, known = self.rows_of(store, 0, 1, threads)
        table = pa.Table.from_batches(made, self.schema)
        facts = {
            _COVERAGE: known.encode(),
            _HAS_ALL: str(known.has_all).encode(),
            _HAS_VALUES: str(known.has_values).encode(),
        }
        return table.replace_schema_metadata(facts)

    def for_sql(self, rows: Any) -> Any:
        """Return `rows` of `whole` without the columns that a server would not read back as equal.

        Their values are bytes of a type that is not known.
        """
        own = [a.name for a in self.table.columns if not self.printer.knows(a.type)]
        return rows.drop_columns([n for n in own if rows[n].null_count < len(rows)])


def coverage_of(table: Any) -> Coverage:
    """Return the coverage of a table from `whole`: "complete", or the reasons."""
    facts = table.schema.metadata or {}
    text = facts[_COVERAGE].decode()
    has_all, has_values = (facts[name] == b"True" for name in (_HAS_ALL, _HAS_VALUES))
    return COMPLETE if text == COMPLETE else reason(text, has_all=has_all, has_values=has_values)


def coverage(store: PageStore, relation: int, part: int, parts: int) -> list[Coverage]:
    """Return the reasons for which a relation's pages are not all known."""
    slots = store.slots[store.slots_of(relation)]
    known, broken = int((slots["state"] == KNOWN).sum()), int((slots["state"] == BROKEN).sum())
    doubts = []
    if broken:
        first = int(slots["block"][slots["state"] == BROKEN].min())
        file = "/".join(map(str, store.relations[relation]))
        blocks = counted(broken, "damaged block", "damaged blocks")
        text = f"{blocks}, the first is block {first} of file {file}: not as a server"
        doubts.append(reason(f"{text} wrote it, or changed by a record that does not fit it"))
    last = int(slots["block"].max()) + 1 if len(slots) else 0
    if not store.extents[relation].begins_empty:
        shown = f" of {last}" if parts == 1 else ""
        text = f"made before this WAL: {known} blocks{shown} or more are known"
        doubts.append(reason(text) if known else NO_IMAGE)
    elif known < len(slots):
        doubts.append(reason(f"{len(slots) - known} of {len(slots)} blocks are not known"))
    return doubts


def refuse_before(base: BaseDirectory | None, plan: Plan, lsn: int | None) -> None:
    """Raise HistoryError if no replay can reach `lsn`.

    A backup cannot go back to an earlier LSN, nor forward over a gap. Replay cannot go beyond the
    end of the WAL.
    """
    end = plan.segments[-1].first_lsn + plan.segments[-1].segment_bytes
    if lsn is not None and lsn > end:
        raise HistoryError(f"the WAL ends in the segment before {Lsn(end)}, so before {Lsn(lsn)}")
    if base is None:
        return
    base.refuse_wal(plan)
    if lsn is not None and lsn < base.redo_lsn:
        raise HistoryError(f"the base backup is of {Lsn(base.redo_lsn)}, after {Lsn(lsn)}")
