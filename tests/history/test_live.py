"""A log that safekeepers serve is read as its files would be, up to where it is committed.

The server is the safekeeper's own, over a log in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.history.test_archives import MB, files_of, filled, lay
from tests.support.fake_served_log import FakeCatalog, FakeLog, run_with_server
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.wal_maker import WalMaker
from walkeeper_common.lsn import Lsn
from walkeeper_history.follow import Follower, log_end
from walkeeper_history.tables import table
from walkeeper_wal.sources.live import LiveFiles
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.sources.reading import SegmentReader
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import HistoryError


def made(size: int = 5 * MB // 2, seed: int = 3) -> WalMaker:
    return filled(WalMaker(Random(seed), segment_bytes=MB), size)


def served(maker: WalMaker, commit: Lsn | None = None, **fields: object) -> FakeLog:
    log = FakeLog(oldest_lsn=maker.start_lsn, **fields)  # type: ignore[arg-type]  # of all types
    log.append(maker.read(maker.start_lsn, maker.end_lsn))
    log.commit(commit)
    return log


class Safekeepers:
    """Servers in threads of their own; `stop` kills one's connections and its port."""

    def __init__(self, logs: list[FakeLog]) -> None:
        self.logs = logs
        self.ports: dict[int, int] = {}
        self._loops: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(len(logs))]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: len(self.ports) == len(self.logs))

    def _run(self, number: int) -> None:
        async def scenario(port: int, _catalog: FakeCatalog) -> None:
            stopped = asyncio.Event()
            self._loops[number] = asyncio.get_running_loop(), stopped
            self.ports[number] = port
            await stopped.wait()

        run_with_server(lambda: FakeCatalog(self.logs[number]), scenario)

    def call(self, number: int, do: Callable[[], object]) -> None:
        """Call on the server's loop, and wait for the end."""
        done = threading.Event()

        def run() -> None:
            do()
            done.set()

        self._loops[number][0].call_soon_threadsafe(run)
        assert done.wait(LIMIT_S)

    def stop(self, number: int) -> None:
        loop, stopped = self._loops.pop(number)
        loop.call_soon_threadsafe(stopped.set)
        self._threads[number].join(30)

    def close(self) -> None:
        for number in list(self._loops):
            self.stop(number)

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{self.ports[n]}" for n in range(len(self.logs)))
        return f"walkeeper://{hosts}/main"


@contextmanager
def safekeepers(*logs: FakeLog) -> Iterator[Safekeepers]:
    running = Safekeepers(list(logs))
    running.start()
    try:
        yield running
    finally:
        running.close()


def rows(files: WalFiles, name: str = "records") -> tuple[list[dict[str, Any]], list[str]]:
    plan, reader, shape = make_plan(files), SegmentReader(files), table(name)
    found: list[dict[str, Any]] = []
    problems = []
    for index in range(len(plan.segments)):
        reading = reader.read(plan.reachable, index)
        for batch in shape.batches(reading):
            found += batch.to_pylist()
        problems += [each.reason for each in reading.problems]
    return found, problems


def test_a_served_log_gives_the_records_of_its_files(tmp_path: Path) -> None:
    maker = made()
    expected, _ = rows(open_files(str(lay(tmp_path, files_of(maker)))))
    with safekeepers(served(maker)) as running:
        found, problems = rows(LiveFiles(running.url))
    assert found == expected and len(found) > 100 and not problems


def test_no_record_beyond_commit_lsn_is_read(tmp_path: Path) -> None:
    maker = made()
    everything, _ = rows(open_files(str(lay(tmp_path, files_of(maker)))))
    for commit in (2 * MB + MB // 2 + 13, 2 * MB, 2 * MB + 8, 3 * MB - 8):
        whole = [row for row in everything if row["end_lsn"] <= commit]
        with safekeepers(served(maker, Lsn(commit))) as running:
            found, problems = rows(LiveFiles(running.url))
        assert found == whole, f"{commit=:x}"
        assert all("the log is taken to end there" in problem for problem in problems)


def test_a_dead_safekeeper_is_survived_also_in_the_middle(tmp_path: Path) -> None:
    maker = made(9 * MB // 2)
    expected, _ = rows(open_files(str(lay(tmp_path, files_of(maker)))))
    with safekeepers(served(maker), served(maker), served(maker)) as running:
        files = LiveFiles(running.url)
        plan, reader, shape = make_plan(files), SegmentReader(files), table("records")
        running.stop(0)
        found: list[dict[str, Any]] = []
        for index in range(len(plan.segments)):
            if index == 2:
                running.stop(1)
            for batch in shape.batches(reader.read(plan.reachable, index)):
                found += batch.to_pylist()
        assert found == expected
        running.stop(2)
        with pytest.raises(HistoryError, match=r"no safekeeper answers: 127\.0\.0\.1:"):
            make_plan(LiveFiles(running.url))


def test_a_laggard_and_one_that_removed_old_wal_are_read_together() -> None:
    maker = made(9 * MB // 2)
    whole = served(maker)
    laggard = served(maker, Lsn(3 * MB + 100))
    young = served(maker)
    del young.wal[: 2 * MB]
    young.oldest_lsn = Lsn(maker.start_lsn + 2 * MB)
    with safekeepers(whole) as alone, safekeepers(laggard, young) as both:
        assert rows(LiveFiles(both.url)) == rows(LiveFiles(alone.url))


def test_wal_that_is_removed_meanwhile_is_an_error_that_says_so() -> None:
    log = served(made())
    with safekeepers(log) as running:
        files = LiveFiles(running.url)
        plan = make_plan(files)

        def remove() -> None:
            del log.wal[:MB]
            log.oldest_lsn = Lsn(log.oldest_lsn + MB)

        running.call(0, remove)
        reading = SegmentReader(files).read(plan.reachable, 0)
        assert list(reading) == [] and reading.problems[0].fatal
        assert "already been removed" in reading.problems[0].reason


def test_a_log_that_has_changed_its_timeline_is_one_log() -> None:
    """The fork is inside a segment and inside a page, as after a promotion."""
    maker = made(3 * MB)
    log = served(maker)
    with safekeepers(log) as running:
        before, _ = rows(LiveFiles(running.url))
        fork = Lsn(before[len(before) // 2]["end_lsn"])
        running.call(0, lambda: log.switch_timeline(fork, 2))
        files = LiveFiles(running.url)
        names = [name for name, _ in files.list_files()]
        after, problems = rows(files)
    assert names[0] == "00000002.history"
    assert {name[:8] for name in names[1:]} == {"00000001", "00000002"}
    assert [row["start_lsn"] for row in after] == [row["start_lsn"] for row in before]
    assert not problems


def test_a_growing_log_is_followed_and_only_new_wal_is_fetched() -> None:
    maker = made(MB // 2)
    log = served(maker)
    with safekeepers(log) as running:
        files = LiveFiles(running.url)
        end = log_end(files, make_plan(files))
        assert end == maker.end_lsn
        follower = Follower(files, table("records", ["start_lsn", "end_lsn"]), end)
        seen: list[int] = []

        def read() -> list[int]:
            return [row["start_lsn"] for b in follower.new_rows() for row in b.to_pylist()]

        assert read() == []
        log.reads.clear()
        for _ in range(200):
            record = maker.record(9000)
            begin = Lsn(log.oldest_lsn + len(log.wal))
            log.append(maker.read(begin, maker.end_lsn))
            # In the middle of a record, so that it comes with the next one.
            running.call(0, partial(log.commit, Lsn(record.end_lsn - 100)))
            seen += read()
        running.call(0, log.commit)
        seen += read()
        assert len(seen) == len(set(seen)) == 200 and seen == sorted(seen)
        fetched = sum(e - b for b, e in log.reads)
        assert fetched < 2 * 200 * 9000 + 40 * 8192, f"{fetched=}"
        # Between two looks the follower holds nothing back.
        wait_until(lambda: log.readers.retention_lsn() is None)


def test_one_that_does_not_answer_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr("walkeeper_wal.sources.safekeeper_link.CONNECT_TIMEOUT_S", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent, safekeepers(served(made())) as running:
        url = running.url.replace("://", f"://127.0.0.1:{silent.getsockname()[1]},")
        files = LiveFiles(url)
        make_plan(files)
        silent.accept()[0].close()
        silent.settimeout(0)
        make_plan(files)
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.parametrize("url", ["walkeeper://", "walkeeper://h", "walkeeper://h:1,/main"])
def test_an_invalid_url_gets_the_right_form_in_the_error(url: str) -> None:
    with pytest.raises(HistoryError, match="not walkeeper://HOST:PORT"):
        open_files(url)


def test_another_clusters_name_is_refused_by_the_safekeeper() -> None:
    with safekeepers(served(made())) as running:
        url = running.url.replace("/main", "/other")
        with pytest.raises(HistoryError, match='cluster "other" does not exist here'):
            make_plan(open_files(url))
