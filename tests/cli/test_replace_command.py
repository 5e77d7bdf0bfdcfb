"""What `walkeeper replace` says of safekeepers that give it no answer."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import LIMIT_S
from walkeeper_admin.replace import ReplaceSettings, replace
from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused


def test_who_gives_no_answer_is_named_with_the_reason() -> None:
    """One that is of a newer version perhaps, and one that is down."""

    async def garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x00\x02zz")
        writer.close()

    async def body() -> str:
        async with await asyncio.start_server(garbage, "127.0.0.1", 0) as server:
            strange: Address = server.sockets[0].getsockname()
            settings = ReplaceSettings(
                (strange,), "main", 1, 4, ("127.0.0.1", 1), answer_timeout_s=LIMIT_S, timeout_s=0.1
            )
            with pytest.raises(Refused) as refused:
                await replace(settings, lambda _: None)
            return str(refused.value).replace(f"{strange[1]}", "STRANGE")

    said = asyncio.run(body())
    assert "127.0.0.1:STRANGE does not speak walkeeper's protocol: unknown message tag 0x7a" in said
    assert "safekeeper at 127.0.0.1:1 is unreachable: " in said
    assert said.startswith("no progress for 0.1 s: no safekeeper with this log answers (")
