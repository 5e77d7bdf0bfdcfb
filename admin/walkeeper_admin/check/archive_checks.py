"""The checks of the archive itself: gaps between its files, and its members' reports. A shell."""

from __future__ import annotations

from typing import Any

from walkeeper_admin.archive_status import archive_troubles
from walkeeper_admin.check.finding import Finding, Grade, ok
from walkeeper_archive.archive import open_archive
from walkeeper_archive.verification import survey, verify
from walkeeper_common.errors import WalkeeperError

SHOWN_MAX = 3


def from_reports(document: dict[str, Any]) -> list[Finding]:
    """Return the troubles that the members report."""
    why = "WAL that is not archived stays on the disks; recoveries from the archive lack it"
    return [
        Finding("archive", Grade.WARNING, text, why, "docs/runbooks.md#archive")
        for text in archive_troubles(document["safekeepers"])
    ]


def restorable(url: str, cluster: str, system_id: int | None) -> Finding:
    """Return OK if the names in the archive leave no gap; it reads histories, and no segment."""
    try:
        archive = open_archive(url, cluster, system_id)
        contents = survey(archive)
        problems = [each.text for each in verify(archive, contents, read_all=False)]
    except WalkeeperError as error:
        why = "without the archive only the safekeepers' disks have the WAL"
        remedy = "mount it, or mend --archive and its credentials"
        return Finding("restorability", Grade.FAILED, str(error), why, remedy)
    if problems:
        text = "; ".join(problems[:SHOWN_MAX])
        why = "no recovery gets past a gap"
        remedy = "walkeeper archive repair; else take a new base backup"
        return Finding("restorability", Grade.FAILED, text, why, remedy)
    ranges = [
        f"{begin_lsn} to {end_lsn} on timeline {timeline}"
        for timeline in sorted(contents.timelines)
        for begin_lsn, end_lsn in contents.runs(timeline)
    ]
    return ok("restorability", f"the archive has {'; '.join(ranges) or 'a tail only'}, no gap")
