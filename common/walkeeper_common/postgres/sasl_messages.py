"""The messages of a SASL login in PostgreSQL's protocol, as bytes in and bytes out. Pure.

The source is the chapter "SASL Authentication" of PostgreSQL's manual.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.postgres.pgwire import message

INT32 = Struct("!i")


def authentication_sasl(mechanisms: Sequence[str]) -> bytes:
    """Ask for a login by one of these mechanisms."""
    names = (name.encode() + b"\0" for name in mechanisms)
    return message(b"R", INT32.pack(10), *names, b"\0")


def authentication_sasl_continue(data: bytes) -> bytes:
    """Send the server's part of a login, and ask for the next one of the client."""
    return message(b"R", INT32.pack(11), data)


def authentication_sasl_final(data: bytes) -> bytes:
    """Send the server's last part of a login; authentication_ok follows."""
    return message(b"R", INT32.pack(12), data)


def parse_sasl_initial(body: bytes) -> tuple[str, bytes | None]:
    """Return the mechanism and the first message. Raise RemoteProtocolError.

    The message is None if the client waits for an empty question.
    """
    name, zero, rest = body.partition(b"\0")
    if not zero or len(rest) < INT32.size:
        raise RemoteProtocolError("malformed SASLInitialResponse")
    size: int = INT32.unpack_from(rest)[0]
    data = rest[INT32.size :]
    if len(data) != max(size, 0) or size < -1:
        raise RemoteProtocolError("malformed SASLInitialResponse: its length is wrong")
    return name.decode("ascii", "replace"), None if size < 0 else data
