"""The archived WAL of one log, as restoring and the proof of ancestry read it.

`WalSource` is what restoring needs of an archive. `ArchivedWal` opens the archive at its first use,
since most files come from the safekeepers.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, Protocol

from walkeeper_common.errors import Refused
from walkeeper_common.lsn import SEGMENT_NAME, Lsn
from walkeeper_restore import spool
from walkeeper_restore.verdict import LOGICAL_LOG, Misconfigured

if TYPE_CHECKING:
    from walkeeper_archive.archive import Archive


class WalSource(Protocol):
    """An archive of one log."""

    def fetch(self, name: str, path: str) -> bool:
        """Fetch a whole segment or a .history file, verified and decompressed, into `path`.

        Return False only if the archive answers that it does not have it. An exception means that
        this is not known. `path` is a temporary file: it need be neither atomic nor synced.
        """
        ...


class ArchivedWal:
    """The archive of one log, opened at the first use.

    `system_id` None stands for the only system identifier under this cluster's name.
    """

    def __init__(self, url: str, cluster: str, system_id: int | None) -> None:
        self._url, self.cluster, self._system_id = url, cluster, system_id
        self._archive: Archive | None = None

    @property
    def archive(self) -> Archive:
        if self._archive is None:
            from walkeeper_archive.archive import open_archive

            self._archive = open_archive(self._url, self.cluster, self._system_id)
            with suppress(Refused, OSError):  # the first segment of a data directory without any
                self._archive.segment_bytes = segment_bytes_here()
        return self._archive

    def fetch(self, name: str, path: str) -> bool:
        found = self.archive.fetch(name, path)
        if found:
            self._refuse_entries(path)
        return found

    def fetch_tail(self, segment: str, path: str, segment_bytes: int) -> Lsn | None:
        end_lsn = self.archive.fetch_tail(segment, path, segment_bytes)
        if end_lsn is not None:
            self._refuse_entries(path)
        return end_lsn

    def _refuse_entries(self, path: str) -> None:
        from walkeeper_common.entries import SEGMENT_MAGIC, is_of_entries

        with open(path, "rb") as file:
            if is_of_entries(file.read(len(SEGMENT_MAGIC))):
                self._refuse_logical()

    def check_has_wal(self) -> None:
        """Raise Misconfigured if this is the archive of a logical log, which holds no WAL.

        This reads one file, so call it only before the answer that ends a recovery.
        """
        from walkeeper_archive.log_kind import holds_entries

        if holds_entries(self.archive):
            self._refuse_logical()

    def _refuse_logical(self) -> NoReturn:
        raise Misconfigured(f"{self.archive.url}: {LOGICAL_LOG}")


def archived(url: str, cluster: str) -> ArchivedWal:
    """Return the archive of the server whose data directory this is."""
    return ArchivedWal(url, cluster, spool.system_id())


def segment_bytes_here() -> int:
    """Return the bytes of a segment here, as a file in pg_wal shows. Raise Refused without one."""
    with os.scandir("pg_wal") as entries:
        for entry in entries:
            if SEGMENT_NAME.fullmatch(entry.name):
                return entry.stat().st_size
    raise Refused(
        "pg_wal has no segment that shows how large segments are: run it in a data directory with "
        "the WAL of its base backup"
    )
