"""`bench archive`: commits without an archive, with one, with a store that fails. A shell.

All sides have the same three safekeepers and the same log. Each side starts the safekeepers again
with other flags. So no side has to fetch WAL of another side. But a working archive lacks the WAL
that was written without it. The benchmark waits until the archive has caught up before it measures.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from walkeeper_admin.status import gather
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_lab.bench.bench_server import BenchServer
from walkeeper_lab.bench.pairs import Series
from walkeeper_lab.bench.rounds import Bench, Say
from walkeeper_lab.bench.sides import Safekeepers, Side
from walkeeper_lab.local.postgresql import PostgreSQL

CLIENTS = (1, 8)
ARCHIVED_S = 300.0
POLL_S = 0.5
SEGMENT_BYTES = 16 << 20
WITHOUT, WITH, FAILING = "no archive", "archive", "store fails"
# An address on which no server listens, and the variables that point each kind of store to it.
DEAD = "http://127.0.0.1:9"
DEAD_ENDPOINTS = ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL")


class Archiving(Safekeepers):
    """Three safekeepers with an archive at `url`, or without an archive if it is None."""

    def __init__(
        self,
        server: PostgreSQL,
        directory: Path,
        name: str,
        cluster: str,
        url: str | None,
        *,
        beside: Safekeepers | None = None,
        environment: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        flags = () if url is None else ("--archive", url, *options)
        super().__init__(
            server,
            directory,
            name=name,
            cluster=cluster,
            beside=beside,
            options=flags,
            environment=environment,
        )
        self._waits = name == WITH

    @contextlib.asynccontextmanager
    async def attached(self) -> AsyncIterator[None]:
        async with super().attached():
            if self._waits:
                await self._archived()
            yield

    async def _archived(self) -> None:
        text = "nothing is known"
        try:
            async with asyncio.timeout(ARCHIVED_S):
                while text:
                    text = _wanting(await gather(self.addresses, self.cluster, 3.0))
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise Refused(f"the archive did not catch up within {ARCHIVED_S:g} s: {text}") from None


def _wanting(document: dict[str, object]) -> str:
    """Return why a safekeeper lags with its archive, or "" if all lag less than two segments."""
    lines = document["safekeepers"]
    assert isinstance(lines, list)
    for line in lines:
        archive = line.get("archive")
        if not line["reachable"] or not archive:
            return str(line["error"])
        behind = Lsn.parse(line["commit_lsn"]) - Lsn.parse(line["archived_lsn"])
        if behind >= 2 * SEGMENT_BYTES:
            return str(archive["failure"] or f"{behind} bytes to archive")
    return ""


def sides(
    server: PostgreSQL, directory: Path, url: str | None, options: tuple[str, ...] = ()
) -> list[Side]:
    """Return the three sides; if `url` is None, the archive is a directory beside the rest.

    The log's name is new, because the archive at `url` stays. The benchmark must not add to the
    archive of a log that is in use.
    """
    cluster = directory.name.removeprefix("walkeeper_")
    if url is None:
        (directory / "archive").mkdir()
        url = (directory / "archive").as_uri()
    is_local = "://" not in url or url.startswith("file://")
    without = Archiving(server, directory, WITHOUT, cluster, None)
    working = Archiving(server, directory, WITH, cluster, url, beside=without, options=options)
    failing = Archiving(
        server,
        directory,
        FAILING,
        cluster,
        (directory / "not-mounted").as_uri() if is_local else url,
        beside=without,
        environment={} if is_local else dict.fromkeys(DEAD_ENDPOINTS, DEAD),
        options=options,
    )
    return [without, working, failing]


class ArchiveCommits(Bench):
    """The benchmark that runs pgbench -N on each side."""

    title = "pgbench -N while safekeepers archive"

    def __init__(self, server: BenchServer, seconds: int) -> None:
        self._server, self._seconds = server, seconds
        self._rates = {
            clients: Series(f"{clients} clients" if clients > 1 else "1 client", "TPS", more=True)
            for clients in CLIENTS
        }

    @property
    def series(self) -> list[Series]:
        return list(self._rates.values())

    async def measure(self, side: Side, say: Say) -> None:
        for clients, rates in self._rates.items():
            result = await self._server.transactions(clients, self._seconds)
            rates.add(side.name, result.tps)
            say(f"{side.name}: {clients} clients, {result.tps:.0f} TPS")
