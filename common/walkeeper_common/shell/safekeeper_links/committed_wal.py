"""Committed WAL of one safekeeper over a blocking socket, in walkeeper's own protocol. A shell.

    source = Safekeeper(address, timeout_s); source.greet(cluster); source.read(begin_lsn, end_lsn)

For `walkeeper restore`, and for a safekeeper that repairs a segment. To import asyncio takes more
time than to fetch a segment. Every wait has a limit. Unreachable and Rejected name the address.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused, RemoteProtocolError, Unreachable, WalkeeperError
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.quorum import LogKind
from walkeeper_common.shell.safekeeper_links import safekeeper_socket
from walkeeper_common.shell.safekeeper_links.socket_reasons import reason_of
from walkeeper_common.wire.conversation import Closed, Conversation
from walkeeper_common.wire.framing import FRAME_HEAD, FrameReader, Message
from walkeeper_common.wire.messages import (
    PROTOCOL_VERSION,
    UNKNOWN_LOG_UUID,
    AcceptorGreeting,
    ProposerGreeting,
    Reject,
    RejectCode,
)
from walkeeper_common.wire.range_digest import DigestQuery, RangeDigest
from walkeeper_common.wire.requests import ReadRequest, ReadResponse

READS_AT_ONCE = 4
# For pieces of 1 MiB a safekeeper took fresh memory from the kernel, 40 % of the time of a fetch.
PIECE_BYTES = (1 << 19) - WAL_PAGE_BYTES
# The memory for received bytes ends where the answer with a whole piece ends. So it holds no part
# of the next answer, which would have to be moved to its start.
ANSWER_BYTES = FRAME_HEAD.size + ReadResponse.LAYOUT.size + PIECE_BYTES


class Rejected(WalkeeperError):
    """The safekeeper answered with a Reject; `code` is its reason."""

    def __init__(self, text: str, code: RejectCode) -> None:
        super().__init__(text)
        self.code = code


class Safekeeper:
    """A connection in walkeeper's own protocol; it cannot be used after an error."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.shown = f"safekeeper at {shown_address(address)}"
        try:
            self._socket, identity = safekeeper_socket.connect(address, timeout_s)
        except OSError as error:
            raise Unreachable(f"{self.shown} is unreachable: {reason_of(error)}") from error
        frames = FrameReader(buffer_bytes=ANSWER_BYTES, grows_to=ANSWER_BYTES, lends=True)
        self._conversation = Conversation(identity, frames)
        self._messages = self._received()

    def greet(self, cluster: str, name: str = "restore") -> AcceptorGreeting:
        """Return the safekeeper's greeting; this request fences no proposer and promises nothing.

        Raise Unreachable or Rejected if there is no greeting.
        """
        greeting = ProposerGreeting(
            protocol_version=PROTOCOL_VERSION,
            cluster=cluster,
            log_uuid=UNKNOWN_LOG_UUID,
            system_id=0,
            segment_bytes=0,
            server_version="",
            proposer_id=os.urandom(16),
            kind=LogKind.PHYSICAL,
            application_name=name,
            configuration=None,
        )
        self._send(greeting)
        answer = self._next()
        if not isinstance(answer, AcceptorGreeting):
            raise Unreachable(f"{self.shown} answered with {type(answer).__name__}")
        return answer

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> Iterator[tuple[Lsn, memoryview]]:
        """Yield all of [begin_lsn, end_lsn), committed, in pieces in any order.

        A piece is a view of this connection's memory, and is valid until the next one.
        """
        from walkeeper_common.wire.wal_crc import crc_of

        wanted = [
            (Lsn(at), min(end_lsn, Lsn(at + PIECE_BYTES)))
            for at in range(begin_lsn, end_lsn, PIECE_BYTES)
        ]
        wanted.reverse()
        asked: dict[Lsn, Lsn] = {}
        while wanted or asked:
            while wanted and len(asked) < READS_AT_ONCE:
                begin, end = wanted.pop()
                self._send(ReadRequest(NO_BALLOT, begin, end - begin))
                asked[begin] = end
            answer = self._next()
            if not isinstance(answer, ReadResponse) or answer.begin_lsn not in asked:
                raise Unreachable(f"{self.shown} answered a read with {answer!r:.200}")
            begin = answer.begin_lsn
            end, got = asked.pop(begin), begin + len(answer.payload)
            if not begin < got <= end or crc_of(answer.payload) != answer.crc:
                raise Unreachable(f"{self.shown} sent no valid WAL at {begin}")
            if got < end:
                wanted.append((got, end))
            yield begin, memoryview(answer.payload)

    def digest(self, ask: DigestQuery) -> bytes:
        """Return the SHA-256 of a range on its disk. Raise Unreachable or Rejected."""
        self._send(ask)
        answer = self._next()
        if not isinstance(answer, RangeDigest) or answer.begin_lsn != ask.begin_lsn:
            raise Unreachable(f"{self.shown} answered with {type(answer).__name__}")
        return answer.sha256

    def fileno(self) -> int:
        """Return the socket's descriptor, for a caller that closes all others."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _send(self, question: Message) -> None:
        try:
            self._socket.sendall(self._conversation.ask(question))
        except OSError as error:
            raise Unreachable(f"{self.shown}: {error}") from error

    def _next(self) -> Message:
        try:
            answer = next(self._messages)
        except Closed as error:
            raise Unreachable(f"{self.shown} closed the connection") from error
        except (OSError, RemoteProtocolError, Refused) as error:
            raise Unreachable(f"{self.shown}: {error}") from error
        if isinstance(answer, Reject):
            raise Rejected(f"{self.shown}: {answer.text}", answer.code)
        return answer

    def _received(self) -> Iterator[Message]:
        while True:
            size = self._socket.recv_into(self._conversation.buffer())
            yield from self._conversation.received(size)
