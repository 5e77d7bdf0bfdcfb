"""`walkeeper history find`: the choice of findings, and their lines for a recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from walkeeper_cli.history.archive_reading import Archive
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.counts import counted
from walkeeper_history.find import Finding, findings, transaction
from walkeeper_history.rows.relation_names import RelationNames

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
RELATIONS_SHOWN_MAX = 8
GLOBAL_TABLESPACE = 1664


def search(
    archive: Archive,
    what: str | None,
    xid: int | None,
    relation: str | None,
    min_rows: int,
    names: RelationNames,
) -> list[Finding]:
    """Return the findings that match, in the order of the log."""
    is_wanted = _wanted(relation, names)
    segments = archive.deeds(xid)
    if xid is not None:
        return list(transaction(segments, xid))
    return [
        finding
        for finding in findings(segments)
        if (what == "all" or finding.kind.split()[0] == what)
        and (finding.rows is None or finding.rows >= min_rows)
        and (relation is None or any(map(is_wanted, finding.relations)))
    ]


def _wanted(text: str | None, names: RelationNames) -> Callable[[tuple[int, int, int]], bool]:
    """Return a test for the relation of --relation, which is given by numbers or by a known name.

    Raise UsageError if the text is neither.
    """
    parts = (text or "").removeprefix("base/").split("/")
    if 1 <= len(parts) <= 3 and all(part.isdigit() for part in parts):
        numbers = tuple(map(int, parts))
        return lambda relation: relation[-len(numbers) :] == numbers
    called = names.called(text or "")
    if text is not None and not called:
        known = "no relation has that name" if names else "names need --catalog, --dsn or --base"
        raise click.UsageError(
            f"--relation {text}: not numbers such as 16385 or 1663/5/16385, and {known}"
        )
    return lambda relation: relation in called


def _shown_time(finding: Finding) -> str:
    return str(_EPOCH + timedelta(microseconds=finding.time))


def recovery_lines(finding: Finding) -> list[str]:
    """Return lines for postgresql.conf: replay all earlier commits, and nothing of this one."""
    return [
        f"recovery_target_lsn = '{Lsn(finding.end_lsn)}'",
        "recovery_target_inclusive = false",
        f"recovery_target_timeline = '{finding.timeline}'",
    ]


def document(finding: Finding, names: RelationNames) -> dict[str, Any]:
    """Return a finding for JSON, with LSNs in PostgreSQL's form and times in ISO's."""
    return {
        "kind": finding.kind,
        "xid": finding.xid,
        "time": _shown_time(finding),
        "timeline": finding.timeline,
        "start_lsn": None if finding.start_lsn is None else str(Lsn(finding.start_lsn)),
        "end_record_lsn": str(Lsn(finding.end_lsn)),
        "database": finding.database,
        "relations": ["/".join(map(str, relation)) for relation in finding.relations],
        "names": [names.of(relation) for relation in finding.relations],
        "rows": finding.rows,
        "recovery": recovery_lines(finding),
    }


def lines(found: list[Finding], names: RelationNames) -> Iterator[str]:
    """Yield a paragraph for each finding, with lines that an operator can paste."""
    for finding in found:
        rows = "" if finding.rows is None else f" of {counted(finding.rows, 'row', 'rows')}"
        database = f" in database {finding.database}" if finding.database else ""
        yield f"{finding.kind}{rows}{database}: transaction {finding.xid} at {_shown_time(finding)}"
        if finding.relations:
            shown = ", ".join(map(names.shown, finding.relations[:RELATIONS_SHOWN_MAX]))
            more = len(finding.relations) - RELATIONS_SHOWN_MAX
            yield f"  relations: {shown}" + (f" and {more} more" if more > 0 else "")
        began = "before this WAL" if finding.start_lsn is None else str(Lsn(finding.start_lsn))
        yield f"  first record {began}, last record {Lsn(finding.end_lsn)}"
        yield "  to recover up to just before its end:"
        yield from (f"    {line}" for line in recovery_lines(finding))
        yield ""
