"""Sends the leader's reports to safekeepers, each time on a connection of its own. A shell.

    ReportDelivery(cluster).send(address, reports, greeting)

A safekeeper of an older version closes the connection on a report that it does not know, and logs a
warning. The proposer asks a question after the first reports that follow a greeting. Without its
answer, that safekeeper gets the first report alone until it greets again. Another version greets
anew, since it is another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from walkeeper_common.addresses import Address
from walkeeper_common.errors import Unreachable
from walkeeper_common.shell.safekeeper_links.safekeeper_client import NoAnswer, ask
from walkeeper_common.shell.safekeeper_links.safekeeper_connection import open_streams
from walkeeper_common.shell.tls.tls_transport import identity_of
from walkeeper_common.wire.conversation import Conversation
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import AcceptorGreeting
from walkeeper_common.wire.requests import LogQuery, LogState

SEND_TIMEOUT_S = 5.0


class ReportDelivery:
    """Remembers for each address whether the safekeeper knows all reports, until it greets anew."""

    def __init__(self, cluster: str) -> None:
        self._question = LogQuery(cluster)
        self._knows: dict[Address, tuple[AcceptorGreeting, bool]] = {}

    async def send(
        self, address: Address, reports: Sequence[Message], greeting: AcceptorGreeting | None
    ) -> None:
        """Send the reports that it knows, the first one always; no answer is no error."""
        greeted, knows_all = self._knows.get(address, (None, False))
        try:
            if greeting is not None and greeted is not greeting:
                self._knows[address] = greeting, await self._is_answered(address, reports)
            else:
                await _send(address, reports if knows_all else reports[:1])
        except (OSError, TimeoutError, Unreachable):
            return  # it learns the next reports

    async def _is_answered(self, address: Address, reports: Sequence[Message]) -> bool:
        """Send all reports and a question; return False if the safekeeper refuses them.

        Raise Unreachable if it is away, as that says nothing about its version."""
        try:
            answer = await ask(address, self._question, SEND_TIMEOUT_S, after=reports)
        except NoAnswer:
            return False
        return isinstance(answer, LogState)


async def _send(address: Address, reports: Sequence[Message]) -> None:
    """Connect, send and close."""
    async with asyncio.timeout(SEND_TIMEOUT_S):
        _, writer = await open_streams(address)
        try:
            conversation = Conversation(identity_of(writer.transport))
            writer.writelines([conversation.ask(report) for report in reports])
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        finally:
            writer.close()
