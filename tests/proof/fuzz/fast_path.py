"""The compiled fast path against the slow one, byte for byte, from any received bytes. Two targets.

An input of `fast_appends` is what a safekeeper's socket had. The slow path handles as messages, on
a copy of the same core, each frame that the fast path takes. Promises: the same bytes are written,
the same ack is sent after the sync, and the cores end in the same state. Frames that it leaves do
nothing.

An input of `fast_acks` is the number of a link, and what a proposer's socket had. Promises: the
same LSN is reported to the primary, and the cores end in the same state.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from random import Random

from tests.proof.fuzz.contract import Target, require
from tests.proof.fuzz.mutation import havoc
from tests.proposer.test_fast_stream import Leading
from tests.safekeeper.test_fast_append import END_LSN, Recorded, steady
from tests.safekeeper.test_safekeeper_driver import BALLOT, START
from tests.support.fast import made_path
from tests.support.frames import Answers, frames_of, messages_in
from walkeeper_common.lsn import Lsn
from walkeeper_common.pace import Pace
from walkeeper_common.wire.framing import FRAME_HEAD
from walkeeper_common.wire.messages import AppendRequest, AppendResponse
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_fastpath.switch import stream_path
from walkeeper_proposer.consensus.expected_stream import ExpectedStream, expected_stream
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import Received as LinkReceived
from walkeeper_proposer.consensus.proposer_events import Report, StreamTaken, WalArrived
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import (
    AppendsTaken,
    Effect,
    Received,
    Send,
    WalFlushed,
    WriteWal,
)
from walkeeper_safekeeper.consensus.expected_append import ExpectedAppend, expected_append
from walkeeper_safekeeper.storage.open_tail import Tail

HEAD_BYTES = FRAME_HEAD.size + AppendRequest.LAYOUT.size
TERM = slice(4, 37)  # tag, generation, ballot and timeline of an append
LSNS, CRC = slice(37, 53), slice(69, 73)
ACK_BYTES = FRAME_HEAD.size + AppendResponse.LAYOUT.size
SENT_BYTES = 3000  # WAL that the leader of `fast_acks` has sent


@cache
def _log() -> tuple[Acceptor, ExpectedAppend, bytes]:
    """Return a steady leader's log, its template, and the WAL that follows."""
    bench, wal, end = steady()
    expected = expected_append(bench.driver.acceptor, 1)
    assert expected is not None
    return bench.driver.acceptor, expected, bytes(wal.read(end, Lsn(START + 8000)))


def run_appends(data: bytes) -> None:
    acceptor, expected, _ = _log()
    recorded = Recorded()
    tail = Tail(START, END_LSN, recorded, Pace(lambda: 0.0), lambda error, lsn: error)
    path = made_path(expected, tail, Answers(recorded.answer))
    memory = bytearray(data)
    taken = path.take(memory, len(memory))
    news = path.settled()
    require(memory == data, "the received bytes have changed")
    if not taken:
        require(not recorded.journal and news is None, "{} {}", recorded.journal, news)
        return
    slow, told = deepcopy(acceptor), deepcopy(acceptor)
    written, acks = _slowly(slow, memory[:taken], acceptor.flush_lsn)
    journal: list[object] = []
    if written:
        journal = [(acceptor.flush_lsn - START, written), "sync", acks[-1]]
    require(recorded.journal == journal, "{} {}", recorded.journal, journal)
    require(news is not None, "{} bytes taken, and no news", taken)
    assert news is not None
    told.step(AppendsTaken(*map(Lsn, news)))
    require(_state(told) == _state(slow), "{} {}", _state(told), _state(slow))


def _slowly(core: Acceptor, frames: bytearray, flush_lsn: Lsn) -> tuple[bytes, list[object]]:
    """Return what the slow path writes and answers, with a disk that is done at once."""
    written, acks = b"", list[object]()
    for message in messages_in(frames):
        effects: list[Effect] = list(core.step(Received(1, message)))
        while effects:
            match effects.pop(0):
                case WriteWal() as write:
                    written += bytes(write.payload)
                    flush_lsn = flush_lsn + len(write.payload)
                    effects += core.step(WalFlushed(flush_lsn))
                case Send(_, AppendResponse() as ack):
                    acks.append(ack)
                case Send(_, other):
                    require(False, "the slow path answers with {}", other)
                case _:
                    pass
    return written, acks


def _state(core: Acceptor) -> tuple[object, ...]:
    ends = core.write_lsn, core.flush_lsn, core.acked_lsn, core.commit_lsn
    return (*ends, core.leader_commit_lsn, core.restart_lsn, core.durable, core.appender)


def _append_seeds() -> Iterable[bytes]:
    acceptor, _, wal = _log()
    for sizes in ((1,), (40,), (0,), (300, 0, 7), (100, 100, 100), (6000,)):
        for commit in (0, 9):
            at, appends = 0, list[AppendRequest]()
            for size in sizes:
                begin, payload = acceptor.flush_lsn + at, wal[at : at + size]
                lsns = (begin, begin + size, acceptor.leader_commit_lsn + commit, START)
                appends.append(AppendRequest(1, BALLOT, 1, *lsns, crc_of(payload), payload))
                at += size
            yield bytes(frames_of(*appends))


def repair_appends(data: bytes, random: Random) -> bytes:
    """Restore length, term, positions and CRC of the frames, mostly, so that more is taken."""
    acceptor, expected, _ = _log()
    frames, at, begin = bytearray(data), 0, int(acceptor.flush_lsn)
    while len(frames) - at >= HEAD_BYTES:
        size = int.from_bytes(frames[at : at + 4], "big") + 4 - HEAD_BYTES
        if not 0 <= size <= len(frames) - at - HEAD_BYTES or random.randrange(16) == 0:
            size = random.choice((0, len(frames) - at - HEAD_BYTES))
            frames[at : at + 4] = (size + HEAD_BYTES - 4).to_bytes(4, "big")
        frame = memoryview(frames)[at : at + HEAD_BYTES + size]
        if random.randrange(8):
            frame[TERM] = expected.append[TERM]
        if random.randrange(8):
            frame[LSNS] = begin.to_bytes(8, "big") + (begin + size).to_bytes(8, "big")
        if random.randrange(8):
            frame[CRC] = crc_of(frame[HEAD_BYTES:]).to_bytes(4, "big")
        frame.release()
        at, begin = at + HEAD_BYTES + size, begin + size
    return bytes(frames)


@cache
def _leader() -> tuple[Proposer, ExpectedStream, Leading]:
    """Return a leader that has sent WAL which no member has acknowledged, and its template."""
    leading = Leading(is_fast=False)
    end_lsn = leading.leader.window.end_lsn
    leading.core.step(WalArrived(end_lsn, memoryview(bytes(SENT_BYTES))))
    expected = expected_stream(leading.core)
    assert expected is not None
    return leading.core, expected, leading


def run_acks(data: bytes) -> None:
    core, expected, _ = _leader()
    make, said = stream_path(), list[object]()
    assert make is not None
    answer = Answers(lambda frame, size: said.append(frame))
    path = make(expected, [answer for _ in expected.links])
    link, memory = (data[0] % 4 if data else 0), bytearray(data[1:])
    reported = path.take(link, memory, len(memory))
    news = path.settled()
    require(not said, "an ack sends {}", said)
    if reported is None:
        require(news is None, "{}", news)
        return
    slow, told = _copy(core), _copy(core)
    reports = list[int]()
    for message in messages_in(memory):
        effects = slow.step(LinkReceived(link, message))
        reports += [int(one.commit_lsn) for one in effects if isinstance(one, Report)]
    require(reported == (reports[-1] if reports else 0), "{} {}", reported, reports)
    require(news is not None, "acks were taken, and there is no news")
    assert news is not None
    commit_lsn, sent_commit_lsn, sent, acks = news
    told.step(StreamTaken(commit_lsn, Lsn(sent_commit_lsn), sent, acks))
    require(_leads(told) == _leads(slow), "{} {}", _leads(told), _leads(slow))


def _copy(core: Proposer) -> Proposer:
    """Return a copy that shares the window's WAL, since a memoryview cannot be copied."""
    leader = core.leader
    assert leader is not None
    chunks = leader.window._chunks
    return deepcopy(core, {id(chunk.wal): chunk.wal for chunk in chunks})


def _leads(core: Proposer) -> tuple[object, ...]:
    leader = core.leader
    assert leader is not None
    ends = leader.commit_lsn, leader.window.begin_lsn, leader.window.end_lsn
    members = [replace(one, vote=None) for one in core.members]
    return (core.phase, ends, leader.feeder.restart_lsn, members)


def _ack_seeds() -> Iterable[bytes]:
    core, expected, leading = _leader()
    for link in range(len(expected.links)):
        member = core.members[link]
        for moved in ((1,), (SENT_BYTES,), (0, 1000, SENT_BYTES)):
            acks = [leading.ack(link, member.flush_lsn + one, member.feedback) for one in moved]
            yield bytes([link]) + bytes(frames_of(*acks))


def repair_acks(data: bytes, random: Random) -> bytes:
    """Restore whole acks, positions that were sent, and the bytes that all acks share, mostly."""
    core, expected, _ = _leader()
    frames, begin = bytearray(data), int(core.members[0].flush_lsn)
    if random.randrange(8):
        del frames[1 + (len(frames) - 1) // ACK_BYTES * ACK_BYTES :]
    for at in range(1, len(frames) - ACK_BYTES + 1, ACK_BYTES):
        if random.randrange(16):
            frames[at : at + 33] = expected.acks[0][:33]
        if random.randrange(16):
            begin = random.randrange(begin, int(core.members[0].flush_lsn) + SENT_BYTES + 1)
            frames[at + 33 : at + 41] = begin.to_bytes(8, "big")
        if random.randrange(16):
            commit = random.randrange(int(core.members[0].flush_lsn), begin + 1)
            frames[at + 41 : at + 49] = commit.to_bytes(8, "big")
        if random.randrange(16):
            frames[at + 49 : at + ACK_BYTES] = expected.acks[0][49:]
    return bytes(frames)


APPENDS = Target(
    name="fast_appends",
    about="the compiled fast path of appends against the slow path",
    run=run_appends,
    seeds=_append_seeds,
    bytes_max=8192,
    alter=havoc,
    repair=repair_appends,
)
ACKS = Target(
    name="fast_acks",
    about="the compiled fast path of acks against the slow path",
    run=run_acks,
    seeds=_ack_seeds,
    bytes_max=1024,
    alter=havoc,
    repair=repair_acks,
)
