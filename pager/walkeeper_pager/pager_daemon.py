"""Run the pager as a daemon: one thread receives, one applies, the event loop answers."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused
from walkeeper_common.metrics import samples
from walkeeper_common.shell.http.http_endpoints import CONNECTIONS_MAX, Endpoints, serve_http
from walkeeper_common.shell.process.daemon_process import announce_ready, run_daemon
from walkeeper_pager.base_pages import BasePages
from walkeeper_pager.following import Following
from walkeeper_pager.page_requests import WAITING_MAX, Arrivals, page_handler
from walkeeper_pager.pager import Pager
from walkeeper_pager.pager_metrics import FIGURES
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.wal_errors import HistoryError

logger = logging.getLogger("walkeeper.pager")

# A pass over the last segment takes about 10 ms of a processor. The pause after it keeps the
# thread's share of the processor at one fifth or less, up to APPLY_PAUSE_S_MAX.
APPLY_EVERY_S, APPLY_PAUSE_S_MAX, APPLY_SHARE = 0.01, 0.2, 5
SYNC_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class PagerSettings:
    """The settings that `walkeeper pager` was started with."""

    safekeepers: tuple[Address, ...]
    cluster: str
    base: str
    data_dir: Path
    history_bytes: int
    archive: str | None
    http: Address
    log_level: str
    log_json: bool = False


def run(settings: PagerSettings) -> int:
    """Run the daemon and return its exit code."""
    return run_daemon(
        lambda: _main(settings), log_level=settings.log_level, log_json=settings.log_json
    )


async def _main(settings: PagerSettings) -> int:
    with _claimed(settings.data_dir):
        base = BasePages(settings.base)
        addresses = [*map(shown_address, settings.safekeepers)]
        with storage_failures(settings.data_dir):
            pager = await asyncio.to_thread(
                lambda: Pager(settings.data_dir, base, history_bytes=settings.history_bytes)
            )
        threads = _Threads(pager, settings, addresses)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(threads.run(), name="threads")
                group.create_task(_serve(settings, pager, threads), name="http")
        finally:
            threads.stop()
            pager.close()
    return 0


class _Threads:
    """The threads that receive and apply. A failure of one of them ends the daemon."""

    def __init__(self, pager: Pager, settings: PagerSettings, addresses: list[str]) -> None:
        archive = open_files(settings.archive) if settings.archive else None
        self._stop, self._received = threading.Event(), threading.Event()
        self._pager, self._data_dir = pager, settings.data_dir
        self.following = Following(pager, addresses, settings.cluster, self._received.set, archive)
        self._running = [
            threading.Thread(target=self._run, args=(run,), name=name, daemon=True)
            for name, run in (("receive", self._receive), ("apply", self._apply))
        ]
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        for thread in self._running:
            thread.start()
        await self._failure

    def stop(self) -> None:
        self._stop.set()
        self._received.set()
        for thread in self._running:
            if thread.is_alive():
                thread.join()

    def _run(self, run: object) -> None:
        assert callable(run), f"{run=}"
        try:
            with storage_failures(self._data_dir):
                run()
        except BaseException as error:
            failure = error
            self._loop.call_soon_threadsafe(self._fail, failure)

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def _receive(self) -> None:
        self.following.run(self._stop)

    def _apply(self) -> None:
        synced_s = time.monotonic()
        while not self._stop.is_set():
            self._received.wait(SYNC_EVERY_S)
            self._received.clear()
            begun_s = time.thread_time()
            self._pager.apply()
            while not self._stop.is_set() and self._pager.trim():
                self._pager.apply()
            if time.monotonic() - synced_s > SYNC_EVERY_S:
                self._pager.wal.sync()
                synced_s = time.monotonic()
            pause_s = (time.thread_time() - begun_s) * (APPLY_SHARE - 1)
            self._stop.wait(min(max(APPLY_EVERY_S, pause_s), APPLY_PAUSE_S_MAX))


async def _serve(settings: PagerSettings, pager: Pager, threads: _Threads) -> None:
    def on_listening(host: str, port: int) -> None:
        announce_ready(f"pager on {shown_address((host, port))}")

    arrivals = Arrivals(pager)
    await serve_http(
        settings.http,
        Endpoints(
            not_ready=lambda: _not_ready(pager, threads.following),
            status=lambda: _status(pager, threads.following, arrivals),
            samples=lambda: list(samples(FIGURES, (pager.state(), arrivals.waiting), {})),
        ),
        routes={"/page": page_handler(pager, arrivals)},
        on_listening=on_listening,
        connections_max=WAITING_MAX + CONNECTIONS_MAX,
    )


def _not_ready(pager: Pager, following: Following) -> str | None:
    if not pager.state().consistent:
        return "the base backup is not consistent yet: its end is still to come"
    return None if following.source else following.problem or "no safekeeper yet"


def _status(pager: Pager, following: Following, arrivals: Arrivals) -> Mapping[str, object]:
    state = pager.state()
    return {
        "system_id": state.system_id,
        "timeline": state.timeline,
        "safekeeper": following.source or None,
        "problem": following.problem or None,
        "received_lsn": str(state.received_lsn),
        "applied_lsn": str(state.applied_lsn),
        "horizon_lsn": str(state.horizon_lsn),
        "consistent": state.consistent,
        "history_bytes": state.history_bytes,
        "waiting": arrivals.waiting,
    }


@contextlib.contextmanager
def storage_failures(data_dir: Path) -> Iterator[None]:
    """Raise HistoryError, as one line with the file, for an error of the system or of SQLite.

    A full or failing disk keeps what was written. The next start goes on from the whole part of it.
    """
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        said = (getattr(error, "strerror", None) or error, getattr(error, "filename", None))
        raise HistoryError(
            f"{said[1] or data_dir}: {said[0]}; the pager goes on from there when it is started "
            "again"
        ) from error


@contextlib.contextmanager
def _claimed(data_dir: Path) -> Iterator[None]:
    """Hold a lock on the data directory, which ends with the process."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise Refused(f"--data-dir {data_dir}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            text = f"another pager is running in {data_dir}; stop it, or use another --data-dir"
            raise Refused(text) from error
        yield
    finally:
        os.close(descriptor)
