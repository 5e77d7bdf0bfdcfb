"""The prefetcher of `restore`: it names a segment that is on disk, and no fetch waits."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.safekeeper_links.committed_wal import Safekeeper
from walkeeper_restore import prefetching, spool
from walkeeper_restore.prefetching import _fetch_ahead, _Segments
from walkeeper_restore.safekeeper_files import fetch

PATIENCE_S = 30.0
NAMES = ["000000010000000000000002", "000000010000000000000003", "000000010000000000000004"]


class Wanted:
    """Three segments."""

    begin_lsn = end_lsn = segment_bytes = 0
    system_id = None

    def __init__(self) -> None:
        self._names = list(NAMES)

    @property
    def name(self) -> str:
        return self._names[0]

    def advance(self) -> bool:
        self._names.append(self._names.pop(0))
        return self.name != NAMES[0]


class Disk:
    """A disk that syncs when `goes_on` is set; `error` is what a sync raises, if it fails."""

    def __init__(self) -> None:
        self.goes_on, self.synced = threading.Event(), list[str]()
        self.error: OSError | None = None

    def sync(self, path: str) -> None:
        assert self.goes_on.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.synced.append(Path(path).name)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(prefetching, "sync_path", disk.sync)
    yield disk
    disk.goes_on.set()


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    """Return an event for each segment, set when its bytes have been written."""
    events = [threading.Event() for _ in NAMES]
    left = iter(events)

    def fetch(source: object, begin: int, end: int, path: str, size: int) -> None:
        Path(path).write_bytes(b"WAL")
        next(left).set()

    monkeypatch.setattr(prefetching, "fetch", fetch)
    monkeypatch.setattr(prefetching, "is_segment", lambda *_: True)
    return events


def prefetch(folder: Path) -> None:
    _fetch_ahead(str(folder), cast(_Segments, Wanted()), cast(Safekeeper, None), 8)


def test_the_next_segment_is_fetched_while_one_is_synced(
    tmp_path: Path, disk: Disk, fetched: list[threading.Event]
) -> None:
    prefetcher = threading.Thread(target=prefetch, args=(tmp_path,))
    prefetcher.start()
    assert fetched[1].wait(PATIENCE_S)
    assert not (tmp_path / NAMES[0]).exists() and not fetched[2].is_set()
    disk.goes_on.set()
    prefetcher.join(PATIENCE_S)
    assert sorted(path.name for path in tmp_path.iterdir()) == NAMES
    assert disk.synced == [*(f"{name}.part" for name in NAMES), tmp_path.name]


def test_a_segment_that_cannot_be_synced_gets_no_name(
    tmp_path: Path, disk: Disk, fetched: list[threading.Event]
) -> None:
    disk.error = OSError(errno.EIO, "Input/output error")
    disk.goes_on.set()
    with pytest.raises(OSError, match="Input/output"):
        prefetch(tmp_path)
    assert not set(NAMES) & {path.name for path in tmp_path.iterdir()}


class Pieces:
    """A safekeeper whose WAL is `pieces`; it looks at the file before each of them."""

    def __init__(self, path: Path, pieces: list[tuple[Lsn, bytes]]) -> None:
        self._path, self._pieces = path, pieces
        self.allocated_bytes = list[int]()

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> Iterator[tuple[Lsn, memoryview]]:
        for lsn, wal in self._pieces:
            self.allocated_bytes.append(self._path.stat().st_blocks * 512)
            yield lsn, memoryview(wal)


def test_a_segment_has_its_space_before_its_bytes_and_ends_with_zeros(tmp_path: Path) -> None:
    path, size, begin = tmp_path / NAMES[0], 1 << 20, Lsn(1 << 24)
    source = Pieces(path, [(begin + 5000, b"b" * 3000), (begin, b"a" * 5000)])
    fetch(cast(Safekeeper, source), begin, begin + 8000, str(path), size)
    assert path.read_bytes() == b"a" * 5000 + b"b" * 3000 + bytes(size - 8000)
    assert min(source.allocated_bytes) >= size


class SlowFetch:
    """A clock on which each wait takes more than half of what a fetch may stall.

    Each of the first waits ends with a write into the segment, and the last of them with its name.
    """

    def __init__(self, part: Path, writes: int) -> None:
        self._part, self._left, self._now_s = part, writes, 0.0

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, _: float) -> None:
        self._now_s += 0.6 * spool.STALLED_S
        if self._left:
            self._left -= 1
            os.utime(self._part, ns=(0, self._left))
            if not self._left:
                self._part.rename(self._part.with_suffix(""))


@pytest.mark.parametrize("writes", [0, 5])
def test_a_segment_is_awaited_as_long_as_something_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """Its size tells nothing: it is that of a whole segment from the start."""
    folder = tmp_path / spool.SPOOL / f"key.{os.getpid()}"
    folder.mkdir(parents=True)
    part = folder / (NAMES[0] + spool.PART)
    part.write_bytes(bytes(4096))
    monkeypatch.setattr(spool, "time", SlowFetch(part, writes))
    monkeypatch.setattr(spool, "is_segment", lambda *_: True)
    target = tmp_path / "RECOVERYXLOG"
    assert spool.take(NAMES[0], str(target), "key", None) == bool(writes) == target.exists()
