"""The last nonce that a quorum has, and its use by retention (R22)."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.proposer_stage import ProposerStage
from tests.support.wal_maker import WalMaker, nonce_message
from walkeeper_common.lsn import LSN_MAX, ZERO_LSN, Lsn
from walkeeper_common.postgres.nonce_message import NONCE_BYTES, RMGR_LOGICAL_MESSAGE
from walkeeper_proposer.consensus.comparison import Comparison, Different
from walkeeper_proposer.consensus.telling_record import AWAITED_MAX, Telling

FIRST, SECOND = Lsn(0x100200), Lsn(0x102200)


def test_the_last_nonce_below_what_is_committed_tells() -> None:
    telling = Telling()
    telling.on_nonce(FIRST)
    telling.on_nonce(SECOND)
    assert not telling.move(FIRST - 8)
    assert telling.end_lsn == ZERO_LSN
    assert telling.move(SECOND - 8)
    assert (telling.end_lsn, telling.page_lsn) == (FIRST, Lsn(0x100000))
    assert telling.awaits
    assert telling.move(SECOND)
    assert not telling.awaits
    assert not telling.move(SECOND)


def test_a_nonce_of_an_earlier_stream_or_across_a_page_is_none() -> None:
    telling = Telling()
    telling.on_nonce(SECOND)
    telling.on_nonce(FIRST)
    telling.on_nonce(Lsn(0x104000 + 48))
    assert telling.move(LSN_MAX)
    assert telling.end_lsn == SECOND


def test_nonces_that_no_quorum_has_are_bounded_and_the_newest_is_kept() -> None:
    telling = Telling()
    for number in range(AWAITED_MAX + 10):
        telling.on_nonce(FIRST + number * 0x2000)
    newest = FIRST + (AWAITED_MAX + 9) * 0x2000
    assert telling.move(newest - 8)
    assert telling.awaits
    assert telling.move(newest)
    assert telling.end_lsn == newest


def _leads(*options: str) -> ProposerStage:
    stage = ProposerStage()
    for line in (
        " ".join(("proposer b", *options)), "lead 1:b", *(f"ack {n} flush=0/100000" for n in "123"),
        "wal 32768", *(f"ack {n} flush=0/108000 durable_commit=0/108000" for n in "123"),
    ):  # fmt: skip
        stage.run(line)
    return stage


def _restart_lsn(stage: ProposerStage) -> Lsn:
    assert stage.proposer.leader is not None
    return stage.proposer.leader.feeder.restart_lsn


def test_safekeepers_may_not_remove_the_last_nonce() -> None:
    """A leader that has written no nonce yet does not raise restart_lsn. The one before it may have
    left the last nonce far below the WAL that all members have."""
    stage = _leads("nonces=yes")
    assert _restart_lsn(stage) == ZERO_LSN
    stage.run("nonce 0/102200")
    stage.run("tick")
    stage.run("ack 1 flush=0/108000 durable_commit=0/108000")
    assert _restart_lsn(stage) == Lsn(0x102200)
    stage.run("wal 8192")
    for number in "123":
        stage.run(f"ack {number} flush=0/10A000 durable_commit=0/10A000")
    assert _restart_lsn(stage) == Lsn(0x102200)


def test_retention_goes_by_what_all_have_if_nonces_are_refused() -> None:
    stage = _leads("nonces=yes")
    stage.run("nonce refused")
    stage.run("ack 1 flush=0/108000")
    assert _restart_lsn(stage) == Lsn(0x108000)


def test_a_settle_lets_go_of_nothing() -> None:
    """The server that takes over is compared with what the last proposer has left."""
    stage = ProposerStage()
    stage.run("proposer b settle=yes")
    for line in (
        *(f"link {n}" for n in "123"),
        *(f"greeting {n} flush=0/100200" for n in "123"),
        *(f"vote {n} ballot=1:b flush=0/100200" for n in "123"),
        *(f"ack {n} flush=0/100200" for n in "123"),
    ):
        stage.run(line)
    assert stage.proposer.leader is not None
    assert stage.proposer.leader.commit_lsn == Lsn(0x100200)
    assert _restart_lsn(stage) == ZERO_LSN


def _branch(nonce: bytes | None) -> WalMaker:
    """Make a server restored from the one backup, under the one load: equal but for its nonce."""
    wal = WalMaker(Random(1))
    for number in range(300):
        wal.record(200)
        if number == 150 and nonce is not None:
            wal.record(nonce_message(nonce), 0, RMGR_LOGICAL_MESSAGE)
    return wal


def _compared(primary: WalMaker, log: WalMaker) -> Comparison:
    comparison = Comparison(log.start_lsn, log.end_lsn)
    comparison.feed_log(log.start_lsn, log.read(log.start_lsn, log.end_lsn))
    comparison.feed_primary(log.start_lsn, primary.read(log.start_lsn, log.end_lsn))
    return comparison


def test_their_nonces_separate_clones_that_run_the_same_load() -> None:
    ours, theirs = bytes(NONCE_BYTES), bytes([1]) * NONCE_BYTES
    assert not _compared(_branch(None), _branch(None)).is_telling
    assert _compared(_branch(ours), _branch(ours)).is_telling
    with pytest.raises(Different):
        _compared(_branch(theirs), _branch(ours))
