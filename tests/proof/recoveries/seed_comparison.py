"""One seed's comparison of `table-at`, `changes` and `undo` with real recoveries.

    compared(seed, major) -> Figures        Different: an answer that is not the server's, and says
                                            nothing of it

Places are ends of records and times, after a clock that was set to and fro. Ranges lie between
them. An answer that says what it lacks is counted, and no failure.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import numpy as np

from tests.proof.recoveries.clock_steps import moment, step_clock
from tests.proof.recoveries.cut_archive import cut_archive
from tests.proof.recoveries.folds import Kept, Place, apply, brief, difference, kept, stable
from tests.proof.recoveries.recovered_server import Recovered, recovered
from tests.proof.recoveries.work import Work
from tests.support.postgres_server import (
    PostgresServer,
    make_directory,
    own,
    program,
    run_as_server_user,
)
from walkeeper_cli.program import run
from walkeeper_common.lsn import Lsn
from walkeeper_history.lsn_of_time import CommitTimes
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_reader import CUT_OFF, ChangeReader
from walkeeper_replay.changes.change_rows import Change
from walkeeper_replay.changes.lost_changes import RECAST
from walkeeper_replay.columns.arrow_text import rows_of_text
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.redo.wal_pass import next_record_lsn, pass_over
from walkeeper_replay.table_at import HEIRS, TableAt, coverage_of
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan, make_plan
from walkeeper_wal.sources.reading import Batch
from walkeeper_wal.wal_errors import HistoryError

SETTINGS = {
    "max_prepared_transactions": "20", "wal_keep_size": "8GB", "fsync": "off",
    "allow_in_place_tablespaces": "on",
}  # fmt: skip
CHOICES = {
    "wal_level": ("replica", "replica", "logical"),
    "wal_compression": ("off", "off", "pglz", "lz4"),
    "full_page_writes": ("on", "on", "off"),
    "wal_log_hints": ("off", "on"),
    "autovacuum": ("off", "on"),
    "default_toast_compression": ("pglz", "lz4"),
}
STEPS_BEFORE, STEPS = 100, 500
LSNS, TIMES, UNDONE_TABLES = 3, 2, 4
DATABASE = "postgres"
UNREAD = ("more than one function", "more than one operator", 'collation "')
"""Errors of input functions, for which a value that undo wrote is no value."""
CHANGED_SINCE = ("is not as it was left", "was written anew since", "a trigger or a rule")
"""Errors of undo about rows that others changed, of whom there are none here."""
Figures = Counter[str]


class Different(AssertionError):
    """An answer that is not the server's and says that it is complete."""


@dataclass(frozen=True)
class Source:
    """A part of the archive, and what it is read with."""

    over: str
    plan: Plan
    base: BaseDirectory | None = None


@dataclass
class Comparison:
    """A server's archive and backup, and what was compared so far."""

    archive: Path
    backup: Path
    random: random.Random
    times: list[tuple[int, int]]
    figures: Figures = field(default_factory=Counter)
    places: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._firsts: dict[int, int] = {}
        self.base = BaseDirectory(str(self.backup))
        files = open_files(str(self.archive))
        self.over_base, whole = make_plan(files, start_lsn=self.base.redo_lsn), make_plan(files)
        segments = self.over_base.segments
        first = self.random.choice(segments[: 1 + len(segments) // 2]).first_lsn
        self.sources = (
            Source("over the backup", self.over_base, self.base),
            Source("by WAL alone", whole),
            Source("by later WAL alone", make_plan(files, start_lsn=first)),
        )

    def compare(self) -> None:
        """Compare places, then the ranges between them, then undo of one range."""
        # A recovery stops at a record that begins at its target, and none begins at the last end.
        ends = [end for end in self._record_ends()[:-1] if end > self.times[0][0]]
        for lsn in self.random.sample(ends, LSNS):
            with recovered(self.backup, self.archive, {"recovery_target_lsn": str(Lsn(lsn))}) as j:
                self._at(j, lsn, f"--lsn {Lsn(lsn)}", exact=True)
        for _ in range(TIMES):
            self._at_time(self.random.choice(self.times)[1] + self.random.choice((0, 0, 1, -1)))
        self.places.sort(key=lambda place: place.lsn)
        for source in self.sources:
            self._ranges(source)
        self._undo()

    def _record_ends(self) -> list[int]:
        ends: list[int] = []

        def take(batch: Batch) -> None:
            ends.extend(batch.end_lsn().tolist())
            xids, rows = np.unique(batch.records["xid"], return_index=True)
            for xid, lsn in zip(xids.tolist(), batch.start_lsn()[rows].tolist(), strict=True):
                self._firsts.setdefault(xid, lsn)

        files = open_files(str(self.archive))
        pass_over(files, make_plan(files), [take])
        return ends

    def _at_time(self, time: int) -> None:
        """Compare the place of a time, and every table there."""
        shown = moment(time)
        try:
            self.base.refuse_time_before(shown)
        except HistoryError:
            self.figures["times refused"] += 1
            return
        times = CommitTimes(open_files(str(self.archive)), self.over_base)
        lsn = times.range(None, shown)[1]
        reaching = next((lsn for lsn, other in self.times if other >= time), None)
        if lsn != reaching:
            raise Different(f"{shown} is at {_shown(lsn)}, not at {_shown(reaching)}")
        if lsn is None:
            return  # A recovery fails there.
        target = {"recovery_target_time": f"{shown:%Y-%m-%d %H:%M:%S.%f}+00"}
        with recovered(self.backup, self.archive, target) as judge:
            self._at(judge, lsn, f"--time '{shown}'", exact=False)

    def _at(self, judge: Recovered, lsn: int, shown: str, *, exact: bool) -> None:
        """Compare all tables of a place, over the backup and by WAL alone."""
        stopped = judge.stopped_at
        if lsn not in (stopped, next_record_lsn(stopped, self.over_base.segment_bytes)):
            raise Different(f"{shown} is {Lsn(lsn)}; a recovery stops at {Lsn(stopped)} ({exact=})")
        tables = judge.tables()
        place = Place(lsn, shown, tables, {name: judge.rows(name) for name in tables})
        for source in self.sources:
            if source.plan.segments[0].first_lsn < lsn:
                self._source(place, source)
        self.places.append(place)

    def _source(self, place: Place, source: Source) -> None:
        """Compare all tables of a place, as one source has them."""
        lsn, files = place.lsn, open_files(str(self.archive))
        try:
            history = CatalogHistory.read(
                files, source.plan, base=source.base, until=lsn, keeps_commits=False,
                notes_resets=True,
            )  # fmt: skip
            database = history.database(lsn, DATABASE)
        except HistoryError:  # no whole record is there, or none that names the database
            assert source.base is None, f"{place.shown}: no database"
            self.figures[f"databases not known {source.over}"] += 1
            return
        known = {each.oid for each in history.at(lsn, database).tables()
                 if each.oid >= 16384 and each.persistence == "p"}  # fmt: skip
        for oid in known - {table.oid for table in place.tables.values()}:
            self._absent(place, oid, source, history)
        for name in place.tables:
            self._table(place, name, source, history)

    def _opened(self, place: Place, name: str, source: Source, history: CatalogHistory) -> TableAt:
        return TableAt.open(
            str(self.archive), source.plan, name, lsn=place.lsn, base=source.base,
            database=DATABASE, history=history,
        )  # fmt: skip

    def _absent(self, place: Place, oid: int, source: Source, history: CatalogHistory) -> None:
        """Check that a table which does not exist is not said to be complete."""
        try:
            coverage: str = coverage_of(self._opened(place, str(oid), source, history).whole())
        except HistoryError:
            coverage = "an error"
        if source.base is not None or coverage == COMPLETE:
            raise Different(f"table {oid} does not exist at {place.shown} {source.over}")
        self.figures[f"tables absent {source.over}, said"] += 1

    def _table(self, place: Place, name: str, source: Source, history: CatalogHistory) -> None:
        over = source.over
        try:
            past = self._opened(place, name, source, history)
        except HistoryError as error:
            if source.base is not None:
                raise Different(f"{name} at {place.shown} {over}: {error}") from error
            self.figures[f"tables not known {over}"] += 1
            return
        table = past.whole()
        coverage, rows = (
            coverage_of(table),
            rows_of_text(table.drop_columns([past.coverage_column])),
        )
        names, expected = tuple(a.name for a in past.table.columns), place.rows[name]
        if coverage not in (COMPLETE, HEIRS):  # the rows to compare with are those of ONLY
            self.figures[f"tables not complete {over}"] += 1
        elif names != place.tables[name].names or rows != expected:
            text = difference(rows, expected)
            begin = Lsn(source.plan.segments[0].first_lsn)
            raise Different(f"{name} at {place.shown} {over} ({begin} to {Lsn(place.lsn)}): {text}")
        else:
            self.figures[f"tables equal {over}"] += 1
            self.figures["rows"] += len(rows)

    def _reader(self, end: int, source: Source) -> ChangeReader:
        files = open_files(str(self.archive))
        history = CatalogHistory.read(files, source.plan, base=source.base, until=end)
        database = history.database(history.end_lsn, DATABASE)
        return ChangeReader(files, source.plan, history, database, source.base)

    def _ranges(self, source: Source) -> None:
        """Read changes range by range, and fold each range into the rows that came before."""
        first = source.plan.segments[0].begin_lsn
        places = [place for place in self.places if place.lsn > first]
        bounds = [0, *(place.lsn for place in places)]
        try:
            whole = _texts(self._reader(bounds[-1], source).read())
        except HistoryError:
            assert source.base is None, "a database over the backup"
            self.figures[f"databases not known {source.over}"] += 1
            return
        pieces: list[str] = []
        for number in range(1, len(bounds)):
            begin, end = bounds[number - 1], bounds[number]
            try:
                reader = self._reader(end, source)
            except HistoryError:
                return
            found = reader.read((), begin, end)
            pieces += _texts(found)
            if number > 1 and not self._is_from_before(reader, begin, end, source):
                self._fold(places[number - 2], places[number - 1], found, reader, source)
        if source.base is not None and sorted(pieces) != sorted(whole):
            only = (Counter(pieces) - Counter(whole), Counter(whole) - Counter(pieces))
            raise Different(f"changes of ranges {bounds}: {[brief(o) for o in only]}")
        self.figures["changes"] += len(whole)

    def _is_from_before(self, reader: ChangeReader, begin: int, end: int, source: Source) -> bool:
        """Return whether WAL alone cannot tell that a transaction had begun before it.

        The manual says so. The whole archive, which this source has a part of, tells.
        """
        if source.base is not None:
            return False
        first_lsn, said = source.plan.segments[0].begin_lsn, set(reader.cut_off(begin, end))
        found = {
            commit.top_xid
            for xid, commit in reader.history.xids.commits.items()
            if begin < commit.end_lsn <= end and self._firsts.get(xid, first_lsn) < first_lsn
        }
        self.figures[f"transactions from before, said, {source.over}"] += len(found & said)
        self.figures[f"transactions from before, not seen, {source.over}"] += len(found - said)
        return bool(found - said)

    def _fold(
        self, before: Place, after: Place, found: list[Change], reader: ChangeReader, source: Source
    ) -> None:
        over = source.over
        missing = reader.undescribed(before.lsn, after.lsn)
        if any(each.kind != "table" for each in missing):
            self.figures[f"ranges with missing changes, said, {over}"] += 1
            return
        said = {each.place for each in (*missing, *reader.remarks())}
        names = _names_of_tables(reader)
        for each in kept(before, after):
            table = each.table
            own = [change for change in found if change.table.oid == table.oid]
            if any(change.coverage != COMPLETE for change in own):
                self.figures[f"folds not complete {over}"] += 1
                continue
            rows = stable(table, before.rows[each.before])
            expected = stable(table, after.rows[each.after])
            apply(rows, own, table)
            if rows == expected:
                self.figures[f"folds equal {over}"] += 1
            elif said & names[table.oid]:
                self.figures[f"folds of tables with missing changes, said, {over}"] += 1
            else:
                shown = f"{each.before} ({table.oid}) from {before.shown} to {after.shown}"
                extra = rows - expected, expected - rows
                raise Different(f"changes of {shown} {over}: {[brief(e) for e in extra]}")

    def _undo(self) -> None:
        """Take a range back on a server that is recovered to its end."""
        before, after = sorted(self.random.sample(self.places, 2), key=lambda place: place.lsn)
        tables = sorted(kept(before, after), key=lambda each: each.after)
        chosen = self.random.sample(tables, min(UNDONE_TABLES, len(tables)))
        if before.lsn == after.lsn or not chosen:
            return
        target = {"recovery_target_lsn": str(Lsn(after.lsn))}
        with recovered(self.backup, self.archive, target) as judge, _directory() as directory:
            cut = cut_archive(self.archive, directory / "archive", after.lsn)
            for number, each in enumerate(chosen):
                script, said = directory / f"{number}.sql", StringIO()
                with redirect_stderr(said):
                    code = run(
                        ["history", "undo", "--path", str(cut), "--base", str(self.backup),
                         "--table", str(each.table.oid), "--start-lsn", str(Lsn(before.lsn)),
                         "--end-lsn", str(Lsn(after.lsn)), "--output", str(script)]
                    )  # fmt: skip
                if code:
                    self.figures["undo not complete, said"] += 1
                else:
                    self._run_undo(judge, script, before, each, shown=f"{before.shown} "
                                   f"{after.shown}: {said.getvalue()}")  # fmt: skip

    def _run_undo(
        self, judge: Recovered, script: Path, before: Place, each: Kept, *, shown: str
    ) -> None:
        """Compare the rows behind an undo with those before the range."""
        is_recast = RECAST.partition("{")[0] in shown  # the warning has the name of that time
        if (error := judge.run(script)) is not None:
            self.figures["undo refused by the server"] += 1
            unread = any(word in error for word in UNREAD)
            is_changed = any(words in error for words in CHANGED_SINCE)
            if unread or (is_changed and not is_recast):
                raise Different(f"undo of {each.after} {shown}{error}")
            return
        rows = stable(each.table, judge.rows(each.after))
        expected = stable(each.table, before.rows[each.before])
        if rows == expected:
            self.figures["undo equal"] += 1
        elif is_recast:
            self.figures["undo of tables that ALTER TABLE gave other values, said"] += 1
        else:
            extra = [brief(each) for each in (rows - expected, expected - rows)]
            raise Different(f"undo of {each.after} {shown}{extra}")


def _names_of_tables(reader: ChangeReader) -> dict[int, set[str]]:
    """Return each name that a table had in the reader's database, by OID."""
    found: dict[int, set[str]] = defaultdict(set)
    for relation, owned in reader.history.names().items():
        if relation.database == reader.database.oid:
            for named in owned:
                found[named.oid].add(f"{named.schema}.{named.name}")
    return found


def _texts(changes: list[Change]) -> list[str]:
    """Return the changes as texts, but for those of transactions of which a part is missing.

    The reader names such a transaction. It may know more of one from fewer or from more WAL.
    """
    return [
        str((change.commit, change.xid, change.start_lsn, change.table.oid, change.operation,
             change.old, change.new, change.coverage))
        for change in changes if CUT_OFF not in change.coverage.reasons
    ]  # fmt: skip


def _shown(lsn: int | None) -> str:
    return "no place" if lsn is None else str(Lsn(lsn))


@contextmanager
def _directory(*, keeps: bool = False) -> Iterator[Path]:
    directory = make_directory("walkeeper_recoveries_")
    try:
        yield directory
    finally:
        if not keeps:
            shutil.rmtree(directory, ignore_errors=True)


def compared(seed: int, *, keeps: bool = False) -> Figures:
    """Make a server work, and compare its past. Raises Different.

    `keeps` leaves the archive, the backup and the statements for a look.
    """
    chosen = random.Random(seed)
    with _directory(keeps=keeps) as directory:
        archive, backup = directory / "archive", directory / "backup"
        options = ["--wal-segsize=1"]
        settings = {name: chosen.choice(CHOICES[name]) for name in CHOICES}
        if "lz4" not in run_as_server_user([program("pg_config"), "--configure"]).stdout:
            settings = {name: value.replace("lz4", "pglz") for name, value in settings.items()}
        with PostgresServer.create({**SETTINGS, **settings}, initdb_options=options) as server:
            work = Work(server, seed)
            crash_at = chosen.choice((None, chosen.randrange(STEPS)))
            loads_at = chosen.choice((None, None, chosen.randrange(STEPS_BEFORE)))
            restart_at = chosen.choice((None, chosen.randrange(STEPS)))
            work.logs_all = crash_at is not None
            work.create()
            for number in range(STEPS_BEFORE):
                if number == loads_at:
                    work.load_without_wal()
                work.step()
            made = server.base_backup(options=["-X", "none"])
            try:
                run_as_server_user(["cp", "-a", str(made.data), str(backup)])
            finally:
                made.delete()
            stepped_from = int(Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()")))
            work.goes_deep = True
            for number in range(STEPS):
                if number == crash_at:
                    work.crash()
                if number == restart_at:
                    work.restart()
                work.step()
            work.close()
            server.sql("SELECT pg_switch_wal()")
            server.stop()
            run_as_server_user(["cp", "-a", str(server.data / "pg_wal"), str(archive)])
        own(archive)
        (directory / "statements").write_text("\n".join(work.done))
        comparison = Comparison(archive, backup, chosen, step_clock(archive, stepped_from, chosen))
        comparison.compare()
        comparison.figures["statements"] += len(work.done)
        return comparison.figures
