"""`proposer --follow`: wait beside a standby until that server is promoted. Shell.

It sends nothing to a safekeeper meanwhile, so no ballot is bumped. A proposer begins its life when
its server writes WAL. The check of the primary decides first, as always
(docs/steps.md#check-of-the-primary). A standby of a physical log gets its retention slot meanwhile
(standby_retention.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from walkeeper_common.operator_text.last_text import LastText
from walkeeper_proposer.postgres.primary_identity import is_in_recovery
from walkeeper_proposer.postgres.replication_connection import ReplicationConnection, Unavailable
from walkeeper_proposer.postgres.standby_retention import keep_on_standby

logger = logging.getLogger("walkeeper.follow")

LOOK_S = 0.1  # on a connection that is open; commits wait for it after a promotion
RETRY_S = 0.5


async def wait_promoted(
    dsn: str, application_name: str, *, retention: str | None, on_waiting: Callable[[], None]
) -> None:
    """Wait until the server at `dsn` is up and not in recovery.

    Call `on_waiting` once, before a wait. Raise Refused, with the reason, if the server refuses
    the connection for good. `retention`: the slot that a standby gets, or None.
    """
    last_error = LastText()
    while True:
        try:
            await _watch(dsn, application_name, retention, on_waiting)
            return
        except Unavailable as error:
            if last_error.changes_to(error):
                logger.info("%s; waiting", error)
        on_waiting()
        await asyncio.sleep(RETRY_S)


async def _watch(
    dsn: str, application_name: str, retention: str | None, on_waiting: Callable[[], None]
) -> None:
    """Wait over one connection; raise Unavailable if it is lost, or impossible."""
    connection = await ReplicationConnection.open(dsn, f"{application_name}_follow")
    keeping: asyncio.Task[None] | None = None
    try:
        while await is_in_recovery(connection):
            if keeping is None:
                logger.info("the server is a standby; waiting until it is promoted")
                keeping = asyncio.create_task(_keep(dsn, retention), name="retain on the standby")
            on_waiting()
            await asyncio.sleep(LOOK_S)
    finally:
        if keeping is not None:
            keeping.cancel()
            await asyncio.wait([keeping])
        connection.close()


async def _keep(dsn: str, retention: str | None) -> None:
    if retention is not None:
        await keep_on_standby(dsn, retention)
