"""The compiled fast path as another step for an append and an ack in the explored world.

Both return None if the fast path leaves the message to the slow path. The two paths must end in the
same state with the same messages, since one more state would be a defect.
"""

from __future__ import annotations

from typing import Protocol

from tests.support.frames import Answers, frames_of, message_in
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import StorageError
from walkeeper_common.lsn import Lsn
from walkeeper_common.pace import Pace
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import AppendRequest, AppendResponse
from walkeeper_fastpath.switch import append_path, stream_path
from walkeeper_proposer.consensus.expected_stream import expected_stream
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import StreamTaken
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import AppendsTaken
from walkeeper_safekeeper.consensus.expected_append import expected_append
from walkeeper_safekeeper.storage.open_tail import Tail

FILE_BYTES = 1 << 20  # no explored log reaches the end of a segment


class Node(Protocol):
    """A safekeeper and its disk (acceptor_node.py)."""

    core: Acceptor
    wal: bytes  # synced
    written: bytes

    @property
    def log(self) -> bytes: ...


class _File:
    """The node's disk, to which the fast path writes."""

    descriptor = -1

    def __init__(self, node: Node, begin_lsn: Lsn) -> None:
        self._node, self._begin_lsn = node, begin_lsn

    def write(self, data: Buffer, offset: int) -> int:
        assert offset == len(self._node.log), f"{offset=} {self._node.log=}"
        self._node.written += bytes(data)
        return len(data)

    def sync(self) -> None:
        self._node.wal, self._node.written = self._node.log, b""

    def failure(self, error: OSError) -> StorageError:
        return StorageError(str(error))

    def cut_short(self, offset: int, written: int, size: int) -> StorageError:
        return StorageError(f"{written} of {size} bytes at {offset}")

    def observe(self, write_s: float, sync_s: float) -> None: ...
    def close(self) -> None: ...


def fast_append(
    node: Node, connection: int, append: AppendRequest, begin_lsn: Lsn
) -> tuple[AppendsTaken, list[Message]] | None:
    """Take the append on the node's disk; return the news for its core, and the acks.

    `begin_lsn` is where the log begins."""
    make, expected = append_path(), expected_append(node.core, connection)
    if make is None or expected is None:
        return None
    acks = list[Message]()
    end_lsn, file = begin_lsn + FILE_BYTES, _File(node, begin_lsn)
    tail = Tail(begin_lsn, end_lsn, file, Pace(lambda: 0.0), lambda error, _: error)
    path = make(expected, tail, Answers(lambda frame, size: acks.append(message_in(frame, size))))
    frames = frames_of(append)
    if not path.take(frames, len(frames)):
        return None
    news = path.settled()
    assert news is not None, f"{append=}"
    return AppendsTaken(*map(Lsn, news)), acks


def fast_ack(core: Proposer, link: int, ack: AppendResponse) -> tuple[StreamTaken, int] | None:
    """Take the ack; return the news for the core, and the LSN to report to the primary, or 0."""
    make, expected = stream_path(), expected_stream(core)
    if make is None or expected is None:
        return None
    said = list[object]()
    path = make(expected, [Answers(lambda *frame: said.append(frame)) for _ in expected.links])
    frames = frames_of(ack)
    reported = path.take(link, frames, len(frames))
    if reported is None:
        return None
    news = path.settled()
    assert news is not None and not said, f"{ack=} {said=}"
    commit_lsn, told_commit_lsn, sent, acks = news
    return StreamTaken(commit_lsn, Lsn(told_commit_lsn), sent, acks), reported
