"""Telling messages in the WAL, and the time when a segment gets one (docs/protocol.md R22)."""

from __future__ import annotations

import struct
from random import Random

import pytest

from tests.support.wal_maker import PAGE, WalMaker, nonce_message
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.nonce_message import (
    NONCE_BYTES,
    OLD_SEGMENTS,
    QUIET_BYTES_MAX,
    RECORD_BYTES_MAX,
    RMGR_LOGICAL_MESSAGE,
    lacks_nonce,
    nonce_page,
)
from walkeeper_common.postgres.walformat import has_telling_record

SEGMENT = 1 << 24
NONCE = bytes(range(NONCE_BYTES))


def _tells(message: bytes) -> bool:
    wal = WalMaker(Random(1))
    wal.record(100)
    wal.record(message, 0, RMGR_LOGICAL_MESSAGE)
    wal.record(100)
    return has_telling_record(wal.start_lsn, wal.read(wal.start_lsn, wal.end_lsn))


def test_a_nonce_of_ours_tells() -> None:
    assert _tells(nonce_message(NONCE))


@pytest.mark.parametrize(
    "message",
    [
        nonce_message(NONCE[:-1]),
        nonce_message(NONCE + b"x"),
        nonce_message(b""),
        nonce_message(NONCE, prefix=b"walkeepes"),
        nonce_message(NONCE, prefix=b"app"),
        nonce_message(NONCE, transactional=True),
        b"",
        b"\0" * 58,
    ],
)
def test_a_message_that_a_load_may_write_everywhere_tells_nothing(message: bytes) -> None:
    """A clone that runs the same load would write the same bytes."""
    assert not _tells(message)


def test_a_page_is_named_only_if_it_holds_the_record_whole() -> None:
    for room in range(0, 2 * PAGE, 8):
        wal = WalMaker(Random(2))
        wal.record(max(0, room - 26))
        made = wal.record(nonce_message(NONCE), 0, RMGR_LOGICAL_MESSAGE)
        page_lsn = nonce_page(made.end_lsn)
        if page_lsn is None:
            assert (made.end_lsn - 1) % PAGE < 40 + RECORD_BYTES_MAX, f"{made=}"
            continue
        assert page_lsn <= made.start_lsn, f"{made=}"
        page = wal.read(page_lsn, made.end_lsn)
        assert has_telling_record(page_lsn, page), f"{made=}"


def test_a_segment_with_some_wal_gets_one_nonce() -> None:
    start = Lsn(10 * SEGMENT)
    last = start - 1000
    assert lacks_nonce(start, None, segment_bytes=SEGMENT)
    assert not lacks_nonce(start, last, segment_bytes=SEGMENT)
    assert not lacks_nonce(start + QUIET_BYTES_MAX - 1, last, segment_bytes=SEGMENT)
    assert lacks_nonce(start + QUIET_BYTES_MAX, last, segment_bytes=SEGMENT)
    assert not lacks_nonce(start + SEGMENT - 1, start + 70_000, segment_bytes=SEGMENT)


def test_an_idle_server_that_switches_segments_gets_no_nonce() -> None:
    """A nonce is WAL, so archive_timeout would switch again: a loop of a segment a minute."""
    last = Lsn(10 * SEGMENT + 200)
    for segment in range(11, 11 + 3 * OLD_SEGMENTS):
        assert not lacks_nonce(Lsn(segment * SEGMENT + 40), last, segment_bytes=SEGMENT)


def test_a_server_of_little_wal_a_segment_gets_a_nonce_in_time() -> None:
    """Else its slot would keep every segment since the last one."""
    last = Lsn(10 * SEGMENT + 200)
    lacking = [
        segment
        for segment in range(11, 20)
        if lacks_nonce(Lsn(segment * SEGMENT + 300), last, segment_bytes=SEGMENT)
    ]
    assert lacking[0] == 10 + OLD_SEGMENTS


def test_the_size_of_a_nonces_record_is_within_its_bound() -> None:
    made = WalMaker(Random(3)).record(nonce_message(NONCE), 0, RMGR_LOGICAL_MESSAGE)
    assert made.end_lsn - made.start_lsn == 80 <= RECORD_BYTES_MAX
    assert struct.calcsize("<I?3xQQ") == 24  # SizeOfLogicalMessage
