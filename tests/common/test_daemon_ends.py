"""A daemon ends when it cannot vouch for what it does, and goes on or stops cleanly else.

On uvloop, in whose order of events a stop meets what was accepted just before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import uvloop

from tests.support.folders import ROOT
from tests.support.waiting import LIMIT_S, until
from walkeeper_common.errors import Refused, RemoteProtocolError, StorageError, WalkeeperError
from walkeeper_common.shell.process.worker_thread import LoopShare
from walkeeper_lab.local import supervision
from walkeeper_lab.local.child_process import ChildProcess
from walkeeper_lab.local.tcp_ports import free_port
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import Outcome, Stop
from walkeeper_proposer.postgres.commit_times import CommitTimes
from walkeeper_proposer.postgres.sync_state import SyncState
from walkeeper_proposer.proposer_daemon import _Life, _refuse_or_go_on
from walkeeper_proposer.proposer_monitoring import endpoints
from walkeeper_proposer.proposer_settings import ProposerSettings
from walkeeper_proposer.repairs import Repairs
from walkeeper_safekeeper.hosting.hosted_log import HostedLog
from walkeeper_safekeeper.hosting.readable_log import ReadableLog
from walkeeper_safekeeper.replication.opened_log import Catalog
from walkeeper_safekeeper.safekeeper_daemon import start_in
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.safekeeper_settings import SafekeeperSettings
from walkeeper_safekeeper.server import serve
from walkeeper_safekeeper.storage.log_folder import LogFolder

DAEMON = """
import asyncio
from walkeeper_common.shell.process.daemon_process import end_on_defect, run_daemon
from walkeeper_common.shell.process.worker_thread import LoopShare, WorkerThread

def fail():
    raise {error}

async def main():
    loop = asyncio.get_running_loop()
    worker = WorkerThread("disk", end_on_defect, LoopShare())
    {what}
    await asyncio.sleep({lives_s})
    return 7

raise SystemExit(run_daemon(main, log_level="INFO"))
"""
ENDS = {
    "a job on a thread": "worker.submit(fail, print)",
    "a brief job": "worker.submit(fail, print, brief=True)",
    "what follows a job": "worker.submit(int, lambda _: fail())",
    "a callback": "loop.call_soon(fail)",
    "a task that nobody waits for": "asyncio.create_task(asyncio.to_thread(fail))",
}
UNHEARD = "loop.create_future().set_exception({error})"


def run_briefly(what: str, error: str, *, lives_s: float) -> tuple[int, str]:
    text = DAEMON.format(what=what.format(error=error), error=error, lives_s=lives_s)
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, timeout=LIMIT_S)
    return ended.returncode, ended.stderr.decode()


@pytest.mark.parametrize("what", ENDS)
def test_an_error_of_ours_that_nobody_expected_ends_the_daemon_also_an_oserror(what: str) -> None:
    """Else it would live on without its writer, say, and answer nobody."""
    code, said = run_briefly(ENDS[what], "OSError(5, 'Input/output error')", lives_s=50)
    assert (code, "defect: " in said) == (1, True), said


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("loop.call_soon(fail)", "ConnectionResetError(104, 'Connection reset by peer')"),
        (UNHEARD, "OSError('of a library, whose caller has given up')"),
    ],
)
def test_an_error_of_a_peer_or_one_that_nobody_waits_for_ends_nothing(
    what: str, error: str
) -> None:
    code, said = run_briefly(what, error, lives_s=0.2)
    assert (code, "defect: " in said) == (7, False), said


@pytest.mark.parametrize(
    ("error", "code"), [("LogClosed('the log was closed')", 3), ("Refused('a server')", 1)]
)
def test_an_expected_error_ends_the_daemon_with_the_code_of_its_class(
    error: str, code: int
) -> None:
    raises = f"from walkeeper_common.errors import LogClosed, Refused\n    raise {error}"
    in_group = f"{raises.replace('raise ', 'raise BaseExceptionGroup(str(), [')}])"
    for what in (raises, in_group):
        ended, said = run_briefly(what, error, lives_s=50)
        assert (ended, "Traceback" in said) == (code, False), said


def test_the_unit_does_not_start_the_proposer_of_a_closed_log_again() -> None:
    """A close is for good (M7): each further start would be refused."""
    with pytest.raises(WalkeeperError) as caught:
        _refuse_or_go_on(Stop(Outcome.CLOSED, "the log was closed"))
    unit = (ROOT / "docs/systemd/walkeeper-proposer.service").read_text()
    assert f"RestartPreventExitStatus={caught.value.exit_code}\n" in unit
    assert caught.value.exit_code != Refused.exit_code


def on_uvloop(body: Callable[[list[object]], Coroutine[object, object, None]]) -> None:
    """Run `body` with the list of the loop's exceptions, each of which ends a daemon."""
    told: list[object] = []

    async def bounded() -> None:
        handler = lambda _, context: told.append(context)  # noqa: E731
        asyncio.get_running_loop().set_exception_handler(handler)
        async with asyncio.timeout(LIMIT_S):
            await body(told)

    uvloop.run(bounded())


@pytest.mark.parametrize("first", [bytes(8), b"WALKEEP\x01"], ids=["client", "proposer"])
def test_whoever_connects_while_a_safekeeper_stops_is_closed_and_is_no_defect(first: bytes) -> None:
    async def body(told: list[object]) -> None:
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        accepted: list[bytes] = []
        serving = asyncio.create_task(
            serve(
                "127.0.0.1",
                0,
                catalog=cast(Catalog, None),
                proposer_handler=lambda _, received: accepted.append(received),
                now=lambda: 0.0,
                on_ready=lambda _, port: ready.set_result(port),
            )
        )
        with socket.create_connection(("127.0.0.1", await ready)) as caller:
            caller.send(first)
            serving.cancel()  # the loop accepts the caller before it runs what is cancelled
            with contextlib.suppress(asyncio.CancelledError):
                await serving
            caller.settimeout(LIMIT_S)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(caller.recv, 1) == b""
        assert (told, accepted) == ([], [])

    on_uvloop(body)


def test_a_request_to_a_safekeeper_whose_tasks_are_ending_closes_that_connection_alone() -> None:
    async def body(_: list[object]) -> None:
        answered = asyncio.Event()

        async def answer() -> None:
            answered.set()

        async with asyncio.TaskGroup() as group:
            start_in(group, answer(), "one")
            await answered.wait()
        with pytest.raises(RemoteProtocolError, match="stops"):
            start_in(group, answer(), "another")

    on_uvloop(body)


class BrokenDisk:
    """The slots and the driver of a log whose disk has failed since the start."""

    def __init__(self) -> None:
        self.is_closed = False

    async def _fail(self) -> None:
        raise StorageError("writing slots: Input/output error")

    close_slots = _fail

    def close(self, done: Callable[[object], None]) -> None:
        self.is_closed = True
        done(StorageError("replacing control: Input/output error"))


def test_a_log_whose_disk_fails_at_the_end_is_closed_says_so_and_keeps_no_other_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(_: list[object]) -> None:
        log = HostedLog("main", cast(LogFolder, None), cast(SafekeeperSettings, None), LoopShare())
        disk = BrokenDisk()
        log.driver = cast(Driver, disk)
        slots = SimpleNamespace(close=disk.close_slots)
        log.readable = cast(ReadableLog, SimpleNamespace(slots=slots))
        await log.close()
        assert disk.is_closed

    on_uvloop(body)
    assert "writing slots" in caplog.text and "replacing control" in caplog.text


class Child:
    """A child of `walkeeper up` that dies at once; at first there is no memory for another one."""

    name = "safekeeper 1"

    def __init__(self) -> None:
        self.launches = 0

    async def ended(self) -> int:
        return -9

    async def launch(self) -> None:
        self.launches += 1
        if self.launches == 1:
            raise BlockingIOError(11, "Resource temporarily unavailable")

    async def ready(self) -> str:
        await asyncio.Event().wait()
        return ""


def test_up_tries_again_when_the_machine_cannot_start_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "PAUSE_MIN_S", 0.001)

    async def body(_: list[object]) -> None:
        child, said = Child(), list[str]()
        keeping = asyncio.create_task(
            supervision.keep_running(cast(ChildProcess, child), said.append)
        )
        await until(lambda: child.launches == 2 or keeping.done())
        assert not keeping.done(), keeping
        assert any("Resource temporarily unavailable" in line for line in said)
        keeping.cancel()

    on_uvloop(body)


class SlowPrimary:
    """A primary whose end takes as long as the test wants."""

    def __init__(self) -> None:
        self.is_ending, self.may_end = asyncio.Event(), asyncio.Event()

    async def run(self, _post: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.is_ending.set()
            await self.may_end.wait()


def settings_of_nobody() -> ProposerSettings:
    return ProposerSettings(safekeepers=(("127.0.0.1", free_port()),), dsn="host=127.0.0.1")


def life_with(primary: SlowPrimary) -> _Life:
    life = _Life(settings_of_nobody(), (("127.0.0.1", free_port()),), lambda _: None)
    life.primary = primary  # type: ignore[assignment]  # as much as is used
    return life


def test_a_proposer_that_is_told_to_stop_between_two_elections_stops() -> None:
    async def body(told: list[object]) -> None:
        primary = SlowPrimary()
        life = life_with(primary)
        running = asyncio.create_task(life.run())
        await asyncio.sleep(0)
        life.stopped(Stop(Outcome.NEW_ELECTION, "another timeline"))
        await primary.is_ending.wait()
        running.cancel()
        await asyncio.sleep(0)
        primary.may_end.set()
        await asyncio.wait([running])
        assert running.cancelled() and not told

    on_uvloop(body)


def test_a_proposer_that_is_deposed_while_it_stops_stops() -> None:
    async def body(told: list[object]) -> None:
        primary = SlowPrimary()
        life = life_with(primary)
        running = asyncio.create_task(life.run())
        await asyncio.sleep(0)
        running.cancel()
        await primary.is_ending.wait()
        life.stopped(Stop(Outcome.DEPOSED, "deposed"))
        primary.may_end.set()
        await asyncio.wait([running])
        assert running.cancelled() and not told

    on_uvloop(body)


def test_a_member_that_joined_is_shown_with_the_address_by_which_it_is_reached() -> None:
    """Its link has a number beyond the --safekeepers of the start."""

    async def body(_: list[object]) -> None:
        settings, joined = settings_of_nobody(), ("127.0.0.2", 5454)
        core: Proposer = _Life(settings, (*settings.safekeepers, joined), lambda _: None).core
        addresses = (*settings.safekeepers, joined)
        nobody = SyncState(settings.dsn, "walkeeper")
        repairs = Repairs(settings.cluster, lambda: core, lambda: addresses, 60.0)
        told = (nobody, CommitTimes(), repairs)
        shown = endpoints(settings, lambda: core, lambda: addresses, int, *told)
        members = cast(list[dict[str, str]], shown.status()["safekeepers"])
        assert [member["address"] for member in members][1:] == ["127.0.0.2:5454"]
        named = {sample.labels.get("safekeeper") for sample in shown.samples()}
        assert "127.0.0.2:5454" in named

    on_uvloop(body)


def test_a_safekeeper_whose_http_port_is_taken_never_says_that_it_is_ready(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        where = ("--id", "1", "--data-dir", str(tmp_path / "sk1"), "--listen", "127.0.0.1:0")
        ended = subprocess.run(
            [sys.executable, "-m", "walkeeper_cli", "safekeeper", *where, "--http", address],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"--http {address} cannot be listened on" in ended.stderr


@pytest.mark.parametrize(
    ("host", "said"),
    [("127.0.0.2", "in use"), ("localhost", "in use"), ("0.0.0.0", "is not loopback")],
)
def test_only_loopback_is_listened_on_without_leave(host: str, said: str, tmp_path: Path) -> None:
    with socket.create_server((host, 0)) as taken:
        where = ("--data-dir", str(tmp_path), "--listen", f"{host}:{taken.getsockname()[1]}")
        command = [sys.executable, "-m", "walkeeper_cli", "safekeeper", "--id", "1", *where]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1 and said in done.stderr, done


def test_a_log_that_cannot_be_looked_at_is_not_taken_for_absent(tmp_path: Path) -> None:
    """Once the safekeeper was ready without it, and advised its operator to replace it."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "main").mkdir()
    (tmp_path / "main" / "control").symlink_to("control")
    command = [sys.executable, "-m", "walkeeper_cli", "safekeeper", "--id", "1"]
    command += ["--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1 and "ready" not in done.stdout, done
    assert "main/control: Too many levels of symbolic links" in done.stderr
    assert "Traceback" not in done.stderr
