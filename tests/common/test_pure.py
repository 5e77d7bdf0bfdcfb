"""The arithmetic against naive twins over all small cases, and the codec against anything.

A twin is written the slow and obvious way: a log is a list of (ballot, position) pairs there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from random import Random
from typing import Any

import pytest

from walkeeper_common import history as h
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment, History
from walkeeper_common.lsn import LSN_MAX, ZERO_LSN, Lsn
from walkeeper_common.quorum import Configuration, LogKind, acknowledged_lsn, majority
from walkeeper_common.wire.consumer_slots import TablesQuery
from walkeeper_common.wire.framing import FrameReader, Message, decode, encode
from walkeeper_common.wire.log_removal import DropLog
from walkeeper_common.wire.member_change import (
    AcceptMembers,
    InstallMembers,
    JoinLog,
    MembersQuery,
    MembersState,
    PromiseMembers,
    final,
    joint,
)
from walkeeper_common.wire.members_report import AwayMember, MembersReport
from walkeeper_common.wire.messages import (
    NO_FEEDBACK,
    AcceptorGreeting,
    AppendRequest,
    AppendResponse,
    Feedback,
    ProposerElected,
    ProposerGreeting,
    Reject,
    RejectCode,
    VoteRequest,
    VoteResponse,
)
from walkeeper_common.wire.primary_report import PrimaryReport
from walkeeper_common.wire.range_digest import DigestQuery, RangeDigest
from walkeeper_common.wire.requests import (
    ConfigureLog,
    LogQuery,
    LogState,
    PrepareLog,
    ReadRequest,
    ReadResponse,
    StatusRequest,
    StatusResponse,
)
from walkeeper_common.wire.shared_slots import SharedSlot, SharedSlots
from walkeeper_common.wire.timeline_reservation import ReserveTimeline, TimelineReserved
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_proposer.consensus import admission
from walkeeper_proposer.consensus.proposer_events import PrimaryIdentity
from walkeeper_proposer.consensus.wal_window import CHUNK_OVERHEAD_BYTES, WalWindow

GARBAGE_FRAMES = 20_000
BALLOTS = [NO_BALLOT, *(Ballot(term, bytes([term]) * 16) for term in range(1, 5))]


def fragment(ballot: Ballot, start: int, timeline: int = 1, *, sealed: bool = False) -> Fragment:
    return Fragment(ballot, Lsn(start), timeline, sealed, ("1#00", "2#01", "3#02"), 2)


# Where two logs part (R6)


def written_by(history: History, length: int) -> list[Ballot]:
    """Return the writer of each byte of a log of this length, as the twin."""
    return [max(e.ballot for e in history if e.start_lsn <= at) for at in range(length)]


def histories(length: int) -> Iterator[History]:
    """Yield every history of up to three terms, each with at most one start below `length`."""
    for count in range(4):
        for ballots in combinations(BALLOTS[1:], count):
            for starts in product(range(length + 1), repeat=count):
                if list(starts) == sorted(starts):
                    later = (fragment(b, s) for b, s in zip(ballots, starts, strict=True))
                    yield (fragment(NO_BALLOT, 0), *later)


def starts_agree(one: History, other: History) -> bool:
    """Return True if a ballot starts at one place, as every run of the protocol guarantees."""
    known = {e.ballot: e.start_lsn for e in one}
    return all(known.get(e.ballot, e.start_lsn) == e.start_lsn for e in other)


def test_logs_diverge_where_the_first_byte_was_written_by_another() -> None:
    """For histories that a run can produce: common entries first, then each goes its own way."""
    checked = 0
    for proposer in histories(3):
        for acceptor in histories(3):
            flush = 3
            if not starts_agree(proposer, acceptor) or not _has_common_past(proposer, acceptor):
                continue
            part = h.divergence(proposer, acceptor, Lsn(flush))
            mine, theirs = written_by(proposer, flush), written_by(acceptor, flush)
            same = next((i for i in range(flush) if mine[i] != theirs[i]), flush)
            # Never beyond the first different byte. Below it only where a term that one of the two
            # does not know starts: equal authors do not prove equal histories there.
            assert part <= same, f"{proposer=} {acceptor=} {part=} {same=}"
            if part < same:
                unknown = {e.start_lsn for e in set(proposer) ^ set(acceptor)}
                assert part in unknown, f"{proposer=} {acceptor=} {part=} {same=}"
            checked += 1
    assert checked > 1000


def _has_common_past(one: History, other: History) -> bool:
    """Return True if terms that both know are a prefix of both, as in an elected log."""
    common = {e.ballot for e in one} & {e.ballot for e in other}
    return all(e.ballot in common for e in one[: len(common)]) and all(
        e.ballot in common for e in other[: len(common)]
    )


def test_divergence_is_at_the_flush_lsn_of_a_log_that_is_a_prefix() -> None:
    for history in histories(3):
        for flush in range(4):
            own = h.divergence(history, history, Lsn(flush))
            assert own == flush, f"{history=} {flush=}"


def test_one_ballot_with_two_starts_is_corrupt() -> None:
    one, other = ((fragment(NO_BALLOT, 0), fragment(BALLOTS[1], start)) for start in (1, 2))
    with pytest.raises(h.Corrupt):
        h.divergence(one, other, Lsn(3))
    with pytest.raises(h.Corrupt):
        h.divergence(one, (fragment(BALLOTS[2], 0),), Lsn(3))


def test_a_cut_history_has_only_what_the_wal_bears_out() -> None:
    for history in histories(3):
        for flush in range(4):
            kept = h.cut(history, Lsn(flush))
            assert kept and kept == tuple(e for e in history if e.start_lsn <= flush)


def test_a_new_term_replaces_what_starts_at_or_past_it() -> None:
    for donor in histories(3):
        for start in range(4):
            new = h.extended(donor, fragment(Ballot(9, bytes(16)), start))
            assert h.is_well_formed(new), f"{donor=} {new=}"
            assert new[0] == donor[0] and new[-1].start_lsn == start
            assert h.term_start(new, Ballot(9, bytes(16))) == start
            assert all(e.start_lsn < start for e in new[1:-1])


# Quorums (R10 and R19)


def test_acknowledged_lsn_is_the_greatest_that_enough_have() -> None:
    for members in range(1, 6):
        for lsns in product(range(4), repeat=members):
            for quorum in range(1, members + 1):
                naive = max(x for x in range(4) if sum(v >= x for v in lsns) >= quorum)
                assert acknowledged_lsn(map(Lsn, lsns), quorum) == naive, f"{lsns=} {quorum=}"


def test_every_vote_quorum_meets_every_ack_quorum() -> None:
    for members in range(1, 8):
        assert majority(members) * 2 > members
        for quorum in range(1, members + 1):
            votes = configuration(members, quorum).vote_quorum
            everyone = range(members)
            assert all(
                set(v) & set(a)
                for v in combinations(everyone, votes)
                for a in combinations(everyone, quorum)
            )
            if votes > 1:  # and one vote less would not do
                assert votes - 1 + quorum <= members


# The codec


def configuration(members: int = 3, ack_quorum: int = 2) -> Configuration:
    names = tuple(f"{i}#{i:032x}" for i in range(1, members + 1))
    return Configuration(
        1, b"u" * 16, 7, 1 << 20, "15.18 (Debian)", LogKind.PHYSICAL, Lsn(1 << 20), 1, names,
        ack_quorum,
    )  # fmt: skip


BALLOT = Ballot(3, b"p" * 16)
CHANGED = joint(
    configuration(), leaving=configuration().members[2], joining="4#0a", address="h4:5454"
)
HISTORY = (fragment(NO_BALLOT, 0), fragment(BALLOT, 8, sealed=True))
CLOSED = (*HISTORY[:1], replace(HISTORY[1], closed=True))
WAL = bytes(range(256)) * 300
SAMPLES: list[Message] = [
    ProposerGreeting(
        1, "main", b"u" * 16, 7, 1 << 20, "15.18", b"p" * 16, LogKind.PHYSICAL, "näme",
        configuration(),
    ),
    ProposerGreeting(1, "m", bytes(16), 0, 0, "", b"p" * 16, LogKind.LOGICAL, "", None),
    AcceptorGreeting(
        1, b"i" * 16, b"u" * 16, configuration(), BALLOT, HISTORY, Lsn(1), Lsn(2), Lsn(3), Lsn(4),
        BALLOT,
    ),
    AcceptorGreeting(
        1, b"i" * 16, b"u" * 16, None, NO_BALLOT, (), Lsn(1), Lsn(2), LSN_MAX, Lsn(4), None
    ),
    VoteResponse(1, BALLOT, True, Lsn(1), Lsn(2), Lsn(3), Lsn(4), CLOSED),
    VoteRequest(1, BALLOT, b"u" * 16, "1#00"),
    VoteResponse(1, BALLOT, True, Lsn(1), Lsn(2), Lsn(3), Lsn(4), HISTORY),
    ProposerElected(1, BALLOT, Lsn(5), HISTORY),
    AppendRequest(1, BALLOT, 1, Lsn(5), Lsn(5 + len(WAL)), Lsn(4), Lsn(3), crc_of(WAL), WAL),
    AppendRequest(1, BALLOT, 1, Lsn(5), Lsn(5), Lsn(4), Lsn(3), 0, b""),
    AppendResponse(1, BALLOT, Lsn(5), Lsn(4), Feedback(Lsn(3), 1 << 40, 2)),
    AppendResponse(1, BALLOT, Lsn(5), Lsn(4), NO_FEEDBACK),
    Reject(RejectCode.GAP, "why", BALLOT),
    ReadRequest(BALLOT, Lsn(5), 4096),
    ReadResponse(BALLOT, Lsn(5), crc_of(WAL), WAL),
    LogQuery("main"),
    LogState(1, b"i" * 16, b"u" * 16, BALLOT, configuration()),
    PrepareLog("main", b"u" * 16),
    ConfigureLog("main", configuration()),
    StatusRequest("main"),
    StatusResponse(b"{}"),
    DropLog("main", b"u" * 16),
    TablesQuery(("one", "two")),
    ReserveTimeline("main", 2, "db1:5432 /data (1)"),
    TimelineReserved("1#00", configuration(), 2, "db1:5432 /data (1)"),
    PrimaryReport("main", b"p" * 16, True, False, "async", 5, 2, 4, ("role x",), "why"),
    MembersReport("main", b"p" * 16, (AwayMember(3, "h3:1", 5), AwayMember(0, "h4:1", 6))),
    MembersReport("main", b"p" * 16, ()),
    SharedSlots("main", (SharedSlot("s", b"i" * 8, Lsn(5), True),), (b"d" * 8,)),
    DigestQuery("main", b"u" * 16, Lsn(5), Lsn(9)),
    RangeDigest(Lsn(5), Lsn(9), b"d" * 32),
    PrimaryReport("main", b"p" * 16, True, False, "async", 5, 2, 4, (), "", "held back: why"),
    MembersQuery("main"),
    PromiseMembers("main", b"u" * 16, 3, BALLOT),
    AcceptMembers("main", BALLOT, CHANGED),
    InstallMembers("main", final(CHANGED)),
    JoinLog("main", CHANGED, Lsn(8), HISTORY),
    JoinLog("main", CHANGED, Lsn(8), HISTORY, Lsn(4), ("h:1", "[::1]:2")),
    MembersState("1#00", True, CHANGED, BALLOT, BALLOT, CHANGED, True, Lsn(3), Lsn(2), Lsn(1),
                 HISTORY),
    MembersState("1#00", False, configuration(), NO_BALLOT, NO_BALLOT, None, False, Lsn(3), Lsn(2),
                 Lsn(1), (), Lsn(4)),
    MembersState("1#00", True, CHANGED, BALLOT, BALLOT, CHANGED, True, Lsn(3), Lsn(2), Lsn(1),
                 HISTORY, Lsn(4), Lsn(5)),
]  # fmt: skip


def wire(message: Message) -> bytes:
    return b"".join(bytes(part) for part in encode(message))


# Fields that an earlier version does not send. They stand at the end, and these are their values.
LATER_FIELDS: dict[type[Message], dict[str, Any]] = {
    PrimaryReport: {"repair": ""},
    JoinLog: {"restart_lsn": ZERO_LSN, "donors": ()},
}


def fed(reader: FrameReader, data: bytes, step: int) -> list[Message]:
    messages, at = [], 0
    while at < len(data):
        room = reader.buffer()
        size = min(step, len(room), len(data) - at)
        room[:size] = data[at : at + size]
        messages += list(reader.received(size))
        at += size
    return messages


@pytest.mark.parametrize("message", SAMPLES, ids=lambda m: type(m).__name__)
def test_round_trip(message: Message) -> None:
    frame = memoryview(wire(message))
    assert decode(frame[4], frame[5:]) == message


@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 20])
def test_a_stream_in_pieces_gives_the_same_messages(step: int) -> None:
    stream = b"".join(wire(message) for message in SAMPLES)
    for buffer_bytes in (64, 1 << 16):  # 64: nearly every frame takes the way of the large ones
        assert (
            fed(FrameReader(buffer_bytes=buffer_bytes, grows_to=buffer_bytes), stream, step)
            == SAMPLES
        )


@pytest.mark.parametrize("kind", LATER_FIELDS)
def test_a_message_of_an_earlier_version_ends_before_its_later_fields(kind: type[Message]) -> None:
    for message in (each for each in SAMPLES if isinstance(each, kind)):
        earlier = replace(message, **LATER_FIELDS[kind])
        frame = wire(earlier)
        assert decode(frame[4], memoryview(frame[5:])) == earlier
        assert wire(message)[5:].startswith(frame[5:])


@pytest.mark.parametrize("message", SAMPLES, ids=lambda m: type(m).__name__)
def test_a_short_body_and_trailing_bytes_are_refused(message: Message) -> None:
    frame = wire(message)
    tag, body = frame[4], frame[5:]
    earlier = wire(replace(message, **LATER_FIELDS.get(type(message), {})))[5:]
    for size in {*range(min(len(body), 200)), len(body) - 1}:
        if isinstance(message, ReadResponse) and size >= ReadResponse.LAYOUT.size:
            continue  # its payload has no length of its own; the frame's is the length
        if body[:size] == earlier:
            continue
        with pytest.raises(RemoteProtocolError):
            decode(tag, memoryview(body[:size]))
    if not isinstance(message, ReadResponse):
        with pytest.raises(RemoteProtocolError):
            decode(tag, memoryview(body + b"\0"))


def test_garbage_is_refused_or_a_message() -> None:
    """Only RemoteProtocolError is raised for any input: random bytes, and damaged frames."""
    random = Random(20_000)
    frames = [wire(message) for message in SAMPLES]
    refused = 0
    for number in range(GARBAGE_FRAMES):
        if number % 2:
            body = random.randbytes(random.randrange(200))
            tag = random.choice(frames)[4] if number % 4 == 1 else random.randrange(256)
        else:
            damaged = bytearray(random.choice(frames)[:2000])
            for _ in range(random.randrange(1, 4)):
                damaged[random.randrange(4, len(damaged))] = random.randrange(256)
            tag, body = damaged[4], bytes(damaged[5:])
        try:
            decode(tag, memoryview(body))
        except RemoteProtocolError:
            refused += 1
    assert refused > GARBAGE_FRAMES // 4


def test_a_frame_that_is_too_long_is_refused_before_it_is_received() -> None:
    with pytest.raises(RemoteProtocolError):
        fed(FrameReader(), b"\xff\xff\xff\xff" + b"a" * 10, 14)
    with pytest.raises(RemoteProtocolError):
        fed(FrameReader(), b"\0\0\0\0a", 5)


# The gate's table (docs/steps.md#check-of-the-primary)


def identity(**changes: object) -> PrimaryIdentity:
    facts: dict[str, object] = {
        "system_id": 7, "timeline": 1, "flush_lsn": Lsn(200), "segment_bytes": 1 << 20,
        "server_version": "15.18", "server_version_num": 150018, "in_recovery": False,
        "fsync": True, "full_page_writes": True,
    }  # fmt: skip
    return PrimaryIdentity(**{**facts, **changes})  # type: ignore[arg-type]  # fields of all types


LOG = admission.LogEnd(configuration(), (fragment(NO_BALLOT, 0),), Lsn(100), Lsn(150))
SEALED = admission.LogEnd(
    configuration(), (fragment(NO_BALLOT, 0), fragment(BALLOT, 8, sealed=True)), Lsn(100), Lsn(100)
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"system_id": 8}, "system identifier"),
        ({"segment_bytes": 1 << 24}, "segments"),
        ({"in_recovery": True}, "recovery"),
        ({"fsync": False}, "fsync"),
        ({"full_page_writes": False}, "full_page_writes"),
        ({"server_version_num": 130004, "server_version": "13.4"}, "13.5"),
        ({"server_version_num": 140000, "server_version": "14.0"}, "14.1"),
        ({"flush_lsn": Lsn(99)}, "lost 1 bytes"),
        ({"timeline": 2}, "timeline 2"),
    ],
)
def test_the_gate_refuses(changes: dict[str, object], said: str) -> None:
    refusal = admission.refusal(identity(**changes), LOG, admission.Waivers())
    assert refusal is not None and said in refusal


def test_the_gate_lets_pass_what_it_must() -> None:
    assert admission.refusal(identity(), LOG, admission.Waivers()) is None
    at_record_end = identity(flush_lsn=Lsn(100))
    assert admission.refusal(at_record_end, LOG, admission.Waivers()) is None
    assert admission.warning(at_record_end, LOG) is not None
    assert admission.warning(identity(flush_lsn=Lsn(150)), LOG) is None
    for version in (130005, 140001, 150000, 180000):
        assert (
            admission.refusal(identity(server_version_num=version), LOG, admission.Waivers())
            is None
        )
    unsafe = admission.Waivers(unsafe_settings=True)
    assert admission.refusal(identity(fsync=False), LOG, unsafe) is None


def test_a_sealed_log_takes_a_primary_only_on_request() -> None:
    assert admission.refusal(identity(), SEALED, admission.Waivers()) is not None
    assert admission.refusal(identity(), SEALED, admission.Waivers(resume=True)) is None


def test_a_closed_log_takes_no_primary_at_all() -> None:
    closed = replace(SEALED, history=CLOSED)
    refusal = admission.closed(closed)
    assert refusal is not None and "was closed at 0/8" in refusal
    assert admission.closed(replace(closed, record_lsn=Lsn(7))) is None
    assert admission.closed(SEALED) is None


# The window


def test_the_window_is_bounded_and_keeps_what_is_not_committed() -> None:
    window = WalWindow(Lsn(100), bytes_max=10_000)
    while not window.is_full:
        window.append(window.end_lsn, memoryview(b"w" * 100))
    assert window.end_lsn - window.begin_lsn < 10_000
    window.trim(needed_lsn=window.end_lsn, commit_lsn=Lsn(100))
    assert window.begin_lsn == 100, "nothing is committed yet"
    window.trim(needed_lsn=Lsn(100), commit_lsn=window.end_lsn)
    assert not window.is_full and window.begin_lsn > 100, "a laggard does not hold it full"
    kept = window.begin_lsn
    window.trim(needed_lsn=kept, commit_lsn=window.end_lsn)
    assert window.begin_lsn == kept, "a laggard keeps what is within the bound"
    window.trim(needed_lsn=window.end_lsn, commit_lsn=window.end_lsn)
    assert window.begin_lsn == window.end_lsn


def test_many_small_chunks_fill_the_window_as_well() -> None:
    window = WalWindow(Lsn(0), bytes_max=100 * CHUNK_OVERHEAD_BYTES)
    while not window.is_full:
        window.append(window.end_lsn, memoryview(b"w"))
    assert window.end_lsn <= 100


def test_slices_are_the_bytes_that_came() -> None:
    random, window, twin = Random(3), WalWindow(Lsn(1000)), b""
    for _ in range(50):
        wal = random.randbytes(random.randrange(1, 400))
        window.append(window.end_lsn, memoryview(wal))
        twin += wal
    for _ in range(500):
        at = random.randrange(len(twin))
        view, crc = window.slice(Lsn(1000 + at), random.randrange(1, 500))
        assert view and bytes(view) == twin[at : at + len(view)] and crc == crc_of(view)
