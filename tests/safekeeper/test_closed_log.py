"""A closed log takes no more WAL (M7): what each part refuses, without a cluster."""

from __future__ import annotations

from dataclasses import replace

from tests.safekeeper.test_safekeeper_driver import START, Bench, made_wal
from tests.support.fast import NEEDS_FAST_PATH
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment, closed_lsn, is_well_formed
from walkeeper_common.lsn import Lsn
from walkeeper_common.timelines import Timelines
from walkeeper_common.wire.fields import Reader, Writer
from walkeeper_common.wire.messages import AppendRequest, ProposerElected, Reject, RejectCode
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_proposer.consensus.campaign import Purpose, closes
from walkeeper_safekeeper.consensus.expected_append import expected_append
from walkeeper_safekeeper.storage import control_file

CREATED = Fragment(NO_BALLOT, START, 1, False, ("1#00",), 1)
CLOSING = Ballot(2, b"c" * 16)


def closed_at(lsn: Lsn) -> Fragment:
    return replace(CREATED, ballot=CLOSING, start_lsn=lsn, closed=True)


def close_here(bench: Bench, connection: int = 1) -> Lsn:
    """Let the log be closed where it ends."""
    acceptor = bench.driver.acceptor
    end, history = acceptor.flush_lsn, acceptor.durable.history
    entry = replace(history[-1], ballot=CLOSING, start_lsn=end, closed=True)
    bench.receive(ProposerElected(1, CLOSING, end, (*history, entry)), connection=connection)
    bench.writer.run_all()
    bench.others.run_all()
    bench.heard.messages.clear()
    return end


def written() -> tuple[Bench, Lsn]:
    """Make a log of 1000 bytes, and return its end."""
    bench, wal = Bench(), made_wal(8000)
    end = bench.append(START, wal.read(START, START + 1000))
    bench.writer.run_all()
    bench.persist_commit(end)
    return bench, end


def test_nothing_follows_a_closed_fragment() -> None:
    closed = closed_at(Lsn(START + 8))
    later = replace(closed, ballot=Ballot(3, b"d" * 16))
    assert is_well_formed((CREATED, closed)) and closed_lsn((CREATED, closed)) == START + 8
    assert not is_well_formed((CREATED, closed, later))
    assert not is_well_formed((CREATED, closed, replace(later, closed=False)))
    assert closed_lsn((CREATED,)) is None


def test_nothing_opens_a_closed_log() -> None:
    for purpose in Purpose:
        assert closes(purpose, was_closed=True)
        assert closes(purpose, was_closed=False) == (purpose is Purpose.CLOSE)


def test_a_laggard_takes_the_wal_up_to_the_close_and_no_further() -> None:
    """A member that was away is fed as any other one."""
    end = Lsn(START + 800)
    timelines = Timelines((CREATED, closed_at(end)))
    assert timelines.flaw(1, START, end) is None
    assert "closed at" in (timelines.flaw(1, START, Lsn(end + 1)) or "")


def test_a_safekeeper_refuses_wal_behind_the_close() -> None:
    bench, _ = written()
    end = close_here(bench)
    wal = b"x" * 100
    bench.receive(AppendRequest(1, CLOSING, 1, end, Lsn(end + 100), end, START, crc_of(wal), wal))
    (refusal,) = bench.heard.messages
    assert isinstance(refusal, Reject) and refusal.code is RejectCode.REFUSED
    assert "closed" in refusal.text and bench.driver.acceptor.write_lsn == end


@NEEDS_FAST_PATH
def test_a_closed_log_has_no_fast_path() -> None:
    bench, end = written()
    acceptor = bench.driver.acceptor
    assert expected_append(acceptor, 1) is not None
    close_here(bench)
    bench.receive(AppendRequest(1, CLOSING, 1, end, end, end, START, 0, b""))
    bench.writer.run_all()
    bench.others.run_all()
    assert acceptor.durable.commit_lsn == end == acceptor.acked_lsn
    assert expected_append(acceptor, 1) is None


def test_a_start_knows_of_the_close() -> None:
    bench, _ = written()
    end = close_here(bench)
    durable = bench.driver.acceptor.durable
    read = control_file.decode(control_file.encode(durable), "control")
    assert closed_lsn(read.history) == end


def test_an_earlier_version_refuses_a_closed_log() -> None:
    """It knows three flags of a fragment: it neither leads this log nor opens it."""
    fields = Writer()
    fields.fragment(closed_at(Lsn(START + 8)))
    flags = fields.finish()[8 + 16 + 8 + 4]
    assert flags & ~(1 | 2 | 4)
    assert Reader(fields.finish()).fragment().closed
