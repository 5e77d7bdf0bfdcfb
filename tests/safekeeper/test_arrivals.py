"""The port in a flood: who waits, who ends, and who does not notice it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import psycopg
import pytest
import uvloop

from tests.safekeeper.test_password_login import USERS, FixedUsers, dsn
from tests.support.raw_client import RawClient
from tests.support.served_port import Served, with_port
from tests.support.waiting import until
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_common.wire.framing import PREFACE, encode
from walkeeper_common.wire.messages import Reject
from walkeeper_common.wire.requests import LogQuery
from walkeeper_safekeeper import server
from walkeeper_safekeeper.connections.arrivals import Arrivals
from walkeeper_safekeeper.connections.connection_limits import Limits
from walkeeper_safekeeper.connections.new_connection import Opening, Port
from walkeeper_safekeeper.connections.waiting_line import Allowance, LineLimits
from walkeeper_safekeeper.proposer_door import ProposerDoor
from walkeeper_safekeeper.server import PlainPeers

ONE_TURN = LineLimits(Allowance(1, 0.001), Allowance(9, 9.0), network_max=20)
T = TypeVar("T")
LOOPS = pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
plain_port = partial(with_port, file=None, plain=PlainPeers())


def arrivals(limits: LineLimits) -> Callable[[Audit], Arrivals]:
    return lambda audit: Arrivals(audit, limits)


async def visit(port: int, first: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    client = await RawClient.open(port)  # `with_port` closes it
    client.writer.write(first)
    await client.writer.drain()
    return client.reader, client.writer


async def without_waiting(served: Served, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work; fail if a connection waits meanwhile."""
    task = asyncio.create_task(work)
    await until(lambda: task.done() or len(served.arrivals) > 0)
    if not task.done():
        task.cancel()
        pytest.fail("a connection waits")
    return await task


@LOOPS
def test_a_connection_without_a_turn_is_not_looked_at(loop_factory: LoopFactory) -> None:
    async def story(served: Served) -> None:
        first, _ = await visit(served.port, b"garbage")
        assert await first.read()
        waiting = [await visit(served.port, b"garbage" * 100) for _ in range(10)]
        await until(lambda: len(served.arrivals) == 10)
        for _ in range(20):
            await asyncio.sleep(0)
        assert served.audit.refusals == {"protocol": 1}
        assert not any(reader.at_eof() for reader, _ in waiting)

    plain_port(story, arrivals=arrivals(ONE_TURN), loop_factory=loop_factory)


@LOOPS
def test_only_a_connection_that_enters_has_a_transport(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand connections may wait, and a flood of those that end has no bound at all."""
    made = list[Opening]()

    class Counted(Opening):
        def __init__(self, port: Port) -> None:
            super().__init__(port)
            made.append(self)

    monkeypatch.setattr(server, "Opening", Counted)
    limits = replace(ONE_TURN, network_max=5)

    async def story(served: Served) -> None:
        await visit(served.port)
        for _ in range(10):
            with suppress(ConnectionResetError):
                await visit(served.port, bytes(10_000))
        await until(lambda: served.audit.refusals["crowd"] == 5)
        assert (len(served.arrivals), len(made)) == (5, 1)

    plain_port(story, arrivals=arrivals(limits), loop_factory=loop_factory)


@LOOPS
def test_connections_beyond_the_bound_of_a_host_end_at_once(loop_factory: LoopFactory) -> None:
    limits = replace(ONE_TURN, network_max=3)

    async def story(served: Served) -> None:
        kept = [await visit(served.port) for _ in range(4)]
        for _ in range(5):
            reader, _ = await visit(served.port)
            with pytest.raises(ConnectionResetError):  # the kernel keeps nothing of it
                await reader.read()
        assert served.audit.refusals == {"crowd": 5}
        assert "reason=crowd" in served.lines[-1]
        assert not any(reader.at_eof() for reader, _ in kept)

    plain_port(story, arrivals=arrivals(limits), loop_factory=loop_factory)


def test_all_that_a_peer_sends_while_it_waits_arrives() -> None:
    limits = LineLimits(Allowance(1, 50.0), Allowance(9, 50.0))
    sent = PREFACE + bytes(range(256)) * 30

    async def story(served: Served) -> None:
        served.door.closes = False
        for _ in range(3):
            await visit(served.port, sent)
        await until(lambda: served.door.received_bytes == 3 * len(sent))
        assert all(each.startswith(PREFACE) for each in served.door.received)

    plain_port(story, arrivals=arrivals(limits))


@LOOPS
@pytest.mark.parametrize("first", [b"", b"garbage"])
def test_connections_that_hung_up_take_no_turn(first: bytes, loop_factory: LoopFactory) -> None:
    limits = LineLimits(Allowance(1, 4.0), Allowance(9, 9.0), network_max=100)

    async def story(served: Served) -> None:
        await visit(served.port, b"garbage")
        for _ in range(80):
            _, writer = await visit(served.port, first)
            writer.close()
        await visit(served.port, PREFACE)
        await until(lambda: served.door.identities or served.audit.refusals["protocol"] > 20)
        assert served.audit.refusals["protocol"] <= 20

    plain_port(story, arrivals=arrivals(limits), loop_factory=loop_factory)


def test_a_stop_ends_those_that_wait() -> None:
    async def story(served: Served) -> None:
        await visit(served.port)
        for _ in range(3):
            await visit(served.port, b"x")
        await until(lambda: len(served.arrivals) == 3)
        served.server.cancel()
        await until(lambda: served.server.done())
        assert len(served.arrivals) == 0

    plain_port(story, arrivals=arrivals(ONE_TURN))


class NoLogs:
    """A catalogue that refuses every request."""

    def logs(self) -> list[Any]:
        return []

    def hosted(self, cluster: str) -> Reject:
        raise AssertionError

    async def administer(self, ask: object) -> Any:
        return ask  # an answer as good as any


def test_peers_that_send_a_message_do_not_wait() -> None:
    made = list[Arrivals]()

    def keep(audit: Audit) -> Arrivals:
        made.append(Arrivals(audit, ONE_TURN))
        return made[0]

    async def story(served: Served) -> None:
        served.door.instead = ProposerDoor(
            Limits(10, reserved=1, address_max=5),
            NoLogs(),
            lambda work, name: asyncio.create_task(work, name=name),
            served.audit,
            made[0],
        )
        query = b"".join(map(bytes, encode(LogQuery("main"))))

        async def ask() -> bytes:
            reader, _ = await visit(served.port, PREFACE + query)
            return await reader.readexactly(len(query))

        for _ in range(5):
            assert await without_waiting(served, ask()) == query

    plain_port(story, arrivals=keep)


def test_clients_that_log_in_do_not_wait() -> None:
    async def story(served: Served) -> None:
        connect = psycopg.AsyncConnection.connect
        for _ in range(5):
            async with await without_waiting(served, connect(dsn(served.port, "alice"))):
                pass
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            await connect(dsn(served.port, "alice", "wrong"))
        await until(lambda: not any("client" in task.get_name() for task in asyncio.all_tasks()))
        await visit(served.port, b"garbage")
        await until(lambda: len(served.arrivals) > 0 or served.audit.refusals["protocol"] > 0)
        assert len(served.arrivals) == 1

    plain_port(story, users=FixedUsers(USERS), arrivals=arrivals(ONE_TURN))
