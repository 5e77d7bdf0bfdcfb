"""A client's conversation with a safekeeper, from the preface on, without a socket. Pure.

    ask(question)      the bytes to send
    buffer()           the place for received bytes
    received(size)     the answers that these bytes complete, each of the safekeeper that it names

Commands speak it over asyncio (safekeeper_client), and `walkeeper restore` over a blocking socket
(committed_wal). The stream of a proposer is no request: both sides send at any time, and bound
what they hold (shell/safekeeper_links/framed_connection.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from walkeeper_common.access.certificate_identity import check_stated_id
from walkeeper_common.access.identity import Identity
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.wire.framing import PREFACE, FrameReader, Message, encode
from walkeeper_common.wire.messages import AcceptorGreeting
from walkeeper_common.wire.requests import LogState


class Closed(RemoteProtocolError):
    """The safekeeper closed the connection in place of an answer."""


class Conversation:
    """One connection; `identity` is that of the safekeeper's certificate.

    `frames` reads the answers, for a caller that knows how long they are.
    """

    def __init__(self, identity: Identity, frames: FrameReader | None = None) -> None:
        self._identity = identity
        self._frames = frames or FrameReader()
        self._preface = PREFACE

    def ask(self, question: Message) -> bytes:
        """Return the question's bytes; the preface precedes the first one."""
        preface, self._preface = self._preface, b""
        return b"".join((preface, *encode(question)))

    def buffer(self) -> memoryview:
        """Return the place for bytes that come now."""
        return self._frames.buffer()

    def received(self, size: int) -> Iterator[Message]:
        """Yield the answers that `size` new bytes in `buffer()` complete; 0 is the end.

        Raise Closed at the end, RemoteProtocolError for no frames of ours, and Refused if the
        safekeeper states another id than its certificate.
        """
        if not size:
            raise Closed("it closed the connection without an answer")
        for answer in self._frames.received(size):
            if isinstance(answer, AcceptorGreeting | LogState):
                check_stated_id(self._identity, answer.acceptor_id)
            yield answer
