"""A primary sends no more bytes though its connection is up: a proxy or a load balancer answers for
it. The proposer asks it for a reply, and then leaves for a new connection."""

from __future__ import annotations

import asyncio
from asyncio import IncompleteReadError
from collections.abc import Callable

import pytest

from tests.proposer.test_logical_primary import POSITION, serve_until_stream
from tests.proposer.test_primary import connected, flush_lsn, on_server, server
from tests.proposer.test_replication_connection import Peer, served
from tests.support.entry_maker import begin, commit, insert, keepalive, relation
from tests.support.postgres_server import PostgresServer
from tests.support.quiet_clock import run_quietly
from tests.support.waiting import LIMIT_S, until
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import (
    Keepalive,
    StandbyStatus,
    copy_both_response,
    copy_data,
    unpack_from_receiver,
)
from walkeeper_proposer.consensus.proposer_events import Event, PrimaryIdentified, PrimaryLost
from walkeeper_proposer.logical.logical_check import LogEndLsn, LogicalEnd
from walkeeper_proposer.postgres import primary
from walkeeper_proposer.postgres.logical_primary import LogicalPrimary, Spooling
from walkeeper_proposer.postgres.primary import Primary

__all__ = ["server"]
ASKS, GIVES_UP = 4, 8


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary, "STATUS_S", 0.02)
    monkeypatch.setattr(primary, "RETRY_S", 0.01)
    monkeypatch.setattr(primary, "SILENT_STATUSES_ASK", ASKS)
    for kind in (Primary, LogicalPrimary):
        monkeypatch.setattr(kind, "_silent_statuses_first", GIVES_UP)


def physical(dsn: str) -> Primary:
    return Primary(dsn, "w", "w", apply_quorum=True, on_streaming=lambda _: None)


def logical(dsn: str, end: LogicalEnd | None = None) -> Primary:
    end = end or LogicalEnd()
    end.found = LogEndLsn(POSITION, Lsn(0x100), 1)
    return LogicalPrimary(
        dsn, "w", "w", publications=("p",), end=end, spooling=Spooling(3000),
        on_streaming=lambda _: None,
    )  # fmt: skip


async def statuses(peer: Peer) -> list[bool]:
    """List for each status if it asks for a reply, until the connection is closed."""
    asked: list[bool] = []
    try:
        while True:
            head = await peer.reader.readexactly(5)
            payload = await peer.reader.readexactly(int.from_bytes(head[1:], "big") - 4)
            if head[:1] == b"d":
                status = unpack_from_receiver(payload)
                assert isinstance(status, StandbyStatus)
                asked.append(status.reply_requested)
    except IncompleteReadError:
        return asked


@pytest.mark.parametrize("made", [physical, logical])
def test_a_server_that_says_nothing_is_asked_and_then_left(made: Callable[[str], Primary]) -> None:
    async def body() -> None:
        events: list[Event] = []

        def post(event: Event) -> None:
            events.append(event)
            if isinstance(event, PrimaryIdentified):
                shell.stream(POSITION, 1)

        async with asyncio.timeout(LIMIT_S), served() as (peer, dsn):
            shell = made(dsn)
            running = asyncio.create_task(shell.run(post))
            await until(lambda: peer.writers)
            await serve_until_stream(peer, origin=False)
            peer.writer.write(copy_both_response())
            peer.writer.write(copy_data(Keepalive(Lsn(0x100), 0, False).pack()))
            asked = await statuses(peer)
            assert (asked[0], asked[-1]) == (False, True)
            assert ASKS <= asked.index(True) < len(asked) <= 3 * GIVES_UP
            await until(lambda: len(peer.writers) == 2)  # it comes again
            running.cancel()
            await asyncio.wait([running])
        lost = [event for event in events if isinstance(event, PrimaryLost)]
        assert "nothing came" in lost[0].text

    run_quietly(body())


def test_a_server_that_may_be_decoding_is_given_twice_as_long_each_time() -> None:
    """Until a transaction has come: the keepalives from before what takes so long do not count."""
    whole = (begin(0x300), relation(9), insert(9), commit(0x300, 0x310))
    come = [(keepalive(0x100),), (keepalive(0x200),), (keepalive(0x280),), (), whole, ()]
    events: list[Event] = []

    async def body() -> list[int]:
        async with asyncio.timeout(LIMIT_S), served() as (peer, dsn):
            end = LogicalEnd()
            shell = logical(dsn, end)

            def post(event: Event) -> None:
                events.append(event)
                if isinstance(event, PrimaryIdentified):
                    shell.stream(end.stream.writer.position if end.stream else POSITION, 1)

            running = asyncio.create_task(shell.run(post))
            counts = []
            for number, sent in enumerate(come, 1):

                def is_there(seen: int = number) -> bool:
                    return len(peer.writers) == seen

                await until(is_there)
                await serve_until_stream(peer, origin=False)
                peer.writer.write(copy_both_response() + b"".join(map(copy_data, sent)))
                counts.append(len(await statuses(peer)))
            running.cancel()
            await asyncio.wait([running])
            return counts

    counts = run_quietly(body())
    assert [count // GIVES_UP for count in counts] == [1, 2, 4, 8, 1, 2], counts
    lost = [event.text for event in events if isinstance(event, PrimaryLost)]
    assert "for 0.32 s; it may be decoding, the next connection is given 0.64 s" in lost[1]


@pytest.mark.postgres
def test_an_idle_server_answers_and_silence_that_is_ours_does_not_count(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = 100  # statuses, two seconds: in them the server of a busy machine answers, too
    monkeypatch.setattr(Primary, "_silent_statuses_first", patience)

    async def body() -> None:
        async with connected(server.dsn()) as shell:
            await shell.stream(await flush_lsn(server))
            await asyncio.sleep(0.02 * patience * 1.5)
            shell.primary.pause()
            await asyncio.sleep(0.02 * patience * 1.5)
            shell.primary.resume()
            await asyncio.sleep(0.02 * patience * 1.5)
            assert not shell.of(PrimaryLost), shell.of(PrimaryLost)
            server.sql("INSERT INTO t VALUES (1)")
            end_lsn = await flush_lsn(server)
            await until(lambda: shell.end_lsn >= end_lsn)

    on_server(body)
