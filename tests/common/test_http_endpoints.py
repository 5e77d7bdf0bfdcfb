"""--http of a daemon: who asks too much takes no descriptor that the daemon's files need."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web

from tests.support.quiet_clock import run_quietly
from tests.support.waiting import LIMIT_S, until, wait_until
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.http.http_endpoints import CONNECTIONS_MAX, Endpoints, serve_http
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_common.shell.process.descriptors import (
    DESCRIPTORS,
    DESCRIPTORS_MIN,
    connections_allowed,
)
from walkeeper_common.wire.framing import PREFACE
from walkeeper_lab.local.tcp_ports import free_port
from walkeeper_safekeeper.disk.disk_space import DiskSpace
from walkeeper_safekeeper.disk.disk_times import DiskTimes
from walkeeper_safekeeper.hosting.log_catalog import LogCatalog
from walkeeper_safekeeper.safekeeper_monitoring import endpoints

QUIET = Endpoints(not_ready=lambda: None, status=dict, samples=list)
ASK = b"GET /health HTTP/1.1\r\nHost: walkeeper\r\n\r\n"


@contextlib.asynccontextmanager
async def serving(**routes: Callable[[web.Request], object]) -> AsyncIterator[int]:
    """Serve the routes, and yield the port."""
    port = asyncio.get_running_loop().create_future()
    named = {f"/{name}": handler for name, handler in routes.items()}
    running = asyncio.create_task(
        serve_http(
            ("127.0.0.1", 0),
            QUIET,
            routes=named,  # type: ignore[arg-type]  # as they are named
            on_listening=lambda _, found: port.set_result(found),
        )
    )
    try:
        yield await port
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_a_newcomer_takes_the_place_of_an_idle_connection() -> None:
    """100 kept-alive connections turned every /ready into a 503 for as long as they liked."""

    async def body() -> None:
        async with serving() as port:
            allowed = connections_allowed(CONNECTIONS_MAX)
            kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(allowed)]
            for reader, writer in kept:
                writer.write(ASK)
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(ASK)
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                writer.close()
            assert not kept[-1][0].at_eof(), "the one that asked last stays"
            for _, writer in kept:
                writer.close()

    run_quietly(body())


def test_a_connection_too_many_is_refused_while_all_others_are_at_work() -> None:
    asked = 0

    async def wait(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        await asyncio.sleep(300)
        return web.Response()

    async def body() -> None:
        async with serving(wait=wait) as port:
            allowed = connections_allowed(CONNECTIONS_MAX)
            kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(allowed)]
            for _, writer in kept:
                writer.write(ASK.replace(b"/health", b"/wait"))
            await until(lambda: asked == allowed)
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                answer = await reader.read()
                assert answer.startswith(b"HTTP/1.1 503") and b"too many connections" in answer
                writer.close()
            kept[0][1].close()
            assert await asyncio.wait_for(_answered(port), LIMIT_S) == b"HTTP/1.1 200 OK\r\n"
            for _, writer in kept:
                writer.close()

    run_quietly(body())


async def _answered(port: int) -> bytes:
    """Return the first line of an answer, as soon as there is room."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK)
        line = await reader.readline()
        writer.close()
        if not line.startswith(b"HTTP/1.1 503"):
            return line
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("half", [b"", b"GET /metrics HTTP/1.1\r\nHost", ASK[:-2]])
def test_who_sends_no_whole_request_is_let_go_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch, half: bytes
) -> None:
    monkeypatch.setattr("walkeeper_common.shell.http.http_endpoints.HEAD_TIMEOUT_S", 1.0)

    async def body() -> None:
        async with serving() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASK)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            silent = []
            for _ in range(connections_allowed(CONNECTIONS_MAX) - 1):
                silent.append(await asyncio.open_connection("127.0.0.1", port))
                silent[-1][1].write(half)
            assert await asyncio.wait_for(_answered(port), LIMIT_S) == b"HTTP/1.1 200 OK\r\n"
            for other, _ in silent:
                assert await asyncio.wait_for(other.read(), LIMIT_S) == b""
            writer.write(ASK)  # a client that has asked once may be silent for longer
            await asyncio.wait_for(reader.readuntil(b"200 OK"), LIMIT_S)
            for _, each in [(reader, writer), *silent]:
                each.close()

    run_quietly(body())


def test_a_request_that_trickles_in_is_let_go_and_a_long_answer_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("walkeeper_common.shell.http.http_endpoints.HEAD_TIMEOUT_S", 0.4)

    async def wait(_: web.Request) -> web.Response:
        await asyncio.sleep(1.2)
        return web.Response(text="at last")

    async def body() -> None:
        async with serving(wait=wait) as port:
            patient, asks = await asyncio.open_connection("127.0.0.1", port)
            asks.write(ASK.replace(b"/health", b"/wait"))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for byte in ASK[:-1]:
                if reader.at_eof():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)
            assert reader.at_eof()
            await asyncio.wait_for(patient.readuntil(b"at last"), LIMIT_S)
            asks.close()
            writer.close()

    run_quietly(body())


def test_who_has_asked_and_then_stays_silent_is_let_go_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("walkeeper_common.shell.http.http_endpoints.KEEP_ALIVE_S", 0.5)

    async def body() -> None:
        async with serving() as port:
            for more in (b"", ASK[:-2]):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(ASK + more)
                answer = await asyncio.wait_for(reader.read(), LIMIT_S)
                assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"ok\n")
                writer.close()

    run_quietly(body())


def test_a_request_whose_peer_has_gone_is_given_up() -> None:
    async def body() -> None:
        events: list[str] = []

        async def wait(_: web.Request) -> web.Response:
            events.append("begun")
            try:
                await asyncio.sleep(300)
            finally:
                events.append("ended")
            return web.Response()

        async with serving(wait=wait) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASK.replace(b"/health", b"/wait"))
            await until(lambda: events == ["begun"])
            writer.close()
            await until(lambda: events == ["begun", "ended"])

    run_quietly(body())


def test_an_address_that_is_taken_is_refused() -> None:
    async def body() -> None:
        async with serving() as port:
            with pytest.raises(Refused, match=f"--http 127.0.0.1:{port} cannot be listened on"):
                await serve_http(("127.0.0.1", port), QUIET)

    run_quietly(body())


def test_a_daemon_takes_the_descriptors_that_it_may_have(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    where = ("--id", "1", "--data-dir", str(tmp_path / "sk1"), "--listen", "127.0.0.1:0")
    daemon = subprocess.Popen(
        [sys.executable, "-m", "walkeeper_cli", "safekeeper", *where, "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)),
    )
    try:
        assert daemon.stdout is not None and b"ready" in daemon.stdout.readline()
        limits = Path(f"/proc/{daemon.pid}/limits").read_text()
        line = next(line for line in limits.splitlines() if line.startswith("Max open files"))
        assert int(line.split()[3]) == allowed > 256, line
    finally:
        daemon.terminate()
        assert daemon.wait(LIMIT_S) == 0
        assert daemon.stdout is not None
        daemon.stdout.close()


@pytest.mark.parametrize("limit", [10, 40, DESCRIPTORS_MIN - 1])
def test_a_daemon_that_may_open_too_few_files_says_so_at_once(tmp_path: Path, limit: int) -> None:
    where = ("--id", "1", "--data-dir", str(tmp_path / "sk1"), "--listen", "127.0.0.1:0")
    ended = subprocess.run(
        [sys.executable, "-m", "walkeeper_cli", "safekeeper", *where],
        capture_output=True,
        timeout=LIMIT_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )
    said = ended.stderr.decode()
    assert (ended.returncode, said.count("\n")) == (1, 1), said
    assert f"may open {limit} files" in said and "LimitNOFILE=" in said and "ulimit -n" in said


def test_a_crowd_leaves_half_of_the_descriptors_to_the_files_of_a_safekeeper(
    tmp_path: Path,
) -> None:
    """The crowd has silent clients, PostgreSQL clients, proposers, and those of --http."""
    limit = (DESCRIPTORS_MIN, DESCRIPTORS_MIN)
    ports = [free_port(), free_port()]
    listen, http = (f"127.0.0.1:{port}" for port in ports)
    where = ("--id", "1", "--data-dir", str(tmp_path / "sk1"), "--listen", listen, "--http", http)
    daemon = subprocess.Popen(
        [sys.executable, "-m", "walkeeper_cli", "safekeeper", *where],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit),
    )
    assert daemon.stdout is not None
    startup = struct.pack("!II", 8, 196608)
    with contextlib.ExitStack() as crowd:
        try:
            assert b"ready" in daemon.stdout.readline()
            for port, first in ((0, b""), (0, startup[:-1]), (0, PREFACE), (1, b"")):
                for _ in range(150):
                    caller = socket.create_connection(("127.0.0.1", ports[port]))
                    crowd.enter_context(caller).sendall(first)
            taken = Path(f"/proc/{daemon.pid}/fd")
            wait_until(lambda: len(list(taken.iterdir())) <= DESCRIPTORS_MIN // 2 + 20)
        finally:
            daemon.terminate()
            assert daemon.wait(LIMIT_S) == 0
            daemon.stdout.close()


def test_a_log_that_cannot_be_opened_has_a_figure() -> None:
    """An alert on those of its others would never be given: it has none."""
    broken, space = {"main": "damaged"}, DiskSpace("/")
    catalog = cast(LogCatalog, SimpleNamespace(logs=list, broken=lambda: broken, space=space))
    samples = endpoints(catalog, 3, Audit()).samples()
    (sample,) = [each for each in samples if "cluster" in each.labels]
    assert (sample.metric.name, sample.value) == ("walkeeper_safekeeper_broken", 1.0)
    assert sample.labels == {"cluster": "main", "safekeeper": "3"}


def test_metrics_show_a_commit_that_has_returned() -> None:
    """The core learns of the fast path's appends some milliseconds later, or at a settle."""
    acceptor = SimpleNamespace(
        durable=SimpleNamespace(ballot=SimpleNamespace(term=3), configuration=None),
        **dict.fromkeys(("flush_lsn", "commit_lsn", "restart_lsn"), Lsn(100)),
        **{"truncations": 0, "failure": None, "refusal": None, "appender": None},
        timelines=SimpleNamespace(closed_lsn=None),
    )

    def settle() -> None:
        acceptor.flush_lsn = acceptor.commit_lsn = Lsn(200)

    driver = SimpleNamespace(
        acceptor=acceptor, queued_bytes=0, groups_written=0, settle=settle,
        store=SimpleNamespace(first_lsn=Lsn(100)), older=None,
    )  # fmt: skip
    log = SimpleNamespace(
        cluster="main", driver=driver, offload=None, times=DiskTimes(),
        readable=SimpleNamespace(readers=[], slots=SimpleNamespace(slots=[])),
        scrub=SimpleNamespace(passes=0, repairs=0, differences=0, flaw=None), lacks_bytes=0,
    )  # fmt: skip
    catalog = SimpleNamespace(logs=lambda: [log], broken=dict, space=DiskSpace("/"))
    samples = endpoints(cast(LogCatalog, catalog), 3, Audit()).samples()
    positions = {each.metric.name: each.value for each in samples}
    assert positions["walkeeper_safekeeper_flush_lsn_bytes"] == 200
    assert positions["walkeeper_safekeeper_commit_lsn_bytes"] == 200
