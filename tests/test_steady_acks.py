"""The short way of an ack does what the long one does, ack by ack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from tests.frames import frames_of, messages_in, tell
from tests.replaced_members import OLD, B
from tests.scenario_words import CREATION_LSN
from tests.test_pure_generations import vote
from tests.test_steady_append import damaged
from walkeeper_common.framing import Message
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.messages import AppendRequest, AppendResponse, Feedback
from walkeeper_proposer.campaign import Campaign, Phase, Purpose
from walkeeper_proposer.consensus import Proposer
from walkeeper_proposer.driver import Driver
from walkeeper_proposer.leadership import Leader
from walkeeper_proposer.progress import APPEND_BYTES_MAX, IN_FLIGHT_BYTES_MAX, Stage
from walkeeper_proposer.proposer_events import LinkLost, Received, Stop, Tick, WalArrived
from walkeeper_proposer.steady import SteadyAcks, steady_acks

CHUNK_BYTES = 3_000_000  # so that what may be in flight to one member is soon full


class Surroundings:
    """All of the driver's ports: what it says is remembered."""

    def __init__(self) -> None:
        self.said: list[object] = []
        self.due: list[Callable[[], None]] = []

    def send(self, link: int, message: Message) -> None:
        self.said.append((link, message))

    def report(self, commit_lsn: Lsn, feedback: Sequence[Feedback]) -> None:
        self.said.append((commit_lsn, tuple(feedback)))

    def drop(self, link: int, text: str) -> None:
        self.said.append((link, text))

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self.due.append(what)

    def pause(self) -> None:
        self.said.append("pause")

    def resume(self) -> None:
        self.said.append("resume")

    def note(self, text: str, facts: Sequence[tuple[str, object]]) -> None: ...
    def identify(self) -> None: ...
    def stream(self, start_lsn: Lsn, timeline: int) -> None: ...
    def read(self, begin_lsn: Lsn, end_lsn: Lsn, timeline: int) -> None: ...
    def uniform(self, low: float, high: float) -> float:
        return low

    def stopped(self, stop: Stop) -> None:
        self.said.append(stop)


class Leading:
    """A proposer that leads three members; all have attached, and WAL comes from the primary."""

    def __init__(self, purpose: Purpose = Purpose.ATTACH) -> None:
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
        self.driver = Driver(self.core, links=ports, primary=ports, around=ports)

    def ack(self, link: int, flush_lsn: Lsn, feedback: Feedback) -> AppendResponse:
        return AppendResponse(OLD.generation, B, flush_lsn, CREATION_LSN, feedback)

    def state(self) -> tuple[object, ...]:
        leader = self.leader
        facts = (leader.commit_lsn, leader.is_paused, leader.window.begin_lsn,
                 leader.window.end_lsn, leader.feeder.restart_lsn)  # fmt: skip
        return (self.core.phase, facts, [replace(member) for member in self.core.members])


def drawn_acks(leading: Leading, link: int, random: Random) -> list[AppendResponse]:
    """Mostly more durable WAL; now and then news, an old term's, or more than was sent."""
    member = leading.core.members[link]
    acks, flush_lsn = list[AppendResponse](), member.flush_lsn
    for _ in range(random.choice((1, 1, 1, 3))):
        flush_lsn = Lsn(random.randint(flush_lsn, max(flush_lsn, member.next_lsn)))
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
    random, taken = Random(seed), list[int]()
    advance = SteadyAcks.advance

    def counted(acks: SteadyAcks, memory: bytearray, size: int) -> object:
        effects = advance(acks, memory, size)
        taken.append(effects is not None)
        return effects

    monkeypatch.setattr(SteadyAcks, "advance", counted)
    short, long = Leading(), Leading()
    for _ in range(150):
        link = random.randrange(3)
        acks = drawn_acks(long, link, random)
        tell(short.driver, link, *acks)
        for ack in acks:
            long.driver.post(Received(link, ack))
        event: object = None
        if random.random() < 0.4 and not long.leader.is_paused:
            size = random.choice((100, 100, 100, CHUNK_BYTES))
            event = WalArrived(long.leader.window.end_lsn, memoryview(bytes(size)))
        elif random.random() < 0.05:
            event = random.choice((Tick(), LinkLost(link)))
        for leading in (short, long):
            if event is not None:
                leading.driver.post(event)  # type: ignore[arg-type]
            due, leading.around.due = leading.around.due, []
            for what in due:
                what()
        assert short.state() == long.state()
        assert said(short) == said(long)
    assert sum(taken) > 20


def said(leading: Leading) -> tuple[object, ...]:
    """Acks that are received at once are reported at once, and what they make room for is sent at
    once: the last report, the WAL that each link was sent, and all the rest."""
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
    assert not leading.driver._acks


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
        steady, before = steady_acks(leading.core, 0), member.flush_lsn
        assert steady is not None
        if steady.advance(frames, len(frames)) is None:
            assert member.flush_lsn == before
            continue
        known += 1
        said = messages_in(frames)
        assert all(isinstance(one, AppendResponse) for one in said)
        told = [one for one in said if isinstance(one, AppendResponse)]
        assert {replace(one, flush_lsn=before) for one in told} == {
            leading.ack(0, before, member.feedback)
        }
        assert before <= member.flush_lsn == told[-1].flush_lsn <= member.next_lsn
    assert 250 < known < 2500


def test_nothing_is_fed_beyond_what_may_be_in_flight() -> None:
    leading = Leading()
    for _ in range(4):
        begin = leading.leader.window.end_lsn
        leading.driver.post(WalArrived(begin, memoryview(bytes(CHUNK_BYTES))))
    for member in leading.core.members:
        assert 0 < member.in_flight_bytes < IN_FLIGHT_BYTES_MAX + APPEND_BYTES_MAX
