"""R25: what a leader sends that is no WAL is refused before it is written, or says how to go on."""

from __future__ import annotations

from random import Random

import pytest

from tests.safekeeper.test_fast_append import steady
from tests.safekeeper.test_safekeeper_driver import BALLOT, SEGMENT_BYTES, START, made_wal
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.postgres.walpages import page_flaw
from walkeeper_common.wire.messages import AppendResponse, Reject, RejectCode, VoteRequest
from walkeeper_safekeeper.storage.log_folder import LogFolder

PAGE = WAL_PAGE_BYTES


def test_no_piece_of_wal_is_refused_wherever_it_begins() -> None:
    random, wal = Random(1), made_wal(3 * SEGMENT_BYTES)
    for _ in range(300):
        begin = Lsn(START + random.randrange(2 * SEGMENT_BYTES))
        piece = wal.read(begin, begin + random.choice((1, 15, 16, 24, 9000, 40_000)))
        assert page_flaw(begin, piece) is None
        assert page_flaw(begin, memoryview(piece)) is None


@pytest.mark.parametrize("away", [-3 * PAGE, -SEGMENT_BYTES, 5 * PAGE])
def test_bytes_that_pg_switch_wal_leaves_pass(away: int) -> None:
    """Zeros, and pages of another place if the server dies in it (test_died_in_switch.py)."""
    assert page_flaw(START, bytes(3 * PAGE)) is None
    older = made_wal(2 * SEGMENT_BYTES).read(START + SEGMENT_BYTES, START + SEGMENT_BYTES + PAGE)
    assert page_flaw(START + SEGMENT_BYTES + away, older) is None


def test_other_bytes_at_the_start_of_a_page_are_named() -> None:
    random = Random(2)
    for at in (0, 1, PAGE - 1, PAGE):
        garbage = b"\0" * at + random.randbytes(2 * PAGE)
        flaw = page_flaw(START + PAGE - at if at else START, garbage)
        assert flaw is not None and "begins with" in flaw
    inside = random.randbytes(PAGE - 100)
    assert page_flaw(START + 50, inside) is None, "no page starts in it"
    header = made_wal(100).read(START, START + 24)
    assert page_flaw(START, header[:1] + b"\xd0" + header[2:]) is not None, "of no version"
    assert page_flaw(START, header[:8] + b"\1" + header[9:]) is not None, "an odd pageaddr"


@pytest.mark.parametrize("is_quick", [True, False])
def test_an_append_that_is_no_wal_is_not_written(is_quick: bool) -> None:
    """8 KiB of random bytes put all logs into STORAGE_FAILED."""
    bench, wal, end = steady()
    bench.writer.is_quick = is_quick
    bench.append(end, Random(3).randbytes(2 * PAGE))
    bench.writer.run_all()
    (answer,) = bench.heard.messages
    assert isinstance(answer, Reject) and answer.code is RejectCode.BAD_PAYLOAD
    assert answer.text.startswith("what the proposer sends is no WAL: the page at 0/12000 begins")
    assert "nothing of it was written. Look for what connects here" in answer.text
    acceptor = bench.driver.acceptor
    assert acceptor.write_lsn == end and acceptor.failure is None
    bench.heard.messages.clear()
    bench.append(end, wal.read(end, end + 2000))
    bench.writer.run_all()
    assert isinstance(bench.heard.messages[-1], AppendResponse), "the right WAL goes on"


def test_garbage_within_a_page_is_named_with_the_remedy_and_a_restart_truncates_it() -> None:
    bench, _, end = steady()
    bench.append(end, Random(4).randbytes(1000))
    bench.writer.run_all()
    bench.heard.messages.clear()
    acceptor = bench.driver.acceptor
    ask = VoteRequest(1, BALLOT, acceptor.durable.log_uuid, acceptor.member)
    bench.receive(ask, connection=2)
    bench.writer.run_all()
    bench.others.run_all()
    (answer,) = [m for m in bench.heard.messages if isinstance(m, Reject)][:1]
    assert answer.code is RejectCode.STORAGE_FAILED
    assert "restart this safekeeper, which truncates what no record covers" in answer.text
    assert "remove" not in answer.text and "wipe" not in answer.text
    opened = LogFolder("log", bench.folder_disk, bench.disk, bench.shelf).open_wal()
    assert opened.flush_lsn == opened.record_lsn == Lsn(0x10240), "the last whole record"
