"""The port of a safekeeper bounds its connections, and closes those that wait for nothing."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import uvloop

from tests.support.fake_served_log import FakeCatalog, FakeProposers
from tests.support.waiting import until
from walkeeper_common.wire.framing import PREFACE
from walkeeper_safekeeper.server import serve

UNDECIDED_MAX = 5


def test_a_crowd_without_a_byte_shuts_nobody_out() -> None:
    """A safekeeper refused every newcomer while its places were taken; it closes the oldest now."""
    proposers = FakeProposers()

    async def story() -> None:
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(
            serve(
                "127.0.0.1",
                0,
                catalog=FakeCatalog(),
                proposer_handler=proposers,
                now=time.time,
                on_ready=lambda _host, port: ready.set_result(port),
                undecided_max=UNDECIDED_MAX,
            )
        )
        port = await ready
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(UNDECIDED_MAX)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PREFACE)
        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):
                assert await silent[0][0].read() == b""
            await until(lambda: bool(proposers.received))
        assert not silent[1][0].at_eof()
        for _, open_writer in [*silent, (reader, writer)]:
            open_writer.close()
        await asyncio.sleep(0.05)
        server.cancel()
        with suppress(asyncio.CancelledError):
            await server

    uvloop.run(story())
