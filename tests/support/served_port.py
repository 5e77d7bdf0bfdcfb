"""A safekeeper's one port in this process, with a door for proposers that keeps what comes in.

with_port(story, file)      run the story beside the port; None is no TLS file
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import uvloop

from tests.support.fake_served_log import FakeCatalog, catalog_of
from tests.support.raw_client import close_all_clients
from tests.support.waiting import LIMIT_S
from walkeeper_common.access.identity import Identity
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_common.shell.tls.credentials import Credentials
from walkeeper_common.shell.tls.tls_transport import identity_of
from walkeeper_safekeeper.connections.arrivals import Arrivals
from walkeeper_safekeeper.replication.password_login import UsersSource
from walkeeper_safekeeper.server import PlainPeers, serve

NONE_ADMITTED = PlainPeers(on_loopback=False)


class Door:
    """Keeps the identities of the proposers that come in, answers, and closes."""

    def __init__(self) -> None:
        self.answer = b""
        self.closes = True
        self.instead: Callable[[asyncio.Transport, bytes], None] | None = None
        self.received_bytes = 0
        self.identities = list[Identity]()
        self.received = list[bytes]()

    def __call__(self, transport: asyncio.Transport, received: bytes) -> None:
        if self.instead is not None:
            self.instead(transport, received)
            return
        self.identities.append(identity_of(transport))
        self.received.append(received)
        self.received_bytes += len(received)
        transport.set_protocol(Counting(self))
        transport.write(self.answer)
        if self.closes:
            transport.close()


class Counting(asyncio.Protocol):
    """Counts further bytes of a connection that the door keeps open."""

    def __init__(self, door: Door) -> None:
        self.door = door

    def data_received(self, data: bytes) -> None:
        self.door.received_bytes += len(data)


@dataclass(slots=True)
class Served:
    """A safekeeper's port with the file of safekeeper 1."""

    port: int
    door: Door
    audit: Audit
    lines: list[str]
    arrivals: Arrivals
    server: asyncio.Task[None]


def with_port(
    story: Callable[[Served], Awaitable[None]],
    file: str | None,
    *,
    plain: PlainPeers = NONE_ADMITTED,
    catalog: Callable[[], FakeCatalog] = catalog_of,
    users: UsersSource | None = None,
    clients_max: int = 50,
    arrivals: Callable[[Audit], Arrivals] = Arrivals,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> None:
    async def run() -> None:
        credentials = Credentials(file) if file is not None else None
        door, lines = Door(), list[str]()
        audit = Audit(write=lines.append)
        arriving = arrivals(audit)
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        served = catalog()
        server = asyncio.create_task(
            serve(
                "127.0.0.1",
                0,
                catalog=served,
                proposer_handler=door,
                now=time.time,
                on_ready=lambda _host, port: ready.set_result(port),
                audit=audit,
                plain=plain,
                credentials=credentials,
                users=users,
                clients_max=clients_max,
                arrivals=arriving,
            )
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                await story(Served(await ready, door, audit, lines, arriving, server))
        finally:
            await close_all_clients()
            server.cancel()
            await asyncio.wait([server], timeout=LIMIT_S)
            for log in served.logs.values():
                await log.slots.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())
