"""Each flood pays as many visits as it says, also to a server that ends them at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.proof.floods.attacks import ATTACKS, MUTATED, Attack, besiege

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
