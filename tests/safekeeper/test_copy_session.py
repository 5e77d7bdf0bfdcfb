"""A subscriber gets a row of the copy only if a failover cannot lose it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from tests.safekeeper.logical_consumer import SEGMENT, START, Kept
from tests.support.entry_maker import SETTINGS, new_stream
from tests.support.waiting import until
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_proposer.logical.change_stream import Published
from walkeeper_safekeeper.replication.client_connection import ClientConnection
from walkeeper_safekeeper.replication.copy_session import CopySession
from walkeeper_safekeeper.replication.logical_log import LogicalLog
from walkeeper_safekeeper.replication.primary_snapshot import PrimarySnapshot


class Snapshot:
    """A transaction of the primary on a timeline, which sees it up to an LSN."""

    def __init__(self, lsn: Lsn, timeline: int) -> None:
        self.lsn, self.timeline = lsn, timeline

    async def take(self) -> Lsn:
        return self.lsn


async def taken(made: Kept, lsn: Lsn, timeline: int = 1) -> Lsn:
    """Take a snapshot at `lsn`, while the primary answers what is published at 0/100."""
    stream = new_stream(START, SEGMENT, settings={**SETTINGS, "encoding": "UTF8"})
    stream.on_connected()
    made.log.take(stream)
    made.readable_lsn = made.log.end
    logical = LogicalLog(made.served())
    client = cast(ClientConnection, SimpleNamespace())
    snapshot = cast(PrimarySnapshot, Snapshot(lsn, timeline))
    copying = CopySession(logical, client, snapshot, 1.0)
    asking = asyncio.create_task(copying.snapshot("mine"))
    await until(logical.tables_query)
    stream.on_published(Published((("public", "t"),)), ("mine",))
    made.log.take(stream)
    made.readable_lsn = made.log.end
    await logical.refresh()
    return await asking


@pytest.fixture(autouse=True)
def _is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walkeeper_safekeeper.replication.logical_log.REPLICATE_S", 1.0)


def test_a_copy_begins_when_a_quorum_has_the_log_up_to_it() -> None:
    assert asyncio.run(taken(Kept(), Lsn(0))) == Lsn(0)
    with pytest.raises(SqlRefused, match="it does not reach 0/FFFFFF") as caught:
        asyncio.run(taken(Kept(), Lsn(0xFFFFFF)))
    assert caught.value.sqlstate == "57P03"


def test_a_server_on_another_timeline_copies_nothing() -> None:
    with pytest.raises(SqlRefused, match="on timeline 7, and the log on 1") as caught:
        asyncio.run(taken(Kept(), Lsn(0), timeline=7))
    assert caught.value.sqlstate == "57P03"
