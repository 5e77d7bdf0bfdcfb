"""The values of `archive prune --keep`, and the LSN from which each needs WAL.

0/3000028                                   an LSN
000000010000000000000003[.00000028.backup]  a segment, in the form that pg_archivecleanup takes
7d, 12h                                     the WAL that was archived in this time
DIRECTORY or FILE                           a base backup: backup_label, backup_manifest,
                                            base.tar[.gz …], or a directory of base backups
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from dataclasses import dataclass

import click

from walkeeper_cli.options import DURATION_UNITS_S
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.backup_start import start_in_label

_SEGMENT = re.compile(r"(?P<segment>[0-9A-F]{24})(?:\.(?P<offset>[0-9A-F]{8})\.backup|\.partial)?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(min|h|d)")
_TAR = re.compile(r"base\.tar(\.\w+)?")
LABEL_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class KeepFrom:
    """WAL to keep: from `lsn` on, from a segment on, or as archived in the last `seconds`.

    `of_backup` is True if the LSN is PostgreSQL's own, found in a base backup.
    """

    given: str
    lsn: Lsn | None = None
    seconds: float | None = None
    segment: str | None = None
    of_backup: bool = False


def parse_keep(given: str) -> list[KeepFrom]:
    """Return the WAL to keep for one --keep: a list of one, or of each base backup of a directory.

    Raise click.UsageError, which lists the possible values, if it is none of them.
    """
    if found := _DURATION.fullmatch(given.strip()):
        return [KeepFrom(given, seconds=float(found[1]) * DURATION_UNITS_S[found[2]])]
    if found := _SEGMENT.fullmatch(given):
        return [KeepFrom(given, segment=found["segment"])]
    try:
        return [KeepFrom(given, lsn=Lsn.parse(given))]
    except ValueError:
        pass
    if not os.path.exists(given):
        raise click.UsageError(
            f"--keep {given!r}: neither an LSN (0/3000028), nor a segment, nor a time (7d, 12h), "
            "nor a base backup that is here"
        )
    starts = _starts_below(given)
    if not starts:
        raise click.UsageError(
            f"--keep {given}: no base backup: there is no backup_label, backup_manifest or "
            "base.tar in it, nor in a directory of it"
        )
    return starts


def _starts_below(path: str) -> list[KeepFrom]:
    own = _start_of(path)
    if own is not None:
        return [KeepFrom(path, lsn=own, of_backup=True)]
    if not os.path.isdir(path):
        return []
    below = sorted(entry.path for entry in os.scandir(path) if entry.is_dir())
    starts = {inner: _start_of(inner) for inner in below}
    passed_over = [inner for inner, lsn in starts.items() if lsn is None]
    if passed_over and len(passed_over) < len(below):
        shown = ", ".join(passed_over[:5]) + (", …" if len(passed_over) > 5 else "")
        click.echo(f"no base backup, so nothing is kept for it: {shown}", err=True)
    return [
        KeepFrom(inner, lsn=lsn, of_backup=True) for inner, lsn in starts.items() if lsn is not None
    ]


def _start_of(path: str) -> Lsn | None:
    """Return the start of the base backup at `path`, or None if it is no base backup."""
    if os.path.isdir(path):
        names = sorted(os.listdir(path))
        wanted = [name for name in names if name in ("backup_manifest", "backup_label")]
        wanted += [name for name in names if _TAR.fullmatch(name)]
        starts = (_start_of(os.path.join(path, name)) for name in wanted)
        return next((lsn for lsn in starts if lsn is not None), None)
    name = os.path.basename(path)
    try:
        if _TAR.fullmatch(name):
            return _start_in_tar(path)
        with open(path, "rb") as file:
            content = file.read()
    except (OSError, tarfile.TarError) as error:
        raise click.UsageError(f"--keep {path}: {error}") from error
    if name == "backup_manifest":
        return _start_in_manifest(path, content)
    return _start_in_label(content)


def _start_in_manifest(path: str, content: bytes) -> Lsn | None:
    try:
        ranges = json.loads(content)["WAL-Ranges"]
        return min((Lsn.parse(each["Start-LSN"]) for each in ranges), default=None)
    except (ValueError, KeyError, TypeError) as error:
        raise click.UsageError(f"--keep {path}: not a backup manifest: {error!r}") from error


def _start_in_label(content: bytes) -> Lsn | None:
    return start_in_label(content[:LABEL_BYTES_MAX].decode("utf-8", "replace"))


def _start_in_tar(path: str) -> Lsn | None:
    """Return the start in the tar file's backup_label, or None if it has none.

    The search is short in a tar of `pg_basebackup -Ft`, which puts backup_label first.
    """
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            if member.name == "backup_label":
                file = archive.extractfile(member)
                return None if file is None else _start_in_label(file.read(LABEL_BYTES_MAX))
    return None
