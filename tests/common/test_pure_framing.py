"""A connection's bytes in any pieces: garbage, large frames, and how much memory they may take."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from tests.common.test_pure import SAMPLES, fed, wire
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.history import HISTORY_ENTRIES_MAX, NO_BALLOT, Ballot, Fragment
from walkeeper_common.lsn import LSN_MAX, Lsn
from walkeeper_common.quorum import LogKind
from walkeeper_common.wire.framing import (
    FIRST_FRAME_BYTES_MAX,
    FRAME_BYTES_MAX,
    FRAME_HEAD,
    WAL_FRAME_BYTES_MAX,
    FrameReader,
    encode,
    first_frame_limit,
)
from walkeeper_common.wire.member_change import JoinLog
from walkeeper_common.wire.messages import (
    PROTOCOL_VERSION,
    WAL_PAYLOAD_BYTES_MAX,
    AppendRequest,
    ProposerElected,
    ProposerGreeting,
)
from walkeeper_common.wire.requests import ReadRequest, ReadResponse
from walkeeper_common.wire.wal_crc import crc_of

GARBAGE_STREAMS = 20_000


def append_of(size: int) -> AppendRequest:
    wal = Random(size).randbytes(size)
    ballot = Ballot(1, b"p" * 16)
    return AppendRequest(1, ballot, 1, Lsn(8), Lsn(8 + size), Lsn(0), Lsn(0), crc_of(wal), wal)


def test_garbage_in_a_stream_ends_it_or_is_messages() -> None:
    """Frames before the damage arrive, the damage is a RemoteProtocolError, nothing else comes."""
    random, refused = Random(7), 0
    frames = [wire(message) for message in SAMPLES]
    small = [frame for frame in frames if len(frame) < 1000]
    for _ in range(GARBAGE_STREAMS):
        good = random.choice(small)
        bad = bytearray(random.choice(small))
        for _ in range(random.randrange(1, 5)):
            bad[random.randrange(len(bad))] = random.randrange(256)
        buffer_bytes, grows_to = random.choice((64, 256, 4096)), random.choice((64, 1000, 4096))
        reader = FrameReader(buffer_bytes=buffer_bytes, grows_to=grows_to)
        messages = []
        try:
            messages += fed(reader, good, random.randrange(1, 300))
            messages += fed(reader, bytes(bad), random.randrange(1, 300))
        except RemoteProtocolError:
            refused += 1
        assert messages and messages[0] == SAMPLES[frames.index(good)]
    assert refused > GARBAGE_STREAMS // 4


@pytest.mark.parametrize("size", [0, 1, 50, 65536 - 80, 65536, 100_000])
def test_a_large_frame_arrives_a_byte_at_a_time(size: int) -> None:
    stream = wire(append_of(size)) * 2
    assert fed(FrameReader(), stream, 1) == [append_of(size)] * 2


def test_kept_messages_share_no_memory() -> None:
    ballots = [Ballot(term, b"p" * 16) for term in (1, 2)]
    messages = [ReadResponse(ballot, Lsn(8), 0, bytes([ballot.term]) * 100) for ballot in ballots]
    frame_bytes = len(wire(messages[0]))
    reader = FrameReader(buffer_bytes=frame_bytes, grows_to=frame_bytes)
    assert fed(reader, b"".join(map(wire, messages)), 1 << 20) == messages


@pytest.mark.parametrize("step", [1 << 20, 40_000, 1000])
def test_lent_wal_is_a_view_that_holds_until_the_next_message(step: int) -> None:
    """A frame that fills the memory, shorter ones, and one that is longer than the memory."""
    sizes = (50_000, 50_000, 10, 0, 20_000, 60_000, 50_000)
    messages = [append_of(size) for size in sizes]
    stream, frame_bytes = b"".join(map(wire, messages)), len(wire(messages[0]))
    reader = FrameReader(buffer_bytes=frame_bytes, grows_to=frame_bytes, lends=True)
    at, found = 0, list[int]()
    while at < len(stream):
        room = reader.buffer()
        size = min(step, len(room), len(stream) - at)
        room[:size] = stream[at : at + size]
        at += size
        for message in reader.received(size):
            assert message == messages[len(found)]
            assert isinstance(message, AppendRequest) and isinstance(message.payload, memoryview)
            found.append(len(message.payload))
            assert (message.payload.obj is reader.memory) == (found[-1] < 60_000)
    assert found == list(sizes)


def test_the_largest_payload_and_one_byte_more() -> None:
    largest = append_of(WAL_PAYLOAD_BYTES_MAX)
    assert fed(FrameReader(), wire(largest), 1 << 20) == [largest]
    with pytest.raises(RemoteProtocolError):
        fed(FrameReader(), wire(append_of(WAL_PAYLOAD_BYTES_MAX + 1)), 1 << 20)


def test_a_length_that_no_frame_may_have_is_refused_at_once() -> None:
    for length in (0, FRAME_BYTES_MAX + 1, 2**32 - 1):
        with pytest.raises(RemoteProtocolError):
            fed(FrameReader(), FRAME_HEAD.pack(length, ProposerElected.TAG), 1)


def test_a_claimed_length_reserves_nothing() -> None:
    """The 13 bytes of a preface and a head cost 17.8 MB before; they cost nothing now."""
    reader = FrameReader()
    tracemalloc.start()
    try:
        assert fed(reader, FRAME_HEAD.pack(FRAME_BYTES_MAX, ProposerElected.TAG), 1) == []
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000, f"{peak_bytes=}"


def test_memory_grows_with_the_bytes_that_arrive() -> None:
    """At most four bytes are held for each one that arrived, and the first buffer."""
    reader, arrived = FrameReader(), 5
    fed(reader, FRAME_HEAD.pack(FRAME_BYTES_MAX, ProposerElected.TAG), 5)
    while arrived < FRAME_BYTES_MAX - 50_000:
        room = len(reader.buffer())
        assert room <= max(1 << 16, 3 * arrived), f"{arrived=}"
        size = min(room, 50_000)
        assert list(reader.received(size)) == []
        arrived += size


def test_a_frame_that_opens_a_connection_is_small() -> None:
    """A safekeeper reads 64 KiB from an unknown peer; JoinLog alone brings a history."""
    for tag in (ProposerGreeting.TAG, AppendRequest.TAG, ReadRequest.TAG, 0, 255):
        with pytest.raises(RemoteProtocolError):
            head = FRAME_HEAD.pack(FIRST_FRAME_BYTES_MAX + 1, tag)
            fed(FrameReader(limit_of=first_frame_limit), head, 5)
    head = FRAME_HEAD.pack(FRAME_BYTES_MAX, JoinLog.TAG)
    assert fed(FrameReader(limit_of=first_frame_limit), head, 5) == []


def test_a_frame_with_wal_is_no_longer_than_its_wal_may_be() -> None:
    for tag in (AppendRequest.TAG, ReadResponse.TAG):
        with pytest.raises(RemoteProtocolError):
            fed(FrameReader(), FRAME_HEAD.pack(WAL_FRAME_BYTES_MAX + 1, tag), 5)


@pytest.mark.parametrize(("members", "terms"), [(3, 65_536), (5, 65_536), (7, 50_000)])
def test_a_history_of_tens_of_thousands_of_terms_fits_into_a_frame(
    members: int, terms: int
) -> None:
    ballot = Ballot(2**64 - 1, b"\xff" * 16)
    names = tuple(f"{i}#{i:032x}" for i in range(1, members + 1))
    fragment = Fragment(ballot, LSN_MAX, 2**32 - 1, True, names, 2)
    assert terms <= HISTORY_ENTRIES_MAX
    longest = ProposerElected(1, ballot, LSN_MAX, (fragment,) * terms)
    assert len(wire(longest)) <= FRAME_BYTES_MAX


def test_the_payload_is_not_copied_on_its_way_out() -> None:
    message = append_of(5000)
    _, payload = encode(message)
    assert payload is message.payload


def test_another_protocol_version_is_refused_with_advice() -> None:
    ours = ProposerGreeting(
        PROTOCOL_VERSION + 1, "m", bytes(16), 0, 0, "", bytes(16), LogKind.PHYSICAL, "", None
    )
    with pytest.raises(RemoteProtocolError, match="upgrade"):
        fed(FrameReader(), wire(ours), 100)


@pytest.mark.parametrize("size", [0, WAL_PAYLOAD_BYTES_MAX + 1, 2**32 - 1])
def test_a_read_has_a_size(size: int) -> None:
    with pytest.raises(RemoteProtocolError):
        fed(FrameReader(), wire(ReadRequest(NO_BALLOT, Lsn(0), size)), 100)


def test_a_number_that_is_no_lsn_of_a_payload_is_refused() -> None:
    """[begin, end) that wraps around or runs backwards."""
    for begin, end in ((8, 7), (2**64 - 1, 0), (0, 2**64 - 1)):
        frame = AppendRequest(1, NO_BALLOT, 1, Lsn(begin), Lsn(end), Lsn(0), Lsn(0), 0, b"w")
        with pytest.raises(RemoteProtocolError):
            fed(FrameReader(), wire(frame), 100)
