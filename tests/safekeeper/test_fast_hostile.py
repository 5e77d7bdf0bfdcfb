"""Hostile and lucky bytes: a safekeeper with the fast path does what one without it does.

Both get the same bytes in the same pieces through the shipping connection, driver and core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from random import Random
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.safekeeper.test_fast_append import WAL_BYTES, next_append, state
from tests.safekeeper.test_safekeeper_driver import BALLOT, START, Bench, made_wal
from tests.support.fast import NEEDS_FAST_PATH
from tests.support.frames import frames_of, messages_in
from walkeeper_common.buffers import Buffer
from walkeeper_common.history import Ballot
from walkeeper_common.shell.safekeeper_links.framed_connection import FramedConnection
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import AppendRequest, AppendResponse, VoteRequest
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_safekeeper.consensus.acceptor_events import ConnectionLost, Received, Tick

pytestmark = NEEDS_FAST_PATH
WAL = made_wal(WAL_BYTES + 1000)


class Transport:
    """A connection of the loop's without a socket; `sent` is what the peer would receive."""

    def __init__(self) -> None:
        self.sent, self.is_closed = bytearray(), False

    def get_extra_info(self, name: str) -> object:
        return "TLS" if name == "sslcontext" else None  # so no bytes go beside it

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for data in list_of_data:
            self.write(data)

    def write(self, data: Buffer) -> None:
        self.sent += data

    def close(self) -> None:
        self.is_closed = True


class Peer:
    """A leader's connection to one log; as ProposerSession has it."""

    def __init__(self, *, is_fast: bool) -> None:
        self.bench = Bench(is_fast=is_fast)
        self.bench.writer.is_quick = True
        self.bench.heard.send = self._send  # type: ignore[method-assign]
        self.connection = FramedConnection(lambda _: self)
        self.transport = Transport()
        self.connection.connection_made(cast(asyncio.Transport, self.transport))

    def _send(self, connection: int, message: Message) -> None:
        if connection == 1:
            self.connection.send(message)

    def on_frames(self, memory: bytearray, size: int) -> int:
        return self.bench.driver.append_at_once(1, self.connection, memory, size)

    def on_message(self, message: Message) -> None:
        self.bench.driver.post(Received(1, message))

    def on_closed(self, reason: str) -> None:
        self.bench.driver.post(ConnectionLost(1))

    def receive(self, data: bytes | bytearray) -> None:
        while data and not self.transport.is_closed:
            room = self.connection.get_buffer(-1)
            piece, data = data[: len(room)], data[len(room) :]
            room[: len(piece)] = piece
            self.connection.buffer_updated(len(piece))
        self.bench.writer.run_all()
        self.bench.others.run_all()

    def said(self) -> list[Message]:
        """Keep the last of acks in a row, since frames that arrive together may share one.

        A connection that is cut off may have got the ack before, or not any more."""
        said = messages_in(self.transport.sent)
        self.transport.sent.clear()
        if self.transport.is_closed:
            said = [one for one in said if not isinstance(one, AppendResponse)]
        return [
            one
            for one, after in zip(said, [*said, None][1:], strict=True)
            if not (isinstance(one, AppendResponse) and isinstance(after, AppendResponse))
        ]


def hostile(frames: bytearray, random: Random) -> bytearray:
    """Return frames with bytes changed, cut, repeated or made up, often near a field's end."""
    match random.randrange(5):
        case 0:
            at = random.choice((0, 3, 4, 8, 16, 32, 36, 44, 52, 60, 68, 72, 73))
            frames[min(at, len(frames) - 1)] ^= 1 << random.randrange(8)
        case 1:
            frames[random.randrange(len(frames))] = random.randrange(256)
        case 2:
            at = random.randrange(len(frames))
            frames[at:at] = random.randbytes(random.choice((1, 8, 73)))
        case 3:
            frames += frames[: random.randrange(len(frames))]
        case _:
            at = random.choice((37, 45, 53, 61, 4 + 1 + 4))  # an LSN, or the term
            frames[at : at + 8] = random.choice((bytes(8), b"\xff" * 8, random.randbytes(8)))
    return frames


def drawn(bench: Bench, random: Random) -> bytes:
    """Return what the leader sends next: mostly good frames, some of them touched."""
    acceptor = bench.driver.acceptor
    begin, frames = acceptor.write_lsn, list[bytearray]()
    for _ in range(random.choice((1, 1, 2, 4))):
        append = next_append(bench, begin, WAL, random)
        frames.append(frames_of(append))
        begin = max(START, append.end_lsn)
        if random.random() < 0.05:
            ballot = Ballot(random.choice((0, 1, 2)), BALLOT.proposer_id)
            ask = VoteRequest(1, ballot, b"u" * 16, acceptor.member)
            frames.append(frames_of(ask))
    if random.random() < 0.3:
        at = random.randrange(len(frames))
        frames[at] = hostile(frames[at], random)
    return b"".join(frames)


def pieces(data: bytes, random: Random) -> Sequence[bytes]:
    """Return the bytes as the socket may bring them."""
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.choice((0, 0, 1, 3))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.randoms(use_true_random=False))
def test_the_same_bytes_have_the_same_answers_and_the_same_log(random: Random) -> None:
    fast, slow = Peer(is_fast=True), Peer(is_fast=False)
    seed = random.randrange(1 << 30)
    random = Random(seed)  # the draws are many
    for _ in range(40):
        for piece in pieces(drawn(slow.bench, random), random):
            for peer in (fast, slow):
                peer.receive(piece)
            assert fast.said() == slow.said(), f"{seed=}"
            assert state(fast.bench) == state(slow.bench), f"{seed=}"
        if random.random() < 0.1:
            for peer in (fast, slow):
                peer.bench.driver.post(Tick())
                peer.bench.writer.run_all()
        assert fast.transport.is_closed == slow.transport.is_closed, f"{seed=}"
        if slow.transport.is_closed:
            break


def test_the_fast_path_is_taken_here_at_all() -> None:
    peer = Peer(is_fast=True)
    begin = START
    for _ in range(5):
        wal = WAL.read(begin, begin + 100)
        told = peer.bench.driver.acceptor.leader_commit_lsn
        lsns = (begin, begin + 100, told, START)
        peer.receive(frames_of(AppendRequest(1, BALLOT, 1, *lsns, crc_of(wal), wal)))
        begin = begin + 100
    assert peer.bench.writer.ran_at_once >= 3
