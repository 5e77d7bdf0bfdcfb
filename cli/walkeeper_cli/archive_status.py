"""What `status` says of the archive: who cannot archive, lags or differs, and why. Pure.

Lines are those of `status --json`. An archive that does not move costs no commit, but disk until
--wal-size-max, and what a base backup and the archive alone can give back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

STUCK_S = 60  # the last in rank has taken over long before
DUE_SEGMENTS_MAX = 32  # and helped when so many were due


def archive_troubles(lines: Sequence[dict[str, Any]]) -> list[str]:
    """One sentence each, without a full stop; empty if all is well or nobody archives. Of those
    that have the log: a newcomer without it has nothing to archive yet."""
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
    behind = f"{due} segments are due behind {line['archived_lsn']}"
    if archive["failure"]:
        return f"{name} cannot archive, commits go on: {archive['failure']} ({behind})"
    if due and still_s >= STUCK_S:
        return f"{name}: the archive has not moved for {still_s:.0f} s, {behind}"
    if due >= DUE_SEGMENTS_MAX:
        return f"{name}: the archive does not keep up, {behind}"
    return None


def archive_line(lines: Sequence[dict[str, Any]]) -> str | None:
    """Where WAL goes and how far it is there, of the member that knows most; None: nowhere."""
    known = [line for line in lines if line["reachable"] and line["archive"]]
    if not known:
        return None
    best = min(known, key=lambda line: line["archive"]["segments_due"])
    archive = best["archive"]
    workers = [str(line["id"]) for line in known if line["archive"]["offloading"]]
    tail = f", its tail to {archive['tail_lsn']}" if archive["tail_lsn"] else ""
    by = f"safekeeper {' and '.join(workers)}" if workers else "nobody yet"
    return (
        f"archive {archive['url']}: whole segments to {best['archived_lsn']}{tail}; "
        f"{archive['segments_due']} due; by {by}"
    )
