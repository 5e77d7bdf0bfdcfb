"""May this primary go on with this logical log? Each reason to refuse, with its remedy."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.support.entry_maker import (
    LogBytes,
    begin,
    commit,
    emitted,
    insert,
    keepalive,
    new_stream,
    relation,
)
from tests.support.sound_server import SOUND_SERVER
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.quorum import Configuration, LogKind
from walkeeper_common.wire.requests import ReadRequest, ReadResponse
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_proposer.consensus.admission import LogEnd, Waivers
from walkeeper_proposer.consensus.primary_check import Range, Verdict
from walkeeper_proposer.consensus.proposer_events import Send
from walkeeper_proposer.logical import entry_writer
from walkeeper_proposer.logical.change_stream import ChangeStream
from walkeeper_proposer.logical.logical_check import LogicalCheck, LogicalEnd, LogicalIdentity
from walkeeper_proposer.logical.past_comparison import Overlap

SEGMENT = 1 << 20
START = Lsn(SEGMENT)
BALLOT = Ballot(3, b"p" * 16)
MEMBERS = ("1#aa",)
CONFIGURATION = Configuration(
    1, b"u" * 16, 77, SEGMENT, "15.18", LogKind.LOGICAL, START, 1, MEMBERS, 1
)
HISTORY = (Fragment(NO_BALLOT, START, 1, False, MEMBERS, 1),)
PRIMARY = LogicalIdentity(
    system_id=77,
    timeline=1,
    flush_lsn=Lsn(0x1000),
    segment_bytes=SEGMENT,
    **SOUND_SERVER,
    database="shop",
    slot="walkeeper",
    confirmed_lsn=Lsn(0x120),
    unusable="",
    publications=("p",),
    missing_publications=(),
)


def made_log() -> LogBytes:
    """Make a log whose last entry ends at 0x140."""
    stream, log = new_stream(START, SEGMENT), LogBytes(START)
    stream.on_connected()
    for payload in (begin(0x110), relation(9), insert(9), commit(0x110, 0x140)):
        stream.on_copy_data(payload)
    log.take(stream)
    return log


def check(
    primary: LogicalIdentity,
    log: LogBytes,
    *,
    ballot: Ballot = BALLOT,
    record_lsn: Lsn | None = None,
    end: LogicalEnd | None = None,
    waivers: Waivers | None = None,
    sealed: bool = False,
    piece: int = 1 << 20,
    configuration: Configuration = CONFIGURATION,
) -> LogicalCheck:
    """Run the whole examination; the donor answers with pieces of `piece` bytes."""
    history = (Fragment(NO_BALLOT, log.begin, 1, sealed, MEMBERS, 1),)
    log_end = LogEnd(configuration, history, record_lsn or log.end, log.end)
    examination = (end or LogicalEnd()).examine(
        primary, log_end, waivers or Waivers(), Range(log.begin, log.end, 4, ballot), None
    )
    effects = examination.start()
    while effects:
        (send,) = effects
        assert isinstance(send, Send) and isinstance(send.message, ReadRequest) and send.link == 4
        ask = send.message
        data = log.read(ask.begin_lsn, min(ask.begin_lsn + min(ask.size_max, piece), log.end))
        answer = ReadResponse(ask.ballot, ask.begin_lsn, crc_of(data), data)
        assert examination.is_answered_by(4, answer)
        assert not examination.is_answered_by(3, answer)
        effects = examination.on_log_read(answer)
    return examination


@pytest.mark.parametrize("piece", [1 << 20, 37])
def test_the_log_end_is_read_of_the_donor_and_remembered(piece: int) -> None:
    end, log = LogicalEnd(), made_log()
    assert check(PRIMARY, log, end=end, piece=piece).verdict is Verdict.PASSED
    assert end.found is not None
    assert (end.found.position, end.found.end_lsn, end.found.timeline) == (log.end, 0x140, 1)


def test_an_empty_log_takes_whatever_the_slot_has() -> None:
    end = LogicalEnd()
    for confirmed in (None, Lsn(0x9000)):
        primary = replace(PRIMARY, confirmed_lsn=confirmed)
        assert check(primary, LogBytes(START), end=end).verdict is Verdict.PASSED
        assert end.found is not None and end.found.end_lsn == ZERO_LSN


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"system_id": 78}, "belongs to 77"),
    ({"in_recovery": True}, "in recovery"),
    ({"fsync": False}, "fsync off"),
    ({"missing_publications": ("orders",)}, "has no publication orders"),
    ({"publications": ("q",)}, "keeps publication p, and not publication q; .* --publication p. "),
    ({"publications": ("p", "q")}, "keeps publication p, and not publications p, q"),
    ({"unusable": "was invalidated by the server (wal_removed)"}, "was invalidated.*new log"),
    ({"encoding": "SQL_ASCII"}, "is SQL_ASCII.*only a physical log"),
    ({"confirmed_lsn": None}, "slot walkeeper is gone.*0/140.*new log"),
    ({"confirmed_lsn": Lsn(0x141)}, "begins at 0/141, the log ends at 0/140"),
    ({"flush_lsn": Lsn(0x13F)}, "lost WAL"),
    ({"timeline": 2, "timeline_file": b"1\t0/13F\twhy\n"}, "left timeline 1 at 0/13F"),
    ({"timeline": 2, "timeline_file": b""}, "left timeline 1 at 0/0"),
]


@pytest.mark.parametrize(("facts", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_it_is_refused_with_what_to_do(facts: dict[str, Any], text: str) -> None:
    found = check(replace(PRIMARY, **facts), made_log())
    assert found.verdict is Verdict.REFUSED
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(found.text)


def test_a_promoted_primary_that_has_all_of_the_log_goes_on() -> None:
    promoted = replace(PRIMARY, timeline=3, timeline_file=b"1\t0/140\tx\n2\t0/900\tx\n")
    assert check(promoted, made_log()).verdict is Verdict.PASSED


def test_a_sealed_log_needs_resume() -> None:
    assert check(PRIMARY, made_log(), sealed=True).verdict is Verdict.REFUSED
    resumed = check(PRIMARY, made_log(), sealed=True, waivers=Waivers(resume=True))
    assert resumed.verdict is Verdict.PASSED


def test_a_promoted_primary_is_what_the_seal_waits_for() -> None:
    promoted = replace(PRIMARY, timeline=2, timeline_file=b"1\t0/200\tx\n")
    assert check(promoted, made_log(), sealed=True).verdict is Verdict.PASSED


def test_before_the_votes_a_slot_beyond_what_is_committed_is_not_judged_yet() -> None:
    log, ahead = made_log(), replace(PRIMARY, confirmed_lsn=Lsn(0x200))
    early = check(ahead, log, ballot=NO_BALLOT, record_lsn=log.end + 100)
    assert early.verdict is Verdict.PASSED
    assert check(ahead, log, ballot=NO_BALLOT).verdict is Verdict.REFUSED


def test_a_stream_knows_its_own_end_without_the_donor() -> None:
    end, log = LogicalEnd(), LogBytes(START)
    end.stream = new_stream(START, SEGMENT)
    end.stream.on_connected()
    for payload in (begin(0x110), relation(9), insert(9), commit(0x110, 0x150)):
        end.stream.on_copy_data(payload)
    log.take(end.stream)
    log_end = LogEnd(CONFIGURATION, HISTORY, START, START)
    examination = end.examine(PRIMARY, log_end, Waivers(), Range(START, log.end, 4, BALLOT), None)
    assert examination.start() == [] and examination.verdict is Verdict.PASSED
    assert end.found is not None and end.found.end_lsn == 0x150


def test_a_damaged_answer_is_asked_for_again_and_a_damaged_log_is_refused() -> None:
    log = made_log()
    examination = LogicalEnd().examine(
        PRIMARY,
        LogEnd(CONFIGURATION, HISTORY, log.end, log.end),
        Waivers(),
        Range(START, log.end, 4, BALLOT),
        None,
    )
    examination.start()
    examination.on_log_read(ReadResponse(BALLOT, START, 1, b"abc"))
    assert examination.verdict is Verdict.UNKNOWN
    log.data[70] ^= 1
    found = check(PRIMARY, log)
    assert found.verdict is Verdict.REFUSED and "cannot be read" in found.text


SMALL = 4096
EMPTY, PLAIN, LARGE, PROGRESS, MESSAGE = range(5)


def log_of(kinds: list[int]) -> tuple[ChangeStream, LogBytes]:
    """Make a log in segments of 4 kB; each entry's commit is 0x10 after the previous one's end."""
    stream, log = new_stream(Lsn(SMALL), SMALL), LogBytes(Lsn(SMALL))
    stream.on_connected()
    for kind in kinds:
        lsn = stream.end_lsn + 0x10
        rows = [insert(9, b"v" * 900)] * {EMPTY: 0, PLAIN: 1, LARGE: 12}.get(kind, 0)
        described = [relation(9)] if rows else []
        if kind == PROGRESS:
            payloads = [keepalive(lsn)]
        elif kind == MESSAGE:
            payloads = [emitted(lsn)]
        else:
            payloads = [begin(lsn), *described, *rows, commit(lsn, lsn + 8)]
        for payload in payloads:
            stream.on_copy_data(payload)
        log.take(stream)
        stream.on_committed(stream.writer.position)
    return stream, log


@pytest.mark.parametrize("seed", range(40))
def test_the_last_transaction_is_looked_for_as_far_back_as_the_slot_needs(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    monkeypatch.setattr(entry_writer, "FRAME_BYTES_MAX", random.choice([2000, 1 << 18]))
    weights = random.choice([(1, 1, 1, 1, 1), (5, 1, 1, 100, 5), (0, 0, 0, 1, 0)])
    kinds = random.choices(range(5), weights, k=random.choice([3, 30, 300]))
    stream, log = log_of(kinds)
    configuration = replace(CONFIGURATION, segment_bytes=SMALL, creation_lsn=Lsn(SMALL))
    lag = random.randint(0, random.choice([0x20, stream.end_lsn - Lsn(0x100)]))
    confirmed_lsn = Lsn(max(0x100, stream.end_lsn - lag))
    primary = replace(PRIMARY, flush_lsn=stream.end_lsn, confirmed_lsn=confirmed_lsn)
    end, piece = LogicalEnd(), random.choice([99, SMALL])
    found = check(primary, log, end=end, configuration=configuration, piece=piece)
    assert found.verdict is Verdict.PASSED and end.found is not None
    assert end.found.end_lsn == stream.end_lsn
    wanted, made = (
        Overlap(tail, stream.end_lsn, confirmed_lsn) for tail in (stream.tail, end.found.tail)
    )
    assert (made.begin_lsn, made.expected) == (wanted.begin_lsn, wanted.expected)


def test_the_last_bytes_of_a_transaction_that_began_a_segment_before_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The segment may start anywhere in it: in its frames, its Commit, its last byte."""
    monkeypatch.setattr(entry_writer, "FRAME_BYTES_MAX", 100)
    configuration = replace(CONFIGURATION, segment_bytes=SMALL, creation_lsn=Lsn(SMALL))
    primary = replace(PRIMARY, confirmed_lsn=Lsn(0x108))
    for size in range(2400, 3000, 7):
        stream, log = new_stream(Lsn(SMALL), SMALL), LogBytes(Lsn(SMALL))
        stream.on_connected()
        large = (begin(0x110), relation(9), insert(9, b"v" * size), commit(0x110, 0x118))
        for payload in (*large, keepalive(0x200)):
            stream.on_copy_data(payload)
        log.take(stream)
        end = LogicalEnd()
        check(primary, log, end=end, configuration=configuration)
        assert end.found is not None and end.found.tail.last == stream.tail.last, f"{size=}"
