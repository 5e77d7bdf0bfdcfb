"""Two laggards behind one donor: each gets every byte, whoever the answers were meant for."""

from __future__ import annotations

from tests.safekeeper.test_wal_store import ONE_TIMELINE
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.wire.framing import crc_of
from walkeeper_common.wire.messages import AppendRequest
from walkeeper_common.wire.requests import ReadRequest, ReadResponse
from walkeeper_proposer.consensus.feeding import Feeder
from walkeeper_proposer.consensus.progress import IN_FLIGHT_BYTES_MAX, Member, Stage
from walkeeper_proposer.consensus.proposer_events import Send
from walkeeper_proposer.consensus.wal_window import WalWindow

BALLOT = Ballot(2, b"p" * 16)
START, END = Lsn(0x10000), Lsn(0x11000)


def streaming(link: int, at_lsn: Lsn) -> Member:
    member = Member(link, Stage.STREAMING, attached=True)
    member.next_lsn = member.asked_lsn = member.flush_lsn = at_lsn
    return member


def test_a_second_answer_goes_to_the_laggard_that_still_waits() -> None:
    """Found by the simulator: the first laggard's window was full, it got both answers, and the
    other one waited for ever."""
    feeder = Feeder(1, BALLOT, ONE_TIMELINE, WalWindow(END), ZERO_LSN, ZERO_LSN)
    donor, full, other = streaming(0, END), streaming(1, START), streaming(2, START)
    members = [donor, full, other]
    asked = feeder.feed(full, members) + feeder.feed(other, members)
    assert [e.message.begin_lsn for e in asked if isinstance(e, Send)] == [START, START]
    assert all(isinstance(e, Send) and isinstance(e.message, ReadRequest) for e in asked)
    full.flush_lsn = START - IN_FLIGHT_BYTES_MAX  # nothing more may be in flight to it
    wal = bytes(END - START)
    answer = ReadResponse(BALLOT, START, crc_of(wal), wal)
    assert feeder.on_donated(answer, members) == []
    sent = feeder.on_donated(answer, members)
    assert [(e.link, type(e.message)) for e in sent if isinstance(e, Send)] == [(2, AppendRequest)]
    assert other.next_lsn == END
