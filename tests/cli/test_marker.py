"""The marker of `check`: it is found in WAL as it stands there. Pure."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from walkeeper_admin.check.marker import MESSAGE_BYTES_MAX, TRIES_MAX, committed
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn


class Server:
    """Emits each message with its end at the next of these LSNs."""

    def __init__(self, *ends: int) -> None:
        self._ends, self.messages = list(ends), 0

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def execute(self, statement: str) -> None:
        assert statement.startswith("SET LOCAL")

    async def fetchrow(self, statement: str) -> dict[str, Any]:
        return {"segment_bytes": 1 << 24, "timeline": "00000001"}

    async def fetchval(self, statement: str, *values: str) -> str:
        if "emit_message" not in statement:
            return "0/700000"
        self.messages += 1
        return str(Lsn(self._ends.pop(0)))


def test_a_marker_that_crosses_a_page_is_written_again() -> None:
    """A page's header would stand in its text, and `check` would report a loss."""
    page = 700 * WAL_PAGE_BYTES
    server: Any = Server(page + 0x48, page + MESSAGE_BYTES_MAX, page + 400)
    marker = asyncio.run(committed(server, "text"))
    assert (server.messages, marker.lsn) == (2, page + MESSAGE_BYTES_MAX)


def test_a_busy_server_gets_no_endless_markers() -> None:
    server: Any = Server(*(n * WAL_PAGE_BYTES + 1 for n in range(9, 9 + 2 * TRIES_MAX)))
    asyncio.run(committed(server, "text"))
    assert server.messages == TRIES_MAX
