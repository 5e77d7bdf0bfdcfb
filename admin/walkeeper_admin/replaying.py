"""`settle --replayed-by DSN`: a standby may be promoted when this returns.

Contract: raise Refused if the standby has not replayed the whole log in time, or is no standby. A
tool that promotes by an exit code (Patroni's pre_promote) then does not promote. The command asks,
and makes the retention slot (R22).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from walkeeper_admin.promotion_number import prepare_number
from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_proposer.consensus.proposer_events import Settled
from walkeeper_proposer.postgres.primary_retention import retention_slot
from walkeeper_proposer.postgres.primary_sql import connected
from walkeeper_proposer.postgres.standby_retention import reserve
from walkeeper_restore.standby_check.checking import Where
from walkeeper_restore.standby_check.replayed_wal import refuse_another_branch, vouch

POLL_S = 0.1
SAY_EVERY_S = 10.0
LOOK = "SELECT pg_is_in_recovery(), pg_last_wal_replay_lsn()::text"


async def make_promotable(
    dsn: str,
    safekeepers: Sequence[Address],
    cluster: str,
    end: Settled,
    *,
    slot: str,
    timeout_s: float,
    say: Callable[[str], None],
) -> tuple[Lsn, int | None]:
    """Return the LSN that the standby has replayed, and the timeline that its promotion takes.

    Raise Refused if it has not replayed the whole log in time, or has other WAL (R23).
    """
    await prepare(dsn, safekeepers, cluster, slot=slot, say=say)
    return await finish(dsn, safekeepers, cluster, end, timeout_s=timeout_s, say=say)


async def prepare(
    dsn: str, safekeepers: Sequence[Address], cluster: str, *, slot: str, say: Callable[[str], None]
) -> None:
    """Do what needs no end of the log: refuse another branch, and make the retention slot."""
    await refuse_another_branch(dsn, Where(tuple(safekeepers), cluster))
    await make_retention_slot(dsn, slot, say=say)


async def finish(
    dsn: str,
    safekeepers: Sequence[Address],
    cluster: str,
    end: Settled,
    *,
    timeout_s: float,
    say: Callable[[str], None],
) -> tuple[Lsn, int | None]:
    """Do the rest of make_promotable, for a standby that is prepared."""
    where = Where(tuple(safekeepers), cluster)
    replayed_lsn = await wait_replayed(dsn, end.consensus_lsn, timeout_s=timeout_s, say=say)
    await vouch(dsn, where, timeout_s=timeout_s, say=say)
    number = await prepare_number(dsn, safekeepers, cluster, after=end.timeline, say=say)
    return replayed_lsn, number


async def wait_replayed(
    dsn: str, end_lsn: Lsn, *, timeout_s: float, say: Callable[[str], None]
) -> Lsn:
    """Wait until the standby at `dsn` has replayed to `end_lsn`; return how far it has."""
    loop = asyncio.get_running_loop()
    deadline, say_at = loop.time() + timeout_s, loop.time() + SAY_EVERY_S
    async with connected(dsn) as sql:
        while True:
            found = await sql.fetchrow(LOOK)
            assert found is not None, LOOK
            in_recovery, text = found
            if not in_recovery:
                raise Refused(f"the server at {dsn!r} is no standby; --replayed-by waits for one")
            replayed_lsn = Lsn(0) if text is None else Lsn.parse(text)
            if replayed_lsn >= end_lsn:
                return replayed_lsn
            state = f"the standby has replayed up to {replayed_lsn}, the log ends at {end_lsn}"
            if loop.time() > deadline:
                raise Refused(
                    f"{state}: it did not replay the rest within {timeout_s:g} s. A proposer would "
                    "refuse it if you promoted it now. Its primary_conninfo has to name a "
                    "safekeeper, or its restore_command to be `walkeeper restore`. If a primary "
                    "fed it, it may have other WAL than the log: see its log, and use pg_rewind. "
                    "Then run this again"
                )
            if loop.time() > say_at:
                say(f"waiting: {state} ({(end_lsn - replayed_lsn) >> 20} MB to go)")
                say_at = loop.time() + SAY_EVERY_S
            await asyncio.sleep(POLL_S)


async def make_retention_slot(dsn: str, slot: str, *, say: Callable[[str], None]) -> None:
    """Make the retention slot on the standby, for the comparison after its promotion (R22).

    A failure is a warning: most promotions pass without the slot."""
    name = retention_slot(slot)
    try:
        await reserve(dsn, name)
    except Refused as error:
        say(
            f"no replication slot {name} on the standby: {error}. Promoted behind a long "
            "transaction, it may be refused; connect with a role that has REPLICATION"
        )
