"""`walkeeper history find`: the choice of findings, and their lines for a recovery."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from walkeeper_cli.history.archive_reading import Archive
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.counts import counted
from walkeeper_history.find import Finding, findings, transaction
from walkeeper_history.rows.file_uses import FileUses, Relation
from walkeeper_history.rows.relation_names import NamedRelation, RelationNames

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
RELATIONS_SHOWN_MAX = 8
GLOBAL_TABLESPACE = 1664
IN_DOUBT = (
    "the name then is not known, since another relation had the number of a file before or after: "
    "give a base backup from before (--base)"
)


@dataclass(frozen=True, slots=True)
class NamedFinding:
    """A finding, and the relations that had its files then: None where that is not known."""

    finding: Finding
    owners: tuple[NamedRelation | None, ...]
    is_in_doubt: bool
    """Relations with names had one of its files, and it is not known which one then."""


def search(
    archive: Archive,
    what: str | None,
    xid: int | None,
    relation: str | None,
    min_rows: int,
    names: RelationNames,
) -> list[NamedFinding]:
    """Return the findings that match, in the order of the log."""
    wanted, uses = _wanted(relation, names), FileUses()
    segments = archive.deeds(xid)
    if xid is not None:
        found = list(transaction(segments, xid, uses))
    else:
        found = [
            finding
            for finding in findings(segments, uses)
            if (what == "all" or finding.kind.split()[0] == what)
            and (finding.rows is None or finding.rows >= min_rows)
            and (wanted is None or any(map(wanted.may_be, finding.relations)))
        ]
    named = [_named(finding, names, uses) for finding in found]
    return [each for each in named if wanted is None or xid is not None or wanted.is_in(each)]


def _named(finding: Finding, names: RelationNames, uses: FileUses) -> NamedFinding:
    owners = tuple(names.then(each, finding.commit_lsn, uses) for each in finding.relations)
    files = zip(finding.relations, owners, strict=True)
    is_in_doubt = any(owner is None and names.of(file) is not None for file, owner in files)
    return NamedFinding(finding, owners, is_in_doubt)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The relation of --relation: the last numbers of its file, or all relations of a name."""

    numbers: tuple[int, ...] = ()
    called: frozenset[NamedRelation] = frozenset()

    def may_be(self, file: Relation) -> bool:
        """Return whether a file has these numbers, or was at some time one of these relations'."""
        if self.numbers:
            return file[-len(self.numbers) :] == self.numbers
        return any(file == each.key for each in self.called)

    def is_in(self, named: NamedFinding) -> bool:
        """Return whether a finding is of the relation, or may be if its owner is not known."""
        if self.numbers:
            return True
        files = zip(named.finding.relations, named.owners, strict=True)
        return any(
            self.may_be(file) if owner is None else owner in self.called for file, owner in files
        )


def _wanted(text: str | None, names: RelationNames) -> _Wanted | None:
    """Return the relation of --relation; raise UsageError if it is neither numbers nor a name."""
    if text is None:
        return None
    parts = text.removeprefix("base/").split("/")
    if 1 <= len(parts) <= 3 and all(part.isdigit() for part in parts):
        return _Wanted(numbers=tuple(map(int, parts)))
    if not (called := names.called(text)):
        known = "no relation has that name" if names else "names need --catalog, --dsn or --base"
        raise click.UsageError(
            f"--relation {text}: not numbers such as 16385 or 1663/5/16385, and {known}"
        )
    return _Wanted(called=frozenset(called))


def _shown_time(finding: Finding) -> str:
    return str(_EPOCH + timedelta(microseconds=finding.time))


def recovery_lines(finding: Finding) -> list[str]:
    """Return lines for postgresql.conf: replay all earlier commits, and nothing of this one."""
    return [
        f"recovery_target_lsn = '{Lsn(finding.end_lsn)}'",
        "recovery_target_inclusive = false",
        f"recovery_target_timeline = '{finding.timeline}'",
    ]


def document(named: NamedFinding) -> dict[str, Any]:
    """Return a finding for JSON, with LSNs in PostgreSQL's form and times in ISO's."""
    finding = named.finding
    return {
        "kind": finding.kind,
        "xid": finding.xid,
        "time": _shown_time(finding),
        "timeline": finding.timeline,
        "start_lsn": None if finding.start_lsn is None else str(Lsn(finding.start_lsn)),
        "end_record_lsn": str(Lsn(finding.end_lsn)),
        "database": finding.database,
        "relations": ["/".join(map(str, relation)) for relation in finding.relations],
        "names": [None if owner is None else owner.shown for owner in named.owners],
        "rows": finding.rows,
        "recovery": recovery_lines(finding),
    }


def lines(found: list[NamedFinding]) -> Iterator[str]:
    """Yield a paragraph for each finding, with lines that an operator can paste."""
    for named in found:
        finding = named.finding
        rows = "" if finding.rows is None else f" of {counted(finding.rows, 'row', 'rows')}"
        database = f" in database {finding.database}" if finding.database else ""
        yield f"{finding.kind}{rows}{database}: transaction {finding.xid} at {_shown_time(finding)}"
        if finding.relations:
            files = list(zip(finding.relations, named.owners, strict=True))
            shown = ", ".join(_shown(*each) for each in files[:RELATIONS_SHOWN_MAX])
            more = len(finding.relations) - RELATIONS_SHOWN_MAX
            yield f"  relations: {shown}" + (f" and {more} more" if more > 0 else "")
        if named.is_in_doubt:
            yield f"  {IN_DOUBT}"
        began = "before this WAL" if finding.start_lsn is None else str(Lsn(finding.start_lsn))
        yield f"  first record {began}, last record {Lsn(finding.end_lsn)}"
        yield "  to recover up to just before its end:"
        yield from (f"    {line}" for line in recovery_lines(finding))
        yield ""


def _shown(relation: Relation, owner: NamedRelation | None) -> str:
    """Return the name, if it is known, and the numbers."""
    numbers = "/".join(map(str, relation))
    return numbers if owner is None else f"{owner.shown} ({numbers})"
