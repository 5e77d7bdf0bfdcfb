"""The compiled fast path as another step for an append, WAL and an ack in the explored world.

Each returns None if the fast path leaves the event to the slow path. The two paths must end in the
same state with the same messages, since one more state would be a defect. On a proposer WAL comes
as CopyData, and a report is a StandbyStatus, so that all of the compiled path takes part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tests.proof.sim.primary_stream import PrimaryStream
from tests.support.frames import Answers, frames_of, message_in
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import StorageError
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.pace import Pace
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import AppendRequest, AppendResponse, Feedback
from walkeeper_fastpath.ports import FastStream
from walkeeper_fastpath.switch import append_path, stream_path
from walkeeper_proposer.consensus.expected_stream import expected_stream
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import Event, StreamTaken
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import AppendsTaken
from walkeeper_safekeeper.consensus.expected_append import expected_append
from walkeeper_safekeeper.storage.open_tail import Tail

FILE_BYTES = 1 << 20  # no explored log reaches the end of a segment


class Node(Protocol):
    """A safekeeper and its disk (explored_acceptor.py)."""

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


@dataclass(frozen=True, slots=True)
class StreamStep:
    """The news for the core, the messages to links, and the LSN that PostgreSQL got, or 0."""

    news: StreamTaken
    sent: list[tuple[int, Message]]
    reported: int


class _Led:
    """A leader's shell around its fast path: a driver that waits, links, and the primary's stream.

    The primary has sent all before `received_lsn`, and has the core's last report."""

    is_running = False
    has_standbys = False  # `step` takes the news at once anyway
    waiting = ()

    def __init__(self, core: Proposer, received_lsn: Lsn) -> None:
        make, expected = stream_path(), expected_stream(core)
        self.sent, self.reported_lsn = list[tuple[int, Message]](), 0
        self.is_left = False  # WAL went to the slow path
        self.path: FastStream | None = None
        if make is None or expected is None:
            return
        assert core.leader is not None
        self.path = make(expected, [Answers(partial(self._send, one)) for one in expected.links])
        self.path.lead(self)
        self.primary = PrimaryStream(self)
        self.primary.begin(received_lsn)
        self.primary.report(core.leader.lsn_to_report() or ZERO_LSN, expected.feedback)
        self.primary.stream_first(self.path)

    def _send(self, link: int, frame: Sequence[Buffer], size: int) -> None:
        self.sent.append((link, message_in(frame, size)))

    def on_news(self) -> None: ...
    def on_idle(self) -> None: ...
    def on_bunch(self) -> None: ...
    def run_waiting(self) -> None: ...

    def report(self, commit_lsn: int, _: Sequence[Feedback]) -> None:
        """Let the shell report what the primary's side of the fast path has left."""
        self.reported_lsn = commit_lsn

    def reported(self, commit_lsn: Lsn, _: Sequence[Feedback]) -> None:
        self.reported_lsn = commit_lsn

    def post(self, _: Event) -> None:
        self.is_left = True

    def step(self) -> StreamStep:
        """Return what the fast path has done."""
        assert self.path is not None
        news = self.path.settled()
        assert news is not None
        commit_lsn, sent_commit_lsn, sent, acks = news
        taken = StreamTaken(commit_lsn, Lsn(sent_commit_lsn), sent, acks)
        return StreamStep(taken, self.sent, self.reported_lsn)


def fast_wal(core: Proposer, begin_lsn: Lsn, wal: bytes) -> StreamStep | None:
    """Take WAL of the primary."""
    led = _Led(core, begin_lsn)
    if led.path is None:
        return None
    led.primary.arrive([(begin_lsn, wal)])
    return None if led.is_left else led.step()


def fast_ack(
    core: Proposer, link: int, ack: AppendResponse, received_lsn: Lsn
) -> StreamStep | None:
    """Take the ack."""
    led = _Led(core, received_lsn)
    frames = frames_of(ack)
    if led.path is None or not led.path.acknowledge(link, frames, len(frames)):
        return None
    assert not led.sent, f"{ack=} {led.sent=}"
    return led.step()
