"""A client of OpenSSL that asks for new keys, as Python's ssl module cannot.

    client = KeyUpdater("postgresql"); client.hear(received); client.take()
    client.update_keys(100); client.write(data)     then `take` has the bytes for the socket

It trusts every server. Each update has 27 bytes, and the server answers it with as many.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Mapping
from typing import Any, Final

REQUESTED: Final = 1  # SSL_KEY_UPDATE_REQUESTED
CHUNK_BYTES: Final = 1 << 16
POINTER, INTEGER, TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p

# The result of each function, and its arguments.
FUNCTIONS: Mapping[str, Mapping[str, tuple[Any, list[Any]]]] = {
    "ssl": {
        "TLS_client_method": (POINTER, []),
        "SSL_CTX_new": (POINTER, [POINTER]),
        "SSL_CTX_free": (None, [POINTER]),
        "SSL_new": (POINTER, [POINTER]),
        "SSL_free": (None, [POINTER]),
        "SSL_set_bio": (None, [POINTER, POINTER, POINTER]),
        "SSL_set_alpn_protos": (INTEGER, [POINTER, TEXT, ctypes.c_uint]),
        "SSL_connect": (INTEGER, [POINTER]),
        "SSL_do_handshake": (INTEGER, [POINTER]),
        "SSL_key_update": (INTEGER, [POINTER, INTEGER]),
        "SSL_write": (INTEGER, [POINTER, TEXT, INTEGER]),
    },
    "crypto": {
        "BIO_s_mem": (POINTER, []),
        "BIO_new": (POINTER, [POINTER]),
        "BIO_read": (INTEGER, [POINTER, TEXT, INTEGER]),
        "BIO_write": (INTEGER, [POINTER, TEXT, INTEGER]),
    },
}


def _library(name: str) -> ctypes.CDLL:
    library = ctypes.CDLL(ctypes.util.find_library(name))
    for function, (result, arguments) in FUNCTIONS[name].items():
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    return library


class KeyUpdater:
    """One connection, which the caller carries to its server and back."""

    def __init__(self, alpn: str) -> None:
        self._ssl, self._crypto = _library("ssl"), _library("crypto")
        context = self._ssl.SSL_CTX_new(self._ssl.TLS_client_method())
        self._connection = self._ssl.SSL_new(context)
        self._ssl.SSL_CTX_free(context)
        memory = self._crypto.BIO_s_mem()
        self._incoming, self._outgoing = self._crypto.BIO_new(memory), self._crypto.BIO_new(memory)
        self._ssl.SSL_set_bio(self._connection, self._incoming, self._outgoing)
        protocols = bytes([len(alpn)]) + alpn.encode()
        assert not self._ssl.SSL_set_alpn_protos(self._connection, protocols, len(protocols))
        self.is_established = self._ssl.SSL_connect(self._connection) == 1

    def hear(self, data: bytes) -> None:
        """Take bytes from the server, and go on with the handshake."""
        self._crypto.BIO_write(self._incoming, data, len(data))
        self.is_established = self._ssl.SSL_connect(self._connection) == 1

    def update_keys(self, times: int) -> None:
        """Announce new keys, and ask for as many of the server, so many times."""
        for _ in range(times):
            assert self._ssl.SSL_key_update(self._connection, REQUESTED) == 1
            assert self._ssl.SSL_do_handshake(self._connection) == 1

    def write(self, data: bytes) -> None:
        assert self._ssl.SSL_write(self._connection, data, len(data)) == len(data)

    def take(self) -> bytes:
        """Return all bytes for the socket, and forget them."""
        found, memory = b"", ctypes.create_string_buffer(CHUNK_BYTES)
        while (size := self._crypto.BIO_read(self._outgoing, memory, CHUNK_BYTES)) > 0:
            found += memory.raw[:size]
        return found

    def close(self) -> None:
        self._ssl.SSL_free(self._connection)
