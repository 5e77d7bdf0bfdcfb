"""Each flood pays as many visits as it says, and honest peers come in beside it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import psycopg
import pytest

from tests.proof.floods.attacks import ATTACKS, MUTATED, Attack, besiege
from tests.safekeeper.test_password_login import USERS, FixedUsers, dsn
from tests.support.served_port import Served, with_port
from tests.support.waiting import until
from walkeeper_safekeeper.connections.arrivals import Arrivals
from walkeeper_safekeeper.connections.waiting_line import Allowance, LineLimits
from walkeeper_safekeeper.server import PlainPeers

VISITS = 7


@pytest.mark.parametrize("attack", [*ATTACKS, MUTATED], ids=lambda each: each.name)
def test_a_flood_pays_the_visits_that_it_counts(attack: Attack) -> None:
    paid, seen = asyncio.run(_visited(attack))
    assert paid == seen == VISITS


async def _visited(attack: Attack) -> tuple[int, int]:
    """Return the visits that the flood counts, and those that a server has seen."""
    seen = 0

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        writer.close()

    server = await asyncio.start_server(end, "127.0.0.1", 0)
    async with server:
        address = server.sockets[0].getsockname()[:2]
        paid = await besiege(replace(attack, at_once=3), [address], seed=1, most=VISITS)
    return paid, seen


@pytest.mark.parametrize("flood", ["silent", "passwords", "claims", "garbage"])
def test_an_honest_login_beside_a_flood_from_its_host_succeeds(flood: str) -> None:
    limits = LineLimits(Allowance(5, 100.0), Allowance(10, 150.0), network_max=100)
    attack = next(each for each in ATTACKS if each.name == flood)

    async def story(served: Served) -> None:
        connect = psycopg.AsyncConnection.connect
        before = await connect(dsn(served.port, "standby1"), autocommit=True)
        address = ("127.0.0.1", served.port)
        besieging = asyncio.create_task(besiege(replace(attack, at_once=60), [address], seed=1))
        try:
            await until(lambda: len(served.arrivals) > 20)
            async with await connect(dsn(served.port, "alice"), autocommit=True) as during:
                await during.execute(b"IDENTIFY_SYSTEM")
            await before.execute(b"IDENTIFY_SYSTEM")
        finally:
            besieging.cancel()
            await besieging
        await before.close()

    with_port(
        story,
        None,
        plain=PlainPeers(),
        users=FixedUsers(USERS),
        arrivals=lambda audit: Arrivals(audit, limits),
    )
