"""Messages to the drivers, the way that a socket brings them: as frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from walkeeper_common.buffers import Buffer
from walkeeper_common.wire.framing import FRAME_HEAD, FrameReader, Message, decode, encode
from walkeeper_common.wire.messages import AppendRequest, AppendResponse
from walkeeper_fastpath.ports import TakeFrames
from walkeeper_proposer import proposer_driver as proposing
from walkeeper_proposer.consensus import proposer_events as proposer
from walkeeper_safekeeper.consensus.acceptor_events import Received
from walkeeper_safekeeper.safekeeper_driver import Driver


def frames_of(*messages: Message) -> bytearray:
    return bytearray().join(bytes(buffer) for one in messages for buffer in encode(one))


class Answers:
    """A connection without a socket: `write` gets the acks of the fast path."""

    def __init__(self, write: Callable[[Sequence[Buffer], int], object]) -> None:
        self.write = write
        self.first: TakeFrames | None = None

    def direct(self) -> None:
        """Say that there is no socket."""

    def sealed(self) -> None:
        """Say that there is no TLS."""

    def receive_first(self, take: TakeFrames | None) -> None:
        """Keep what gets the bytes of a socket first."""
        self.first = take


def message_in(frame: Sequence[Buffer], size: int) -> Message:
    """Decode the message in one packed frame of `size` bytes."""
    whole = memoryview(b"".join(frame))
    assert len(whole) == size, f"{len(whole)=} {size=}"
    return decode(whole[4], whole[FRAME_HEAD.size :])


def messages_in(frames: bytearray) -> list[Message]:
    """Decode whole frames on the slow path."""
    reader = FrameReader()
    reader.buffer()[: len(frames)] = frames
    messages = list(reader.received(len(frames)))
    assert not reader.held_bytes, f"{reader.held_bytes=}"
    return messages


def taken_at_once(
    driver: Driver,
    connection: int,
    send: Callable[[int, Message], None],
    memory: bytearray,
    size: int,
) -> int:
    """Return how many bytes of frames were taken; `send` sends an answer that was made at once."""

    def answer(frame: Sequence[Buffer], frame_bytes: int) -> None:
        send(connection, message_in(frame, frame_bytes))

    return driver.append_at_once(connection, Answers(answer), memory, size)


def give(
    driver: Driver, connection: int, send: Callable[[int, Message], None], *messages: Message
) -> None:
    """Give messages that were received together. `send` sends an answer that was made at once."""
    if all(isinstance(one, AppendRequest) for one in messages):
        frames = frames_of(*messages)
        if taken_at_once(driver, connection, send, frames, len(frames)):
            return
    for message in messages:
        driver.post(Received(connection, message))


def tell(driver: proposing.Driver, link: int, *messages: Message) -> None:
    """Give a proposer messages that were received together."""
    if all(isinstance(one, AppendResponse) for one in messages):
        frames = frames_of(*messages)
        if driver.acknowledge_at_once(link, frames, len(frames)):
            return
    for message in messages:
        driver.post(proposer.Received(link, message))
