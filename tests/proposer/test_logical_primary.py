"""The logical stream's shell before a server that is played: what it asks for, and asks next."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from tests.proposer.test_replication_connection import Peer, served
from tests.support.entry_maker import insert, piece, relation
from tests.support.waiting import LIMIT_S, until
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import (
    Column,
    SqlRefused,
    copy_both_response,
    copy_data,
    error_response,
    ready_for_query,
    result,
)
from walkeeper_proposer.consensus.proposer_events import Event, PrimaryIdentified
from walkeeper_proposer.logical.logical_check import LogEndLsn, LogicalEnd
from walkeeper_proposer.postgres import primary
from walkeeper_proposer.postgres.logical_primary import LogicalPrimary, Spooling
from walkeeper_proposer.postgres.replication_connection import InternalError

POSITION = Lsn(1 << 24)
SLOT_ROW = ("logical", "pgoutput", "shop", "0/100", "reserved", None)
ANSWERS = {
    "IDENTIFY_SYSTEM": ("7", "1", "0/200", "shop"),
    "SHOW wal_segment_size": ("16MB",),
    "SHOW fsync": ("on",),
    "SHOW full_page_writes": ("on",),
    "SHOW in_hot_standby": ("off",),
    "SHOW transaction_read_only": ("off",),
    "SHOW server_encoding": ("UTF8",),
    "SELECT slot_type": SLOT_ROW,
    "SELECT pubname": ("p",),
}


async def serve_until_stream(peer: Peer, *, origin: bool) -> str:
    """Answer all commands; return the START_REPLICATION that comes in the end."""
    while True:
        command = await peer.command()
        if command.startswith("START_REPLICATION"):
            return command
        found = [row for start, row in ANSWERS.items() if command.startswith(start)]
        rows = found or ([("1",)] if origin and "pg_replication_origin" in command else [])
        columns = [Column(f"c{number}") for number in range(len(rows[0]) if rows else 2)]
        peer.writer.write(result(columns, rows, "SELECT") + ready_for_query())


def failed(state: str, text: str) -> bytes:
    return error_response(SqlRefused(state, text), "ERROR")


FULL = b"".join(copy_data(each) for each in piece(relation(9), *[insert(9, b"v" * 1000)] * 5))
MAPPED = failed("XX000", 'could not map filenumber "base/5/16637" to relation OID')
TERMINATED = failed("57P01", "terminating connection due to administrator command")


def asked(
    *ends: bytes, bytes_max: int = 3000, messages: bool = False, origin: bool = False
) -> list[bool]:
    """Return for each connection if it streams open transactions; `ends` end all but the last."""
    streaming: list[bool] = []

    async def body() -> None:
        end = LogicalEnd()
        events: list[Event] = []
        async with asyncio.timeout(LIMIT_S), served() as (peer, dsn):
            shell = LogicalPrimary(
                dsn, "w", "w", publications=("p",), messages=messages, end=end,
                spooling=Spooling(bytes_max), on_streaming=lambda _: None,
            )  # fmt: skip

            def post(event: Event) -> None:
                events.append(event)
                if isinstance(event, PrimaryIdentified):
                    stream = end.stream
                    shell.stream(POSITION if stream is None else stream.writer.position, 1)

            end.found = LogEndLsn(POSITION, Lsn(0x100), 1)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(shell.run(post))
                for number, ended in enumerate((*ends, TERMINATED), 1):

                    def is_there(seen: int = number) -> bool:
                        return len(peer.writers) >= seen

                    await until(is_there)
                    command = await serve_until_stream(peer, origin=origin)
                    streaming.append("streaming 'on'" in command)
                    peer.writer.write(copy_both_response() + ended)
                    await peer.writer.drain()
                running.cancel()

    uvloop.run(body())
    return streaming


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary, "RETRY_S", 0.01)


@pytest.mark.parametrize("failed", [FULL, MAPPED], ids=["spool", "server"])
def test_one_connection_asks_for_whole_transactions_when_open_ones_have_failed(
    failed: bytes,
) -> None:
    assert asked(failed, TERMINATED) == [True, False, True]


def test_a_lost_connection_is_no_reason_to_stream_nothing() -> None:
    assert asked(TERMINATED, TERMINATED) == [True, True, True]


def test_an_internal_error_without_streams_needs_somebody() -> None:
    with pytest.raises(ExceptionGroup) as found:
        asked(MAPPED, MAPPED, TERMINATED)
    assert found.group_contains(InternalError, match="could not map filenumber")


def test_changes_whose_facts_streams_omit_are_not_streamed() -> None:
    assert asked(messages=True) == [False]
    assert asked(origin=True) == [False]
    assert asked(bytes_max=0) == [False]
