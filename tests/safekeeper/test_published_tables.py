"""The answer to a subscription's query has the tables that the primary published then."""

from __future__ import annotations

import asyncio

import pytest

from tests.safekeeper.logical_consumer import SEGMENT, START, Kept, Made
from tests.support.entry_maker import SETTINGS, new_stream
from tests.support.waiting import until
from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_common.wire.consumer_slots import TablesQuery
from walkeeper_proposer.logical.change_stream import Published
from walkeeper_safekeeper.replication.logical_log import LogicalLog


def test_the_question_for_the_published_tables_repeats_until_the_log_has_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer to another query does not count, and none is waited for without end."""
    made, stream = Kept(), new_stream(START, SEGMENT, settings={**SETTINGS, "encoding": "UTF8"})

    def write(table: str, token: str) -> None:
        tables = (("public", table),)
        stream.on_published(Published(tables, clashing=tables), (token,))
        made.log.take(stream)
        made.readable_lsn = made.log.end

    async def ask() -> None:
        logical = LogicalLog(made.served())
        stream.on_connected()
        write("before", "other")
        asking = asyncio.create_task(logical.published_now("mine"))
        assert await until(logical.tables_query) == TablesQuery(("mine",))
        write("other", "not mine")
        write("asked", "mine")
        write("after", "later")
        await logical.refresh()
        answer = await asking
        assert answer.tables == answer.clashing == (("public", "asked"),)
        assert (await logical.known_settings()).clashing == (), "the next one asks anew"
        assert logical.tables_query() is None
        monkeypatch.setattr("walkeeper_safekeeper.replication.logical_log.REPLICATE_S", 0.05)
        with pytest.raises(SqlRefused, match="no quorum has an answer") as caught:
            await logical.published_now("late")
        assert caught.value.sqlstate == "57P03" and logical.tables_query() is None

    asyncio.run(ask())


def test_a_proposer_that_is_too_old_to_say_what_is_published_is_named() -> None:
    made = Made(1, 5)
    with pytest.raises(SqlRefused, match="older version"):
        asyncio.run(LogicalLog(made.served()).published_now("mine"))
