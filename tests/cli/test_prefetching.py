"""The prefetcher of `restore`: it names a segment that is on disk, and no fetch waits."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from walkeeper_common.shell.safekeeper_links.committed_wal import Safekeeper
from walkeeper_restore import prefetching
from walkeeper_restore.prefetching import _fetch_ahead, _Segments

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
