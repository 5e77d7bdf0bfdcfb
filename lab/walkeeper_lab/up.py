"""`walkeeper up`: three safekeepers, create, proposer and attach, for as long as it runs. A shell.

    DIR/safekeeper1 … 3     data directories, as `walkeeper safekeeper --data-dir` has them
    DIR/logs/NAME.log       the log of each daemon
    DIR/tls                 the authority and the TLS files of all of them, and of a client
    DIR/attached            exists from before an attach by `up` until after its detach
    DIR/lock                held while `up` runs

The order of starting is that of a careful operator. `up` looks at the server's settings before it
makes anything, and commits wait for the quorum only when there is one. Stopping is the reverse. If
`up` itself is killed, the kernel ends its daemons. `attached` then shows the next `up` that an
earlier `up` has attached the server, so that its Ctrl-C detaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from walkeeper_admin.create import CreateSettings, create
from walkeeper_admin.primary.attach import AttachSettings, attach, refuse_unsettable
from walkeeper_admin.primary.detach import DetachSettings, detach
from walkeeper_admin.primary.primary_settings import standby_names
from walkeeper_admin.primary.requirements import refuse_unsuitable
from walkeeper_admin.primary.standby_names import requires
from walkeeper_admin.status import gather
from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused, Unreachable, WalkeeperError
from walkeeper_common.shell.safekeeper_links.safekeeper_client import ask
from walkeeper_common.shell.tls.own_credentials import use_credentials
from walkeeper_common.wire.requests import LogQuery, LogState
from walkeeper_lab.live_status import LiveStatus
from walkeeper_lab.local import daemons
from walkeeper_lab.local.local_tls import LocalTls, TlsMaker
from walkeeper_lab.local.supervision import keep_running
from walkeeper_proposer.postgres.primary_sql import connected

LOG = "main"
NAME = "walkeeper"  # the name of the proposer and of its slot
SAFEKEEPERS = 3
HOST = "127.0.0.1"
ANSWER_S = 10.0
WATCH_S = 1.0
RENEW_EACH_S = 3600.0
HANGING = "commits hang until the next `walkeeper up` or `walkeeper detach`"


@dataclass(frozen=True, slots=True)
class UpSettings:
    """The command's flags."""

    data_dir: str
    dsn: str
    base_port: int
    stay_attached: bool = False
    replace: bool = False
    timeout_s: float = 60.0
    http: Address | None = None
    make_tls: TlsMaker | None = None


async def run(settings: UpSettings) -> int:
    """Run until SIGINT, SIGTERM or SIGHUP, and return the exit code."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with _locked(settings.data_dir) as directory, LiveStatus() as shown:
        return await _Up(settings, directory, shown).run(stop)


@contextlib.contextmanager
def _locked(data_dir: str) -> Iterator[Path]:
    """Lock the directory and yield it; raise Refused if another `up` runs on it.

    Two of them would run two safekeepers on each data directory.
    """
    directory = Path(data_dir).absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / "logs").mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Refused(f"--data-dir: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield directory
    except BlockingIOError:
        raise Refused(
            f"another `walkeeper up` runs on {directory}: stop it, or name another --data-dir"
        ) from None
    finally:
        os.close(descriptor)


class _Up:
    """One run, which starts everything and stops everything."""

    def __init__(self, settings: UpSettings, directory: Path, shown: LiveStatus) -> None:
        self._settings, self._directory, self._shown = settings, directory, shown
        ports = range(settings.base_port, settings.base_port + SAFEKEEPERS)
        self._addresses = tuple((HOST, port) for port in ports)
        self._tls = self._make_tls()
        use_credentials(self._tls.admin if self._tls is not None else None)
        made = daemons.safekeepers(directory, self._addresses, tls=self._tls)
        self._safekeepers = list(made.values())
        options = self._tls.of_proposer() if self._tls is not None else ()
        self._proposer = daemons.proposer(directory, self._addresses, settings.dsn, options)
        self._wish = AttachSettings(
            settings.dsn, NAME, settings.timeout_s, replace=settings.replace
        )
        self._mark = directory / "attached"
        self._has_attached = False
        self._document: dict[str, Any] = {}  # the last one that was shown

    def _make_tls(self) -> LocalTls | None:
        """Make the TLS files that are missing, and renew those that are due."""
        make = self._settings.make_tls
        return make(self._directory / "tls") if make is not None else None

    async def run(self, stop: asyncio.Event) -> int:
        """Start everything, keep it running until `stop`, and stop everything."""
        try:
            if await _finished(self._start(), stop):
                await self._keep(stop)
        except BaseException:
            # A server that an earlier run has attached stays attached: its commits hung before.
            await self._end(keep_attached=not self._has_attached)
            raise
        return await self._end(keep_attached=self._settings.stay_attached)

    async def _start(self) -> None:
        say, timeout_s = self._shown.say, self._settings.timeout_s
        async with connected(self._settings.dsn) as sql:
            await refuse_unsuitable(sql, NAME)
            await refuse_unsettable(sql, self._wish)
        for line in await asyncio.gather(*(c.start(timeout_s) for c in self._safekeepers)):
            say(f"ready: {line}")
        await self._make_or_resume()
        say(f"ready: {await self._proposer.start(timeout_s)}")
        if self._tls is not None:
            say(f"TLS: commands need --tls {self._tls.admin}, standbys {self._tls.replica}")
        await self._attach()

    async def _attach(self) -> None:
        """Attach the server.

        Write the file `attached` before the change of the server, and remove it if the server
        was not changed.
        """
        if not await self._is_attached():
            self._mark.touch(mode=0o600)
        try:
            self._shown.say(await attach(self._wish, self._shown.say))
        except BaseException:
            if not await self._is_attached():
                self._mark.unlink(missing_ok=True)
            raise
        self._has_attached = self._mark.exists()

    async def _is_attached(self) -> bool:
        async with connected(self._settings.dsn) as sql:
            return requires((await standby_names(sql)).setting, NAME)

    async def _keep(self, stop: asyncio.Event) -> None:
        """Restart daemons that die, and show the state, until `stop`."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(keep_running(child, self._shown.say), name=child.name)
                for child in (*self._safekeepers, self._proposer)
            ]
            tasks.append(group.create_task(self._watch(), name="status"))
            if self._settings.http is not None:
                tasks.append(group.create_task(self._serve(self._settings.http), name="http"))
            tasks.append(group.create_task(self._renew(), name="TLS files"))
            await stop.wait()
            for task in tasks:
                task.cancel()

    async def _watch(self) -> None:
        """Show the state of the safekeepers and of the primary every second.

        The primary answers for itself, since the proposer's report is a second old."""
        while True:
            self._document = await gather(self._addresses, LOG, ANSWER_S / 5, self._settings.dsn)
            self._shown.show(self._document)
            await asyncio.sleep(WATCH_S)

    async def _serve(self, address: Address) -> None:
        """Serve the page of the whole cluster, with the document of `status --json`."""
        from walkeeper_common.shell.http.http_endpoints import Endpoints, serve_http
        from walkeeper_common.shell.http.http_locks import http_tokens

        def not_ready() -> str | None:
            found = self._document.get("verdict")
            return None if found and not found["exit_code"] else (found or {}).get("text", "asking")

        def on_listening(host: str, port: int) -> None:
            address = shown_address((host, port))
            self._shown.say(f"page: http://{address}/")
            for token in http_tokens()[:1]:
                self._shown.show_secret(page_link(address, token))

        shown = Endpoints(not_ready, lambda: self._document, list)
        await serve_http(address, shown, on_listening=on_listening, events=self._shown.events)

    async def _renew(self) -> None:
        """Renew TLS files in time; the daemons see that they have changed."""
        while True:
            await asyncio.sleep(RENEW_EACH_S)
            try:
                await asyncio.to_thread(self._make_tls)
            except WalkeeperError as error:
                self._shown.say(f"warning: a TLS file is not renewed: {error}")

    async def _end(self, *, keep_attached: bool) -> int:
        """Stop everything in the reverse order of starting, and return the exit code.

        Return 1 if the detach failed, so that the server's commits hang.
        """
        self._shown.end()
        code = 0
        if self._mark.exists():
            code = self._say_kept() if keep_attached else await self._detach()
        for child in (self._proposer, *self._safekeepers):
            await child.stop()
        self._shown.say("stopped")
        return code

    def _say_kept(self) -> int:
        self._shown.say(f"the server stays attached: its {HANGING}")
        return 0

    async def _detach(self) -> int:
        self._shown.say("detaching")
        try:
            await detach(DetachSettings(self._settings.dsn, NAME), self._shown.say)
        except WalkeeperError as error:
            self._shown.say(f"could not detach: {error}. The server's {HANGING}")
            return 1
        self._mark.unlink(missing_ok=True)
        return 0

    async def _make_or_resume(self) -> None:
        """Resume the log if a proposer was ever elected for it, or else create it.

        `create` would refuse a log that was in use.
        """
        answers = await asyncio.gather(*(self._state(address) for address in self._addresses))
        if any(state.ballot.term for state in answers):
            for number, state in enumerate(answers, 1):
                if state.configuration is None:
                    self._shown.say(
                        f"warning: safekeeper {number} does not hold the log any more and is out "
                        "of the quorum: its directory was wiped"
                    )
            self._shown.say(f"resuming the log in {self._directory}")
            return
        wish = CreateSettings(self._addresses, self._settings.dsn, LOG, NAME, timeout_s=ANSWER_S)
        made = (await create(wish)).configuration
        self._shown.say(
            f"created the log from {made.creation_lsn} on, ack quorum {made.ack_quorum}; slot "
            f"{NAME} keeps the primary's WAL"
        )

    async def _state(self, address: Address) -> LogState:
        try:
            answer = await ask(address, LogQuery(LOG), ANSWER_S)
        except Unreachable as error:
            raise Refused(str(error)) from error
        if not isinstance(answer, LogState):
            raise Refused(f"safekeeper at {shown_address(address)} answered with {answer}")
        return answer


def page_link(address: str, token: str) -> str:
    """Return a link that a browser opens without a question for the password."""
    return f"http://{NAME}:{quote(token, safe='')}@{address}/"


async def _finished(work: Coroutine[object, object, None], stop: asyncio.Event) -> bool:
    """Return True if `work` ends before `stop`; otherwise cancel it and return False.

    An exception of `work` passes through.
    """
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return False
    stopped.cancel()
    task.result()
    return True
