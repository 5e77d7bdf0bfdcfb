"""A steady leader does what any leader does, WAL by WAL and ack by ack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from tests.consensus.test_pure_generations import vote
from tests.safekeeper.test_fast_append import damaged
from tests.support.frames import frames_of, message_in, messages_in, tell
from tests.support.replaced_members import OLD, B
from tests.support.scenario_words import CREATION_LSN
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.timelines import Timelines
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import AppendRequest, AppendResponse, Buffer, Feedback
from walkeeper_proposer.consensus.campaign import Campaign, Phase, Purpose
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.progress import APPEND_BYTES_MAX, IN_FLIGHT_BYTES_MAX, Stage
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import (
    Event,
    LinkLost,
    Received,
    Stop,
    Tick,
    WalArrived,
)
from walkeeper_proposer.consensus.steady import Steady, steady_state
from walkeeper_proposer.driver import Driver

WAL_BYTES = (100, 100, 5_000, APPEND_BYTES_MAX)  # one message each
CHUNK_BYTES = 3_000_000  # so that what may be in flight to one member is soon full


class Surroundings:
    """All of the driver's ports: what it says is remembered."""

    def __init__(self) -> None:
        self.said: list[object] = []
        self.due: list[Callable[[], None]] = []

    def send(self, link: int, message: Message) -> None:
        self.said.append((link, message))

    def send_all(self, links: Sequence[int], frame: list[Buffer], size: int) -> None:
        for link in links:
            self.send(link, message_in(frame, size))

    def report(self, commit_lsn: Lsn, feedback: Sequence[Feedback]) -> None:
        self.said.append((commit_lsn, tuple(feedback)))

    def retain(self, begin_lsn: Lsn) -> None:
        self.said.append(("retain", begin_lsn))

    def drop(self, link: int, text: str) -> None:
        self.said.append((link, text))

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self.due.append(what)

    def pause(self) -> None:
        self.said.append("pause")

    def resume(self) -> None:
        self.said.append("resume")

    def note(self, text: str, facts: Sequence[tuple[str, object]], *_: object) -> None: ...
    def identify(self) -> None: ...
    def stream(self, start_lsn: Lsn, timeline: int) -> None: ...
    def read(self, begin_lsn: Lsn, end_lsn: Lsn, timeline: int) -> None: ...
    def uniform(self, low: float, high: float) -> float:
        return low

    def stopped(self, stop: Stop) -> None:
        self.said.append(stop)


class Leading:
    """A proposer that leads three members; all have attached, and WAL comes from the primary."""

    def __init__(self, purpose: Purpose = Purpose.ATTACH, driver: type[Driver] = Driver) -> None:
        campaign = Campaign("main", B.proposer_id, 3, purpose, window_bytes_max=12_000_000)
        self.core = Proposer(campaign)
        self.core.phase, self.core.ballot, self.core.configuration = Phase.LEADING, B, OLD
        self.leader = Leader(OLD, B, vote(OLD, B), self.core.members, campaign)
        self.core.leader, self.leader.is_streaming = self.leader, True
        for member, name in zip(self.core.members, OLD.members, strict=True):
            member.stage, member.name, member.attached = Stage.STREAMING, name, True
            member.vote = vote(OLD, B)
            member.next_lsn = member.asked_lsn = member.flush_lsn = CREATION_LSN
        self.around = Surroundings()
        ports = self.around
        self.driver = driver(self.core, links=ports, primary=ports, around=ports)

    def ack(self, link: int, flush_lsn: Lsn, feedback: Feedback) -> AppendResponse:
        return AppendResponse(OLD.generation, B, flush_lsn, CREATION_LSN, feedback)

    def state(self) -> tuple[object, ...]:
        leader = self.leader
        facts = (leader.commit_lsn, leader.is_paused, leader.window.begin_lsn,
                 leader.window.end_lsn, leader.feeder.restart_lsn)  # fmt: skip
        return (self.core.phase, facts, [replace(member) for member in self.core.members])


class LongWays(Driver):
    """It shows every event to the core."""

    def _become_steady(self) -> None:
        return None


def drawn_acks(leading: Leading, link: int, random: Random) -> list[AppendResponse]:
    """Draw acks of more durable WAL; now and then news, an old term's, or more than was sent."""
    member = leading.core.members[link]
    acks, flush_lsn = list[AppendResponse](), member.flush_lsn
    for _ in range(random.choice((1, 1, 1, 3))):
        most_lsn = max(flush_lsn, member.next_lsn)
        flush_lsn = Lsn(random.choice((random.randint(flush_lsn, most_lsn), most_lsn)))
        acks.append(leading.ack(link, flush_lsn, member.feedback))
    odd = (
        {"feedback": Feedback(Lsn(random.randrange(1000)), 1, 2)},
        {"ballot": Ballot(0, b"q" * 16)},
        {"generation": 0},
        {"durable_commit_lsn": Lsn(CREATION_LSN + random.randrange(100))},
        {"flush_lsn": Lsn(member.next_lsn + 1)},
        {"flush_lsn": Lsn(max(CREATION_LSN, member.flush_lsn - 1))},
    )
    if random.random() < 0.1:
        at = random.randrange(len(acks))
        acks[at] = replace(acks[at], **random.choice(odd))
    return acks


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_end_in_the_same_state_and_say_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, taken = Random(seed), Counter[str]()

    def count(name: str) -> None:
        way = getattr(Steady, name)

        def counted(*given: object) -> object:
            found = way(*given)
            taken[name] += found is not None
            return found

        monkeypatch.setattr(Steady, name, counted)

    count("on_wal")
    count("on_frames")
    short, long = Leading(), Leading(driver=LongWays)
    for _ in range(200):
        link = random.randrange(3)
        acks = drawn_acks(long, link, random)
        tell(short.driver, link, *acks)
        for ack in acks:
            long.driver.post(Received(link, ack))
        events = list[Event]()
        if random.random() < 0.05:
            events.append(random.choice((Tick(), Tick(), Tick(), LinkLost(link))))
        for leading in (short, long):
            for event in events:
                leading.driver.post(event)
        many = random.choice((0, 0, 1, 1, 2, 9))
        for size in random.choices((*WAL_BYTES, *WAL_BYTES, CHUNK_BYTES), k=many):
            if long.leader.is_paused:
                break
            for leading in (short, long):
                end_lsn = leading.leader.window.end_lsn
                leading.driver.post(WalArrived(end_lsn, memoryview(bytes(size))))
        for leading in (short, long):
            due, leading.around.due = leading.around.due, []
            for what in due:
                what()
        assert short.state() == long.state()
        assert said(short) == said(long)
    assert taken["on_wal"] > 10 and taken["on_frames"] > 20, f"{taken}"


def said(leading: Leading) -> tuple[object, ...]:
    """Return the last report, the WAL that each link was sent, and all the rest.

    Acks that are received at once are reported at once, and WAL for which they make room is sent at
    once.
    """
    reports, rest = list[object](), list[object]()
    wal: dict[int, list[Lsn]] = {}
    for one in leading.around.said:
        match one:
            case (Lsn(), _):
                reports = [one]
            case (int(link), AppendRequest(begin_lsn=begin, end_lsn=end)):
                wal.setdefault(link, [begin])
                wal[link][1:] = [end]
            case _:
                rest.append(one)
    leading.around.said.clear()
    return reports, wal, rest


def test_a_settling_proposer_looks_at_every_ack() -> None:
    """Its end depends on what the acks say."""
    leading = Leading(Purpose.SETTLE)
    tell(leading.driver, 0, leading.ack(0, CREATION_LSN, Feedback(Lsn(0), 0, 0)))
    assert leading.driver._steady is None


def test_what_is_known_by_its_bytes_is_what_they_say() -> None:
    leading, random, known = Leading(), Random(5), 0
    leading.driver.post(WalArrived(CREATION_LSN, memoryview(bytes(100))))
    member = leading.core.members[0]
    member.durable_commit_lsn = CREATION_LSN
    for _ in range(3000):
        member.flush_lsn = Lsn(CREATION_LSN + random.randrange(20))
        acks = [
            leading.ack(0, Lsn(CREATION_LSN + random.randrange(101)), member.feedback)
            for _ in range(random.choice((1, 2)))
        ]
        frames = damaged(frames_of(*acks), random)
        steady, before = steady_state(leading.core), member.flush_lsn
        assert steady is not None
        if steady.on_frames(0, frames, len(frames)) is None:
            assert member.flush_lsn == before
            continue
        steady.go_on()
        known += 1
        said = messages_in(frames)
        assert all(isinstance(one, AppendResponse) for one in said)
        told = [one for one in said if isinstance(one, AppendResponse)]
        assert {(one.generation, one.ballot) for one in told} == {(OLD.generation, B)}
        flushed = [before, *(one.flush_lsn for one in told)]
        assert flushed == sorted(flushed) and flushed[-1] <= member.next_lsn
        assert told[-1] == AppendResponse(
            OLD.generation, B, member.flush_lsn, member.durable_commit_lsn, member.feedback
        )
    assert 250 < known < 2500


def test_no_wal_is_fed_beyond_the_limit_in_flight() -> None:
    leading = Leading()
    for _ in range(4):
        begin = leading.leader.window.end_lsn
        leading.driver.post(WalArrived(begin, memoryview(bytes(CHUNK_BYTES))))
    for member in leading.core.members:
        assert 0 < member.in_flight_bytes < IN_FLIGHT_BYTES_MAX + APPEND_BYTES_MAX


def test_no_append_crosses_a_fork_that_lies_ahead() -> None:
    """A primary that was promoted sends its parent's WAL first."""
    leading, fork_lsn = Leading(), CREATION_LSN + 250
    fork = replace(leading.leader.history[-1], start_lsn=fork_lsn, timeline=9)
    leading.leader.feeder.timelines = Timelines([*leading.leader.history, fork])
    for _ in range(4):
        begin_lsn = leading.leader.window.end_lsn
        leading.driver.post(WalArrived(begin_lsn, memoryview(bytes(100))))
    appends = [one[1] for one in leading.around.said if isinstance(one, tuple) and one[0] == 0]
    assert [(a.timeline, a.end_lsn - CREATION_LSN) for a in appends] == [
        (leading.leader.history[-1].timeline, 100),
        (leading.leader.history[-1].timeline, 200),
        (leading.leader.history[-1].timeline, 250),
        (9, 300),
        (9, 400),
    ]
