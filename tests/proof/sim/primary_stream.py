"""The stream of a simulated primary as CopyData: libpq's calls, and the owner of the fast path.

The compiled PrimaryPath reads and reports here, as it does on a connection of libpq.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.postgres.pgwire import StandbyStatus, XLogData, wal_of
from walkeeper_common.wire.messages import Feedback
from walkeeper_fastpath.ports import FastStream, LibpqCalls
from walkeeper_fastpath.switch import primary_path
from walkeeper_proposer.consensus.proposer_events import Event, WalArrived
from walkeeper_proposer.postgres.commit_times import new_commit_times
from walkeeper_proposer.postgres.primary import GATHERED_BYTES_MAX, SILENT_STATUSES_ASK


class Proposing(Protocol):
    """The process that streams; `reported` gets each report of the fast path."""

    def post(self, event: Event) -> None: ...
    def reported(self, commit_lsn: Lsn, feedback: Sequence[Feedback]) -> None: ...


class PrimaryStream:
    """One process's stream, from `begin` to `close`."""

    wants_write = False

    def __init__(self, node: Proposing) -> None:
        make = primary_path()
        assert make is not None
        self._node, self._copied = node, deque[memoryview]()
        status = StandbyStatus(ZERO_LSN, ZERO_LSN, ZERO_LSN, 0, False).pack()
        self._commits = new_commit_times()
        self._ends = make(
            self,
            status,
            gathered_bytes_max=GATHERED_BYTES_MAX,
            silent_statuses_ask=SILENT_STATUSES_ASK,
        )

    def begin(self, start_lsn: Lsn) -> None:
        """Go on with the WAL from `start_lsn`."""
        self._copied.clear()
        self._ends.received_lsn = start_lsn
        self._ends.flush_lsn = min(self._ends.flush_lsn, start_lsn)
        self._ends.open(self, self._commits)

    def close(self) -> None:
        self._copied.clear()
        self._ends.close()

    def stream_first(self, stream: FastStream) -> None:
        self._ends.stream_first(stream)

    def report(self, commit_lsn: Lsn, feedback: Sequence[Feedback]) -> None:
        """Let the fast path go on with a report of the slow path."""
        self._ends.flush_lsn = max(self._ends.flush_lsn, commit_lsn)
        self._ends.feedback = feedback

    def arrive(self, pieces: Sequence[tuple[Lsn, bytes]]) -> None:
        """Receive these pieces of WAL at once."""
        for begin_lsn, wal in pieces:
            head = XLogData.LAYOUT.pack(XLogData.TAG, begin_lsn, begin_lsn + len(wal), 0)
            self._copied.append(memoryview(head + wal))
        self._ends.on_readable()

    # libpq's calls

    def libpq(self) -> LibpqCalls:
        return lambda: None, self._get_copy_data, self._put_copy_data, lambda: 0

    def _get_copy_data(self, _is_async: int) -> tuple[int, memoryview]:
        if not self._copied:
            return 0, memoryview(b"")
        payload = self._copied.popleft()
        return len(payload), payload

    def _put_copy_data(self, payload: bytes) -> None:
        status, feedback = StandbyStatus.unpack(payload), self._ends.feedback
        assert feedback is not None, "the fast path reports what no slow report has said"
        assert status.write_lsn == status.flush_lsn == status.replay_lsn, f"{status=}"
        self._node.reported(status.flush_lsn, feedback)

    def flush_rest(self) -> None:
        raise AssertionError("all bytes leave at once")

    # The slow path

    def on_readable(self) -> None:
        while self._copied:
            self._take(self._copied.popleft())

    def on_rest(self, payload: memoryview) -> None:
        self._take(payload)
        self.on_readable()

    def _take(self, payload: memoryview) -> None:
        data = wal_of(payload)
        assert data is not None and data[0] == self._ends.received_lsn, f"{data=}"
        self._ends.received_lsn = data[0] + len(data[1])
        self.on_wal(*data)

    def on_wal(self, begin_lsn: int, wal: memoryview) -> None:
        self._node.post(WalArrived(Lsn(begin_lsn), wal))

    def on_stream_over(self, error: Exception | None) -> None:
        raise AssertionError("no call fails") from error
