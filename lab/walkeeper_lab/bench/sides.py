"""The receivers that commits wait for: none, three pg_receivewal, or three safekeepers. A shell.

    async with side.attached():      its processes run, have caught up, and commits wait for them

One primary serves all sides in turn, and only one side's processes run at a time. All sides are on
the same disk, with a directory for each receiver.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from walkeeper_admin.create import CreateSettings, create
from walkeeper_admin.primary.attach import AttachSettings, attach
from walkeeper_admin.status import gather
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.tls.own_credentials import use_credentials
from walkeeper_fastpath import switch
from walkeeper_lab.bench.cables import Cables
from walkeeper_lab.local import daemons
from walkeeper_lab.local.child_process import ChildProcess
from walkeeper_lab.local.local_tls import LocalTls, TlsMaker
from walkeeper_lab.local.postgresql import USER, PostgreSQL
from walkeeper_lab.local.tcp_ports import HOST, free_port

RECEIVERS = 3
QUORUM = 2
NAME = "walkeeper"
WITH_TLS = "walkeeper, TLS"
SLOW_PATH = "walkeeper, slow path"
RECEIVER = "pg_receivewal"
RECEIVER_WITH_TLS = "pg_receivewal, TLS"
READY_S = 60.0
POLL_S = 0.05
LAG_BYTES = 1 << 20  # A receiver that lags by less has caught up.
SLOTS_IN_USE = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = ANY ($1) AND active"
DROP_SLOTS = """
    SELECT count(pg_drop_replication_slot(slot_name))
    FROM pg_replication_slots WHERE slot_name = ANY ($1)"""
CAUGHT_UP = f"""
    SELECT count(*) FROM pg_stat_replication
    WHERE application_name = ANY ($1) AND state = 'streaming'
      AND flush_lsn >= pg_current_wal_flush_lsn() - {LAG_BYTES}"""


class Side(Protocol):
    """A kind of replication; `bench failover` kills one of its `victims`, which are processes."""

    name: str
    victims: list[ChildProcess]

    @property
    def proposer(self) -> ChildProcess | None: ...
    def attached(self) -> contextlib.AbstractAsyncContextManager[None]: ...


def processes_of(side: Side) -> list[ChildProcess]:
    """Return the side's processes that run."""
    known = [*side.victims, *([side.proposer] if side.proposer is not None else [])]
    return [child for child in known if child.is_running]


class Nobody:
    """No replication: commits wait only for the primary's own disk."""

    name = "no replication"

    def __init__(self) -> None:
        self.victims: list[ChildProcess] = []
        self.proposer: ChildProcess | None = None

    @contextlib.asynccontextmanager
    async def attached(self) -> AsyncIterator[None]:
        yield


class Receivers:
    """Three `pg_receivewal --synchronous`, any two of which acknowledge."""

    def __init__(
        self,
        server: PostgreSQL,
        directory: Path,
        cables: Cables,
        *,
        name: str = RECEIVER,
        sslmode: str = "disable",
    ) -> None:
        self.name, self._sslmode = name, sslmode
        self._server, self._cables = server, cables
        self.proposer: ChildProcess | None = None
        self._names = [f"receiver{number}" for number in range(1, RECEIVERS + 1)]
        self._directories = [directory / f"{name} ({sslmode})" for name in self._names]
        self.victims = [
            self._receiver(directory, *its)
            for its in zip(self._names, self._directories, strict=True)
        ]

    def _receiver(self, directory: Path, name: str, target: Path) -> ChildProcess:
        programs = self._server.programs
        target.mkdir(mode=0o700)
        programs.own(target)
        port = self._cables.to(self._server.port)
        connection = (
            f"host={HOST} port={port} user={USER} application_name={name} sslmode={self._sslmode}"
        )
        return ChildProcess(
            name,
            (
                *(str(programs.bindir / "pg_receivewal"), "-d", connection, "-D", str(target)),
                *("--synchronous", "--no-password", "--slot", name),
            ),
            directory / "logs" / f"{name}.log",
            # libpq looks for certificates at home, which may be that of another user.
            environment={
                "PGPASSWORD": self._server.password,
                "LC_ALL": "C",
                "HOME": str(target),
            },
            user=programs.user,
            cwd=str(directory),
        )

    @contextlib.asynccontextmanager
    async def attached(self) -> AsyncIterator[None]:
        server = self._server
        await _wait_for(server, "")  # reloads, so that the server has TLS if it should
        for name in self._names:
            await server.value("SELECT pg_create_physical_replication_slot($1, true)", name)
        try:
            for victim in self.victims:
                await victim.launch()
            await _caught_up(server, self._names)
            await _wait_for(server, f"ANY {QUORUM} ({', '.join(self._names)})")
            yield
        finally:
            await _wait_for(server, "")
            for victim in self.victims:
                await victim.stop()
            await self._forget()

    async def _forget(self) -> None:
        """Drop the slots and files of the receivers, so that they begin anew the next time."""
        await _drop_slots(self._server, self._names)
        for directory in self._directories:
            for segment in directory.iterdir():
                segment.unlink()


class Safekeepers:
    """Three safekeepers and a proposer."""

    def __init__(
        self,
        server: PostgreSQL,
        directory: Path,
        *,
        name: str = "walkeeper",
        cluster: str = "main",
        beside: Safekeepers | None = None,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        fast_path: bool = True,
        tls: LocalTls | None = None,
        cables: Cables | None = None,
    ) -> None:
        """Take the safekeepers of the side `beside`, with other options, unless it is None.

        `addresses` is where all others reach them, through the cables.
        """
        self.name, self._server, self.cluster, self._tls = name, server, cluster, tls
        if beside is None:
            cables = cables or Cables()
            self._listens = tuple((HOST, free_port()) for _ in range(RECEIVERS))
            self.addresses = tuple((host, cables.to(port)) for host, port in self._listens)
        else:
            self._listens, self.addresses = beside._listens, beside.addresses
        path = {} if fast_path else {switch.VARIABLE: "off"}
        its = {**(environment or {}), **path}
        daemons_of = daemons.safekeepers(directory, self._listens, options, its, tls)
        self.victims = list(daemons_of.values())
        self._directories = [daemons.data_directory(directory, each) for each in daemons_of]
        named = ["--cluster", cluster, "--slot", NAME, "--application-name", NAME]
        if tls is not None:
            named += tls.of_proposer()
        self.proposer = daemons.proposer(directory, self.addresses, server.dsn, named, path)

    @contextlib.asynccontextmanager
    async def attached(self) -> AsyncIterator[None]:
        server = self._server
        use_credentials(self._tls.admin if self._tls is not None else None)
        await asyncio.gather(*(child.start(READY_S) for child in self.victims))
        try:
            log = CreateSettings(self.addresses, server.dsn, self.cluster, NAME, if_not_exists=True)
            await create(log)
            await self.proposer.start(READY_S)
            await _caught_up(server, [NAME])
            await self._all_caught_up()
            await attach(AttachSettings(server.dsn, NAME), lambda _: None)
            yield
        finally:
            await _wait_for(server, "")
            for child in (self.proposer, *self.victims):
                await child.stop()
            await self._forget()

    async def _forget(self) -> None:
        """Drop the slot and the log, so that the safekeepers begin anew the next time."""
        await _drop_slots(self._server, [NAME])
        for directory in self._directories:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def _all_caught_up(self) -> None:
        """Wait for the slowest safekeeper, too: its WAL would take the disk from the commits."""
        async with _in_time([child.name for child in self.victims]):
            while True:
                found = await gather(self.addresses, self.cluster, READY_S)
                lsns = [line["flush_lsn"] for line in found["safekeepers"] if line["reachable"]]
                if len(lsns) == RECEIVERS and all(lsns):
                    known = [Lsn.parse(lsn) for lsn in lsns]
                    if max(known) - min(known) < LAG_BYTES:
                        return
                await asyncio.sleep(POLL_S)


def sides_of_all(server: PostgreSQL, directory: Path, cables: Cables) -> list[Side]:
    """Return the three kinds of receivers."""
    ours = Safekeepers(server, directory, cables=cables)
    return [Nobody(), Receivers(server, directory, cables), ours]


def sides_of_paths(server: PostgreSQL, directory: Path, cables: Cables) -> list[Side]:
    """Return the three kinds, and walkeeper without its compiled fast path."""
    *others, ours = sides_of_all(server, directory, cables)
    assert isinstance(ours, Safekeepers)
    slow = Safekeepers(server, directory, name=SLOW_PATH, beside=ours, fast_path=False)
    return [*others, ours, slow]


def sides_of_tls(
    server: PostgreSQL, directory: Path, cables: Cables, make_tls: TlsMaker
) -> list[Side]:
    """Return the same safekeepers plain, and with TLS and certificates on every link.

    Beside them are three pg_receivewal, plain and with TLS. So the report shows what TLS costs
    either of them. walkeeper's link to the primary and pgbench's stay plain.
    """
    tls = make_tls(directory / "tls")
    server.serve_tls(Path(tls.safekeepers[1]))
    plain = Safekeepers(server, directory, cables=cables)
    ours = Safekeepers(server, directory, name=WITH_TLS, beside=plain, tls=tls)
    theirs = Receivers(server, directory, cables, name=RECEIVER_WITH_TLS, sslmode="require")
    return [plain, ours, Receivers(server, directory, cables), theirs]


async def _wait_for(server: PostgreSQL, names: str) -> None:
    """Set synchronous_standby_names, and wait until a session sees it after the reload."""
    await server.value(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    await server.value("SELECT pg_reload_conf()")
    while await server.value("SHOW synchronous_standby_names") != names:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)


async def _drop_slots(server: PostgreSQL, names: list[str]) -> None:
    """Drop slots that receivers have just left, as far as they were made.

    The other sides may write gigabytes meanwhile. To fetch these would measure nothing, and commits
    after it are slower.
    """
    while await server.value(SLOTS_IN_USE, names):  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    await server.value(DROP_SLOTS, names)


async def _caught_up(server: PostgreSQL, names: list[str]) -> None:
    async with _in_time(names):
        while await server.value(CAUGHT_UP, names) != len(names):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)


@contextlib.asynccontextmanager
async def _in_time(names: Sequence[str]) -> AsyncIterator[None]:
    """Raise Refused if the body takes too long."""
    try:
        async with asyncio.timeout(READY_S):
            yield
    except TimeoutError:
        raise Refused(f"{', '.join(names)} did not catch up within {READY_S:g} s") from None
