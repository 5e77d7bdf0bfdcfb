"""The short way of an append does what the long one does, message by message."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.test_safekeeper_driver import BALLOT, SEGMENT_BYTES, START, Bench, made_wal
from tests.wal_maker import WalMaker
from walkeeper_common.errors import StorageError
from walkeeper_common.framing import crc_of
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.messages import AppendRequest, AppendResponse, Feedback, Reject
from walkeeper_safekeeper.acceptor_events import StandbysReported, Tick
from walkeeper_safekeeper.durable import unreached_start

WAL_BYTES = 3 * SEGMENT_BYTES


def next_append(bench: Bench, wal: WalMaker, random: Random) -> AppendRequest:
    """Mostly the next WAL; now and then what a leader should not send, or a heartbeat."""
    acceptor = bench.driver.acceptor
    begin = acceptor.write_lsn
    size = min(random.choice((0, 1, 60, 300, 700, 9000)), START + WAL_BYTES - begin)
    payload = wal.read(begin, begin + size)
    commit = Lsn(random.randint(acceptor.commit_lsn, begin + 100))
    restart = Lsn(random.randint(START, acceptor.flush_lsn))
    append = AppendRequest(
        1, BALLOT, 1, begin, begin + size, commit, restart, crc_of(payload), payload
    )
    if random.random() < 0.9:
        return append
    wrong = (
        {"generation": 2},
        {"ballot": Ballot(1, b"q" * 16)},
        {"ballot": Ballot(0, BALLOT.proposer_id)},
        {"timeline": 2},
        {"crc": append.crc ^ 1},
        {"begin_lsn": begin + 8, "end_lsn": append.end_lsn + 8},
        {"begin_lsn": Lsn(begin - 8), "end_lsn": Lsn(append.end_lsn - 8)},
    )
    return replace(append, **random.choice(wrong))


def state(bench: Bench) -> tuple[object, ...]:
    acceptor, wal = bench.driver.acceptor, bench.driver.store
    facts = (
        acceptor.durable, acceptor.write_lsn, acceptor.flush_lsn, acceptor.commit_lsn,
        acceptor.told_commit_lsn, acceptor.restart_lsn, acceptor.acked_lsn, acceptor.silent_ticks,
        acceptor.appender, acceptor.failure, acceptor.refusal, acceptor.waiting,
    )  # fmt: skip
    return (*facts, wal.read(START, acceptor.flush_lsn))


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_end_in_the_same_state_and_say_the_same(seed: int) -> None:
    random, wal = Random(seed), made_wal(WAL_BYTES + 1000)
    short, long = Bench(), Bench()
    short.writer.is_quick = True
    for _ in range(120):
        append = next_append(long, wal, random)
        connection = random.choice((1, 1, 1, 1, 1, 1, 1, 1, 2))
        event = random.choice((None, None, None, None, Tick(), StandbysReported(feedback(random))))
        for bench in (short, long):
            bench.receive(append, connection)
            bench.writer.run_all()
            bench.others.run_all()
            if event is not None:
                bench.driver.post(event)
                bench.writer.run_all()
        assert state(short) == state(long)
        assert said(short) == said(long)
    assert short.writer.ran_at_once > 10 and not long.writer.ran_at_once


def feedback(random: Random) -> Feedback:
    return Feedback(Lsn(random.randrange(1000)), random.randrange(3), 0)


def said(bench: Bench) -> list[object]:
    messages = list(bench.heard.messages)
    bench.heard.messages.clear()
    assert all(isinstance(message, AppendResponse | Reject) for message in messages)
    return list(messages)


def steady() -> tuple[Bench, WalMaker, Lsn]:
    """A log that is committed to its end, on a quick disk; WAL that goes on behind it."""
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
    """WAL that reaches the start of the term: the mark is durable before anybody hears of it."""
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


def test_a_failed_write_is_final_on_the_short_way_too() -> None:
    bench, wal, end = steady()
    bench.disk.failing_syncs.add(bench.driver.store.name_of(end))
    bench.append(end, wal.read(end, end + 100))
    bench.writer.run_all()
    acceptor = bench.driver.acceptor
    assert acceptor.failure is not None and acceptor.flush_lsn == end
    assert not any(isinstance(m, AppendResponse) for m in bench.heard.messages)
    with pytest.raises(StorageError, match="no more appends"):
        bench.driver.store.append(end, [b"x"])
