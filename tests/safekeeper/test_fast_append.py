"""The compiled fast path of an append does what the slow one does, frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from tests.safekeeper.test_safekeeper_driver import BALLOT, SEGMENT_BYTES, START, Bench, made_wal
from tests.support.fast import NEEDS_FAST_PATH, made_path
from tests.support.frames import Answers, frames_of, message_in, messages_in
from tests.support.wal_maker import WalMaker
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import CorruptWal, StorageError
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.pace import AVERAGED_JOBS, BRIEF_S, Pace
from walkeeper_common.postgres.walpages import FIRST_IS_OVERWRITE_CONTRECORD, PAGE_HEADER
from walkeeper_common.timelines import Timelines
from walkeeper_common.wire.messages import (
    AppendRequest,
    AppendResponse,
    Feedback,
    ProposerElected,
    Reject,
    RejectCode,
    VoteRequest,
    VoteResponse,
)
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_safekeeper.consensus.acceptor_answers import ack_of
from walkeeper_safekeeper.consensus.acceptor_events import StandbysReported, Tick, Waiting
from walkeeper_safekeeper.consensus.durable import unreached_start
from walkeeper_safekeeper.consensus.expected_append import expected_append
from walkeeper_safekeeper.disk.disk_times import DiskTimes
from walkeeper_safekeeper.hosting.hosted_log import HostedLog
from walkeeper_safekeeper.hosting.log_status import log_status
from walkeeper_safekeeper.proposer_sessions import ProposerSessions
from walkeeper_safekeeper.replication.physical_slots import Slots
from walkeeper_safekeeper.storage.disk_port import Writer
from walkeeper_safekeeper.storage.open_tail import Tail

pytestmark = NEEDS_FAST_PATH

WAL_BYTES = 3 * SEGMENT_BYTES
END_LSN = START + SEGMENT_BYTES


def next_append(bench: Bench, begin: Lsn, wal: WalMaker, random: Random) -> AppendRequest:
    """Make the next append: now and then a heartbeat, or one that no leader should send."""
    acceptor = bench.driver.acceptor
    size = min(random.choice((0, 1, 60, 300, 700, 9000)), max(0, START + WAL_BYTES - begin))
    payload = wal.read(begin, begin + size)
    least = acceptor.leader_commit_lsn if random.random() < 0.8 else acceptor.commit_lsn
    commit = Lsn(random.randint(least, max(least, begin + 100)))
    restart = Lsn(random.randint(START, acceptor.flush_lsn))
    append = AppendRequest(
        1, BALLOT, 1, begin, begin + size, commit, restart, crc_of(payload), payload
    )
    if random.random() < 0.9:
        return append
    garbage = random.randbytes(size if size >= WAL_PAGE_BYTES else 0) or payload  # no WAL
    wrong = (
        {"generation": 2},
        {"ballot": Ballot(1, b"q" * 16)},
        {"ballot": Ballot(0, BALLOT.proposer_id)},
        {"timeline": 2},
        {"crc": append.crc ^ 1},
        {"payload": garbage, "crc": crc_of(garbage)},
        {"begin_lsn": begin + 8, "end_lsn": append.end_lsn + 8},
        {"begin_lsn": Lsn(begin - 8), "end_lsn": Lsn(append.end_lsn - 8)},
    )
    return replace(append, **random.choice(wrong))


def next_appends(bench: Bench, wal: WalMaker, random: Random) -> list[AppendRequest]:
    """Make appends that are received at once."""
    begin, appends = bench.driver.acceptor.write_lsn, list[AppendRequest]()
    for _ in range(random.choice((1, 1, 2, 5))):
        appends.append(next_append(bench, begin, wal, random))
        begin = max(START, appends[-1].end_lsn)
    return appends


def state(bench: Bench) -> tuple[object, ...]:
    acceptor, wal = bench.driver.acceptor, bench.driver.store
    facts = (
        acceptor.durable, acceptor.write_lsn, acceptor.flush_lsn, acceptor.commit_lsn,
        acceptor.leader_commit_lsn, acceptor.restart_lsn, acceptor.acked_lsn, acceptor.silent_ticks,
        acceptor.appender, acceptor.failure, acceptor.refusal, acceptor.waiting,
    )  # fmt: skip
    return (*facts, wal.read(START, acceptor.flush_lsn))


@pytest.mark.parametrize("seed", range(20))
def test_both_paths_end_in_the_same_state_and_say_the_same(seed: int) -> None:
    random, wal = Random(seed), made_wal(WAL_BYTES + 1000)
    fast, slow = Bench(), Bench(is_fast=False)
    fast.writer.is_quick = True
    for _ in range(120):
        appends = next_appends(slow, wal, random)
        connection = random.choice((1, 1, 1, 1, 1, 1, 1, 1, 2))
        event = random.choice((None, None, None, None, Tick(), StandbysReported(feedback(random))))
        for bench in (fast, slow):
            bench.receive(*appends, connection=connection)
            bench.writer.run_all()
            bench.others.run_all()
            if event is not None:
                bench.driver.post(event)
                bench.writer.run_all()
        assert state(fast) == state(slow)
        assert said(fast) == said(slow)
    assert fast.writer.ran_at_once > 10 and not slow.writer.ran_at_once


def feedback(random: Random) -> Feedback:
    return Feedback(Lsn(random.randrange(1000)), random.randrange(3), 0)


def said(bench: Bench) -> list[object]:
    """Return the answers, and of acks in a row the last, since appends may share one."""
    messages = list(bench.heard.messages)
    bench.heard.messages.clear()
    assert all(isinstance(message, AppendResponse | Reject) for message in messages)
    following = [*messages, None][1:]
    both = zip(messages, following, strict=True)
    return [
        m for m, after in both if isinstance(m, Reject) or not isinstance(after, AppendResponse)
    ]


def steady() -> tuple[Bench, WalMaker, Lsn]:
    """Make a log that is committed to its end, on a quick disk, and WAL that follows it."""
    bench, wal = Bench(), made_wal(8000)
    end = bench.append(START, wal.read(START, START + 1000))
    bench.writer.run_all()
    bench.persist_commit(end)
    bench.heard.messages.clear()
    bench.writer.is_quick = True
    return bench, wal, end


def test_a_steady_leaders_append_waits_for_nothing() -> None:
    bench, wal, end = steady()
    operations = bench.disk.operations
    end = bench.append(end, wal.read(end, end + 100))
    assert not bench.writer.jobs
    assert [m.flush_lsn for m in bench.heard.messages if isinstance(m, AppendResponse)] == [end]
    assert bench.disk.operations - operations == 2, "a write and its fdatasync, and only then"


def test_a_mark_is_made_before_the_ack() -> None:
    """WAL reaches the start of the term: the mark is durable before the leader learns of it."""
    bench, wal, end = steady()
    acceptor = bench.driver.acceptor
    # As behind a cut: the history begins a term that our WAL reaches with its next byte.
    entry = replace(acceptor.durable.history[-1], start_lsn=end + 50)
    history = (*acceptor.durable.history[:-1], entry)
    acceptor.durable = replace(acceptor.durable, history=history, reached_lsn=START)
    acceptor.unreached_lsn = unreached_start(acceptor.durable)
    bench.append(end, wal.read(end, end + 100))
    bench.writer.run_all()
    assert not bench.writer.ran_at_once
    assert acceptor.durable.reached_lsn == end + 50


def test_a_failed_write_is_final_on_the_fast_path_too() -> None:
    bench, wal, end = steady()
    bench.disk.failing_syncs.add(bench.driver.store.name_of(end))
    bench.append(end, wal.read(end, end + 100))
    bench.writer.run_all()
    acceptor = bench.driver.acceptor
    assert acceptor.failure is not None and acceptor.flush_lsn == end
    assert not any(isinstance(m, AppendResponse) for m in bench.heard.messages)
    with pytest.raises(StorageError, match="no more appends"):
        bench.driver.store.append(end, [b"x"])


def test_the_fast_path_ends_with_the_leaders_term() -> None:
    """Another proposer is elected on another connection: the old one's append is refused."""
    bench, wal, end = steady()
    end = bench.append(end, wal.read(end, end + 100))
    assert bench.writer.ran_at_once == 1
    history = bench.driver.acceptor.durable.history
    deposing = Ballot(2, b"q" * 16)
    entry = replace(history[-1], ballot=deposing, start_lsn=end)
    vote = VoteRequest(1, deposing, b"u" * 16, bench.driver.acceptor.member)
    bench.receive(vote, connection=2)
    bench.writer.run_all()
    bench.receive(ProposerElected(1, deposing, end, (*history, entry)), connection=2)
    bench.writer.run_all()
    bench.heard.messages.clear()
    bench.append(end, wal.read(end, end + 100))
    assert bench.writer.ran_at_once == 1 and not bench.writer.jobs
    assert bench.driver.acceptor.flush_lsn == end
    (refusal,) = bench.heard.messages
    assert isinstance(refusal, Reject) and refusal.code is RejectCode.STALE_BALLOT


def test_a_page_that_cuts_off_a_record_is_no_small_append() -> None:
    """WAL below such a page becomes durable before it, which takes two writes."""
    for flags, ran_at_once in ((FIRST_IS_OVERWRITE_CONTRECORD, 0), (0, 1)):
        bench, _, end = steady()
        page = end.round_up(WAL_PAGE_BYTES)
        bench.append(end, bytes(page - 100 - end))
        bench.writer.run_all()
        before = bench.writer.ran_at_once
        header = PAGE_HEADER.pack(0xD110, flags, 1, page, 0, 0)
        bench.append(Lsn(page - 100), bytes(100) + header + bytes(100))
        assert bench.writer.ran_at_once == before + ran_at_once
        assert len(bench.writer.jobs) == 1 - ran_at_once


def test_the_core_hears_of_a_bunch_before_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vote says how far the log is, and not how far the core knows."""
    bench, wal, end = steady()
    later = list[Callable[[], None]]()
    monkeypatch.setattr(bench.heard, "settle_later", later.append)
    begin, acceptor = end, bench.driver.acceptor
    for _ in range(3):
        end = bench.append(end, wal.read(end, end + 100))
    assert acceptor.flush_lsn == begin and bench.driver.flush_lsn == end
    assert len(later) == 1, "one bunch"
    bench.heard.messages.clear()
    ask = VoteRequest(1, Ballot(2, b"q" * 16), b"u" * 16, acceptor.member)
    bench.receive(ask, connection=2)
    assert acceptor.flush_lsn == acceptor.acked_lsn == end
    bench.writer.run_all()
    (vote,) = bench.heard.messages
    assert isinstance(vote, VoteResponse) and vote.granted and vote.flush_lsn == end
    later[0]()
    assert acceptor.flush_lsn == end and bench.driver.groups_written == 4


def test_status_has_the_wal_that_was_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core does not know of it yet: a commit that returned would be missing in status."""
    bench, wal, end = steady()
    monkeypatch.setattr(bench.heard, "settle_later", lambda settle: None)
    end = bench.append(end, wal.read(end, end + 100))
    acceptor = bench.driver.acceptor
    assert acceptor.flush_lsn < end
    no_slots = SimpleNamespace(slots=Slots(None))
    log = SimpleNamespace(
        cluster="main", driver=bench.driver, configuration=acceptor.durable.configuration,
        readable=SimpleNamespace(logical=None, readers=(), slots=no_slots),
        offload=None, sessions=ProposerSessions(), times=DiskTimes(),
        scrub=SimpleNamespace(flaw=None, passes=0, repairs=0, differences=0),
        lacks_bytes=0, lacks_reason=None,
    )  # fmt: skip
    assert log_status(cast(HostedLog, log))["flush_lsn"] == str(end)


def test_the_core_hears_of_a_bunch_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, wal, end = steady()
    later = list[Callable[[], None]]()
    monkeypatch.setattr(bench.heard, "settle_later", later.append)
    for _ in range(2):
        end = bench.append(end, wal.read(end, end + 100))
        assert bench.driver.acceptor.flush_lsn < end
        later.pop()()
        assert bench.driver.acceptor.flush_lsn == end and not later
    assert bench.writer.ran_at_once == 2, "and the fast path goes on"
    bench.append(end, wal.read(end, end + 100))
    bench.driver.close(lambda _: None)
    bench.writer.run_all()
    durable = bench.load_from(bench.folder_disk)
    assert bench.driver.acceptor.flush_lsn == end + 100 and durable.clean_stop


def test_what_is_under_way_makes_no_template() -> None:
    """Each of these has to be seen by the core with the next append."""
    bench, _, end = steady()
    acceptor = bench.driver.acceptor
    assert expected_append(acceptor, 1) is not None and expected_append(acceptor, 2) is None
    ask = VoteRequest(1, BALLOT, b"u" * 16, acceptor.member)
    forked = [replace(acceptor.durable.history[-1], start_lsn=end, timeline=2)]
    under_way = {
        "waiting": [Waiting(2, ask, end)],
        "refusal": "no space",
        "failure": "the disk",
        "write_lsn": end + 1,
        "acked_lsn": None,
        "appender": None,
        "term_start_lsn": end + 1,
        "timelines": Timelines((*acceptor.durable.history, *forked)),
        "durable": replace(acceptor.durable, configuration=None),
    }
    for name, value in under_way.items():
        before = getattr(acceptor, name)
        setattr(acceptor, name, value)
        assert expected_append(acceptor, 1) is None, name
        setattr(acceptor, name, before)
    assert expected_append(acceptor, 1) is not None


@pytest.mark.parametrize("count", [1, 2])
def test_a_heartbeat_that_says_nothing_new_is_answered(count: int) -> None:
    """The leader takes silence for a safekeeper that is gone."""
    bench, wal, end = steady()
    end = bench.append(end, wal.read(end, end + 100))
    acceptor = bench.driver.acceptor
    for commit_lsn, is_news in ((end - 50, True), (end - 50, False), (end, True), (end, False)):
        bench.heard.messages.clear()
        heartbeat = AppendRequest(1, BALLOT, 1, end, end, commit_lsn, START, 0, b"")
        bench.receive(*[heartbeat] * count)
        bench.writer.run_all()
        assert acceptor.commit_lsn == commit_lsn
        assert bool(bench.heard.messages) != (is_news and count == 1)


def test_heartbeats_do_not_ask_for_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle log's would keep the busy one beside it from having the loop."""
    bench, wal, end = steady()
    asked, at_once = list[None](), bench.writer.at_once

    def counted() -> Pace | None:
        asked.append(None)
        return at_once()

    monkeypatch.setattr(bench.writer, "at_once", counted)
    heartbeat = AppendRequest(1, BALLOT, 1, end, end, end, START, 0, b"")
    for _ in range(3):
        bench.receive(heartbeat)
        assert not asked
    bench.append(end, wal.read(end, end + 100))
    assert len(asked) == 1


def test_a_disk_that_has_become_slow_is_not_waited_for() -> None:
    """The next appends go to the thread, which finds out when the disk is quick again."""
    bench, wal, end = steady()
    seconds = iter([0.0, 0.0, AVERAGED_JOBS * BRIEF_S])
    pace = Pace(lambda: next(seconds))
    bench.writer.at_once = lambda: pace  # type: ignore[method-assign]  # the test's clock
    end = bench.append(end, wal.read(end, end + 100))
    assert bench.driver.acceptor.flush_lsn == end and not bench.writer.jobs
    end = bench.append(end, wal.read(end, end + 100))
    assert bench.driver.acceptor.flush_lsn < end and bench.writer.jobs
    bench.writer.run_all()
    assert bench.driver.acceptor.flush_lsn == end


def test_a_slow_write_is_counted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times of quick writes wait for the bunch; they cannot end what the loop may wait for."""
    bench, wal, end = steady()
    seconds = iter([0.0, 0.0, 0.001, 0.1, 0.1, 0.1 + AVERAGED_JOBS * BRIEF_S])
    pace = Pace(lambda: next(seconds))
    bench.writer.at_once = lambda: pace  # type: ignore[method-assign]  # the test's clock
    monkeypatch.setattr(bench.heard, "settle_later", lambda settle: None)
    end = bench.append(end, wal.read(end, end + 100))
    assert bench.driver.flush_lsn == end and pace.usual_s == 0.0
    end = bench.append(end, wal.read(end, end + 100))
    assert bench.driver.flush_lsn == end and not pace.is_brief
    end = bench.append(end, wal.read(end, end + 100))
    assert bench.driver.flush_lsn < end and bench.writer.jobs


def test_the_tails_file_is_held_until_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond that it would count among the files in use, for as long as the log is idle."""
    bench, wal, end = steady()
    opened, closed = list[str](), list[str]()
    make = bench.disk.writer

    def watched(name: str) -> Writer:
        writer = make(name)
        close = writer.close

        def watched_close() -> None:
            closed.append(name)
            close()

        monkeypatch.setattr(writer, "close", watched_close)
        opened.append(name)
        return writer

    monkeypatch.setattr(bench.disk, "writer", watched)
    for event in (Tick(), StandbysReported(Feedback(Lsn(7), 0, 0)), None):
        for _ in range(3):
            end = bench.append(end, wal.read(end, end + 10))
        assert len(opened) == len(closed) + 1, "once, and it is in use"
        if event is None:
            bench.driver.close(lambda _: None)
        else:
            bench.driver.post(event)
        assert opened == closed, f"{event}"


def test_the_socket_loses_the_fast_path_with_its_template() -> None:
    """Else a deposed leader's appends would go from the socket to the disk."""
    bench, wal, end = steady()
    acceptor, answer = bench.driver.acceptor, Answers(lambda *_: None)
    payload = wal.read(end, end + 10)
    lsns = (end, end + 10, acceptor.leader_commit_lsn, START)
    frames = frames_of(AppendRequest(1, BALLOT, 1, *lsns, crc_of(payload), payload))
    assert bench.driver.append_at_once(1, answer, frames, len(frames)) == len(frames)
    assert answer.first is not None
    bench.driver.post(Tick())
    assert answer.first is None


def damaged(frames: bytearray, random: Random) -> bytearray:
    """Cut off, gone on with, or with one byte changed; now and then as it was."""
    match random.randrange(6):
        case 0:
            return frames[: random.randrange(len(frames))]
        case 1:
            return frames + random.randbytes(random.randrange(1, 80))
        case 2:
            return frames
        case _:
            at = random.randrange(min(len(frames), 160))
            frames[at] ^= 1 << random.randrange(8)
            return frames


class Recorded:
    """The writer of a file, and the connection that gets the acks; they share one journal."""

    descriptor = -1

    def __init__(self) -> None:
        self.journal: list[object] = []

    def write(self, data: Buffer, offset: int) -> int:
        self.journal.append((offset, bytes(data)))
        return len(data)

    def sync(self) -> None:
        self.journal.append("sync")

    def failure(self, error: OSError) -> StorageError:
        return StorageError(str(error))

    def cut_short(self, offset: int, written: int, size: int) -> StorageError:
        return StorageError(f"{written} of {size} bytes at {offset}")

    def observe(self, write_s: float, sync_s: float) -> None: ...

    def close(self) -> None: ...

    def answer(self, frame: Sequence[Buffer], size: int) -> None:
        self.journal.append(message_in(frame, size))


def test_what_is_known_by_its_bytes_is_what_they_say() -> None:
    bench, wal, end = steady()
    random, known, acceptor = Random(5), 0, bench.driver.acceptor
    expected = expected_append(acceptor, 1)
    assert expected is not None
    expected = replace(expected, limit_lsn=end + 500)
    for _ in range(4000):
        recorded = Recorded()
        tail = Tail(START, END_LSN, recorded, Pace(lambda: 0.0), lambda error, lsn: error)
        sizes = (random.choice((0, 1, 40)), random.choice((0, 30)))
        appends, begin = list[AppendRequest](), end
        for size in sizes[: random.choice((1, 2))]:
            payload = wal.read(begin, begin + size)
            lsns = (begin, begin + size, acceptor.leader_commit_lsn + random.choice((0, 9)), START)
            appends.append(AppendRequest(1, BALLOT, 1, *lsns, crc_of(payload), payload))
            begin = begin + size
        frames = damaged(frames_of(*appends), random)
        path = made_path(expected, tail, Answers(recorded.answer))
        taken = path.take(frames, len(frames))
        news = path.settled()
        if not taken:
            assert not recorded.journal and news is None
            continue
        known += 1
        said = messages_in(frames[:taken])
        assert all(isinstance(one, AppendRequest) for one in said)
        asked = [one for one in said if isinstance(one, AppendRequest)]
        payload = b"".join(bytes(one.payload) for one in asked)
        assert {(one.generation, one.ballot, one.timeline) for one in asked} == {(1, BALLOT, 1)}
        assert [one.begin_lsn for one in asked] == [end, *(one.end_lsn for one in asked)][:-1]
        flush_lsn, commit_lsn = asked[-1].end_lsn, asked[-1].commit_lsn
        restart_lsn = max(acceptor.restart_lsn, *(one.restart_lsn for one in asked))
        assert flush_lsn < end + 500 and news == (flush_lsn, commit_lsn, restart_lsn)
        ack = replace(ack_of(acceptor), flush_lsn=flush_lsn)
        written = [(end - START, payload), "sync", ack]
        assert recorded.journal == (written if payload else [])
    assert 500 < known < 3500


def test_nothing_of_a_damaged_segment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrub has found that the disk lost bytes there, which the page cache may still have."""
    bench, _, end = steady()
    disk = bench.driver.store.disk
    monkeypatch.setattr(disk, "read_cached", disk.read_at)
    answers: list[object] = []
    bench.driver.damaged = (START, Lsn(START + 1000))
    bench.driver.read_committed(Lsn(START + 500), end, answers.append)
    assert isinstance(answers[0], CorruptWal) and not bench.writer.jobs
    bench.driver.damaged = None
    bench.driver.read_committed(Lsn(START + 500), end, answers.append)
    bench.others.run_all()
    assert isinstance(answers[1], bytes)
