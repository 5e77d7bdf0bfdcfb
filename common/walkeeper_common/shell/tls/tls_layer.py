"""TLS between bytes and bytes, without a socket: OpenSSL over two memory buffers.

    layer.feed(ciphertext); layer.handshake(); layer.read(); layer.write(…); layer.take()

The caller owns the socket. It feeds all that it receives, and sends all that `take` returns, also
after an error: an alert may be in it. asyncio's and uvloop's `start_tls` lose bytes that were read
before it (uvloop #707). This layer takes them as it takes all others.

Each call handles all that was fed, and never waits. ssl.SSLError means that the peer broke TLS or
was not trusted. The layer is of no use after that.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import Any

from walkeeper_common.buffers import Buffer

CHUNK_BYTES = 1 << 16
RECORD_BYTES_MAX = 1 << 14  # the most plaintext of one record of TLS


class TlsLayer:
    """One connection's TLS. `context` stays the one of this connection after a reload."""

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None
    ) -> None:
        self.context = context
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self._incoming, self.outgoing, server_side, server_hostname)
        # The object below SSLObject, if there is one: each commit takes these, without a Python
        # function between.
        inner: Any = getattr(self.object, "_sslobj", self.object)
        self._read: Callable[[int, memoryview], int] = inner.read
        self.seal: Callable[[Buffer], int] = inner.write
        self.is_established = False
        self.peer_certificate: dict[str, Any] | None = None  # the verified one, if it has sent any
        self.is_ended = False  # the peer sends nothing more
        self._is_cut = False  # the last read left a part of its record

    def feed(self, ciphertext: Buffer) -> None:
        """Take bytes from the socket; none may follow its end."""
        if ciphertext:
            self._incoming.write(ciphertext)

    def feed_eof(self) -> None:
        """Take the end of the socket's stream."""
        self._incoming.write_eof()

    def handshake(self) -> bool:
        """Go on with the handshake; return True once it is complete."""
        if not self.is_established:
            try:
                self.object.do_handshake()
            except ssl.SSLWantReadError:
                return False
            self.is_established = True
            # OpenSSL itself tells it no more once TLS has broken (SSL_is_init_finished).
            self.peer_certificate = self.object.getpeercert() or None
        return True

    def read(self, size: int = CHUNK_BYTES) -> bytes:
        """Return decrypted bytes, or b"" if there are none: more must come, or `is_ended`."""
        memory = memoryview(bytearray(size))
        return bytes(memory[: self.read_into(memory)])

    def read_into(self, memory: memoryview) -> int:
        """Fill the memory with decrypted bytes; return their number.

        If it is less than the memory holds, more must come, or `is_ended`."""
        taken, room, incoming = 0, len(memory), self._incoming
        while room and not self.is_ended:
            # A read that could only ask for more would cost an exception.
            if not (self._is_cut or incoming.pending or incoming.eof):
                break
            try:
                size = self._read(room, memory[taken:] if taken else memory)
            except ssl.SSLWantReadError:
                self._is_cut = False
                break
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                size = 0
            self.is_ended, self._is_cut = not size, size == room
            taken, room = taken + size, room - size
        return taken

    def write_all(self, buffers: Sequence[Buffer]) -> None:
        """Add all of the buffers, as one record if they fit in one."""
        if len(buffers) > 1 and sum(map(len, buffers)) <= RECORD_BYTES_MAX:
            buffers = (b"".join(buffers),)
        for buffer in buffers:
            self.write(buffer)

    def write(self, plaintext: Buffer) -> None:
        """Add all of it, encrypted, to the outgoing memory, which the caller bounds."""
        view = memoryview(plaintext).cast("B")
        while view:
            view = view[self.seal(view) :]

    def shut_down(self) -> None:
        """Tell the peer that nothing more follows, and do not wait for its answer."""
        if self.is_established:
            try:
                self.object.unwrap()
            except ssl.SSLError:
                self.is_ended = True  # the peer's own close_notify is still to come, or never comes

    def take(self) -> bytes:
        """Return all bytes for the socket, and forget them."""
        return self.outgoing.read()

    @property
    def unread_bytes(self) -> int:
        """The bytes that were fed and that TLS has not looked at."""
        return self._incoming.pending

    @property
    def alpn(self) -> str | None:
        return self.object.selected_alpn_protocol()


def tls_reason(error: ssl.SSLError) -> str:
    """Return the reason for an operator, without OpenSSL's file and line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return "the peer closed the connection in the handshake"
    return (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()
