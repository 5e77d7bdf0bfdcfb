"""The proposer's connections to its safekeepers, with addresses that are none."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import until
from walkeeper_proposer.links import SafekeeperLinks


def test_an_address_that_cannot_be_looked_up_ends_no_other_link(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        links = SafekeeperLinks([("10.0.0..3", 5454)])
        running = asyncio.create_task(links.run(lambda _: None, lambda *_: 0))
        await until(lambda: "cannot reach safekeeper at 10.0.0..3:5454" in caplog.text)
        done, _ = await asyncio.wait([running], timeout=0.2)
        assert not done, "it goes on trying"
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(run())
