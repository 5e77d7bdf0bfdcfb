"""A log in memory that has the ports of `served_log`, and a server of it on a port of its own.

`run_with_server` runs a scenario on the event loop while the server is up; programs run beside it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tests.support.quiet_clock import QuietClockLoop
from tests.support.raw_client import close_all_clients
from tests.support.waiting import LIMIT_S
from walkeeper_common.errors import Refused, WalRemoved
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import LogKind
from walkeeper_safekeeper.replication.durable_slots import DurableSlots
from walkeeper_safekeeper.replication.served_log import Readers
from walkeeper_safekeeper.replication.wal_stream import StreamLimits
from walkeeper_safekeeper.server import serve

MIB = 1 << 20
FIRST_LSN = Lsn(3 * MIB)
T = TypeVar("T")


def wal_bytes(size: int, seed: int = 1) -> bytes:
    """Make WAL of no meaning: receivers check offsets only."""
    return random.Random(seed).randbytes(size)


class SlotsFile:
    """The file of the slots, in memory: it counts writes, and `fail` makes the next ones fail."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.writes = 0
        self.fail: Exception | None = None

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)
        if self.fail is not None:
            raise self.fail
        self.data, self.writes = data, self.writes + 1


@dataclass
class FakeLog:
    """A log whose `wal` begins at `oldest_lsn`; received WAL need not be committed."""

    cluster: str = "main"
    system_id: int = 7_400_000_000_000_000_001
    timeline: int = 1
    segment_bytes: int = MIB
    server_version: str = "15.18 (Debian 15.18-0+deb12u1)"
    oldest_lsn: Lsn = FIRST_LSN
    wal: bytearray = field(default_factory=bytearray)
    readable_lsn: Lsn = FIRST_LSN
    readers: Readers = field(default_factory=Readers)
    kind: LogKind = LogKind.PHYSICAL
    logical: None = None
    histories: dict[int, bytes] = field(default_factory=dict)
    slots_file: SlotsFile = field(default_factory=SlotsFile)
    reads: list[tuple[Lsn, Lsn]] = field(default_factory=list)
    elsewhere: bytes = b""  # another member holds this, up to oldest_lsn
    half_record_bytes: int = 0  # committed, of a record that goes on
    in_memory: bool = False  # `read_cached` has it all

    def __post_init__(self) -> None:
        self.slots = DurableSlots(self.slots_file.data, self.slots_file.write)
        self._committed = asyncio.Event()

    async def is_elsewhere(self, lsn: Lsn) -> bool:
        return self.oldest_lsn - len(self.elsewhere) <= lsn < self.oldest_lsn

    def append(self, wal: bytes) -> Lsn:
        """Append WAL that is received and not committed."""
        self.wal += wal
        return self.oldest_lsn + len(self.wal)

    def commit(self, lsn: Lsn | None = None) -> None:
        self.readable_lsn = self.oldest_lsn + len(self.wal) if lsn is None else lsn
        self._committed.set()
        self._committed = asyncio.Event()

    def switch_timeline(self, fork: Lsn, timeline: int) -> None:
        parents = self.histories.get(self.timeline, b"")
        self.histories[timeline] = parents + f"{self.timeline}\t{fork}\tno reason\n".encode()
        self.timeline = timeline

    async def read_committed(self, begin: Lsn, end: Lsn) -> bytes:
        self.reads.append((begin, end))
        if begin < self.oldest_lsn:
            if not await self.is_elsewhere(begin):
                raise WalRemoved(begin, self.oldest_lsn)
            first_lsn = self.oldest_lsn - len(self.elsewhere)
            return self.elsewhere[begin - first_lsn : end - first_lsn]
        if end > self.readable_lsn:
            raise Refused(f"{end} is not committed any more")
        return bytes(self.wal[begin - self.oldest_lsn : end - self.oldest_lsn])

    def read_cached(self, begin: Lsn, end: Lsn) -> bytes | None:
        if not self.in_memory or not self.oldest_lsn <= begin < end <= self.readable_lsn:
            return None
        return bytes(self.wal[begin - self.oldest_lsn : end - self.oldest_lsn])

    @property
    def whole_lsn(self) -> Lsn:
        """Where the last whole record of the committed WAL ends."""
        return self.readable_lsn - self.half_record_bytes

    async def whole_end(self) -> Lsn:
        return self.whole_lsn

    async def wait_for_whole(self, beyond: Lsn, timeout_s: float) -> Lsn:
        return await self.wait_for_readable(beyond + self.half_record_bytes, timeout_s)

    async def wait_for_readable(self, beyond: Lsn, timeout_s: float) -> Lsn:
        try:
            async with asyncio.timeout(timeout_s):
                while self.readable_lsn <= beyond:
                    await self._committed.wait()
        except TimeoutError:
            pass
        return self.readable_lsn

    def timeline_history(self, timeline: int) -> bytes | None:
        return self.histories.get(timeline)


class FakeCatalog:
    """A safekeeper's logs; those of the names in `closed` are there and cannot be served."""

    def __init__(self, *logs: FakeLog, closed: Sequence[str] = ()) -> None:
        self.logs = {log.cluster: log for log in logs}
        self.closed = closed

    def clusters(self) -> Sequence[str]:
        return [*self.logs, *self.closed]

    def logical_databases(self) -> Mapping[str, str]:
        return {}

    def open_log(self, cluster: str) -> FakeLog:
        if cluster in self.closed:
            raise Refused("its log is prepared and not configured; run walkeeper create again")
        return self.logs[cluster]


class FakeProposers:
    """A proposers' door: it takes every connection with the preface, answers and closes it."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    def __call__(self, transport: asyncio.Transport, received: bytes) -> None:
        self.received.append(received)
        transport.write(b"hello proposer")
        transport.close()


def catalog_of(size: int = 3 * MIB, **fields: object) -> FakeCatalog:
    """Make one log with `size` committed bytes."""
    log = FakeLog(**fields)  # type: ignore[arg-type]  # fields of all types
    log.append(wal_bytes(size))
    log.commit()
    return FakeCatalog(log)


def only(catalog: FakeCatalog) -> FakeLog:
    (log,) = catalog.logs.values()
    return log


def run_with_server(
    catalog: Callable[[], FakeCatalog],
    scenario: Callable[[int, FakeCatalog], Awaitable[T]],
    *,
    limits: StreamLimits = StreamLimits(),  # noqa: B008  (frozen)
    proposers: FakeProposers | None = None,
    clients_max: int = 50,
    timeout_s: float = LIMIT_S,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = QuietClockLoop,
) -> T:
    """Give the scenario the port. The server is stopped after it, and must then be gone."""

    async def run() -> T:
        served = catalog()
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(
            serve(
                "127.0.0.1",
                0,
                catalog=served,
                proposer_handler=proposers or FakeProposers(),
                now=time.time,
                on_ready=lambda _host, port: ready.set_result(port),
                limits=limits,
                clients_max=clients_max,
            )
        )
        try:
            async with asyncio.timeout(timeout_s):
                return await scenario(await ready, served)
        finally:
            await close_all_clients()
            server.cancel()
            await asyncio.wait([server], timeout=LIMIT_S)
            assert server.cancelled(), f"{server=}"
            for log in served.logs.values():
                await log.slots.close()
                assert len(log.readers) == 0, f"{list(log.readers)=}"

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(run())


async def wait_until(condition: Callable[[], object], timeout_s: float = LIMIT_S) -> None:
    """Wait until the condition holds; give the event loop turns meanwhile."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0.005)
