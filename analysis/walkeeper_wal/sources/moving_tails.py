"""An archive's files while it is written: a tail that has gone is read from its replacement.

Safekeepers archive the tail of the log under the name of its end, by default each minute. Then they
remove the tail before. A reader with an older listing requests that one. A longer tail, or the
whole segment, has the same bytes. Contract: a read returns no more than was listed, so that two
passes over a plan see the same. A file without a replacement is `Gone`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from walkeeper_common.postgres.walpages import LONG_HEADER_BYTES, page_header
from walkeeper_wal.sources.archive_names import ArchivedFile, archived_file
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import Gone

if TYPE_CHECKING:
    from walkeeper_wal.records.segment import Bytes

Data = TypeVar("Data", "Bytes", bytes)

MOVES_MAX = 5  # moves of one tail during one read


class MovingTails:
    """WalFiles over those of a directory or an object store."""

    def __init__(self, files: WalFiles) -> None:
        self._files = files
        self.list_files, self.shown = files.list_files, files.shown
        self.read_pieces = files.read_pieces

    def read(self, path: str) -> Bytes:
        return self._found(path, self._files.read)

    def read_front(self, path: str, size: int) -> bytes:
        return self._found(path, lambda now: self._files.read_front(now, size))

    def open_plain(self, path: str) -> int | None:
        """Return None also for a tail that has moved, so that it is read."""
        try:
            return self._files.open_plain(path)
        except Gone:
            return None

    def _found(self, path: str, read: Callable[[str], Data]) -> Data:
        now, moves = path, 0
        while True:
            try:
                data = read(now)
            except Gone:
                follows = self._what_follows(path) if moves < MOVES_MAX else None
                if follows is None:
                    raise
                now, moves = follows, moves + 1
                continue
            return data if now == path else _as_listed(data, path)

    def _what_follows(self, path: str) -> str | None:
        listed = archived_file(path, 0)
        if listed is None or not listed.is_partial:
            return None
        found = [file for at, size in self.list_files() if (file := archived_file(at, size))]
        found = [file for file in found if _takes_the_place_of(listed, file)]
        best = max(found, key=lambda f: (not f.is_partial, f.end_lsn or 0), default=None)
        return None if best is None else best.path


def _takes_the_place_of(listed: ArchivedFile, file: ArchivedFile) -> bool:
    same = (file.archive, file.segment) == (listed.archive, listed.segment)
    is_longer = not file.is_partial or (file.end_lsn or 0) >= (listed.end_lsn or 0)
    return same and file.path != listed.path and is_longer


def _as_listed(data: Data, path: str) -> Data:
    """Return the bytes up to the tail's listed end; the first bytes have its beginning."""
    listed = archived_file(path, 0)
    front = bytes(data[:LONG_HEADER_BYTES])
    if listed is None or listed.end_lsn is None or len(front) < LONG_HEADER_BYTES:
        return data
    from walkeeper_common.entries import is_of_entries

    position = int.from_bytes(front[8:16], "big")
    begin = position if is_of_entries(front) else page_header(front).page_lsn
    return data[: max(listed.end_lsn - begin, 0)]
