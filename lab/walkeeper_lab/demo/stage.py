"""Everything that the demo runs: a primary, safekeepers, a proposer, load, a standby. A shell.

Daemons are processes of the same commands that an operator uses. The demo simulates nothing. Each
step finds the cluster as the step before left it.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from walkeeper_admin.create import CreateSettings, create
from walkeeper_admin.primary.attach import AttachSettings, attach
from walkeeper_admin.status import gather
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.tls.own_credentials import use_credentials
from walkeeper_lab.demo.load import TABLE, Load
from walkeeper_lab.local import daemons
from walkeeper_lab.local.local_tls import LocalTls
from walkeeper_lab.local.postgresql import PostgreSQL
from walkeeper_lab.local.programs import Programs
from walkeeper_lab.local.tcp_ports import HOST, free_port

CLUSTER, PROPOSER = "main", "walkeeper"
SAFEKEEPERS = 3
READY_S = 40.0
ANSWER_S = 2.0
POLL_S = 0.05
T = TypeVar("T")


class Stage:
    """The servers and daemons: `set_up` starts them, and `close` kills those that run."""

    def __init__(
        self, programs: Programs, directory: Path, seconds: float, tls: LocalTls | None = None
    ) -> None:
        self._tls = tls
        use_credentials(tls.admin if tls is not None else None)
        self.programs, self.directory, self._seconds = programs, directory, seconds
        self._password = secrets.token_hex(16)
        self.primary = self._postgresql("primary")
        self.standby = self._postgresql("standby")
        self.ports = {number: free_port() for number in range(1, SAFEKEEPERS + 1)}
        self.addresses = tuple((HOST, port) for port in self.ports.values())
        self.safekeepers = daemons.safekeepers(directory, self.addresses, tls=tls)
        options = tls.of_proposer() if tls is not None else ()
        self.proposer = daemons.proposer(directory, self.addresses, self.primary.dsn, options)
        self.load = Load(self.primary)
        self.began_s = self.load.now_s()
        self._writing: asyncio.Task[None] | None = None

    def _postgresql(self, name: str) -> PostgreSQL:
        return PostgreSQL(self.programs, self.directory, name, self._password)

    async def set_up(self, say: Callable[[str], None]) -> None:
        """Start everything but the load; on return, commits wait for the quorum."""

        async def primary() -> None:
            await self.primary.make()
            await self.primary.start()
            await self.primary.value(TABLE)

        safekeepers = [child.start(READY_S) for child in self.safekeepers.values()]
        await asyncio.gather(primary(), *safekeepers)
        await create(CreateSettings(self.addresses, self.primary.dsn, CLUSTER, PROPOSER))
        await self.proposer.start(READY_S)
        say(await attach(AttachSettings(self.primary.dsn, PROPOSER), say))

    def standby_settings(self, number: int) -> dict[str, str]:
        """Return the settings that make the second server a standby of this safekeeper."""
        feed = f"host={HOST} port={self.ports[number]} user=demo application_name=standby"
        if self._tls is not None:
            own = self.standby.data / "walkeeper.pem"  # where the server's user may read it
            shutil.copy(self._tls.replica, own)
            self.programs.own(own)
            feed += " sslmode=verify-full" + "".join(
                f" {name}={own}" for name in ("sslcert", "sslkey", "sslrootcert")
            )
        return {"primary_conninfo": feed, "wal_retrieve_retry_interval": "200ms"}

    def start_load(self) -> None:
        self._writing = asyncio.create_task(self.load.run(), name="load")

    async def stop_load(self) -> None:
        """Stop the load, so that no commit is under way; a hanging one is not acknowledged."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
            self._writing = None

    async def let_it_run(self, share: float) -> None:
        """Let the load run for this share of its time."""
        await asyncio.sleep(self._seconds * share)

    async def status(self) -> dict[str, Any]:
        """Return the document of `walkeeper status --json`."""
        return await gather(self.addresses, CLUSTER, ANSWER_S)

    async def flush_lsns(self) -> dict[int, Lsn]:
        """Return the flush_lsn of each safekeeper that answers, by id."""
        lines = (await self.status())["safekeepers"]
        return {line["id"]: Lsn.parse(line["flush_lsn"]) for line in lines if line["reachable"]}

    async def commit_lsn(self) -> Lsn:
        """Return the LSN up to which a quorum is known to have the WAL."""
        return Lsn.parse((await self.status())["cluster"]["commit_lsn"])

    async def until(
        self, what: str, look: Callable[[], Awaitable[T]], timeout_s: float = READY_S
    ) -> T:
        """Return the first true value of `look`; raise Refused with `what` if it comes too late."""
        deadline_s = self.load.now_s() + timeout_s
        while not (value := await look()):
            if self.load.now_s() > deadline_s:
                raise Refused(f"not within {timeout_s:g} s: {what}")
            await asyncio.sleep(POLL_S)
        return value

    async def until_acknowledged(self, count: int, since_s: float) -> None:
        """Wait until so many commits have begun and returned since that time."""

        async def enough() -> bool:
            return len(self.load.since(since_s)) >= count

        await self.until(f"{count} more commits", enough)

    async def close(self) -> None:
        """Kill all daemons and servers with SIGKILL."""
        await self.stop_load()
        for child in (self.proposer, *self.safekeepers.values()):
            await child.kill()
        for server in (self.primary, self.standby):
            await server.kill()
