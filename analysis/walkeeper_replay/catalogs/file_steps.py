"""How tables came by their files, by all versions of their rows of pg_class. Pure.

    steps = FileSteps.of(versions)
    steps.rewritten                  {relfilenode: LSN from which on pg_class has it}
    steps.began_empty(oid, node)     whether a TRUNCATE made this file
    steps.passed(oid)                the commits that gave a table several files in turn

Contract: a rewrite (VACUUM FULL, CLUSTER, ALTER TABLE) fills a file before pg_class has it, under
a transient table that no snapshot ever sees. Records before that LSN are copies of rows, and later
ones are changes of the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


@dataclass(slots=True)
class FileSteps:
    """See the module."""

    rewritten: dict[int, int] = field(default_factory=dict)
    _steps: dict[int, dict[int, list[Step]]] = field(default_factory=dict)
    """By table and commit: the files in turn. A commit that gave no other file has the old one."""
    _created: dict[int, set[int]] = field(default_factory=dict)
    """The commits that created tables: several of one OID if it was given to a table again."""

    @classmethod
    def of(cls, versions: Iterable[ClassVersion]) -> FileSteps:
        """Return the steps of one database's tables."""
        ordered = sorted(versions, key=lambda version: version.first_lsn)
        made = cls()
        transient: dict[int, int] = {}
        for version in ordered:
            if version.row["relrewrite"]:
                transient.setdefault(version.row["oid"], version.row["relfilenode"])
        nodes = frozenset(transient.values())
        made.rewritten = dict.fromkeys(nodes, NEVER)
        for version in ordered:
            row = version.row
            if row["relrewrite"] or version.begin == NEVER:
                continue
            if not version.is_update:
                made._created.setdefault(row["oid"], set()).add(version.begin)
            node = row["relfilenode"]
            if node in nodes:
                made.rewritten[node] = min(made.rewritten[node], version.first_lsn)
            step = Step(node, row["reltablespace"], row["relpersistence"])
            found = made._steps.setdefault(row["oid"], {}).setdefault(version.begin, [])
            if found[-1:] != [step]:
                found.append(step)
        return made

    def is_created_in(self, oid: int, commit_lsn: int) -> bool:
        """Return whether this commit created the table."""
        return commit_lsn in self._created.get(oid, ())

    def began_empty(self, oid: int, relfilenode: int) -> bool:
        """Return whether a table's file replaced another one without its rows: by TRUNCATE."""
        before: Step | None = None
        for _, steps in sorted(self._steps.get(oid, {}).items()):
            for step in steps:
                if before is not None and before.relfilenode != step.relfilenode == relfilenode:
                    return not self._is_copy(before, step)
                before = step
        return False

    def rewriting(self, oid: int) -> list[int]:
        """Return the commits that rewrote a table, also those that moved its rows once more."""
        found: list[int] = []
        known: int | None = None
        for lsn, steps in sorted(self._steps.get(oid, {}).items()):
            new = {step.relfilenode for step in steps} - {known}
            if not new.isdisjoint(self.rewritten):
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
            is_logged_now = before is not None and before.persistence == "u" != last.persistence
            if is_logged_now or (between and self._is_copy(*new[-2:])):
                is_created = self.is_created_in(oid, lsn)
                found.append(Passed(lsn, between, is_created, is_logged_now))
            before = last
        return found

    def _is_copy(self, before: Step, after: Step) -> bool:
        """Return whether a file began with the rows of the one before it."""
        return after.relfilenode in self.rewritten or after.tablespace != before.tablespace
