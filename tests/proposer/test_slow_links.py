"""Both cores over a link that carries few bytes a second: all WAL arrives, in about its time (R26).

The link is a queue of frames in each direction. A frame is delivered when its last byte is, and a
tick tells either core on which connection a part of one has come. `Old` safekeepers do not send
signs of life, so appends have to become short enough for the proposer's patience.
"""

from __future__ import annotations

from collections import deque

import pytest

from tests.support.scenario_words import (
    CREATION_LSN,
    LOG_UUID,
    SEGMENT_BYTES,
    SYSTEM_ID,
    configuration_of,
    incarnation_of,
)
from tests.support.sound_server import SOUND_SERVER
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.framing import Message, encode
from walkeeper_proposer.consensus import proposer_events as p
from walkeeper_proposer.consensus.campaign import Campaign
from walkeeper_proposer.consensus.progress import APPEND_BYTES_MAX, APPEND_BYTES_MIN
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_safekeeper.consensus import acceptor_events as a
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.durable import Durable

STEPS = 10  # steps in a second
PRIMARY = p.PrimaryIdentified(
    p.PrimaryIdentity(SYSTEM_ID, 1, CREATION_LSN, SEGMENT_BYTES, **SOUND_SERVER)
)
CONNECT_S = 1


class Pipe:
    """One direction: what waits, and how much of the first frame is over already."""

    def __init__(self, bytes_a_second: int) -> None:
        self._step_bytes = bytes_a_second // STEPS
        self._frames: deque[tuple[int, Message]] = deque()
        self._moved = self._seen = 0

    def send(self, message: Message) -> None:
        self._frames.append((sum(map(len, encode(message))), message))

    def move(self) -> list[Message]:
        """Return what is complete now."""
        complete, self._moved = [], self._moved + self._step_bytes
        while self._frames and self._frames[0][0] <= self._moved:
            size, message = self._frames.popleft()
            self._moved -= size
            complete.append(message)
        if not self._frames:
            self._moved = 0
        return complete

    def receives_more(self) -> bool:
        seen, self._seen = self._seen, self._moved
        return self._moved not in (0, seen)


class SlowLink:
    """A proposer, one safekeeper and the link; `run` a second at a time."""

    def __init__(self, bytes_a_second: int, *, signs: bool) -> None:
        self._rate, self._signs = bytes_a_second, signs
        configuration = configuration_of(1)
        created = Fragment(NO_BALLOT, CREATION_LSN, 1, False, configuration.members, 1)
        durable = Durable(1, incarnation_of(1), LOG_UUID, configuration, history=(created,))
        at = CREATION_LSN
        self.acceptor = Acceptor(durable, oldest_lsn=at, flush_lsn=at, record_lsn=at)
        self.core = Proposer(Campaign("main", b"p" * 16, 1))
        self.connections, self._pause_s, self._is_up = 0, 0, False
        self.cut_after_s: int | None = None  # something in between ends each connection
        self._age_s = 0
        self._events: deque[p.Event] = deque()
        self._asked: deque[a.Event] = deque()

    def propose(self, event: p.Event) -> None:
        self._events.append(event)
        while self._events:
            for effect in self.core.step(self._events.popleft()):
                self._perform(effect)

    def _perform(self, effect: p.Effect) -> None:
        match effect:
            case p.Send(_, message):
                self._there.send(message)
            case p.IdentifyPrimary():
                self._events.append(PRIMARY)
            case p.DropLink():
                self._lose()
            case p.Stop(_, text):
                raise AssertionError(text)

    def _lose(self) -> None:
        self._is_up, self._pause_s = False, CONNECT_S
        self._events.append(p.LinkLost(0))
        self.accept(a.ConnectionLost(self.connections))

    def _connect(self) -> None:
        self._there, self._back = Pipe(self._rate), Pipe(self._rate)
        self.connections, self._is_up, self._age_s = self.connections + 1, True, 0
        self.propose(p.LinkUp(0))

    def accept(self, event: a.Event) -> None:
        """Step the acceptor; its disk answers at once."""
        self._asked.append(event)
        while self._asked:
            for effect in self.acceptor.step(self._asked.popleft()):
                match effect:
                    case a.Send(_, message) if self._is_up:
                        self._back.send(message)
                    case a.WriteWal(begin_lsn, payload):
                        self._asked.append(a.WalFlushed(begin_lsn + len(payload)))
                    case a.FindRecordEnd(flush_lsn):
                        self._asked.append(a.RecordEndFound(effect, flush_lsn))

    def run(self) -> None:
        """Run for a second."""
        if not self._is_up:
            self._pause_s -= 1
            if self._pause_s < 0:
                self._connect()
            return
        for _ in range(STEPS):
            for message in self._there.move():
                self.accept(a.Received(self.connections, message))
            for message in self._back.move():
                if self._is_up:
                    self.propose(p.Received(0, message))
        self._age_s += 1
        if self._age_s == self.cut_after_s:
            self._lose()
        there = self._there.receives_more() and self._signs and self._is_up
        self.accept(a.Tick(frozenset([self.connections] if there else [])))
        self.propose(p.Tick(frozenset([0] if self._back.receives_more() else [])))

    def write(self, size: int) -> Lsn:
        """Write WAL of the primary, which comes at once, in messages as long as may be."""
        assert self.core.leader is not None
        while size:
            part = min(size, APPEND_BYTES_MAX)
            end_lsn = self.core.leader.window.end_lsn
            self.propose(p.WalArrived(end_lsn, memoryview(bytes(part))))
            size -= part
        return self.core.leader.window.end_lsn

    def carry(self, seconds: int, *, most_s: int) -> int:
        """Write as much as the link carries in `seconds`; return how long it takes."""
        self.propose(PRIMARY)
        self._connect()
        while not self.core.members[0].attached:
            self.run()
        end_lsn = self.write(seconds * self._rate)
        for took_s in range(most_s):
            if self.acceptor.flush_lsn == end_lsn:
                return took_s
            self.run()
        got = self.acceptor.flush_lsn - CREATION_LSN
        raise AssertionError(f"{got} of {end_lsn - CREATION_LSN} bytes in {most_s} s")


RATES = (1_000, 8_000, 13_000, 100_000, 2_000_000)


@pytest.mark.parametrize("rate", RATES)
def test_a_link_carries_what_it_can_on_one_connection(rate: int) -> None:
    link = SlowLink(rate, signs=True)
    took_s = link.carry(100, most_s=150)
    assert link.connections == 1, f"{took_s=}"
    assert not link.core.members[0].is_slow


@pytest.mark.parametrize("rate", RATES)
def test_a_safekeeper_without_signs_of_life_gets_shorter_appends(rate: int) -> None:
    link = SlowLink(rate, signs=False)
    link.carry(200, most_s=500)
    assert link.core.members[0].append_bytes >= APPEND_BYTES_MIN
    assert link.connections <= 20


@pytest.mark.parametrize("rate", [2_000, 8_000])
def test_a_connection_that_is_cut_early_each_time_carries_something(rate: int) -> None:
    """By an address translation, or by the kernel's own limit."""
    link = SlowLink(rate, signs=True)
    link.cut_after_s = 6
    link.carry(100, most_s=900)
    assert link.core.members[0].is_slow


def test_a_link_that_became_fast_gets_long_appends_again() -> None:
    link = SlowLink(8_000, signs=False)
    link.carry(100, most_s=300)
    member = link.core.members[0]
    assert member.is_slow
    link._there._step_bytes = link._back._step_bytes = 10_000_000
    link.write(4 << 20)
    for _ in range(10):
        link.run()
    assert not member.is_slow
    assert member.flush_lsn == link.acceptor.flush_lsn == member.next_lsn
