"""The compiled stream of a primary does what the shell does: CopyData in, WAL and statuses out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from random import Random
from time import time
from types import FrameType

import pytest

from tests.proposer.test_fast_stream import posted_by
from tests.support.copied_stream import ASKS, KEEPALIVE, StreamedLeader, steady_leader, xlog
from tests.support.fast import NEEDS_FAST_PATH
from tests.support.frames import frames_of
from tests.support.scenario_words import CREATION_LSN
from walkeeper_common.buffers import Buffer
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import StandbyStatus
from walkeeper_common.wire.messages import NO_FEEDBACK, AppendRequest, Feedback
from walkeeper_proposer.consensus.proposer_events import (
    Effect,
    Event,
    LinkLost,
    StreamTaken,
    Tick,
)
from walkeeper_proposer.postgres.primary import (
    GATHERED_BYTES_MAX,
    POSTGRES_EPOCH_S,
    SILENT_STATUSES_ASK,
)

pytestmark = NEEDS_FAST_PATH
END = CREATION_LSN + 100
SIZES = (1, 60, 500, 9000, 70_000, GATHERED_BYTES_MAX)


def sent(leader: StreamedLeader, link: int) -> list[tuple[Lsn, Lsn]]:
    messages = [
        one[1] for one in leader.leading.around.said if isinstance(one, tuple) and one[0] == link
    ]
    return [(one.begin_lsn, one.end_lsn) for one in messages if isinstance(one, AppendRequest)]


def act(leader: StreamedLeader, random: Random) -> str:
    """Do one thing, which the random numbers choose; return what it was."""
    match random.randrange(12):
        case 0 | 1 | 2 | 3:
            sizes = random.choices(
                (1, 60, 500, 9000, 70_000, GATHERED_BYTES_MAX), k=random.choice((1, 1, 2, 5))
            )
            payloads = leader.wal(*sizes)
            if random.random() < 0.2:
                payloads.insert(
                    random.randrange(len(payloads) + 1), random.choice((ASKS, KEEPALIVE))
                )
            leader.arrive(*payloads)
            return "wal"
        case 4:
            leader.shell._count_silence()
            leader.shell._at.silent_statuses += random.choice((0, SILENT_STATUSES_ASK))
            leader.shell._send_status()
            return "status"
        case 5 if random.random() < 0.3:
            leader.leading.driver.post(random.choice((Tick(), LinkLost(2))))
            return "event"
        case 6:
            leader.socket.is_full = True
        case 7:
            leader.socket.drain()
        case 8 if random.random() < 0.3:
            link, news = random.randrange(3), Feedback(Lsn(0), random.randrange(3), 2)
            if leader.leading.core.members[link].attached:
                leader.acknowledge(link, leader.leading.core.members[link].flush_lsn, news)
            return "feedback"
        case _:
            link, received = random.randrange(3), leader.shell._at.received_lsn
            member = leader.leading.core.members[link]
            share = random.random()
            if member.attached and member.next_lsn == received:
                leader.acknowledge(
                    link, member.flush_lsn + int(share * (received - member.flush_lsn))
                )
            return "ack"
    return "socket"


@pytest.mark.parametrize("seed", range(12))
def test_both_paths_say_the_same_to_all(seed: int) -> None:
    fast, slow, done = StreamedLeader(), StreamedLeader(is_fast=False), Counter[str]()
    randoms = Random(seed), Random(seed)
    for _ in range(150):
        for leader, random in zip((fast, slow), randoms, strict=True):
            if leader.leading.leader.is_paused:
                return
            done[act(leader, random)] += 1
            leader.settle()
            while due := leader.leading.around.due:
                leader.leading.around.due = []
                for what in due:
                    what()
        assert fast.all_facts() == slow.all_facts()
        assert fast.leading.state() == slow.leading.state()
    assert done["wal"] > 60 and len(fast.statuses) > 10, f"{done}"


def test_a_steady_commit_runs_no_function_of_python() -> None:
    """All but the note that the core may learn of it, once in a bunch."""
    leader, calls = steady_leader(), Counter[str]()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and "walkeeper_proposer" in frame.f_code.co_filename:
            calls[frame.f_code.co_qualname] += 1

    for _ in range(2):
        payloads, begin = leader.wal(50, 70), leader.shell._at.received_lsn
        acks = frames_of(leader.leading.ack(0, Lsn(begin + 120), NO_FEEDBACK))
        sys.setprofile(count)
        try:
            leader.arrive(*payloads)
            for link in (0, 1):
                first = leader.first[link].first
                assert first is not None and first(acks, len(acks))
        finally:
            sys.setprofile(None)
        assert leader.statuses[-1].flush_lsn == begin + 120
        assert sent(leader, 0)[-1] == (begin, begin + 120), "two are one"
    assert calls == {"Driver.on_news": 1}


def test_the_status_has_the_commit_and_the_time() -> None:
    leader = steady_leader()
    before_us = int((time() - POSTGRES_EPOCH_S) * 1e6)
    end = leader.commit(10)
    after_us = int((time() - POSTGRES_EPOCH_S) * 1e6)
    (status,) = [StandbyStatus.unpack(one) for one in leader.socket.put]
    assert (status.write_lsn, status.flush_lsn, status.replay_lsn) == (end,) * 3
    assert before_us <= status.sent_at_us <= after_us + 1 and not status.reply_requested


def test_a_report_past_what_was_received_is_cut() -> None:
    """A later connection of the primary may start before what a quorum has."""
    leader = steady_leader()
    leader.arrive(*leader.wal(50))
    leader.shell._at.received_lsn = END
    for link in (0, 1):
        leader.acknowledge(link, END + 50)
    assert [one.flush_lsn for one in leader.statuses] == [END]


def test_an_older_report_takes_nothing_back() -> None:
    leader = steady_leader()
    leader.shell._at.flush_lsn = leader.shell._at.apply_lsn = END + 70
    leader.shell._at.received_lsn = END + 80
    leader.shell._at.received_lsn = END
    leader.arrive(*leader.wal(50))
    leader.shell._at.received_lsn = END + 80
    for link in (0, 1):
        leader.acknowledge(link, END + 50)
    assert [one.flush_lsn for one in leader.statuses] == [END + 70]


def test_wal_that_does_not_follow_ends_the_connection() -> None:
    leader = steady_leader()
    leader.arrive(*leader.wal(40), xlog(END + 41, b"gap"))
    text = f"the primary sent WAL at {END + 41}, expected {END + 40}"
    assert leader.shell.lost == [text] and sent(leader, 0) == [(END, END + 40)]


def test_a_keepalive_is_answered_behind_the_wal_before_it() -> None:
    leader = steady_leader()
    first, second = leader.wal(40, 60)
    leader.arrive(first, ASKS, second)
    assert [one.flush_lsn for one in leader.statuses] == [END]
    assert sent(leader, 0) == [(END, END + 40), (END + 40, END + 100)]


def test_a_status_that_has_not_left_is_followed_by_the_newest() -> None:
    leader = steady_leader()
    leader.socket.is_full = True
    leader.commit(10)
    leader.commit(10)
    end = leader.commit(10)
    assert [one.flush_lsn for one in leader.statuses] == [END + 10], "two are dropped"
    leader.socket.drain()
    assert [one.flush_lsn for one in leader.statuses] == [END + 10, end]


def test_a_lost_connection_is_told_with_libpqs_reason() -> None:
    for reads in (True, False):
        leader = steady_leader()
        leader.arrive(*leader.wal(10))
        leader.socket.is_lost = True
        if reads:
            leader.arrive()
            assert leader.shell.lost == ["server closed the connection unexpectedly"]
        else:
            for link in (0, 1):
                leader.acknowledge(link, END + 10)
            assert leader.shell.lost == ["no connection to the server"]


def test_wal_before_the_end_of_the_stream_is_sent() -> None:
    leader = steady_leader()
    leader.socket.has_ended = True
    leader.arrive(*leader.wal(30))
    assert sent(leader, 1) == [(END, END + 30)]
    assert leader.shell.lost == ["the server ended the stream"]


def test_nothing_is_reported_to_a_connection_that_is_closed() -> None:
    leader = steady_leader()
    leader.arrive(*leader.wal(30))
    leader.shell._connection = None
    leader.shell._at.close()
    for link in (0, 1):
        leader.acknowledge(link, END + 30)
    assert not leader.statuses and leader.shell._at.flush_lsn == END + 30


def test_news_of_standbys_are_reported_by_the_shell() -> None:
    """It keeps what their queries need."""
    leader = steady_leader()
    leader.acknowledge(0, END, Feedback(Lsn(0), 7, 5))
    assert leader.shell._xmins == (7, 5)
    leader.commit(10)
    assert leader.shell._xmins == (7, 5) and leader.statuses[-1].flush_lsn == END + 10


def test_an_event_that_comes_meanwhile_waits() -> None:
    """A link breaks while the first of three is sent WAL."""
    leader, stepped = steady_leader(), list[type]()
    driver = leader.leading.driver
    step, write = driver.core.step, leader.first[0].write

    def write_and_lose(frame: Sequence[Buffer], size: int) -> None:
        write(frame, size)
        driver.post(LinkLost(2))

    def counted(event: Event) -> Sequence[Effect]:
        stepped.append(type(event))
        assert sent(leader, 1) == [(END, END + 30)], "after all are sent it"
        return step(event)

    leader.first[0].write = write_and_lose
    driver.core.step = counted  # type: ignore[method-assign,assignment]
    leader.arrive(*leader.wal(30))
    assert stepped == [StreamTaken, LinkLost]
    assert [sent(leader, link) for link in range(3)] == [[(END, END + 30)]] * 3


def test_the_links_and_the_primary_lose_the_fast_path_with_its_template() -> None:
    leader = steady_leader()
    leader.arrive(*leader.wal(30))
    leader.leading.driver.post(LinkLost(0))
    leader.leading.around.said.clear()
    first = leader.first[1].first
    assert first is not None and first(bytearray(73), 73) == 0
    leader.arrive(*leader.wal(20))
    assert [sent(leader, link) for link in range(3)] == [[], *[[(END + 30, END + 50)]] * 2]


def test_a_long_silence_is_asked_about() -> None:
    leader = steady_leader()
    leader.arrive(*leader.wal(30))
    leader.shell._at.silent_statuses = SILENT_STATUSES_ASK
    for link in (0, 1):
        leader.acknowledge(link, END + 30)
    assert [one.reply_requested for one in leader.statuses] == [True]


def test_more_than_one_append_may_hold_is_sent_in_pieces() -> None:
    """The core is not asked to split it."""
    leader = steady_leader()
    payloads = leader.wal(GATHERED_BYTES_MAX - 10, 10, 5)
    assert not posted_by(leader.leading, lambda: leader.arrive(*payloads))
    middle = END + GATHERED_BYTES_MAX
    assert sent(leader, 2) == [(END, middle), (middle, middle + 5)]


def test_what_standbys_apply_is_reported_by_the_shell() -> None:
    """With --apply standbys the report says less than a quorum has."""
    leader = StreamedLeader()
    leader.shell._apply_quorum = False
    leader.commit(100)
    leader.acknowledge(0, END, Feedback(END, 0, 0))
    for _ in range(2):
        end = leader.commit(10)
        assert (leader.statuses[-1].flush_lsn, leader.statuses[-1].replay_lsn) == (end, END)
