"""The listening sockets of the port: how much a turn accepts, and when a socket rests."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.support.served_port import Served, with_port
from tests.support.waiting import LIMIT_S, until
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_safekeeper.connections import listener as listening
from walkeeper_safekeeper.connections.arrivals import Arrivals, Visitor
from walkeeper_safekeeper.connections.listener import Accepted, Listener, listening_sockets
from walkeeper_safekeeper.connections.waiting_line import Admission
from walkeeper_safekeeper.server import PlainPeers

LOOPS = pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
NEVER_S = 10 * LIMIT_S
SOON_S = 0.01
ITERATIONS = 50  # the event loop would read a socket that does not rest


class Full(socket.socket):
    """A listening socket whose process has no descriptor left for so many accepts."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures, self.tries, self.tried = failures, 0, asyncio.Event()

    def accept(self) -> tuple[socket.socket, Any]:
        self.tried.set()
        self.tries += 1
        if self.tries <= self.failures:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


class Noting:
    """A port that keeps the connections, and gives all of them the same admission."""

    def __init__(self) -> None:
        self.admission = Admission.ENTERS
        self.accepted = list[Accepted]()

    def arrives(self, accepted: Accepted) -> Admission:
        self.accepted.append(accepted)
        return self.admission

    def enters(self, accepted: Accepted) -> None:
        raise AssertionError(f"{accepted} enters by itself")


class Stage:
    """A listener with a port that notes, and the clients that connect to it."""

    def __init__(self, failures: int) -> None:
        self.socket, self.port = Full(failures), Noting()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen()
        self.socket.setblocking(False)
        self.listener = Listener([self.socket], self.port)
        self.clients = list[socket.socket]()

    def connect(self, count: int) -> None:
        """Connect, which the kernel does without the listener."""
        address = self.socket.getsockname()
        self.clients += [socket.create_connection(address) for _ in range(count)]

    async def begin(self, count: int = 1) -> None:
        """Start with clients that have connected; return after the first turn, before a second."""
        self.connect(count)
        self.listener.start()
        await self.socket.tried.wait()

    def close(self) -> None:
        self.listener.close()
        for accepted in self.port.accepted:
            if accepted.descriptor() >= 0:
                accepted.close()
        for client in self.clients:
            client.close()


def on_stage(
    story: Callable[[Stage], Coroutine[Any, Any, None]],
    loop_factory: LoopFactory,
    failures: int = 0,
) -> None:
    async def run() -> None:
        stage = Stage(failures)
        try:
            async with asyncio.timeout(LIMIT_S):
                await story(stage)
        finally:
            stage.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())


async def iterations() -> None:
    for _ in range(ITERATIONS):
        await asyncio.sleep(0)


@LOOPS
def test_a_turn_accepts_a_bounded_number(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "ACCEPTS_MAX", 3)

    async def story(stage: Stage) -> None:
        await stage.begin(10)
        assert len(stage.port.accepted) == 3
        await until(lambda: len(stage.port.accepted) == 10)

    on_stage(story, loop_factory)


@LOOPS
def test_a_full_file_table_rests_the_port(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "RETRY_S", NEVER_S)

    async def story(stage: Stage) -> None:
        await stage.begin()
        await iterations()
        assert stage.socket.tries == 1 and not stage.port.accepted

    on_stage(story, loop_factory, failures=1)
    (record,) = caplog.records
    assert "Too many open files; raise LimitNOFILE=" in record.getMessage()


@LOOPS
def test_the_port_goes_on_when_there_are_descriptors_again(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "RETRY_S", SOON_S)

    async def story(stage: Stage) -> None:
        await stage.begin()
        await until(lambda: len(stage.port.accepted) == 1)
        assert stage.socket.tries >= 3
        stage.connect(1)
        await until(lambda: len(stage.port.accepted) == 2)

    on_stage(story, loop_factory, failures=2)


@LOOPS
@pytest.mark.parametrize("admission", [Admission.WAITS, Admission.ENDS])
def test_a_flood_rests_the_port(
    admission: Admission, loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "FLOOD_S", NEVER_S)

    async def story(stage: Stage) -> None:
        stage.port.admission = admission
        await stage.begin()
        stage.connect(1)
        await iterations()
        assert len(stage.port.accepted) == 1

    on_stage(story, loop_factory)


@LOOPS
def test_the_port_is_read_at_once_when_the_flood_is_over(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "FLOOD_S", SOON_S)

    async def story(stage: Stage) -> None:
        stage.port.admission = Admission.ENDS
        await stage.begin()
        stage.port.admission = Admission.ENTERS
        stage.connect(1)
        await until(lambda: len(stage.port.accepted) == 2)
        monkeypatch.setattr(listening, "FLOOD_S", NEVER_S)
        stage.connect(1)
        await until(lambda: len(stage.port.accepted) == 3)

    on_stage(story, loop_factory)


@LOOPS
def test_a_port_that_rests_can_be_closed(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "FLOOD_S", SOON_S)

    async def story(stage: Stage) -> None:
        stage.port.admission = Admission.ENDS
        await stage.begin()
        stage.listener.close()
        await asyncio.sleep(2 * SOON_S)  # a timer behind the listener's
        assert not caplog.records, "the loop logs an error of the timer"

    on_stage(story, loop_factory)


@LOOPS
def test_a_connection_that_gets_no_transport_is_only_closed(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of its task would end the daemon."""
    monkeypatch.setattr(listening, "OPTIONS", [(socket.SOL_SOCKET, -1, 1)])  # the kernel has none

    async def story(stage: Stage) -> None:
        await stage.begin()
        (accepted,) = stage.port.accepted
        await accepted.connect(asyncio.Protocol)
        assert accepted.descriptor() == -1

    on_stage(story, loop_factory)


class Stopping(Arrivals):
    """Arrivals whose port stops when a connection enters."""

    def __init__(self, audit: Audit, *, cancels_first: bool) -> None:
        super().__init__(audit)
        self._cancels_first = cancels_first
        self.server: asyncio.Task[None] | None = None

    def arrive(self, visitor: Visitor, host: str) -> Admission:
        assert self.server is not None
        if self._cancels_first:
            self.server.cancel()
        admission = super().arrive(visitor, host)
        self.server.cancel()
        return admission


async def stopped(served: Served) -> bytes:
    """Connect, which stops the port, and return what came before the connection's end."""
    assert isinstance(served.arrivals, Stopping)
    served.arrivals.server = served.server
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        return await reader.read()
    finally:
        writer.close()
        await asyncio.wait([served.server])
        assert served.server.cancelled()


@LOOPS
def test_a_stop_resets_a_connection_whose_task_has_not_begun(loop_factory: LoopFactory) -> None:
    async def story(served: Served) -> None:
        with pytest.raises(ConnectionResetError):
            await stopped(served)

    with_stop(story, loop_factory, cancels_first=True)


@LOOPS
def test_a_stop_ends_a_connection_that_waits_for_its_transport(loop_factory: LoopFactory) -> None:
    async def story(served: Served) -> None:
        assert await stopped(served) == b""

    with_stop(story, loop_factory, cancels_first=False)


def with_stop(
    story: Callable[[Served], Coroutine[Any, Any, None]],
    loop_factory: LoopFactory,
    *,
    cancels_first: bool,
) -> None:
    with_port(
        story,
        None,
        plain=PlainPeers(),
        arrivals=lambda audit: Stopping(audit, cancels_first=cancels_first),
        loop_factory=loop_factory,
    )


def test_each_address_of_the_machine_is_listened_on() -> None:
    async def story() -> None:
        sockets = await listening_sockets("", 0)
        families = {each.family for each in sockets}
        assert socket.AF_INET in families and len(families) == len(sockets)
        for each in sockets:
            assert not each.getblocking()
            each.close()

    uvloop.run(story())


def test_a_kernel_without_ipv6_is_listened_on_by_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    made = socket.socket

    def without_ipv6(family: int = -1, *rest: int, **named: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return made(family, *rest, **named)

    async def story() -> None:
        monkeypatch.setattr(socket, "socket", without_ipv6)
        try:
            (listened,) = await listening_sockets("", 0)
            assert listened.family == socket.AF_INET
            listened.close()
            with pytest.raises(OSError, match="not supported"):
                await listening_sockets("::1", 0)
        finally:
            monkeypatch.undo()

    uvloop.run(story())
