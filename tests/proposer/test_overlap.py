"""Changes that PostgreSQL decodes again must be the log's: the same past, or none of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.support.entry_maker import (
    begin,
    commit,
    emitted,
    insert,
    keepalive,
    new_stream,
    piece,
    relation,
    stream_abort,
    stream_commit,
)
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgoutput import Commit
from walkeeper_proposer.logical.change_stream import ChangeStream
from walkeeper_proposer.logical.past_comparison import DiffersFromLog, LoggedTail, Overlap

SEGMENT = 1 << 20
FIRST = (begin(0x110), relation(9), insert(9), commit(0x110, 0x140))
LAST = (begin(0x150), relation(9), insert(9, b"last"), commit(0x150, 0x180))
OTHER = (begin(0x188), relation(9), insert(9, b"other"), commit(0x188, 0x198))
EMPTY = (begin(0x188), commit(0x188, 0x198))
NEXT = (begin(0x210), relation(9), insert(9), commit(0x210, 0x240))


def made_stream(*payloads: bytes, end_lsn: int = 0x200) -> ChangeStream:
    """Make the stream of a log with FIRST, LAST and progress up to end_lsn."""
    stream = new_stream(Lsn(SEGMENT), SEGMENT)
    stream.on_connected()
    for payload in (*(payloads or (*FIRST, *LAST)), keepalive(end_lsn)):
        stream.on_copy_data(payload)
    stream.take()
    stream.on_disconnected()
    return stream


def feed(stream: ChangeStream, payloads: Sequence[bytes]) -> None:
    for payload in payloads:
        stream.on_copy_data(payload)
        while stream.is_replaying:
            stream.replay(100)


def again(confirmed_lsn: int, *payloads: bytes, of: ChangeStream | None = None) -> ChangeStream:
    stream = of or made_stream()
    stream.on_connected(stream.overlap(Lsn(confirmed_lsn)), streams=True)
    feed(stream, payloads)
    return stream


@pytest.mark.parametrize(
    ("confirmed_lsn", "begin_lsn"),
    [
        (0x100, 0x150),
        (0x140, 0x150),
        (0x150, 0x150),
        (0x180, 0x180),
        (0x190, 0x190),
        (0x200, 0x200),
    ],
)
def test_decoding_begins_with_the_last_transaction_that_the_slot_has_not_confirmed(
    confirmed_lsn: int, begin_lsn: int
) -> None:
    stream = made_stream()
    assert stream.overlap(Lsn(confirmed_lsn)).begin_lsn == begin_lsn
    assert again(confirmed_lsn, of=stream).is_comparing == (confirmed_lsn < 0x200)


@pytest.mark.parametrize(
    ("below", "ending"),
    [
        (LAST, (keepalive(0x200),)),
        (LAST, NEXT),
        ((*LAST, *EMPTY, keepalive(0x188)), (keepalive(0x210),)),
        ((*LAST, emitted(0x188)), (emitted(0x208),)),
        ((*piece(relation(9), insert(9)), stream_commit(0x150, 0x180)), (keepalive(0x200),)),
        (
            (*LAST, *piece(relation(9), insert(9), xid=8), stream_abort(8, 8)),
            (*piece(relation(9), insert(9)), stream_commit(0x210, 0x240)),
        ),
    ],
    ids=["nothing new", "the next", "empty ones", "messages", "streamed", "streamed next"],
)
def test_the_same_past_is_dropped_and_later_changes_are_taken(
    below: tuple[bytes, ...], ending: tuple[bytes, ...]
) -> None:
    stream = made_stream()
    before = stream.transactions
    again(0x140, *below, of=stream)
    assert stream.is_comparing and stream.received_lsn == 0x140
    feed(stream, ending)
    assert not stream.is_comparing and stream.received_lsn == stream.end_lsn
    assert stream.transactions - before == (stream.end_lsn in (0x240, 0x208))


def test_a_log_that_ends_with_its_last_transaction_needs_no_more_than_that() -> None:
    stream = made_stream(end_lsn=0x180)
    assert not again(0x140, *LAST, of=stream).is_comparing


@pytest.mark.parametrize(
    ("payloads", "text"),
    [
        (OTHER, "committed at 0/188, and the log, which goes to 0/200, does not have it"),
        ((*LAST, *OTHER), "committed at 0/188"),
        ((begin(0x150), insert(9), commit(0x150, 0x188)), "committed at 0/150"),
        (NEXT, "the log's last transaction committed at 0/150, and the primary does not have it"),
        ((*EMPTY, keepalive(0x200)), "last transaction committed at 0/150"),
        ((emitted(0x208),), "last transaction committed at 0/150"),
        ((*piece(relation(9), insert(9)), stream_commit(0x188, 0x198)), "committed at 0/188"),
        ((*piece(relation(9), insert(9)), stream_commit(0x210, 0x240)), "last transaction"),
    ],
)
def test_another_past_is_found_before_anything_is_confirmed_or_taken(
    payloads: tuple[bytes, ...], text: str
) -> None:
    stream = made_stream()
    with pytest.raises(DiffersFromLog, match=text):
        again(0x140, *payloads, of=stream)
    assert stream.is_comparing and stream.received_lsn == 0x140 and stream.end_lsn == 0x200
    assert not stream.writer.is_inside


def test_the_time_of_the_commit_tells_two_at_the_same_place_apart() -> None:
    ours, theirs = (Commit(Lsn(0x150), Lsn(0x180), at_us) for at_us in (1, 2))
    with pytest.raises(DiffersFromLog):
        Overlap(LoggedTail(ours), Lsn(0x180), Lsn(0x140)).on_transaction(theirs, has_rows=True)


def test_a_transaction_is_refused_where_the_log_has_none() -> None:
    """The slot has confirmed the last one."""
    assert not again(0x180, keepalive(0x200)).is_comparing
    with pytest.raises(DiffersFromLog, match="0/188"):
        again(0x180, *OTHER)


@pytest.mark.parametrize("make", [lambda: new_stream(Lsn(SEGMENT), SEGMENT), made_stream])
def test_changes_that_the_slot_has_confirmed_are_not_decoded_again(
    make: Callable[[], ChangeStream],
) -> None:
    stream = make()
    assert not again(int(stream.end_lsn), of=stream).is_comparing
    feed(stream, (begin(0x300), relation(9), insert(9), commit(0x300, 0x340)))
    assert stream.tail == LoggedTail(Commit(Lsn(0x300), Lsn(0x340), 0))


def test_each_connection_is_compared_anew() -> None:
    stream = again(0x140, *LAST, *NEXT)
    assert stream.overlap(Lsn(0x180)).begin_lsn == 0x210
    again(0x180, of=stream)
    assert stream.is_comparing and stream.received_lsn == 0x180
    feed(stream, NEXT)
    assert not stream.is_comparing
