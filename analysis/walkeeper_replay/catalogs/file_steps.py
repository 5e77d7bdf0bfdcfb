"""How tables came by their files, by all versions of their rows of pg_class. Pure.

    steps = FileSteps.of(versions)
    steps.rewritten                  {(table, relfilenode, commit): LSN from which pg_class has it}
    steps.began_empty(oid, node, commit)     whether a TRUNCATE made this file
    steps.passed(oid)                the commits that gave a table several files in turn

WAL alone may lack rows of pg_class, and then not say whether a commit emptied a table or copied its
rows. Such a file counts as a copy, and `passed` names its commit as unsure.

Contract: a rewrite (VACUUM FULL, CLUSTER, ALTER TABLE) fills a file before pg_class has it, under
a transient table that no snapshot ever sees. Records before that LSN are copies of rows, and later
ones are changes of the same transaction. A number of a file alone tells nothing: files of other
tables, tablespaces and times may have it, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from walkeeper_replay.tuples.xids import NEVER


class ClassVersion(NamedTuple):
    """A version of a row of pg_class: its first record, its commit, its columns."""

    first_lsn: int
    begin: int
    is_update: bool
    """An earlier version came before it, which this WAL may not have."""
    row: Mapping[str, Any]


class Step(NamedTuple):
    """A file that a transaction gave a table."""

    relfilenode: int
    tablespace: int
    persistence: str


Rewritten = tuple[int, int, int]
"""A table, the relfilenode that a rewrite gave it, and the end of its commit."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A commit after which changes of a table, or rows without changes, are missing."""

    commit_lsn: int
    files: tuple[int, ...]
    """The files that the table had for a part of the transaction, as no snapshot sees them."""
    is_created: bool
    """The same transaction created the table."""
    was_unlogged: bool
    """It was unlogged before, so that its rows came without WAL of them."""
    is_unsure: bool = False
    """The file may be empty or a copy: the WAL does not say which."""


@dataclass(slots=True)
class FileSteps:
    """See the module."""

    rewritten: dict[Rewritten, int] = field(default_factory=dict)
    _steps: dict[int, dict[int, list[Step]]] = field(default_factory=dict)
    """By table and commit: the files in turn. A commit that gave no other file has the old one."""
    _created: dict[int, set[int]] = field(default_factory=dict)
    """The commits that created tables: several of one OID if it was given to a table again."""
    _unsure: set[tuple[int, int]] = field(default_factory=set)
    """(table, commit) where the row of a transient table may be one that is not known."""

    @classmethod
    def of(
        cls, versions: Iterable[ClassVersion], unseen: Collection[int] = frozenset()
    ) -> FileSteps:
        """Return the steps of one database's tables.

        `unseen` are the commits that inserted a row of pg_class that is not known.
        """
        ordered = sorted(versions, key=lambda version: version.first_lsn)
        made = cls(_rewritten_in(ordered))
        nodes: dict[int, int] = {}
        for version in ordered:
            row = version.row
            if row["relrewrite"] or version.begin == NEVER:
                continue
            if not version.is_update:
                made._created.setdefault(row["oid"], set()).add(version.begin)
            step = Step(row["relfilenode"], row["reltablespace"], row["relpersistence"])
            found = made._steps.setdefault(row["oid"], {}).setdefault(version.begin, [])
            if step in found:  # a copy of the row
                continue
            found.append(step)
            if version.is_update and nodes.get(row["oid"]) != step.relfilenode:
                made._note_doubt(version, unseen, is_first=row["oid"] not in nodes)
            nodes[row["oid"]] = step.relfilenode
        return made

    def _note_doubt(
        self, version: ClassVersion, unseen: Collection[int], *, is_first: bool
    ) -> None:
        """Note a new file if the transient table's row, or where this row was made, is not known.

        With `is_first` the table may have had this file before.
        """
        oid, lsn = version.row["oid"], version.begin
        place = (oid, version.row["relfilenode"], lsn)
        is_late = 0 < lsn <= version.first_lsn
        if lsn in unseen or (is_late and (place in self.rewritten or not is_first)):
            self.rewritten.setdefault(place, version.first_lsn)
            self._unsure.add((oid, lsn))

    def is_created_in(self, oid: int, commit_lsn: int) -> bool:
        """Return whether this commit created the table."""
        return commit_lsn in self._created.get(oid, ())

    def began_empty(self, oid: int, relfilenode: int, commit_lsn: int) -> bool:
        """Return whether the file that a commit gave a table began without the rows before it.

        TRUNCATE makes such a file.
        """
        before: Step | None = None
        for lsn, steps in sorted(self._steps.get(oid, {}).items()):
            for step in steps:
                is_new = before is not None and before.relfilenode != step.relfilenode
                if is_new and (step.relfilenode, lsn) == (relfilenode, commit_lsn):
                    assert before is not None, f"{is_new=}"
                    return not self._is_copy(oid, lsn, before, step)
                before = step
        return False

    def rewriting(self, oid: int) -> list[int]:
        """Return the commits that rewrote a table, also those that moved its rows once more."""
        found: list[int] = []
        known: int | None = None
        for lsn, steps in sorted(self._steps.get(oid, {}).items()):
            new = {step.relfilenode for step in steps} - {known}
            if any((oid, node, lsn) in self.rewritten for node in new):
                found.append(lsn)
            known = steps[-1].relfilenode
        return found

    def passed(self, oid: int) -> list[Passed]:
        """Return the commits that gave a table several files in turn, and those of SET LOGGED.

        A file that began empty is left out: what came before it is gone.
        """
        found: list[Passed] = []
        before: Step | None = None
        for lsn, steps in sorted(self._steps.get(oid, {}).items()):
            last = steps[-1]
            known = None if before is None else before.relfilenode
            new = [step for step in steps if step.relfilenode != known]
            between = tuple(step.relfilenode for step in new[:-1])
            if (oid, lsn) in self._unsure:
                found.append(Passed(lsn, (), False, False, is_unsure=True))
                before = last
                continue
            is_logged_now = before is not None and before.persistence == "u" != last.persistence
            if is_logged_now or (between and self._is_copy(oid, lsn, *new[-2:])):
                is_created = self.is_created_in(oid, lsn)
                found.append(Passed(lsn, between, is_created, is_logged_now))
            before = last
        return found

    def _is_copy(self, oid: int, lsn: int, before: Step, after: Step) -> bool:
        """Return whether a file of a commit began with the rows of the one before it."""
        is_rewritten = (oid, after.relfilenode, lsn) in self.rewritten
        return is_rewritten or after.tablespace != before.tablespace


def _rewritten_in(ordered: Iterable[ClassVersion]) -> dict[Rewritten, int]:
    """Return the files that tables took over from their transient ones.

    The first version of a transient table's row has the file's number, and names the table.
    """
    waiting: set[tuple[int, int]] = set()
    found: dict[Rewritten, int] = {}
    for version in ordered:
        row = version.row
        place = (row["oid"], row["relfilenode"])
        if row["relrewrite"]:
            if not version.is_update:
                waiting.add((row["relrewrite"], row["relfilenode"]))
        elif place in waiting:
            waiting.discard(place)
            found.setdefault((*place, version.begin), version.first_lsn)
    return found
