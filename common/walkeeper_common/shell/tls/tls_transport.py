"""A transport that speaks TLS over another transport, for protocols that know nothing of it.

    TlsTransport(raw, layer, protocol).start(received)

The protocol gets `connection_made` after the handshake, then decrypted bytes, as from a socket. It
may be replaced with `set_protocol` at any time. If the handshake fails, it gets `connection_lost`
alone, with the reason. The time limit of a handshake is the caller's.

Bytes go to the socket at once while it takes them, as `FramedConnection` sends plain ones. uvloop's
own TLS would wait for the end of the loop's turn.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Iterable
from typing import Any, cast

from walkeeper_common.access.identity import ANYBODY, NOBODY, Identity
from walkeeper_common.buffers import Buffer
from walkeeper_common.shell.tls.tls_layer import CHUNK_BYTES, TlsLayer, tls_reason

OVERHEAD_BYTES_MAX = 20 << 10  # a record of which a part has come, and small ones
OVERHEAD_PER_BYTE = 64  # a record with a few bytes of data has up to 85 other bytes


class TlsTransport(asyncio.Transport):
    """The encrypted side of one connection; `identity` is set by the side that verifies it."""

    def __init__(
        self, raw: asyncio.Transport, layer: TlsLayer, protocol: asyncio.BaseProtocol
    ) -> None:
        super().__init__()
        self._raw, self.layer, self._protocol = raw, layer, protocol
        self._descriptor: int = raw.get_extra_info("socket").fileno()
        self.seal, self.take = layer.seal, layer.outgoing.read  # for the fast path
        self._is_paused = False
        self._overhead_bytes = 0  # received without data in them
        self._error: Exception | None = None
        self.identity: Identity = NOBODY
        self.dismiss: Callable[[str], None] = self._dismiss  # ends it once its peer is revoked
        raw.set_protocol(_Ciphertext(self))

    def start(self, received: bytes) -> None:
        """Begin the handshake, with bytes that were read before."""
        self._advance(received)

    # From the socket

    def _advance(self, ciphertext: Buffer) -> None:
        """Go on with the handshake, then hand over what is decrypted."""
        layer = self.layer
        self._overhead_bytes += len(ciphertext)
        try:
            layer.feed(ciphertext)
            if not layer.is_established:
                is_established = layer.handshake()
                self._flush()
                if not is_established:
                    return  # OpenSSL bounds a handshake
                self._overhead_bytes = layer.unread_bytes
                self._protocol.connection_made(self)
            self._hand_over()
        except ssl.SSLError as error:
            self._fail(tls_reason(error))

    def _fail(self, reason: str) -> None:
        """Close after TLS broke, with its alert; `connection_lost` follows in a turn of its own."""
        if self._error is None:
            self._error = ConnectionError(f"TLS: {reason}")
        self._flush()
        if self._raw.get_write_buffer_size():
            self._raw.abort()  # `close` would wait for a peer that reads nothing
        else:
            self._raw.close()

    def _dismiss(self, reason: str) -> None:
        """Close at once; `connection_lost` has the reason."""
        self._error = ConnectionError(f"TLS: {reason}")
        self._raw.abort()

    def _hand_over(self) -> None:
        layer = self.layer
        while not self._is_paused and not self._raw.is_closing():
            protocol = self._protocol
            if isinstance(protocol, asyncio.BufferedProtocol):
                memory = cast(memoryview, protocol.get_buffer(-1))
                room, size = len(memory), layer.read_into(memory)
                if size:
                    protocol.buffer_updated(size)
            else:
                assert isinstance(protocol, asyncio.Protocol), f"{protocol=}"
                data = layer.read()
                room, size = CHUNK_BYTES, len(data)
                if size:
                    protocol.data_received(data)
            self._overhead_bytes -= size * OVERHEAD_PER_BYTE
            if layer.is_ended and not self._raw.is_closing():
                if not protocol.eof_received():
                    self._raw.close()  # the peer may be gone, and reads no close_notify
                return
            if size < room:
                self._bound_overhead()
                break
        if layer.outgoing.pending:  # an answer of TLS itself, as to a new key
            self._flush()

    def _bound_overhead(self) -> None:
        """Close the connection of a peer that sends little data in many records.

        A change of keys has 27 bytes, takes this side longer than the peer, and makes an answer
        that a peer may leave unread.
        """
        self._overhead_bytes = max(0, self._overhead_bytes)
        if self._overhead_bytes > OVERHEAD_BYTES_MAX:
            self._fail(f"{OVERHEAD_BYTES_MAX >> 10} KiB without data")

    def _on_eof(self) -> None:
        self.layer.feed_eof()
        self._advance(b"")
        if not self.layer.is_established:
            self._raw.close()

    def _on_lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(self._error or error)

    def _pause_writing(self, is_paused: bool) -> None:
        if self.layer.is_established:
            if is_paused:
                self._protocol.pause_writing()
            else:
                self._protocol.resume_writing()

    # To the socket

    def _flush(self) -> None:
        data = self.layer.take()
        if not data or self._raw.is_closing():
            return
        sent = 0
        if not self._raw.get_write_buffer_size():
            try:
                sent = os.write(self._descriptor, data)
            except OSError:
                sent = 0  # full, or lost: the transport finds out which
        if sent < len(data):
            self._raw.write(memoryview(data)[sent:])

    def write(self, data: Buffer) -> None:
        """Send the bytes encrypted; drop those of a connection that is closing."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send all of them encrypted, with one system call, if the socket takes them.

        A connection whose TLS is broken drops them and closes, as a socket that is lost does. The
        caller learns of it from `connection_lost` alone.
        """
        if self._raw.is_closing():
            return
        try:
            self.layer.write_all(tuple(list_of_data))
        except ssl.SSLError as error:
            self._fail(tls_reason(error))
            return
        self._flush()

    def close(self) -> None:
        """Send what is queued and the end of TLS, then close."""
        if not self._raw.is_closing():
            self.layer.shut_down()
            self._flush()
            self._raw.close()

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    # For the compiled fast path: it does the same as `writelines`, by `seal`, `take` and these.

    def direct(self) -> tuple[int, Callable[[], int], Callable[[], bool]]:
        """Return the socket's descriptor, its unsent bytes, and whether it is closing."""
        return self._descriptor, self._raw.get_write_buffer_size, self._raw.is_closing

    def write_rest(self, ciphertext: memoryview) -> None:
        """Queue encrypted bytes that the socket has not taken."""
        self._raw.write(ciphertext)

    def on_refused(self, error: OSError) -> None:
        """Close after TLS took no bytes."""
        assert isinstance(error, ssl.SSLError), f"{error=}"
        self._fail(tls_reason(error))

    # For the protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def pause_reading(self) -> None:
        """Hand over nothing more; at most one read of the socket waits here."""
        self._is_paused = True
        if not self._raw.is_closing():
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Hand over what has waited, in a turn of its own, and read on."""
        if self._is_paused:
            self._is_paused = False
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if not self._is_paused and not self._raw.is_closing():
            self._advance(b"")
        if not self._is_paused and not self._raw.is_closing():
            self._raw.resume_reading()

    def is_reading(self) -> bool:
        return not self._is_paused

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the socket's transport knows, and `sslcontext` and `ssl_object` beside it."""
        if name == "sslcontext":
            return self.layer.context
        if name == "ssl_object":
            return self.layer.object
        return self._raw.get_extra_info(name, default)


class TlsOpening(asyncio.Protocol):
    """The first protocol of a socket that speaks TLS from its first byte, and loses none.

    A protocol that is replaced later would receive bytes that it does not know.
    """

    def __init__(
        self, layer: TlsLayer, protocol: asyncio.BaseProtocol, received: bytes = b""
    ) -> None:
        self._layer, self._protocol, self._received = layer, protocol, received

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        TlsTransport(raw, self._layer, self._protocol).start(self._received)


class _Ciphertext(asyncio.Protocol):
    """The socket's own protocol while the connection speaks TLS."""

    def __init__(self, transport: TlsTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport._advance(data)

    def eof_received(self) -> None:
        self._transport._on_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport._on_lost(exc)

    def pause_writing(self) -> None:
        self._transport._pause_writing(True)

    def resume_writing(self) -> None:
        self._transport._pause_writing(False)


def identity_of(transport: asyncio.BaseTransport) -> Identity:
    """Return the identity of an admitted connection's peer; a plain connection has ANYBODY."""
    return transport.identity if isinstance(transport, TlsTransport) else ANYBODY
