"""The compiled fast path of a leader does what the slow one does, WAL by WAL and ack by ack."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from tests.consensus.test_pure_generations import vote
from tests.safekeeper.test_fast_append import damaged
from tests.support.fast import NEEDS_FAST_PATH
from tests.support.frames import Answers, frames_of, message_in, messages_in, tell
from tests.support.replaced_members import OLD, B
from tests.support.scenario_words import CREATION_LSN
from walkeeper_common.buffers import Buffer
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import acknowledged_lsn
from walkeeper_common.timelines import Timelines
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import AppendRequest, AppendResponse, Feedback
from walkeeper_fastpath.ports import FastStream
from walkeeper_fastpath.switch import stream_path
from walkeeper_proposer.bunches import PATIENCE_MIN, Bunches
from walkeeper_proposer.consensus.campaign import Campaign, Phase, Purpose
from walkeeper_proposer.consensus.expected_stream import ExpectedStream, expected_stream
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.progress import APPEND_BYTES_MAX, IN_FLIGHT_BYTES_MAX, Stage
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import (
    Effect,
    Event,
    LinkLost,
    Received,
    Stop,
    StreamTaken,
    Tick,
    WalArrived,
)
from walkeeper_proposer.proposer_driver import Driver

pytestmark = NEEDS_FAST_PATH

WAL_BYTES = (100, 100, 5_000, APPEND_BYTES_MAX)  # one message each
CHUNK_BYTES = 3_000_000  # so that what may be in flight to one member is soon full


class Surroundings:
    """All of the driver's ports: what it says is remembered."""

    def __init__(self) -> None:
        self.said: list[object] = []
        self.due: list[Callable[[], None]] = []

    def send(self, link: int, message: Message) -> None:
        self.said.append((link, message))

    def answer(self, link: int) -> Answers:
        return Answers(lambda frame, size: self.send(link, message_in(frame, size)))

    def report(self, commit_lsn: Lsn, feedback: Sequence[Feedback]) -> None:
        self.said.append((commit_lsn, tuple(feedback)))

    def stream_first(self, stream: FastStream) -> None:
        self.first = stream

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

    def __init__(
        self,
        purpose: Purpose = Purpose.ATTACH,
        *,
        is_fast: bool = True,
        patience: int = PATIENCE_MIN,
    ) -> None:
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
        fast = stream_path() if is_fast else None
        self.driver = Driver(
            self.core,
            links=ports,
            primary=ports,
            around=ports,
            fast=fast,
            bunches=Bunches(patience),
        )

    def settle(self) -> None:
        """Let the core learn of all that the fast path has done."""
        self.driver._settle()

    def ack(self, link: int, flush_lsn: Lsn, feedback: Feedback) -> AppendResponse:
        return AppendResponse(OLD.generation, B, flush_lsn, CREATION_LSN, feedback)

    def state(self) -> tuple[object, ...]:
        leader = self.leader
        facts = (leader.commit_lsn, leader.is_paused, leader.window.begin_lsn,
                 leader.window.end_lsn, leader.feeder.restart_lsn)  # fmt: skip
        return (self.core.phase, facts, [replace(member) for member in self.core.members])


def drawn_acks(leading: Leading, link: int, random: Random) -> list[AppendResponse]:
    """Draw acks, mostly of more durable WAL. Some have news, an old term, or say too much."""
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


@pytest.mark.parametrize("patience", [PATIENCE_MIN, 1])
@pytest.mark.parametrize("seed", range(20))
def test_both_paths_end_in_the_same_state_and_say_the_same(seed: int, patience: int) -> None:
    """In half of the runs the core learns of nothing before it has to.

    With little patience one safekeeper gets WAL in bunches."""
    random, taken, is_late = Random(seed), Counter[str](), seed % 2 == 1
    fast, slow = Leading(patience=patience), Leading(is_fast=False)
    for _ in range(200):
        link = random.randrange(3)
        acks = drawn_acks(slow, link, random)
        taken["acks"] += not posted_by(fast, partial(tell, fast.driver, link, *acks))
        for ack in acks:
            slow.driver.post(Received(link, ack))
        events = list[Event]()
        if random.random() < 0.05:
            events.append(random.choice((Tick(), Tick(), Tick(), LinkLost(link))))
        for leading in (fast, slow):
            for event in events:
                leading.driver.post(event)
        many = random.choice((0, 0, 1, 1, 2, 9))
        for size in random.choices((*WAL_BYTES, *WAL_BYTES, CHUNK_BYTES), k=many):
            if not is_late:
                fast.settle()
            if slow.leader.is_paused or fast.leader.is_paused:
                break
            arrived = WalArrived(slow.leader.window.end_lsn, memoryview(bytes(size)))
            taken["wal"] += not posted_by(fast, partial(fast.driver.post, arrived))
            slow.driver.post(arrived)
        if is_late and random.random() < 0.7:
            continue
        fast.settle()
        for leading in (fast, slow):
            pass_time(leading)
        assert fast.state() == slow.state()
        assert said(fast) == said(slow)
    assert taken["wal"] > 10 and taken["acks"] > 2, f"{taken}"


def pass_time(leading: Leading) -> None:
    """Wait until no timer is left; one may start the next, as an announcement does."""
    while due := leading.around.due:
        leading.around.due = []
        for what in due:
            what()


def posted_by(leading: Leading, act: Callable[[], object]) -> bool:
    """Return True if the core has stepped, so that the fast path did not take it."""
    step, stepped = leading.core.step, list[Event]()

    def counted(event: Event) -> Sequence[Effect]:
        stepped.append(event)
        return step(event)

    leading.core.step = counted  # type: ignore[method-assign,assignment]
    act()
    leading.core.step = step  # type: ignore[method-assign]
    return any(not isinstance(event, StreamTaken) for event in stepped)


def said(leading: Leading) -> tuple[object, ...]:
    """Return the last report, the WAL that each link was sent, and all the rest.

    Acks that arrive together are reported together, and WAL that they make room for follows."""
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
    assert leading.driver._fast is None


def test_what_is_known_by_its_bytes_is_what_they_say() -> None:
    leading, random, known = Leading(), Random(5), 0
    leading.driver.post(WalArrived(CREATION_LSN, memoryview(bytes(100))))
    leading.settle()
    member = leading.core.members[0]
    member.durable_commit_lsn = CREATION_LSN
    make = stream_path()
    assert make is not None
    for _ in range(3000):
        member.flush_lsn = before = Lsn(CREATION_LSN + random.randrange(20))
        acks = [
            leading.ack(0, Lsn(CREATION_LSN + random.randrange(101)), member.feedback)
            for _ in range(random.choice((1, 2)))
        ]
        frames = damaged(frames_of(*acks), random)
        expected = expected_stream(leading.core)
        assert expected is not None
        path = make(expected, [leading.around.answer(link) for link in expected.links])
        if path.take(0, frames, len(frames)) is None:
            assert path.settled() is None
            continue
        known += 1
        told = [one for one in messages_in(frames) if isinstance(one, AppendResponse)]
        assert len(told) == len(messages_in(frames))
        assert {(one.generation, one.ballot) for one in told} == {(OLD.generation, B)}
        assert {one.feedback for one in told} == {member.feedback}
        flushed = [before, *(one.flush_lsn for one in told)]
        assert flushed == sorted(flushed) and flushed[-1] <= member.next_lsn
        news = path.settled()
        assert news is not None and path.settled() is None
        assert news[3] == [(0, told[-1].flush_lsn, told[-1].durable_commit_lsn)]
    assert 250 < known < 2500


def test_nothing_is_fed_beyond_what_may_be_in_flight() -> None:
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


def acked(leading: Leading, link: int, flush_lsn: Lsn) -> None:
    member = leading.core.members[link]
    tell(leading.driver, link, leading.ack(link, flush_lsn, member.feedback))


def test_a_steady_leaders_commit_makes_no_event() -> None:
    """WAL goes to all, the second ack of three is reported, and the core learns of it later."""
    leading, end = Leading(), CREATION_LSN + 100
    leading.leader.advance_commit(leading.leader.counted())
    arrived = WalArrived(CREATION_LSN, memoryview(bytes(100)))
    assert not posted_by(leading, partial(leading.driver.post, arrived))
    sent = [one for one in leading.around.said if isinstance(one, tuple)]
    assert [(one[0], one[1].end_lsn) for one in sent] == [(0, end), (1, end), (2, end)]
    leading.around.said.clear()
    assert not posted_by(leading, partial(acked, leading, 0, end)) and not leading.around.said
    assert not posted_by(leading, partial(acked, leading, 2, end))
    assert leading.around.said == [(end, leading.leader.feedback())]
    assert leading.leader.commit_lsn < end and leading.leader.window.end_lsn == CREATION_LSN
    assert len(leading.around.due) == 1, "one bunch"
    leading.around.due.pop()()
    assert leading.leader.commit_lsn == leading.leader.window.end_lsn == end
    assert [member.flush_lsn == end for member in leading.core.members] == [True, False, True]


def test_the_core_learns_of_it_before_the_next_event() -> None:
    leading, end = Leading(), CREATION_LSN + 100
    leading.driver.post(WalArrived(CREATION_LSN, memoryview(bytes(100))))
    acked(leading, 0, end)
    acked(leading, 1, end)
    leading.driver.post(LinkLost(0))
    assert leading.leader.commit_lsn == leading.leader.window.end_lsn == end
    leading.around.said.clear()
    leading.driver.post(WalArrived(end, memoryview(bytes(50))))
    links = [one[0] for one in leading.around.said if isinstance(one, tuple)]
    assert links == [1, 2], "the template of three members is void"


def test_what_the_core_has_not_learned_of_is_bounded() -> None:
    leading, begin = Leading(), CREATION_LSN
    sizes = list[int]()
    for _ in range(2 * IN_FLIGHT_BYTES_MAX // APPEND_BYTES_MAX):
        wal = memoryview(bytes(APPEND_BYTES_MAX))
        sizes.append(not posted_by(leading, partial(leading.driver.post, WalArrived(begin, wal))))
        begin = begin + APPEND_BYTES_MAX
        for link in range(3):
            acked(leading, link, begin)
    assert False in sizes and sizes.count(True) > len(sizes) // 2
    assert leading.leader.window.end_lsn >= begin - IN_FLIGHT_BYTES_MAX


@pytest.mark.parametrize("seed", range(30))
def test_the_quorum_is_the_one_of_the_rules(seed: int) -> None:
    """Commit as `acknowledged_lsn` says, with any sets: joint ones, and absent members too."""
    random = Random(seed)
    count, start = random.randint(1, 5), Lsn(1000)
    quorums = [random.randint(1, count) for _ in range(random.randint(1, 2))]
    sets = [
        (
            quorum,
            tuple(random.choice((-1, *range(count))) for _ in range(random.randint(quorum, 6))),
        )
        for quorum in quorums
    ]
    leading = Leading()
    flush_lsns = [random.choice((0, 500, 1000, 1500)) for _ in range(count)]
    acks = [leading.ack(0, Lsn(lsn), Feedback(Lsn(0), 0, 0)) for lsn in flush_lsns]
    append = AppendRequest(OLD.generation, B, 1, Lsn(2000), Lsn(2000), Lsn(0), Lsn(0), 0, b"")
    expected = ExpectedStream(
        append=bytes(frames_of(append)),
        links=tuple(range(count)),
        acks=tuple(bytes(frames_of(ack)) for ack in acks),
        sets=tuple(sets),
        start_lsn=start,
        restart_lsn_max=Lsn(1700),
        feedback=(),
    )
    make = stream_path()
    assert make is not None
    path = make(expected, [leading.around.answer(0) for _ in range(count)])
    commit_lsn = Lsn(0)

    def counts(at: int) -> Lsn:
        lsn = flush_lsns[at] if at >= 0 else 0
        return Lsn(lsn if lsn >= start else 0)

    for _ in range(40):
        link = random.randrange(count)
        flush_lsns[link] = random.randint(flush_lsns[link], 2000)
        frame = frames_of(leading.ack(0, Lsn(flush_lsns[link]), Feedback(Lsn(0), 0, 0)))
        told = path.take(link, frame, len(frame))
        now = min(acknowledged_lsn([counts(at) for at in one], quorum) for quorum, one in sets)
        assert told == (now if now > commit_lsn else 0)
        commit_lsn = max(commit_lsn, now)
        assert path.commit_lsn == commit_lsn


def test_each_set_has_its_own_quorum() -> None:
    """Three of three, then two of three: two acks commit nothing."""
    leading = Leading()
    append = AppendRequest(OLD.generation, B, 1, Lsn(2000), Lsn(2000), Lsn(0), Lsn(0), 0, b"")
    ack = bytes(frames_of(leading.ack(0, Lsn(500), Feedback(Lsn(0), 0, 0))))  # an older term's
    for sets, commits in (
        (((2, (0, 1, 2)), (3, (0, 1, 2))), (False, False, True)),
        (((3, (0, 1, 2)), (2, (0, 1, 2))), (False, False, True)),
        (((2, (0, 1, 2)), (2, (0, 1, 2))), (False, True, False)),
    ):
        expected = ExpectedStream(
            append=bytes(frames_of(append)),
            links=(0, 1, 2),
            acks=(ack,) * 3,
            sets=sets,
            start_lsn=Lsn(1000),
            restart_lsn_max=Lsn(1700),
            feedback=(),
        )
        make = stream_path()
        assert make is not None
        path = make(expected, [leading.around.answer(0) for _ in range(3)])
        frame = frames_of(leading.ack(0, Lsn(2000), Feedback(Lsn(0), 0, 0)))
        told = [bool(path.take(link, frame, len(frame))) for link in range(3)]
        assert path.commit_lsn == 2000 and tuple(told) == commits, f"{sets=}"


def test_wal_is_whole_when_a_socket_takes_a_part_of_it() -> None:
    near, far = socket.socketpair()
    near.setblocking(False)
    wrote = list[bytes]()

    class Connection:
        def write(self, buffers: Sequence[Buffer], size: int) -> None:
            wrote.append(b"".join(bytes(one) for one in buffers))
            assert len(wrote[-1]) == size

        def direct(self) -> tuple[int, Callable[[], int], Callable[[], bool]]:
            return near.fileno(), lambda: 0, lambda: False

        def sealed(self) -> None:
            """Say that there is no TLS."""

    leading, make = Leading(), stream_path()
    expected = expected_stream(leading.core)
    assert expected is not None and make is not None
    path = make(expected, [Connection(), *(leading.around.answer(link) for link in (1, 2))])
    random, begin, sent = Random(1), CREATION_LSN, bytearray()
    while not any(wrote):
        wal = random.randbytes(50_001)
        assert path.send(begin, memoryview(wal))
        begin = begin + len(wal)
        said = leading.around.said[-1]
        assert isinstance(said, tuple)
        sent += frames_of(said[1])
    held = bytearray()
    while len(held) + sum(map(len, wrote)) < len(sent):
        held += far.recv(1 << 20)
    assert len(held) > 0 and held + b"".join(wrote) == sent
    near.close()
    far.close()


def test_an_ack_of_more_than_was_sent_does_not_count() -> None:
    leading, end = Leading(), CREATION_LSN + 100
    leading.driver.post(WalArrived(CREATION_LSN, memoryview(bytes(100))))
    leading.around.said.clear()
    acked(leading, 0, end + 1)
    text = f"it acknowledged {end + 1}, it was sent {end}"
    assert leading.around.said == [(0, text)], "the link is dropped"
    leading.settle()
    assert leading.core.members[0].flush_lsn == CREATION_LSN


def test_a_lagging_member_has_no_template() -> None:
    leading = Leading()
    assert expected_stream(leading.core) is not None
    leading.core.members[1].next_lsn = Lsn(CREATION_LSN - 1)
    assert expected_stream(leading.core) is None
    leading.core.members[1].attached = False
    assert expected_stream(leading.core) is None, "it has been sent the heartbeat of its election"
    leading.core.members[1].stage = Stage.ABSENT
    assert expected_stream(leading.core) is not None
