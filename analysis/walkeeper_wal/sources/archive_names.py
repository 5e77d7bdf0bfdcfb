"""Classify the files of a WAL archive by their names. Pure.

The layouts of these tools are known: a plain pg_wal or pg_receivewal directory, walkeeper's own
archive, Barman's `wals`, pgBackRest's `archive/<stanza>/<version-id>` and WAL-G's `wal_005`. The
trees differ in the names around PostgreSQL's 24 digits:

    <segment>                                pg_wal, Barman (compressed ones under the same name)
    <segment>.gz  .lz4  .zst  .bz2  .xz …    pg_receivewal, Barman in the cloud, WAL-G (also .br)
    <segment>.partial[.gz …], .gz.partial    pg_receivewal; the primary at a promotion
    <segment>.<end LSN>.partial[.zst][.aes]  walkeeper: the tail of the log, up to that LSN
    <segment>-<sha1>[.gz …]                  pgBackRest; <segment>.partial-<sha1>[.gz …]
    <timeline>.history[.gz …]
    <file>.sha256                            walkeeper: the receipt of a file, without .zst or .aes

A folder `0000000100000000/` (Barman, pgBackRest) or `00000001/` (walkeeper) is a part of the
archive around it. Every other folder is an archive of its own. The compression of a file follows
from its bytes, not from its name. Files with other names (backup labels, xlog.db, WAL-G's deltas)
are not WAL and are passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SUFFIX = r"(?:\.(?:gz|lz4|zst|zstd|bz2|xz|lzma|br|snappy|lzo))?(?:\.aes)?"
_SEGMENT = re.compile(
    r"(?P<name>[0-9A-F]{24})"
    rf"(?:{_SUFFIX}|(?P<plain>{_SUFFIX}\.partial{_SUFFIX})"
    rf"|\.(?P<end>[0-9A-F]{{16}})\.partial{_SUFFIX}"
    rf"|(?P<repo>\.partial)?-[0-9a-f]{{40}}{_SUFFIX})"
)
_HISTORY = re.compile(rf"(?P<timeline>[0-9A-F]{{8}})\.history{_SUFFIX}")
_PACKING = re.compile(rf"{_SUFFIX}$")
RECEIPT = ".sha256"
_INNER_FOLDER = re.compile(r"[0-9A-F]{8}|[0-9A-F]{16}")
# Parts of a running server's pg_wal without WAL of the log.
_FOREIGN_FOLDERS = frozenset({"archive_status", "summaries", "orphans"})


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file with WAL, or a history. `archive` is the folder of the log it belongs to."""

    path: str
    size: int
    archive: str
    timeline: int
    segment: str | None
    """PostgreSQL's 24 digits, or None for a history."""
    is_partial: bool = False
    end_lsn: int | None = None
    has_receipt: bool = False
    """True if walkeeper's archive promises the whole of it."""


def unpacked(path: str) -> str:
    """Return the path without the marks of compression and encryption, as receipts have it."""
    return _PACKING.sub("", path, count=1)


def archived_file(path: str, size: int) -> ArchivedFile | None:
    """Return the file at `path` (with / between folders), or None if it has no WAL."""
    *folders, name = path.split("/")
    if _FOREIGN_FOLDERS.intersection(folders):
        return None
    if folders and _INNER_FOLDER.fullmatch(folders[-1]):
        folders.pop()
    archive = "/".join(folders)
    if found := _HISTORY.fullmatch(name):
        return ArchivedFile(path, size, archive, int(found["timeline"], 16), None)
    if not (found := _SEGMENT.fullmatch(name)):
        return None
    end = int(found["end"], 16) if found["end"] else None
    partial = bool(found["plain"] or found["repo"] or end is not None)
    segment = found["name"]
    return ArchivedFile(path, size, archive, int(segment[:8], 16), segment, partial, end)
