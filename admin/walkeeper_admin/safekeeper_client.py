"""One question to one safekeeper: connect, ask, read the answer. For create and status. Shell."""

from __future__ import annotations

import asyncio

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.certificate_identity import check_stated_id
from walkeeper_common.errors import Refused, RemoteProtocolError
from walkeeper_common.identity import Identity
from walkeeper_common.shell.safekeeper_connection import open_streams
from walkeeper_common.shell.tls_transport import identity_of
from walkeeper_common.wire.framing import PREFACE, FrameReader, Message, encode
from walkeeper_common.wire.requests import LogState


class Unreachable(Exception):
    """No safekeeper answered at this address in time."""


class NoAnswer(Unreachable):
    """The safekeeper closed the connection on the question: its version does not know it."""


class _Closed(RemoteProtocolError):
    """The end of the connection."""


async def ask(address: Address, question: Message, timeout_s: float) -> Message:
    """Return the first message that comes back. Unreachable names the address and the reason."""
    shown = shown_address(address)
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await open_streams(address)
            try:
                writer.write(PREFACE)
                writer.writelines(encode(question))
                return _checked(await _read_one(reader), identity_of(writer.transport), shown)
            finally:
                writer.close()
    except TimeoutError:
        raise Unreachable(f"safekeeper at {shown} did not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise Unreachable(f"safekeeper at {shown} is unreachable: {error}") from error
    except _Closed as error:
        raise NoAnswer(f"{shown} does not speak walkeeper's protocol: {error}") from error
    except RemoteProtocolError as error:
        raise Unreachable(f"{shown} does not speak walkeeper's protocol: {error}") from error


def _checked(answer: Message, identity: Identity, shown: str) -> Message:
    """Return the answer; raise Unreachable if it is not that of the certificate's safekeeper."""
    if isinstance(answer, LogState):
        try:
            check_stated_id(identity, answer.acceptor_id)
        except Refused as error:
            raise Unreachable(f"{shown}: {error}") from error
    return answer


async def _read_one(reader: asyncio.StreamReader) -> Message:
    frames = FrameReader()
    while True:
        room = frames.buffer()
        data = await reader.read(len(room))
        if not data:
            raise _Closed("it closed the connection without an answer")
        room[: len(data)] = data
        for message in frames.received(len(data)):
            return message
