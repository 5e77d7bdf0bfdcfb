"""Our own wire: one message's body, and a connection's bytes in any pieces.

Twins: a frame is cut off by its length alone. A message that parses is encoded again to the bytes
that it came from.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from struct import Struct
from zlib import crc32

from tests.common.test_pure import SAMPLES
from tests.proof.fuzz.contract import Target, require
from tests.proof.fuzz.mutation import altered_items, havoc
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.lsn import LSN_MAX
from walkeeper_common.wire.framing import (
    FRAME_BYTES_MAX,
    FrameReader,
    Message,
    decode,
    encode,
    frame_limit,
)
from walkeeper_common.wire.member_change import MembersState
from walkeeper_common.wire.messages import AppendRequest, Reject, RejectCode

MESSAGES = [message for message in SAMPLES if len(b"".join(map(bytes, encode(message)))) < 2000]
HEAD = Struct("!IB")
PIECES = (1, 2, 5, 7, 64, 300, 4096)
PIECES_MAX = 200  # pieces of one input, so that a long one is not all about pieces
STREAM_BYTES_MAX = 4096


def frame_of(message: Message) -> bytes:
    return b"".join(bytes(buffer) for buffer in encode(message))


def run_message(data: bytes) -> None:
    """Tag and body. RemoteProtocolError, or the same bytes again."""
    if not data:
        return
    try:
        message = decode(data[0], memoryview(data)[1:])
    except RemoteProtocolError:
        return
    again = frame_of(message)
    require(again[:4] == (len(again) - 4).to_bytes(4, "big"), "length of {}", message)
    if isinstance(message, Reject) and message.code is RejectCode.REFUSED:
        # An unknown code becomes this one; its text and ballot stay.
        require(again[7:] == data[3:], "{!r} was {!r}", again[4:], data)
    elif isinstance(message, MembersState) and message.oldest_lsn == LSN_MAX:
        # Versions of before have not said where their WAL begins.
        require(data in (again[4:], again[4:-8]), "{!r} was {!r}", again[4:], data)
    else:
        require(again[4:] == data, "{!r} was {!r}", again[4:], data)


def messages_of(data: bytes) -> tuple[list[Message], bool]:
    """Return the twin's (messages, True if the stream breaks the protocol), frame by frame."""
    messages: list[Message] = []
    while len(data) >= HEAD.size:
        length, tag = HEAD.unpack_from(data)
        if not 1 <= length <= frame_limit(tag):
            return messages, True
        if len(data) < 4 + length:
            break
        try:
            messages.append(decode(tag, memoryview(data)[5 : 4 + length]))
        except RemoteProtocolError:
            return messages, True
        data = data[4 + length :]
    return messages, False


def run_stream(data: bytes) -> None:
    """Read the same messages from any pieces, with bounded memory."""
    wanted = messages_of(data)
    random = crc32(data)
    least = len(data) // PIECES_MAX
    pieces = (max(least, PIECES[random % 7]), max(least, PIECES[random // 7 % 7]))
    for buffer_bytes, sizes in ((1 << 16, (len(data) or 1,)), (64 << random % 5, pieces)):
        require(
            _received(data, buffer_bytes, sizes) == wanted,
            "buffer_bytes={} sizes={}",
            buffer_bytes,
            sizes,
        )


def _received(data: bytes, buffer_bytes: int, sizes: tuple[int, ...]) -> tuple[list[Message], bool]:
    reader, messages, turn = (
        FrameReader(buffer_bytes=buffer_bytes, grows_to=buffer_bytes),
        list[Message](),
        0,
    )
    while data:
        room = reader.buffer()
        require(0 < len(room) <= FRAME_BYTES_MAX, "len(room)={}", len(room))
        size = min(len(room), len(data), sizes[turn % len(sizes)])
        turn += 1
        room[:size] = data[:size]
        data = data[size:]
        try:
            messages.extend(reader.received(size))
        except RemoteProtocolError:
            return messages, True
    return messages, False


def split_frames(data: bytes) -> list[bytes]:
    """Split frames by their lengths; bytes that do not fit are the last one."""
    frames: list[bytes] = []
    while len(data) >= HEAD.size:
        end = 4 + HEAD.unpack_from(data)[0]
        if not 5 <= end <= len(data):
            break
        frames.append(data[:end])
        data = data[end:]
    return [*frames, data] if data else frames


def _change_body(frame: bytes, random: Random) -> bytes:
    """Replace one frame by one frame, with the length that it has then."""
    if len(frame) < HEAD.size or random.randrange(8) == 0:
        return frame_of(random.choice(MESSAGES))
    tag = frame[4:5] if random.randrange(8) else random.choice(MESSAGES).TAG.to_bytes(1, "big")
    return with_length(tag + havoc(frame[5:], random))


def with_length(tag_and_body: bytes) -> bytes:
    return len(tag_and_body).to_bytes(4, "big") + tag_and_body


def alter_stream(data: bytes, random: Random) -> bytes:
    return b"".join(altered_items(split_frames(data), random, _change_body))


def repair_message(data: bytes, random: Random) -> bytes:
    """Give an AppendRequest the end_lsn that its payload's length says."""
    size = AppendRequest.LAYOUT.size
    if data[:1] != b"a" or len(data) <= size:
        return data
    fields = list(AppendRequest.LAYOUT.unpack_from(data, 1))
    fields[5] = (fields[4] + len(data) - 1 - size) % 2**64
    return data[:1] + AppendRequest.LAYOUT.pack(*fields) + data[1 + size :]


def repair_stream(data: bytes, random: Random) -> bytes:
    return b"".join(
        with_length(repair_message(frame[4:], random)) if len(frame) > 4 else frame
        for frame in split_frames(data)
    )


def _message_seeds() -> Iterable[bytes]:
    return (frame_of(message)[4:] for message in MESSAGES)


def _stream_seeds() -> Iterable[bytes]:
    frames = [frame_of(message) for message in MESSAGES]
    yield from frames
    for at in range(0, len(frames), 3):
        yield b"".join(frames[at : at + 3])
    yield (1 << 20).to_bytes(4, "big") + b"a" + bytes(100)


MESSAGE = Target(
    name="messages",
    about="one frame's tag and body: fields, messages, requests",
    run=run_message,
    seeds=_message_seeds,
    bytes_max=2048,
    repair=repair_message,
)
STREAM = Target(
    name="frames",
    about="a connection's bytes in any pieces: FrameReader",
    run=run_stream,
    seeds=_stream_seeds,
    bytes_max=STREAM_BYTES_MAX,
    alter=alter_stream,
    repair=repair_stream,
)
