"""Frames of a length, a tag and a body: the bytes of a connection to messages and back. No I/O.

`encode` returns buffers for one vectored write, WAL uncopied. `FrameReader` hands the socket the
memory of the next bytes. That memory grows with the bytes that have arrived, never with a length
that a peer claims. A frame that is too long for its kind, or a body that does not parse, is a
RemoteProtocolError, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import TypeAlias

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.wire.consumer_slots import ConsumerSlots, TablesQuery
from walkeeper_common.wire.fields import Reader, Writer
from walkeeper_common.wire.log_removal import DropLog
from walkeeper_common.wire.member_change import (
    AcceptMembers,
    InstallMembers,
    JoinLog,
    MembersQuery,
    MembersState,
    PromiseMembers,
)
from walkeeper_common.wire.members_report import MembersReport
from walkeeper_common.wire.messages import (
    WAL_PAYLOAD_BYTES_MAX,
    AcceptorGreeting,
    AppendRequest,
    AppendResponse,
    ProposerElected,
    ProposerGreeting,
    Reject,
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
from walkeeper_common.wire.shared_slots import SharedSlots
from walkeeper_common.wire.timeline_reservation import ReserveTimeline, TimelineReserved

PREFACE = b"WALKEEP\x01"
FRAME_BYTES_MAX = WAL_PAYLOAD_BYTES_MAX + (16 << 20)  # a history of the most terms fits as well
WAL_FRAME_BYTES_MAX = WAL_PAYLOAD_BYTES_MAX + (1 << 10)  # the fields before the WAL are fewer
FIRST_FRAME_BYTES_MAX = 64 << 10  # a greeting, or any other request that opens a connection

Fielded: TypeAlias = (
    ProposerGreeting
    | AcceptorGreeting
    | VoteRequest
    | VoteResponse
    | ProposerElected
    | Reject
    | ReadRequest
    | LogQuery
    | LogState
    | PrepareLog
    | ConfigureLog
    | StatusRequest
    | StatusResponse
    | ConsumerSlots
    | TablesQuery
    | MembersQuery
    | PromiseMembers
    | AcceptMembers
    | InstallMembers
    | JoinLog
    | MembersState
    | ReserveTimeline
    | TimelineReserved
    | PrimaryReport
    | MembersReport
    | SharedSlots
    | DigestQuery
    | RangeDigest
    | DropLog
)
Message: TypeAlias = Fielded | AppendRequest | AppendResponse | ReadResponse

_FIELDED: dict[int, type[Fielded]] = {
    kind.TAG: kind
    for kind in (
        ProposerGreeting,
        AcceptorGreeting,
        VoteRequest,
        VoteResponse,
        ProposerElected,
        Reject,
        ReadRequest,
        LogQuery,
        LogState,
        PrepareLog,
        ConfigureLog,
        StatusRequest,
        StatusResponse,
        ConsumerSlots,
        TablesQuery,
        MembersQuery,
        PromiseMembers,
        AcceptMembers,
        InstallMembers,
        JoinLog,
        MembersState,
        ReserveTimeline,
        TimelineReserved,
        PrimaryReport,
        MembersReport,
        SharedSlots,
        DigestQuery,
        RangeDigest,
        DropLog,
    )
}
_LAID_OUT: dict[int, type[AppendRequest | AppendResponse | ReadResponse]] = {
    kind.TAG: kind for kind in (AppendRequest, AppendResponse, ReadResponse)
}
_WITH_WAL = frozenset((AppendRequest.TAG, ReadResponse.TAG))
MEMORY_BYTES_MAX = 1 << 19  # holds three of the longest appends: a bulk load syncs them at once
FRAME_HEAD = Struct("!IB")  # length of what follows it (tag and body), tag


def encode(message: Message) -> list[Buffer]:
    """Encode one frame as buffers for one vectored write; WAL is the last one, uncopied."""
    payload: Buffer = b""
    match message:
        case AppendRequest() | ReadResponse():
            body, payload = message.head(), message.payload
        case AppendResponse():
            body = message.head()
        case _:
            writer = Writer()
            message.pack(writer)
            body = writer.finish()
    head = FRAME_HEAD.pack(1 + len(body) + len(payload), message.TAG) + body
    return [head, payload] if payload else [head]


def decode(tag: int, body: memoryview) -> Message:
    """Parse one frame's body, or raise RemoteProtocolError and nothing else."""
    laid_out = _LAID_OUT.get(tag)
    if laid_out is not None:
        return laid_out.of(body)
    fielded = _FIELDED.get(tag)
    if fielded is None:
        raise RemoteProtocolError(f"unknown message tag {tag:#04x}")
    reader = Reader(body)
    message = fielded.unpack(reader)
    reader.done()
    return message


def frame_limit(tag: int) -> int:
    """Return the most bytes that a frame of this kind may have after its length."""
    return WAL_FRAME_BYTES_MAX if tag in _WITH_WAL else FRAME_BYTES_MAX


def first_frame_limit(tag: int) -> int:
    """Return the most bytes of a frame that opens a connection; only JoinLog brings a history."""
    return frame_limit(tag) if tag == JoinLog.TAG else FIRST_FRAME_BYTES_MAX


class FrameReader:
    """Bytes of one connection to messages, for a loop that receives into buffers.

    `buffer()` is where to receive next, `received(n)` yields the messages that are complete then.
    `limit_of` returns the most bytes of a frame by its tag, or raises RemoteProtocolError for a
    kind that this peer may not send. It is called before the body is received.
    Invariant: memory for at most four times the bytes that arrived, or `buffer_bytes`, is held.
    Not usable after a RemoteProtocolError.
    Unless there is a `large` frame, `memory` holds the received bytes that were not taken, from the
    start of a frame on. It grows up to `grows_to` for a peer that fills it. While it holds none,
    `buffer()` is `view`, all of it.
    With `lends`, the WAL of a message that fits into `memory` is a view of it, without a copy. The
    view is valid until the caller asks for the next message.
    """

    def __init__(
        self,
        *,
        buffer_bytes: int = 1 << 16,
        grows_to: int = MEMORY_BYTES_MAX,
        limit_of: Callable[[int], int] = frame_limit,
        lends: bool = False,
    ) -> None:
        self.memory, self._grows_to = bytearray(buffer_bytes), grows_to
        self._lends = lends
        self.limit_of = limit_of
        self.held_bytes = 0  # the bytes of a frame that is not complete yet
        self.view = memoryview(self.memory)
        self.large: bytearray | None = None  # tag and body of one frame longer than `grows_to`
        self._large_bytes = 0  # the frame's length; `large` has room for what arrived so far

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes of the connection; never empty."""
        if not self.held_bytes:
            return self.view
        if self.large is not None:
            return memoryview(self.large)[self.held_bytes :]
        return self.view[self.held_bytes :]

    def received(self, size: int) -> Iterator[Message]:
        """Yield the messages that the `size` new bytes in `buffer()` complete."""
        self.held_bytes += size
        if self.large is not None:
            if self.held_bytes < len(self.large):
                return
            if self.held_bytes < self._large_bytes:
                self._grow(memoryview(self.large), self._large_bytes)
                return
            frame, self.large = memoryview(self.large), None
            self.held_bytes = 0
            yield decode(frame[0], frame[1:])
            return
        at, view, held = 0, self.view, self.held_bytes
        while held - at >= FRAME_HEAD.size:
            length, tag = FRAME_HEAD.unpack_from(view, at)
            most = self.limit_of(tag)
            if not 1 <= length <= most:
                raise RemoteProtocolError(f"a frame of {length} bytes (most: {most})")
            end = at + 4 + length
            if end > held:
                if at == 0 and held == len(view) >= self._grows_to:
                    self._grow(view[4:held], length)
                    return
                break
            body = view[at + FRAME_HEAD.size : end]
            # Without a loan the message gets a copy, since the next bytes come into this memory.
            yield decode(tag, body if self._lends else memoryview(bytes(body)))
            at = end
        self.take(at, held)

    def take(self, taken: int, size: int) -> None:
        """Drop the first `taken` of the `size` bytes in `memory`; keep the rest."""
        self.held_bytes = size - taken
        if taken and taken < size:
            self.view[: size - taken] = bytes(self.view[taken:size])
        if size == len(self.view) < self._grows_to:
            room = min(4 * size, self._grows_to)
            self.memory = self.memory[: self.held_bytes].ljust(room, b"\0")
            self.view = memoryview(self.memory)

    def _grow(self, start: memoryview, length: int) -> None:
        """Go on with a frame in twice the memory of the bytes that arrived."""
        self.large, self._large_bytes = bytearray(min(length, 2 * len(start))), length
        self.large[: len(start)] = start
        self.held_bytes = len(start)
