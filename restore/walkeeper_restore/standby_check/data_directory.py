"""A data directory as R23 looks at it: pg_control, the histories and the WAL in pg_wal. A shell.

Contract: it reads and changes nothing. `Files` are on this machine, for a server that is stopped or
running, or are read over SQL (sql_files.py). A running server may write meanwhile: pg_control is
read again until its CRC is right, and WAL ends at its last whole record.

The choice of the file for a position follows PostgreSQL (XLogFileReadAnyTLI). It is the file of the
newest timeline in the server's chain that has that segment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Protocol

from walkeeper_common.ancestry.ancestry_facts import Checkpoint, Server
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.history import TIMELINE_FILE_BYTES_MAX
from walkeeper_common.lsn import SEGMENT_NAME, WAL_PAGE_BYTES, ZERO_LSN, Lsn, segment_name
from walkeeper_common.postgres.control_data import (
    ControlData,
    InvalidControlData,
    parse_control_data,
)
from walkeeper_common.postgres.walformat import scan
from walkeeper_common.postgres.walpages import PageHeader
from walkeeper_common.timelines import parse_timeline_file, timeline_file_name

CONTROL_FILE = "global/pg_control"
CONTROL_BYTES = 8192
READS_MAX, PAUSE_S = 40, 0.05
HISTORY = ".history"


class NotReadable(WalkeeperError):
    """The data directory does not have the facts that the check needs."""


class Files(Protocol):
    """A data directory's files; `name` is relative to it. FileNotFoundError if one is missing."""

    def names_of_wal(self) -> list[str]:
        """Return the names of the files in pg_wal."""
        ...

    def size(self, name: str) -> int: ...

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return fewer bytes only at the file's end."""
        ...


class LocalFiles:
    """The files of a data directory on this machine."""

    def __init__(self, data: str) -> None:
        self._data = data

    def names_of_wal(self) -> list[str]:
        return os.listdir(os.path.join(self._data, "pg_wal"))

    def size(self, name: str) -> int:
        return os.stat(os.path.join(self._data, name)).st_size

    def read(self, name: str, offset: int, size: int) -> bytes:
        with open(os.path.join(self._data, name), "rb") as file:
            file.seek(offset)
            return file.read(size)


class DataDirectory:
    """A data directory. `facts` were read when this object was made; `read` is for compare().

    `replayed_lsn` is the position that a running standby has replayed. It replaces the end of WAL.
    """

    def __init__(self, files: Files, *, replayed_lsn: Lsn | None = None) -> None:
        self._files, self._replayed_lsn = files, replayed_lsn
        self._wal, self.facts = self._newest_chain(_control(files))

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes | None:
        """Return [begin_lsn, end_lsn) of pg_wal, or None if a file of it is not there."""
        try:
            return self._wal.read(begin_lsn, end_lsn)
        except FileNotFoundError:
            return None

    def _newest_chain(self, control: ControlData) -> tuple[_Chain, Server]:
        """Follow the newest timeline whose WAL is here and continues the data's own timeline."""
        applied = max(control.checkpoint_timeline, control.min_recovery_timeline)
        names = frozenset(self._files.names_of_wal())
        histories = {timeline: self._history(timeline) for timeline in _histories(names)}
        with_wal = {int(name[:8], 16) for name in names if SEGMENT_NAME.fullmatch(name)}
        later = sorted((t for t in histories if t > applied and t in with_wal), reverse=True)
        for timeline in (*later, applied):
            ends = dict(parse_timeline_file(histories.get(timeline, b"")))
            if timeline != applied and applied not in ends:
                continue
            chain = _Chain(self._files, names, timeline, ends, control)
            end_lsn = self._replayed_lsn or chain.end_lsn()
            goes_on = end_lsn is not None and end_lsn > max(ends.values(), default=ZERO_LSN)
            if timeline == applied or goes_on:
                break
        return chain, Server(
            system_id=control.system_id,
            segment_bytes=control.segment_bytes,
            timeline=timeline,
            timeline_file=histories.get(timeline, b"" if timeline == 1 else None),
            end_lsn=end_lsn,
            checkpoint=Checkpoint(
                control.checkpoint_lsn, control.checkpoint_timeline, control.checkpoint
            ),
            min_recovery_lsn=control.min_recovery_lsn or None,
            min_recovery_timeline=control.min_recovery_timeline,
        )

    def _history(self, timeline: int) -> bytes:
        name = f"pg_wal/{timeline_file_name(timeline)}"
        return self._files.read(name, 0, TIMELINE_FILE_BYTES_MAX)


class _Chain:
    """The WAL of one timeline and its ancestors; `read` is walformat's WalBytes."""

    def __init__(
        self,
        files: Files,
        names: frozenset[str],
        timeline: int,
        ends: Mapping[int, Lsn],
        control: ControlData,
    ) -> None:
        self._files, self._names, self._control = files, names, control
        self._segment_bytes = control.segment_bytes
        begins = [ZERO_LSN, *ends.values()]
        self._newest_first = sorted(zip((*ends, timeline), begins, strict=True), reverse=True)

    def read(self, begin: Lsn, end: Lsn) -> bytes:
        """Return [begin, end). Raise FileNotFoundError if a segment is missing or short."""
        parts = []
        while begin < end:
            segment_lsn = begin.round_down(self._segment_bytes)
            until = min(end, segment_lsn + self._segment_bytes)
            name = self._file_of(segment_lsn)
            part = self._files.read(name, begin - segment_lsn, until - begin)
            if len(part) < until - begin:
                raise FileNotFoundError(f"{name} is short")
            parts.append(part)
            begin = until
        return b"".join(parts)

    def end_lsn(self) -> Lsn | None:
        """Return where the last whole record ends, or None if there is none to start from.

        PostgreSQL replays from the checkpoint on, and has replayed up to minRecoveryPoint. WAL of a
        segment that was restored again may end before that point.
        """
        replayed_lsn = Lsn(max(0, self._control.min_recovery_lsn - 1))
        found = self._end_after(max(self._control.checkpoint_lsn, replayed_lsn))
        if found is None and replayed_lsn > self._control.checkpoint_lsn:
            return self._end_after(self._control.checkpoint_lsn)
        return found

    def _end_after(self, known_lsn: Lsn) -> Lsn | None:
        start_lsn = known_lsn.round_down(WAL_PAGE_BYTES)
        limit_lsn = start_lsn.round_down(self._segment_bytes)
        while self._has(limit_lsn):
            limit_lsn = limit_lsn + self._segment_bytes
        if limit_lsn <= start_lsn:
            return None
        found = scan(
            self,
            start_lsn=start_lsn,
            limit_lsn=limit_lsn,
            segment_bytes=self._segment_bytes,
            foreign=self._foreign,
        )
        return None if found.start_lsn is None else found.end_lsn

    def _foreign(self, header: PageHeader) -> str | None:
        numbers = [number for number, _ in self._newest_first]
        if header.timeline not in numbers or header.system_id not in (
            None,
            self._control.system_id,
        ):
            return f"the page at {header.page_lsn} is another server's"
        return None

    def _has(self, segment_lsn: Lsn) -> bool:
        try:
            return self._files.size(self._file_of(segment_lsn)) == self._segment_bytes
        except FileNotFoundError:
            return False

    def _file_of(self, segment_lsn: Lsn) -> str:
        for timeline, begin_lsn in self._newest_first:
            name = segment_name(timeline, segment_lsn, self._segment_bytes)
            if begin_lsn < segment_lsn + self._segment_bytes and name in self._names:
                return f"pg_wal/{name}"
        raise FileNotFoundError(f"pg_wal has no segment at {segment_lsn}")


def _control(files: Files) -> ControlData:
    for attempt in range(READS_MAX):
        try:
            return parse_control_data(files.read(CONTROL_FILE, 0, CONTROL_BYTES))
        except OSError as error:
            raise NotReadable(f"{CONTROL_FILE}: {error}; is it a data directory?") from error
        except InvalidControlData as error:
            if attempt == READS_MAX - 1:
                raise NotReadable(f"{CONTROL_FILE}: {error}") from error
            time.sleep(PAUSE_S)
    raise AssertionError("the loop returns or raises")


def _histories(names: Iterable[str]) -> list[int]:
    stems = (name.removesuffix(HISTORY) for name in names if name.endswith(HISTORY))
    return [int(stem, 16) for stem in stems if len(stem) == 8]
