"""`proposer --follow`: wait beside a standby until that server is promoted. Shell.

It sends nothing to a safekeeper meanwhile, so no ballot is bumped. A proposer begins its life when
its server writes WAL. The gate decides first, as always (docs/steps.md#check-of-the-primary).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from walkeeper_proposer.postgres.primary import is_in_recovery
from walkeeper_proposer.postgres.replication_connection import ReplicationConnection, Unavailable

logger = logging.getLogger("walkeeper.follow")

LOOK_S = 0.25
RETRY_S = 0.5


async def wait_promoted(dsn: str, application_name: str, *, on_waiting: Callable[[], None]) -> None:
    """Returns when the server at `dsn` is up and not in recovery; at once if it is so already.

    `on_waiting` is called once, when there is something to wait for. Refused: the connection is
    refused for good, and the text says why.
    """
    told = ""
    while True:
        try:
            await _watch(dsn, application_name, on_waiting)
            return
        except Unavailable as error:
            if str(error) != told:
                logger.info("%s; waiting", error)
            told = str(error)
        on_waiting()
        await asyncio.sleep(RETRY_S)


async def _watch(dsn: str, application_name: str, on_waiting: Callable[[], None]) -> None:
    """Over one connection. Unavailable: it was lost, or there is none."""
    connection = await ReplicationConnection.open(dsn, f"{application_name}_follow")
    try:
        told = False
        while await is_in_recovery(connection):
            if not told:
                logger.info("the server is a standby; waiting until it is promoted")
            told = True
            on_waiting()
            await asyncio.sleep(LOOK_S)
    finally:
        connection.close()
