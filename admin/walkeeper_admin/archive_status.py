"""The archive in `status`: safekeepers that cannot archive, lag or differ, and the reason. Pure.

Lines are those of `status --json`. An archive that does not move delays no commit. It costs disk
until --wal-size-max, and the WAL that a base backup and the archive alone can give back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.counts import counted

STUCK_S = 60  # the last safekeeper in rank takes over long before this
DUE_SEGMENTS_MAX = 32  # at so many due segments the last safekeeper in rank archives as well


def archive_troubles(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Return one sentence for each trouble, without a full stop.

    The list is empty if all is well or if no safekeeper archives. Only safekeepers that have the
    log count, since a newcomer without it has nothing to archive yet.
    """
    known = [line for line in lines if line["reachable"] and line["flush_lsn"] is not None]
    archiving = [line for line in known if line["archive"]]
    if not archiving:
        return []
    found = [text for line in archiving if (text := _trouble(line))]
    for line in known:
        if not line["archive"]:
            found.append(
                f"safekeeper {line['id']} runs without --archive, unlike "
                f"{archiving[0]['id']}: it reads nothing back, and keeps what a member lacks"
            )
    urls = {line["archive"]["url"] for line in archiving}
    if len(urls) > 1:
        found.append(f"safekeepers archive to different places: {', '.join(sorted(urls))}")
    return found


def _trouble(line: dict[str, Any]) -> str | None:
    archive = line["archive"]
    name, due, still_s = f"safekeeper {line['id']}", archive["segments_due"], archive["still_s"]
    behind = f"{counted(due, 'segment is', 'segments are')} due behind {line['archived_lsn']}"
    if archive["failure"]:
        return f"{name} cannot archive, commits go on: {archive['failure']} ({behind})"
    if archive.get("gap"):  # a safekeeper of an older version does not report it
        begin_lsn, end_lsn = archive["gap"]
        return (
            f"{name}: the archive lacks the WAL from {begin_lsn} to {end_lsn}, which nobody had "
            "archived when it left this disk or its predecessor's. A member that still has it "
            "archives it; if none has, recoveries of older base backups end there: take a new one, "
            "and `walkeeper archive prune` to it"
        )
    if due and still_s >= STUCK_S:
        return f"{name}: the archive has not moved for {still_s:.0f} s, {behind}"
    if due >= DUE_SEGMENTS_MAX:
        return f"{name}: the archive does not keep up, {behind}"
    return None


def archive_line(lines: Sequence[dict[str, Any]]) -> str | None:
    """Return the archive's place and its end, or None if no safekeeper archives.

    A member's knowledge begins with its own WAL. So a member that has joined lately does not
    report the segments that are due below it.
    """
    known = [line for line in lines if line["reachable"] and line["archive"]]
    if not known:
        return None
    best = _furthest(known)
    archive = best["archive"]
    workers = [str(line["id"]) for line in known if line["archive"]["offloading"]]
    tail = f", its tail to {archive['tail_lsn']}" if archive["tail_lsn"] else ""
    by = f"safekeeper {' and '.join(workers)}" if workers else "nobody yet"
    return (
        f"archive {archive['url']}: whole segments to {best['archived_lsn']}{tail}; "
        f"{archive['segments_due']} due; by {by}"
    )


def needed_for_the_archive(lines: Sequence[dict[str, Any]], newcomer: int) -> str | None:
    """Return a sentence on WAL that is not archived yet and that the newcomer cannot archive.

    Return None if there is no such WAL.
    """
    known = [line for line in lines if line["reachable"] and line["archive"]]
    joined = next((line for line in known if line["id"] == newcomer), None)
    if joined is None or _first(joined) <= Lsn.parse(_furthest(known)["archived_lsn"]):
        return None
    return (
        f"the WAL from {_furthest(known)['archived_lsn']} to {_first(joined)} is not archived yet, "
        f"and safekeeper {newcomer} does not have it: let those that have it run until `status` "
        "shows none due"
    )


def _furthest(known: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the line with the greatest archived_lsn without a gap, from the oldest WAL on."""
    best, *later = sorted(known, key=_first)
    for line in later:
        end_lsn = Lsn.parse(best["archived_lsn"])
        if _first(line) <= end_lsn < Lsn.parse(line["archived_lsn"]):
            best = line
    return best


def _first(line: dict[str, Any]) -> Lsn:
    return Lsn.parse(line["archive"].get("first_lsn", "0/0"))
