"""The backup_label of a base backup: from where on WAL is needed, and on which timeline.

    label = read_label(root)     None without the file

Contract: a label that is damaged or cut is refused, as PostgreSQL refuses it, with the file's name
and the remedy. A cut label shows, since PostgreSQL writes START TIMELINE last. pg_rewind writes no
timeline, and START TIME last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.backup_start import start_in_label
from walkeeper_wal.wal_errors import HistoryError

_CHECKPOINT = re.compile(r"^CHECKPOINT LOCATION: ([0-9A-F]{1,8}/[0-9A-F]{1,8})\n", re.MULTILINE)
_TIMELINE = re.compile(r"^START TIMELINE: ([0-9]+)\n", re.MULTILINE)
_OF_REWIND = re.compile(r"^BACKUP METHOD: pg_rewind\n(?:.+\n)*START TIME: .+\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class BackupLabel:
    """`timeline` is that of redo_lsn, or None if pg_rewind wrote the label."""

    redo_lsn: Lsn
    checkpoint_lsn: Lsn
    """The start of the checkpoint's record, with which a recovery begins."""
    timeline: int | None
    is_of_standby: bool


def read_label(root: Path) -> BackupLabel | None:
    """Return the label of the directory `root`, or None without one. Raise HistoryError."""
    path = root / "backup_label"
    if not path.is_file():
        return None
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise _refusal(path, str(error.strerror)) from error
    if "INCREMENTAL FROM LSN" in text:
        raise HistoryError(
            f"{root} is an incremental backup: put it together with those that it builds upon with "
            "pg_combinebackup, and name the result"
        )
    start, timeline = start_in_label(text), _TIMELINE.search(text)
    if start is None:
        raise _refusal(path, "damaged: it has no line START WAL LOCATION with an LSN and a file")
    checkpoint = _CHECKPOINT.search(text)
    if checkpoint is None:
        raise _refusal(path, "damaged: it has no line CHECKPOINT LOCATION with an LSN")
    if timeline is None and not _OF_REWIND.search(text):
        raise _refusal(path, "damaged or cut: it has no whole line START TIMELINE")
    return BackupLabel(
        redo_lsn=start,
        checkpoint_lsn=Lsn.parse(checkpoint[1]),
        timeline=None if timeline is None else int(timeline[1]),
        is_of_standby="BACKUP FROM: standby" in text,
    )


def _refusal(path: Path, why: str) -> HistoryError:
    return HistoryError(f"{path}: {why}; read another copy of the base backup")
