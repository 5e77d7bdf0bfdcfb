"""One question to one safekeeper: connect, ask, read the answer. For create and status. Shell."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused, RemoteProtocolError, Unreachable
from walkeeper_common.shell.safekeeper_links.safekeeper_connection import open_streams
from walkeeper_common.shell.safekeeper_links.socket_reasons import reason_of
from walkeeper_common.shell.tls.tls_transport import identity_of
from walkeeper_common.wire.conversation import Closed, Conversation
from walkeeper_common.wire.framing import Message


class NoAnswer(Unreachable):
    """The safekeeper closed the connection on the question: its version does not know it."""


class Hangs(Unreachable):
    """The safekeeper accepted the connection and said nothing in time: it or its disk hangs."""


async def ask(
    address: Address, question: Message, timeout_s: float, *, after: Sequence[Message] = ()
) -> Message:
    """Return the first message that comes back. Unreachable names the address and the reason.

    Messages in `after` are sent before the question, and have no answer."""
    shown, late = shown_address(address), Unreachable
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await open_streams(address)
            late = Hangs
            try:
                conversation = Conversation(identity_of(writer.transport))
                writer.write(b"".join(map(conversation.ask, (*after, question))))
                return await _first(conversation, reader)
            finally:
                writer.close()
    except TimeoutError:
        raise late(f"safekeeper at {shown} did not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise Unreachable(f"safekeeper at {shown} is unreachable: {reason_of(error)}") from error
    except Closed as error:
        raise NoAnswer(f"{shown} does not speak walkeeper's protocol: {error}") from error
    except Refused as error:
        raise Unreachable(f"{shown}: {error}") from error
    except RemoteProtocolError as error:
        raise Unreachable(f"{shown} does not speak walkeeper's protocol: {error}") from error


async def _first(conversation: Conversation, reader: asyncio.StreamReader) -> Message:
    while True:
        room = conversation.buffer()
        data = await reader.read(len(room))
        room[: len(data)] = data
        for message in conversation.received(len(data)):
            return message
