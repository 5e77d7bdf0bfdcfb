"""Open transactions that PostgreSQL streams: in the log they are as if sent at the commit.

The stage, and what a reader finds, are test_change_stream.py's.
"""

from __future__ import annotations

import errno
import io

import pytest

from tests.proposer.test_change_stream import SEGMENT, START, Stage, wire
from tests.support import entry_maker
from tests.support.entry_maker import (
    begin,
    commit,
    emitted,
    insert,
    keepalive,
    new_stream,
    origin,
    piece,
    relation,
    sent,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    streamed,
    truncate,
    type_of,
)
from walkeeper_common.entries import EntryKind
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_proposer.logical import open_transactions
from walkeeper_proposer.logical.open_transactions import CannotStream


def test_a_streamed_transaction_is_the_entry_that_it_would_be_otherwise() -> None:
    stage = Stage(streams=True)
    rows = (relation(9), insert(9, b"a"), insert(9, b"b"), truncate(9), type_of(77), insert(9))
    stage.feed(*piece(*rows[:3]), *piece(*rows[3:], first=False), stream_commit(0x110, 0x140))
    assert stage.changes() == [(0x100, 0x140, wire(begin(0x110), *rows, commit(0x110, 0x140)))]
    assert stage.commits_all() == 0x140


def test_transactions_are_in_the_order_of_their_commits() -> None:
    stage = Stage(streams=True)
    stage.feed(*piece(relation(9), insert(9, b"one"), xid=1))
    stage.feed(*piece(relation(9), insert(9, b"two"), xid=2))
    stage.feed(begin(0x110, xid=3), relation(9), insert(9, b"three"), commit(0x110, 0x120))
    stage.feed(emitted(0x130), *piece(insert(9, b"more"), xid=1, first=False))
    stage.feed(stream_commit(0x140, 0x150, xid=2), stream_commit(0x160, 0x170, xid=1))
    assert [end_lsn for _, end_lsn, _ in stage.changes()] == [0x120, 0x130, 0x150, 0x170]
    assert stage.changes()[2][2] == wire(
        begin(0x140, xid=2), relation(9), insert(9, b"two"), commit(0x140, 0x150)
    )
    whole = (begin(0x160, xid=1), relation(9), insert(9, b"one"), insert(9, b"more"))
    assert stage.changes()[3][2] == wire(*whole, commit(0x160, 0x170))


def test_the_log_has_no_part_of_a_transaction_before_its_commit_or_if_it_aborts() -> None:
    stage = Stage(streams=True)
    stage.feed(*piece(relation(9), insert(9)), keepalive(0x150))
    stage.feed(stream_abort(), stream_abort(xid=99, subxid=99))
    assert [(kind, end_lsn) for kind, _, end_lsn, _ in stage.entries()[1:]] == [
        (EntryKind.PROGRESS, 0x150)
    ]
    with pytest.raises(RemoteProtocolError, match="7, which was not streamed"):
        stage.feed(stream_commit(0x160, 0x170))


@pytest.mark.parametrize("streams", [False, True])
def test_the_end_of_one_of_which_nothing_was_streamed_is_no_news(streams: bool) -> None:
    """PostgreSQL 18 sends it for one that it spilled, with or without the option."""
    stage = Stage(streams=streams)
    rows = (relation(9), insert(9))
    stage.feed(stream_abort(), stream_abort(subxid=8), begin(0x110), *rows, commit(0x110, 0x140))
    assert stage.changes() == [(0x100, 0x140, wire(begin(0x110), *rows, commit(0x110, 0x140)))]
    with pytest.raises(RemoteProtocolError):
        stage.feed(begin(0x150), stream_abort())


def test_a_rolled_back_subtransaction_and_those_inside_it_are_cut_off() -> None:
    stage = Stage(streams=True)
    kept, again = (relation(9), insert(9, b"kept")), (relation(9), insert(9, b"again"))
    stage.feed(
        stream_start(),
        *(streamed(each) for each in kept),
        streamed(relation(8, "new"), 8),
        streamed(insert(8), 8),
        stream_stop(),
        stream_start(first=False),
        streamed(insert(9, b"inner"), 9),
        streamed(insert(9, b"of 8 again"), 8),
        stream_stop(),
        stream_abort(subxid=9),
        stream_abort(subxid=8),
        stream_abort(subxid=9),
        *piece(*again, first=False),
        stream_commit(0x110, 0x140),
    )
    whole = wire(begin(0x110), *kept, *again, commit(0x110, 0x140))
    assert stage.changes() == [(0x100, 0x140, whole)]
    stage.feed(begin(0x150), insert(8), commit(0x150, 0x160))
    assert stage.changes()[1][2] == wire(begin(0x150), insert(8), commit(0x150, 0x160))
    tables = [payload for kind, _, _, payload in stage.entries() if kind is EntryKind.SETTINGS]
    assert not any(b"new" in payload for payload in tables)


def test_a_later_transaction_has_the_descriptions_that_it_left_and_the_newest_of_two() -> None:
    """PostgreSQL describes no relation again that it has described in a committed stream."""
    stage = Stage(streams=True)
    stage.feed(*piece(relation(9, "first"), insert(9), relation(8, "older"), insert(8)))
    stage.feed(begin(0x110, xid=3), relation(8, "newer"), insert(8), commit(0x110, 0x120))
    stage.feed(stream_commit(0x130, 0x140))
    stage.feed(begin(0x150), insert(9), insert(8), commit(0x150, 0x160))
    assert stage.changes()[2][2] == wire(
        begin(0x150), relation(9, "first"), insert(9), relation(8, "newer"), insert(8),
        commit(0x150, 0x160),
    )  # fmt: skip


def test_one_that_the_log_has_is_dropped_and_its_relations_are_remembered() -> None:
    stage = Stage(end_lsn=0x140, streams=True)
    stage.feed(*piece(relation(9), insert(9, b"old")), stream_commit(0x110, 0x140))
    stage.feed(begin(0x150), insert(9, b"new"), commit(0x150, 0x160))
    assert stage.changes() == [
        (0x140, 0x160, wire(begin(0x150), relation(9), insert(9, b"new"), commit(0x150, 0x160)))
    ]


def test_a_connection_that_is_lost_leaves_nothing_and_the_next_sends_it_again() -> None:
    stage = Stage(streams=True)
    stage.feed(*piece(relation(9), insert(9, b"old")))
    stage.stream.on_disconnected()
    stage.stream.on_connected(streams=True)
    stage.feed(*piece(relation(9), insert(9, b"new")))
    stage.stream.on_copy_data(stream_commit(0x110, 0x140))
    stage.stream.replay(5)  # lost again, with a part of it on its way
    stage.log.take(stage.stream)
    stage.stream.on_disconnected()
    assert not stage.stream.is_replaying
    stage.stream.on_connected(streams=True)
    stage.feed(*piece(relation(9), insert(9, b"last")), stream_commit(0x110, 0x140))
    assert stage.changes() == [
        (0x100, 0x140, wire(begin(0x110), relation(9), insert(9, b"last"), commit(0x110, 0x140)))
    ]


@pytest.mark.parametrize("before", [begin(0x110), stream_start()])
def test_no_transaction_can_be_streamed_while_origins_are_in_use(before: bytes) -> None:
    """PostgreSQL does not say the origin of each transaction that it streams."""
    stage = Stage(streams=True)
    with pytest.raises(CannotStream, match="origins are in use"):
        stage.feed(before, origin())
    stage.stream.on_disconnected()
    stage.stream.on_connected(streams=False)
    whole = (begin(0x110), origin(), relation(9), insert(9), commit(0x110, 0x140))
    stage.feed(*whole)
    assert stage.changes() == [(0x100, 0x140, wire(*whole))]


def test_its_begin_has_the_lsn_of_its_first_change_so_that_nobody_reports_the_whole_of_it() -> None:
    """pg_recvlogical confirms the greatest LSN that a message was sent with."""
    stage = Stage(streams=True)
    stage.feed(stream_start(lsn=0x108), stream_stop())
    stage.feed(stream_start(lsn=0x120, first=False), stream_stop(), stream_commit(0x130, 0x140))
    assert stage.changes()[0][2].startswith(wire(sent(begin(0x130)[25:], 0x108)))


def test_entries_that_wait_for_an_entrys_end_wait_for_a_replay() -> None:
    stage = Stage(streams=True)
    stage.feed(*piece(relation(9, "new"), insert(9)), keepalive(0x120))
    stage.stream.on_copy_data(keepalive(0x130))
    stage.stream.on_copy_data(stream_commit(0x140, 0x150))
    stage.stream.replay(3)
    stage.log.take(stage.stream)
    stage.commits_all()  # the progress entry of 0x120: that of 0x130 might follow
    while stage.stream.is_replaying:
        stage.stream.replay(3)
    stage.feed(keepalive(0x160))
    assert [(kind, end_lsn) for kind, _, end_lsn, _ in stage.entries()[1:]] == [
        (EntryKind.PROGRESS, 0x120),
        (EntryKind.TRANSACTION, 0x150),
        (EntryKind.SETTINGS, 0x150),  # the settings of the new table
        (EntryKind.PROGRESS, 0x160),
    ]


@pytest.mark.parametrize("written", [1, 1 << 20])
def test_the_spool_of_open_transactions_is_bounded(
    monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    monkeypatch.setattr(entry_maker, "SPOOL_BYTES_MAX", 400)
    monkeypatch.setattr(open_transactions, "WRITE_BYTES", written)
    stage = Stage(streams=True)
    stage.feed(*piece(relation(9), insert(9, b"v" * 100), xid=1))
    stage.feed(*piece(relation(9), xid=2), stream_abort(xid=2, subxid=2))
    stage.feed(stream_start(1, first=False), streamed(insert(9, b"v" * 30), xid=1), stream_stop())
    with pytest.raises(CannotStream, match=r"larger than --spool-size-max, 400 bytes"):
        stage.feed(*piece(relation(9), insert(9, b"v" * 50), xid=3))


def test_many_subtransactions_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_maker, "SPOOL_BYTES_MAX", 10_000)
    stage = Stage(streams=True)
    stage.feed(stream_start(), streamed(relation(9)))
    with pytest.raises(CannotStream, match="larger"):
        stage.feed(*(streamed(truncate(9), 100 + n) for n in range(60)))


class FullDisk(io.BytesIO):
    """Takes nothing."""

    def write(self, data: object, /) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_spooled_bytes_count_until_they_are_in_the_log_or_rolled_back() -> None:
    stage = Stage(streams=True)
    stage.feed(*piece(relation(9), insert(9, b"v" * 100), xid=1), *piece(relation(9), xid=2))
    kept = stage.stream.spooled_bytes
    assert kept == len(wire(relation(9), insert(9, b"v" * 100), relation(9)))
    stage.feed(stream_abort(xid=2, subxid=2))
    assert stage.stream.spooled_bytes == kept - len(wire(relation(9)))
    stage.stream.on_copy_data(stream_commit(0x110, 0x140, xid=1))
    assert stage.stream.spooled_bytes == kept - len(wire(relation(9)))
    while stage.stream.is_replaying:
        stage.stream.replay(1 << 20)
    assert not stage.stream.spooled_bytes


def test_a_full_disk_is_reported() -> None:
    stage = Stage(streams=True)
    stage.stream = new_stream(START, SEGMENT, new_spool=FullDisk)
    stage.stream.on_connected(streams=True)
    with pytest.raises(CannotStream, match=r"open transactions: .*No space left"):
        stage.feed(*piece(relation(9), insert(9)))


@pytest.mark.parametrize(
    "payloads",
    [
        (stream_start(), stream_start()),
        (stream_stop(),),
        (begin(0x110), stream_start()),
        (stream_start(), begin(0x110)),
        (stream_start(), stream_abort()),
        (stream_start()[:-3],),
        (stream_start(), sent(b"I\0\0")),
        (sent(b"A\0"),),
        (sent(b"c\0"),),
        (*piece(relation(9)), stream_commit(0x110, 0x100)),
    ],
)
def test_messages_that_no_server_streams_are_refused(payloads: tuple[bytes, ...]) -> None:
    with pytest.raises(RemoteProtocolError):
        Stage(streams=True).feed(*payloads)
