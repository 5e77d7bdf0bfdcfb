"""`walkeeper archive prune`: delete what is older than every --keep, lowest LSN first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from walkeeper_archive.archive import Archive
from walkeeper_archive.archive_contents import Contents, contents_of
from walkeeper_archive.archive_errors import ArchiveError
from walkeeper_archive.layout import ArchivedObject, Kind
from walkeeper_archive.log_kind import holds_entries
from walkeeper_archive.pruning import kept_since, prunable
from walkeeper_archive.verification import segment_bytes_of
from walkeeper_cli.archive.keep_values import KeepFrom
from walkeeper_common.lsn import Lsn, parse_segment_name, segment_name


@dataclass(frozen=True, slots=True)
class Pruning:
    """The files to delete, and the reason why the rest stays."""

    keep_lsn: Lsn
    because: str
    objects: list[ArchivedObject]
    oldest_kept: str

    @property
    def files(self) -> int:
        """The number of files, without receipts."""
        return sum(not found.is_receipt for found in self.objects)

    @property
    def size(self) -> int:
        return sum(found.size for found in self.objects)


def plan(archive: Archive, keeps: Sequence[KeepFrom], now_s: float) -> Pruning:
    """Return the plan for the oldest of the WAL to keep.

    Raise ArchiveError if the archive has no whole segment, or if --keep names a base backup for a
    logical log.
    """
    _refuse_backups(archive, keeps)
    objects = list(archive.objects())
    segment_bytes = segment_bytes_of(archive, objects)
    contents = contents_of(objects, segment_bytes) if segment_bytes else None
    if contents is None or not any(part.segments for part in contents.timelines.values()):
        raise ArchiveError(f"{archive.url} has no whole segment: nothing can be pruned")
    modified_s = {
        found.file.begin_lsn(contents.segment_bytes): found.modified_s
        for found in objects
        if found.file.kind is Kind.SEGMENT and not found.is_receipt
    }
    positions = [(_lsn_of(keep, contents, modified_s, now_s), keep.given) for keep in keeps]
    keep_lsn, because = min(positions)
    keep_lsn = keep_lsn.round_down(contents.segment_bytes)
    timeline = max(contents.timelines)
    oldest = segment_name(timeline, keep_lsn, contents.segment_bytes)
    return Pruning(keep_lsn, because, prunable(objects, contents, keep_lsn), oldest)


def _refuse_backups(archive: Archive, keeps: Sequence[KeepFrom]) -> None:
    """Raise ArchiveError if --keep names a base backup for a logical log.

    A logical log counts positions. An LSN of a base backup, read as a position, could delete any
    part of it.
    """
    backups = [keep.given for keep in keeps if keep.of_backup]
    if backups and holds_entries(archive):
        raise ArchiveError(
            f"--keep {backups[0]} is a base backup, and {archive.url} is a logical log, which none "
            "needs: name the WAL that its consumers may still need, as a time (7d), a segment or a "
            "position of the log"
        )


def _lsn_of(keep: KeepFrom, contents: Contents, modified_s: dict[Lsn, float], now_s: float) -> Lsn:
    if keep.lsn is not None:
        return keep.lsn
    if keep.segment is not None:
        return parse_segment_name(keep.segment, contents.segment_bytes)[1]
    assert keep.seconds is not None, f"{keep=}"
    since = kept_since(contents, modified_s, now_s - keep.seconds)
    return max(modified_s) if since is None else since


def prune(archive: Archive, pruning: Pruning, on_deleted: Callable[[int], None]) -> None:
    """Delete the files one after the other, so that an interruption at any point leaves no gap."""
    for found in pruning.objects:
        archive.delete(found)
        if not found.is_receipt:
            on_deleted(found.size)
