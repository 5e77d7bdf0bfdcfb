"""Laggards behind one donor: each gets every byte, although the answers were for others."""

from __future__ import annotations

from tests.safekeeper.test_wal_store import ONE_TIMELINE
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.quorum import Configuration, LogKind
from walkeeper_common.wire.messages import (
    NO_FEEDBACK,
    AppendRequest,
    AppendResponse,
    Reject,
    RejectCode,
    VoteResponse,
)
from walkeeper_common.wire.requests import ReadRequest, ReadResponse
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_proposer.consensus.campaign import Campaign, Phase
from walkeeper_proposer.consensus.feeding import Feeder
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.progress import (
    IN_FLIGHT_BYTES_MAX,
    REFUSED_TICKS,
    Member,
    Stage,
)
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import Effect, Received, Send, Tick
from walkeeper_proposer.consensus.wal_window import WalWindow

SEGMENT = 16 << 20
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
    reads = [e.message for e in asked if isinstance(e, Send)]
    assert [r.begin_lsn for r in reads if isinstance(r, ReadRequest)] == [START, START]
    assert len(asked) == 2
    full.flush_lsn = START - IN_FLIGHT_BYTES_MAX  # no more WAL may be in flight to it
    wal = bytes(END - START)
    answer = ReadResponse(BALLOT, START, crc_of(wal), wal)
    assert feeder.on_donated(donor, answer, members) == []
    sent = feeder.on_donated(donor, answer, members)
    assert [(e.link, type(e.message)) for e in sent if isinstance(e, Send)] == [(2, AppendRequest)]
    assert other.next_lsn == END


def tried() -> tuple[Feeder, list[Member]]:
    """Return a laggard whose WAL no donor had when it voted: its archive was not listed yet."""
    feeder = Feeder(1, BALLOT, ONE_TIMELINE, WalWindow(END), ZERO_LSN, ZERO_LSN)
    members = [streaming(0, END), streaming(1, END), streaming(2, START)]
    for donor in members[:2]:
        donor.oldest_lsn = donor.donates_lsn = Lsn(START + 1024)
    return feeder, members


def reads_of(effects: list[Effect]) -> list[int]:
    return [e.link for e in effects if isinstance(e, Send) and isinstance(e.message, ReadRequest)]


def test_a_donor_may_have_learned_of_its_archive_after_its_vote() -> None:
    """The laggard was never fed until the next election, if all were started at once."""
    feeder, members = tried()
    donor, _, laggard = members
    assert reads_of(feeder.feed(laggard, members)) == [0], "one read, to see whether it has that"
    assert reads_of(feeder.feed(laggard, members)) == []
    wal = bytes(END - START)
    sent = feeder.on_donated(donor, ReadResponse(BALLOT, START, crc_of(wal), wal), members)
    assert [type(e.message) for e in sent if isinstance(e, Send)] == [AppendRequest]
    assert donor.donates_lsn == donor.oldest_lsn == START and not donor.untried_ticks


def test_a_donor_that_lacks_older_wal_still_donates_what_it_has() -> None:
    feeder, members = tried()
    first, second, laggard = members
    for donor in (first, second):
        assert reads_of(feeder.feed(laggard, members)) == [donor.link]
        donor.refuse_reads()
        laggard.forget_reads()
        assert donor.donates_lsn == donor.oldest_lsn and not donor.refused_ticks
    assert reads_of(feeder.feed(laggard, members)) == [], "each is tried once in a while"
    better = streaming(3, Lsn(START + 1024))
    assert reads_of(feeder.feed(better, [*members, better]))[0] == 0
    for _ in range(REFUSED_TICKS):
        first.tick({0})
    assert reads_of(feeder.feed(laggard, members)) == [0], "and then again"


def test_a_donor_that_could_not_be_read_is_asked_again() -> None:
    """WAL for a laggard may be in an archive alone, which fails once.

    Commits hung until the proposer was started again.
    """
    members = ("1#aa", "2#bb", "3#cc")
    begin_lsn, behind_lsn, end_lsn = Lsn(SEGMENT), Lsn(5 * SEGMENT), Lsn(60 * SEGMENT)
    configuration = Configuration(
        1, b"u" * 16, 1, SEGMENT, "15.18", LogKind.PHYSICAL, begin_lsn, 1, members, 2
    )
    ballots = NO_BALLOT, Ballot(1, b"q" * 16)
    history = tuple(Fragment(ballot, begin_lsn, 1, False, members, 2) for ballot in ballots)

    def vote(flush_lsn: Lsn) -> VoteResponse:
        return VoteResponse(1, BALLOT, True, begin_lsn, flush_lsn, flush_lsn, behind_lsn, history)

    core = Proposer(Campaign("main", BALLOT.proposer_id, 3))
    core.phase, core.configuration, core.ballot = Phase.LEADING, configuration, BALLOT
    donor, _, laggard = core.members  # the second one is gone for good
    core.leader = Leader(configuration, BALLOT, vote(end_lsn), core.members, core.campaign)
    ends = {donor.link: end_lsn, laggard.link: behind_lsn}

    def asked(effects: list[Effect]) -> list[int]:
        sent = [effect for effect in effects if isinstance(effect, Send)]
        return [effect.link for effect in sent if isinstance(effect.message, ReadRequest)]

    def answered(member: Member) -> list[Effect]:
        flush_lsn = ends[member.link]
        response = AppendResponse(1, BALLOT, flush_lsn, flush_lsn, NO_FEEDBACK)
        return core.step(Received(member.link, response))

    for member, name in ((donor, members[0]), (laggard, members[2])):
        member.name, member.vote = name, vote(ends[member.link])
        core.leader.elect(member)
    assert answered(donor) == []
    assert set(asked(answered(laggard))) == {donor.link}
    refusal = Reject(RejectCode.WAL_REMOVED, "the archive cannot be read: 503 Slow Down", BALLOT)
    assert asked(core.step(Received(donor.link, refusal))) == []
    reads = []
    for _ in range(REFUSED_TICKS):
        for member in (donor, laggard):
            answered(member)
        reads.append(asked(core.step(Tick())))
    assert not any(reads[:-1]) and set(reads[-1]) == {donor.link}


def test_an_append_of_others_is_cut_for_a_slow_link() -> None:
    """R26: what was packed once for those that keep up is too long for it."""
    feeder = Feeder(1, BALLOT, ONE_TIMELINE, WalWindow(START), ZERO_LSN, ZERO_LSN)
    members = [streaming(link, START) for link in range(3)]
    members[1].append_bytes = 3000
    feeder.window.append(START, memoryview(bytes(END - START)))
    sent = [e for e in feeder.feed_all(members) if isinstance(e, Send)]
    sizes: dict[int, list[int]] = {}
    for effect in sent:
        assert isinstance(effect.message, AppendRequest)
        sizes.setdefault(effect.link, []).append(len(effect.message.payload))
    assert sizes == {0: [4096], 1: [3000, 1096], 2: [4096]}
    assert all(member.next_lsn == END for member in members)
