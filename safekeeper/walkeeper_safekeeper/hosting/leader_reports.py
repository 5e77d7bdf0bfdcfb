"""Reports of this log to the proposer that leads it: its standbys, and its consumers' slots.

    report_standbys()   the standbys' feedback at once, as a `remote_apply` commit may wait for it
    report_slots()      a logical log's slots, once a second, new and dropped slots at once

An asyncio shell, which decides nothing of the consensus.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.consumer_slots import ConsumerSlots
from walkeeper_common.wire.messages import Feedback
from walkeeper_safekeeper.consensus.acceptor_events import StandbysReported
from walkeeper_safekeeper.proposer_sessions import ProposerSessions
from walkeeper_safekeeper.replication.logical_log import LogicalLog
from walkeeper_safekeeper.replication.served_log import Readers
from walkeeper_safekeeper.safekeeper_driver import Driver

FEEDBACK_S = 0.01
SLOTS_S = 0.1
MOVES_TICKS = 10  # consumers' moves are reported once a second, new and dropped slots at once


async def report_standbys(readers: Readers, driver: Driver) -> NoReturn:
    """Report the standbys' feedback at once, but not more often than FEEDBACK_S.

    A `remote_apply` commit may wait for it; and standbys send feedback for each flush.
    """
    heard = asyncio.Event()
    readers.on_feedback = heard.set
    while True:
        await heard.wait()
        heard.clear()
        feedback = feedback_of(readers)
        if feedback != driver.acceptor.feedback:
            driver.post(StandbysReported(feedback))
            await asyncio.sleep(FEEDBACK_S)


def feedback_of(readers: Readers) -> Feedback:
    """Return the least of what the readers report, 0 for what none of them reports."""
    applied = [r.replay_lsn for r in readers if r.replay_lsn]
    xmins = [r.xmin for r in readers if r.xmin]
    catalog_xmins = [r.catalog_xmin for r in readers if r.catalog_xmin]
    return Feedback(
        min(applied, default=Lsn(0)), min(xmins, default=0), min(catalog_xmins, default=0)
    )


async def report_slots(logical: LogicalLog, driver: Driver, sessions: ProposerSessions) -> NoReturn:
    """Report slots that the log lacks. Ask the proposer for the published tables if a
    subscription waits for them. Run until cancelled."""
    ticks = 0
    while True:
        await asyncio.sleep(SLOTS_S)
        leader = sessions.by_connection.get(driver.acceptor.appender or 0)
        if leader is None:
            continue
        query = logical.tables_query()
        if query is not None:
            leader.send(query)
        news = logical.positions.news()
        ticks += 1
        is_urgent = any(one.is_new or one.lsn is None for one in news)
        if is_urgent or (news and ticks >= MOVES_TICKS):
            ticks = 0
            leader.send(ConsumerSlots(news))
