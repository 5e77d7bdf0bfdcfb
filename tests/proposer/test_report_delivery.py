"""The delivery of reports to safekeepers of this version and of an older one, on real sockets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from walkeeper_common.history import NO_BALLOT, History
from walkeeper_common.lsn import ZERO_LSN
from walkeeper_common.wire.framing import PREFACE, FrameReader, Message, encode
from walkeeper_common.wire.members_report import MembersReport
from walkeeper_common.wire.messages import AcceptorGreeting, Reject, RejectCode
from walkeeper_common.wire.primary_report import PrimaryReport
from walkeeper_common.wire.requests import LogQuery, LogState
from walkeeper_proposer.report_delivery import ReportDelivery

PRIMARY = PrimaryReport("main", b"p" * 16, True, True, "sync", 5, 0, 0, (), "")
AWAY = MembersReport("main", b"p" * 16, ())
REPORTS = (PRIMARY, AWAY)
ENDED = 10.0


def greeting() -> AcceptorGreeting:
    return AcceptorGreeting(
        3, b"i" * 16, b"u" * 16, None, NO_BALLOT, History(()), *(ZERO_LSN,) * 4, None
    )


@dataclass
class Safekeeper:
    """A listener that notes the kinds of messages, and knows `MembersReport` or does not."""

    knows_members: bool
    received: list[type[Message]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(PREFACE)) == PREFACE
        frames = FrameReader()
        while data := await reader.read(len(frames.buffer())):
            frames.buffer()[: len(data)] = data
            for message in frames.received(len(data)):
                self.received.append(type(message))
                if isinstance(message, MembersReport) and not self.knows_members:
                    refusal = Reject(RejectCode.REFUSED, "unknown message", NO_BALLOT)
                    writer.writelines(encode(refusal))
                    writer.close()
                    return
                if isinstance(message, LogQuery):
                    state = LogState(3, b"i" * 16, b"u" * 16, NO_BALLOT, None)
                    writer.writelines(encode(state))
        writer.close()

    def delivered_to(self, *greetings: AcceptorGreeting | None) -> list[list[type[Message]]]:
        """Return what arrives with the reports that follow each of these greetings."""
        return asyncio.run(self._delivered_to(greetings))

    async def _delivered_to(
        self, greetings: tuple[AcceptorGreeting | None, ...]
    ) -> list[list[type[Message]]]:
        ended = asyncio.Queue[None]()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self.serve(reader, writer)
            finally:
                ended.put_nowait(None)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        delivery, found = ReportDelivery("main"), []
        for each in greetings:
            await delivery.send(address, REPORTS, each)
            await asyncio.wait_for(ended.get(), ENDED)
            found.append(self.received[:])
            self.received.clear()
        server.close()
        return found


def test_an_older_safekeeper_gets_the_report_that_it_refused_once_a_greeting() -> None:
    """It logged a warning and an audit line every ten seconds."""
    first, second = greeting(), greeting()
    older = Safekeeper(knows_members=False)
    assert older.delivered_to(first, first, first, second, second) == [
        [PrimaryReport, MembersReport],
        [PrimaryReport],
        [PrimaryReport],
        [PrimaryReport, MembersReport],
        [PrimaryReport],
    ]


def test_a_safekeeper_of_this_version_gets_every_report_and_one_question() -> None:
    first = greeting()
    newer = Safekeeper(knows_members=True)
    assert newer.delivered_to(first, first, first) == [
        [PrimaryReport, MembersReport, LogQuery],
        [PrimaryReport, MembersReport],
        [PrimaryReport, MembersReport],
    ]


def test_a_safekeeper_that_has_not_greeted_gets_the_report_on_the_primary() -> None:
    assert Safekeeper(knows_members=True).delivered_to(None) == [[PrimaryReport]]


def test_a_safekeeper_that_is_away_says_nothing_about_its_version() -> None:
    async def run() -> list[type[Message]]:
        delivery, known = ReportDelivery("main"), greeting()
        safekeeper, ended = Safekeeper(knows_members=True), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await safekeeper.serve(reader, writer)
            ended.set()

        gone = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = gone.sockets[0].getsockname()
        gone.close()
        await gone.wait_closed()
        await delivery.send(address, REPORTS, known)
        back = await asyncio.start_server(serve, *address)
        await delivery.send(address, REPORTS, known)
        await asyncio.wait_for(ended.wait(), ENDED)
        back.close()
        return safekeeper.received

    assert asyncio.run(run()) == [PrimaryReport, MembersReport, LogQuery]
