"""The proposer's connections to its safekeepers, with addresses that are none."""

from __future__ import annotations

import asyncio

import pytest

from walkeeper_proposer.links import SafekeeperLinks


def test_an_address_that_cannot_be_looked_up_ends_no_other_link(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        async with asyncio.timeout(0.2):
            await SafekeeperLinks([("10.0.0..3", 5454)]).run(lambda _: None, lambda *_: 0)

    with pytest.raises(TimeoutError):  # it goes on trying
        asyncio.run(run())
    assert "cannot reach safekeeper at 10.0.0..3:5454" in caplog.text
