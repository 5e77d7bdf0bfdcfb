"""`walkeeper archive ls`: the contents of an archive, by timeline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from walkeeper_archive.archive import Archive
from walkeeper_archive.archive_contents import Contents, TimelineContents
from walkeeper_archive.log_kind import holds_entries
from walkeeper_archive.verification import survey
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.counts import counted

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def document(archive: Archive) -> dict[str, Any]:
    """Return the document of --json, which `text` shows in words."""
    contents = survey(archive)
    return {
        "url": archive.url,
        "cluster": archive.cluster,
        "system_id": str(archive.system_id),
        "kind": "logical" if holds_entries(archive) else "physical",
        "segment_bytes": contents.segment_bytes,
        "timelines": [_timeline(contents, part) for _, part in sorted(contents.timelines.items())],
        "without_receipt": [found.path for found in contents.without_receipt],
        "without_object": [file.path for file in contents.without_object],
    }


def _timeline(contents: Contents, part: TimelineContents) -> dict[str, Any]:
    runs = contents.runs(part.timeline)
    tail = part.tail
    return {
        "timeline": part.timeline,
        "history": part.has_history,
        "runs": [{"begin_lsn": str(begin), "end_lsn": str(end)} for begin, end in runs],
        "segments": len(part.segments),
        "tail_lsn": None if tail is None else str(tail.end_lsn),
        "bytes_stored": part.bytes_stored,
        "newest": f"{_EPOCH + timedelta(seconds=int(part.newest_s)):%Y-%m-%d %H:%M:%S+00}",
    }


def text(found: dict[str, Any]) -> list[str]:
    """Return the document as lines for people."""
    lines = [f"{found['url']}: segments of {_size(found['segment_bytes'])}"]
    if found["kind"] == "logical":
        lines[0] += " of a logical log, by position (docs/logical.md)"
    for part in found["timelines"]:
        head = f"  timeline {part['timeline']}"
        runs = part["runs"]
        spans = ", ".join(f"{run['begin_lsn']} to {run['end_lsn']}" for run in runs) or "no segment"
        size = f"{_segments(part['segments'])}, {_size(part['bytes_stored'])} stored"
        lines.append(f"{head}: {spans} ({size}, newest {part['newest']})")
        for before, after in pairwise(runs):
            missing = Lsn.parse(after["begin_lsn"]) - Lsn.parse(before["end_lsn"])
            count = missing // found["segment_bytes"]
            lines.append(f"{head}: GAP of {_segments(count)} from {before['end_lsn']} on")
        if part["tail_lsn"] is not None:
            lines.append(f"{head}: tail up to {part['tail_lsn']}")
        if part["timeline"] > 1:
            has = "history is there" if part["history"] else "HISTORY IS MISSING"
            lines.append(f"{head}: {has}")
    for path in found["without_receipt"]:
        lines.append(f"  {path}: no receipt, so not archived (an upload under way, or not ours)")
    for path in found["without_object"]:
        lines.append(f"  {path}: IS GONE, its receipt is there")
    return lines


def _segments(count: int) -> str:
    return counted(count, "segment", "segments")


def _size(count: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if count >= size:
            return (
                f"{count / size:.0f} {unit}" if count % size == 0 else f"{count / size:.1f} {unit}"
            )
    return f"{count} bytes"
