"""Changes of tables that WAL does not have, since a file began with the rows of another one. Pure.

    lost = LostChanges(steps, commits, catalog_at)
    lost.note_rewrite(oid, commit_lsn, has_copies=True)       for each file that a rewrite made
    lost.note(oids, start, end, changed) -> tables with such a commit in the range
    lost.found(xid), lost.remarks() -> [Undescribed, …]

Contract: each commit whose changes are missing is found, and perhaps another one. `remarks` are
about rows to which DDL gave other values, which is no change of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from walkeeper_common.lsn import Lsn
from walkeeper_replay.catalogs.catalog import Catalog
from walkeeper_replay.catalogs.file_steps import FileSteps, Passed
from walkeeper_replay.changes.undescribed import Undescribed
from walkeeper_replay.tuples.commits import Commits

TURNED = (
    "the transaction of {} gave it several files in turn (TRUNCATE, ALTER TABLE, SET TABLESPACE, "
    "CLUSTER); what it did between them is missing"
)
UNSURE = (
    "the transaction of {} gave it another file, and this WAL does not say whether the rows came "
    "along or were removed (TRUNCATE); changes of that transaction are missing; give a base backup "
    "(--base, in Spark the option base)"
)
LOGGED = (
    "SET LOGGED at {} brought rows from when it was unlogged, which are not among the changes; "
    "table-at has them"
)
REFRESHED = (
    "REFRESH MATERIALIZED VIEW (or VACUUM FULL) replaced its rows at {} without changes of them; "
    "table-at has them"
)
TAKEN_OVER = (
    "it took over another table's file at {}, as pg_repack exchanges files; how the rows in it "
    "differ from those before is missing; table-at has them"
)
RECAST = "ALTER TABLE rewrote its rows at {}; values that it changed are not among the changes"


class LostChanges:
    """The commits of one database whose changes WAL does not have, as far as they were noted."""

    def __init__(
        self, steps: FileSteps, commits: Commits, catalog_at: Callable[[int], Catalog]
    ) -> None:
        self._steps, self._commits, self._catalog_at = steps, commits, catalog_at
        self._filled: set[int] = set()
        self._lost: dict[Undescribed, int] = {}
        self._recast: dict[Undescribed, int] = {}

    def note_rewrite(self, oid: int, lsn: int, *, has_copies: bool, is_asked: bool) -> None:
        """Note that a commit gave a table a rewritten file, with or without records of its rows.

        VACUUM FULL and CLUSTER leave images of pages instead. With `is_asked`, the table was named.
        """
        known = self._catalog_at(lsn).classes.get(oid)
        if self._steps.is_created_in(oid, lsn):
            self._filled.update([oid] if has_copies else [])
        elif known is not None and known.kind == "m":
            self._add(self._lost if is_asked else self._recast, oid, lsn, REFRESHED)
        elif has_copies:
            self._add(self._recast, oid, lsn, RECAST)

    def note(
        self, oids: Collection[int], start: int, end: int, changed: Collection[int]
    ) -> set[int]:
        """Return the tables for which a commit in (start, end] has changes that are missing.

        `changed` are the files with changed rows, as far as they are known.
        """
        found = set()
        for oid in sorted(oids):
            for lsn, why in self._of_table(oid, changed):
                if start < lsn <= end and self._add(self._lost, oid, lsn, why):
                    found.add(oid)
        return found

    def note_taken_over(self, oid: int, lsn: int) -> bool:
        """Note that a commit gave a table the file of another one; return True if it is logged."""
        return self._add(self._lost, oid, lsn, TAKEN_OVER)

    def found(self, xid: int | None = None) -> list[Undescribed]:
        """Return the tables with missing changes of all transactions, or of one."""
        return sorted(lost for lost, top in self._lost.items() if xid in (None, top))

    def remarks(self, xid: int | None = None) -> list[Undescribed]:
        """Return the tables whose rows DDL gave other values."""
        return sorted(each for each, top in self._recast.items() if xid in (None, top))

    def _of_table(self, oid: int, changed: Collection[int]) -> Iterator[tuple[int, str]]:
        for passed in self._steps.passed(oid):
            if passed.is_unsure:
                yield passed.commit_lsn, UNSURE
            elif passed.was_unlogged:
                yield passed.commit_lsn, LOGGED
            # A table's copied rows are insertions if the same transaction created it.
            elif not passed.is_created or not (oid in self._filled or _had_none(passed, changed)):
                yield passed.commit_lsn, TURNED

    def _add(self, to: dict[Undescribed, int], oid: int, lsn: int, why: str) -> bool:
        """Add a reason, if the table is a logged one after the commit."""
        known, commit = self._catalog_at(lsn).classes.get(oid), self._commits.at(lsn)
        if known is None or known.persistence != "p" or commit is None:
            return False
        shown = f"{known.schema}.{known.name}"
        to[Undescribed("table", shown, why.format(Lsn(lsn)), is_read_again=True)] = commit.top_xid
        return True


def _had_none(passed: Passed, changed: Collection[int]) -> bool:
    """Return True if no row of the files in between is known to have been changed."""
    return bool(changed) and not any(node in changed for node in passed.files)
