"""A data directory as R23 looks at it: pg_control, the histories and the WAL in pg_wal. A shell.

Contract: it reads and changes nothing, and needs no running server. A running one may write
meanwhile: pg_control is read again until its CRC is right, and WAL ends at its last whole record.

Which file holds a position follows PostgreSQL (XLogFileReadAnyTLI): the newest timeline of the
server's chain that has that segment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from walkeeper_common.ancestry import Checkpoint, Server
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.lsn import SEGMENT_NAME, WAL_PAGE_BYTES, ZERO_LSN, Lsn, segment_name
from walkeeper_common.postgres.control_data import (
    ControlData,
    InvalidControlData,
    parse_control_data,
)
from walkeeper_common.postgres.walformat import scan
from walkeeper_common.postgres.walpages import PageHeader
from walkeeper_common.timelines import parse_timeline_file

CONTROL_FILE = os.path.join("global", "pg_control")
READS_MAX, PAUSE_S = 40, 0.05
HISTORY = ".history"


class NotReadable(WalkeeperError):
    """The data directory does not say what is asked."""


class LocalServer:
    """`facts` are of the moment when it was made; `read` is for compare()."""

    def __init__(self, data: str) -> None:
        self._data = data
        control = _control(data)
        self._wal, self.facts = self._newest_chain(control)

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes | None:
        """Return [begin_lsn, end_lsn) of pg_wal, or None if a file of it is not there."""
        try:
            return self._wal.read(begin_lsn, end_lsn)
        except FileNotFoundError:
            return None

    def _newest_chain(self, control: ControlData) -> tuple[_Chain, Server]:
        """Follow the newest timeline whose WAL is here and goes on where the data's own ends."""
        applied = max(control.checkpoint_timeline, control.min_recovery_timeline)
        folder = os.path.join(self._data, "pg_wal")
        names = _names(folder)
        files = {timeline: _content(folder, timeline) for timeline in _histories(names)}
        with_wal = {int(name[:8], 16) for name in names if SEGMENT_NAME.fullmatch(name)}
        later = sorted((t for t in files if t > applied and t in with_wal), reverse=True)
        for timeline in (*later, applied):
            ends = dict(parse_timeline_file(files.get(timeline, b"")))
            if timeline != applied and applied not in ends:
                continue
            chain = _Chain(folder, timeline, ends, control)
            end_lsn = chain.end_lsn()
            goes_on = end_lsn is not None and end_lsn > max(ends.values(), default=ZERO_LSN)
            if timeline == applied or goes_on:
                break
        file = files.get(timeline, b"" if timeline == 1 else None)
        return chain, Server(
            system_id=control.system_id,
            segment_bytes=control.segment_bytes,
            timeline=timeline,
            timeline_file=file,
            end_lsn=end_lsn,
            checkpoint=Checkpoint(
                control.checkpoint_lsn, control.checkpoint_timeline, control.checkpoint
            ),
            min_recovery_lsn=control.min_recovery_lsn or None,
            min_recovery_timeline=control.min_recovery_timeline,
        )


class _Chain:
    """The WAL of one timeline and its ancestors; `read` is walformat's WalBytes."""

    def __init__(
        self, folder: str, timeline: int, ends: Mapping[int, Lsn], control: ControlData
    ) -> None:
        self._folder, self._control = folder, control
        self._segment_bytes = control.segment_bytes
        begins = [ZERO_LSN, *ends.values()]
        self._newest_first = sorted(zip((*ends, timeline), begins, strict=True), reverse=True)

    def read(self, begin: Lsn, end: Lsn) -> bytes:
        """Raise FileNotFoundError if a segment is missing or short."""
        parts = []
        while begin < end:
            segment_lsn = begin.round_down(self._segment_bytes)
            until = min(end, segment_lsn + self._segment_bytes)
            with open(self._path(segment_lsn), "rb") as file:
                file.seek(begin - segment_lsn)
                part = file.read(until - begin)
            if len(part) < until - begin:
                raise FileNotFoundError(f"{file.name} is short")
            parts.append(part)
            begin = until
        return b"".join(parts)

    def end_lsn(self) -> Lsn | None:
        """Return where the last whole record ends, or None if there is none to start from.

        PostgreSQL replays from the checkpoint on, and has replayed up to minRecoveryPoint.
        """
        known_lsn = max(
            self._control.checkpoint_lsn, Lsn(max(self._control.min_recovery_lsn, 1) - 1)
        )
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
            return os.stat(self._path(segment_lsn)).st_size == self._segment_bytes
        except FileNotFoundError:
            return False

    def _path(self, segment_lsn: Lsn) -> str:
        for timeline, begin_lsn in self._newest_first:
            if begin_lsn < segment_lsn + self._segment_bytes:
                name = segment_name(timeline, segment_lsn, self._segment_bytes)
                path = os.path.join(self._folder, name)
                if os.path.exists(path):
                    return path
        raise FileNotFoundError(f"no segment at {segment_lsn} in {self._folder}")


def _control(data: str) -> ControlData:
    path = os.path.join(data, CONTROL_FILE)
    for attempt in range(READS_MAX):
        try:
            with open(path, "rb") as file:
                return parse_control_data(file.read())
        except OSError as error:
            raise NotReadable(f"{path}: {error.strerror}; is it a data directory?") from error
        except InvalidControlData as error:
            if attempt == READS_MAX - 1:
                raise NotReadable(f"{path}: {error}") from error
            time.sleep(PAUSE_S)
    raise AssertionError("the loop returns or raises")


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise NotReadable(f"{folder}: {error.strerror}") from error


def _histories(names: list[str]) -> list[int]:
    stems = (name.removesuffix(HISTORY) for name in names if name.endswith(HISTORY))
    return [int(stem, 16) for stem in stems if len(stem) == 8]


def _content(folder: str, timeline: int) -> bytes:
    with open(os.path.join(folder, f"{timeline:08X}{HISTORY}"), "rb") as file:
        return file.read()
