"""The pager's choice of a safekeeper to follow, without a network."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from walkeeper_pager.following import Following
from walkeeper_wal.sources.safekeeper_link import SafekeeperLink, ServedWal

MB, SYSTEM = 1 << 20, 7
HISTORY = b"1\t0/300000\tno recovery target specified\n"


class Link:
    """A safekeeper that is on a timeline, up to an LSN. A stream of it sets `stop`."""

    def __init__(self, timeline: int, commit_lsn: int, stop: threading.Event) -> None:
        self._state = ServedWal(SYSTEM, timeline, MB, MB, commit_lsn)
        self._stop = stop
        self.address = f"of timeline {timeline}"
        self.streams: list[tuple[int, int]] = []

    def is_logical(self) -> bool:
        return False

    def state(self) -> ServedWal:
        return self._state

    def history(self, timeline: int) -> bytes:
        return HISTORY

    def start_stream(self, begin: int, timeline: int) -> None:
        self.streams.append((begin, timeline))
        self._stop.set()

    def close(self) -> None:
        """Keep nothing."""


def test_a_safekeeper_that_missed_a_promotion_is_left_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended the pager, as if the log were not the pager's."""
    stop = threading.Event()
    links = {"late": Link(1, 3 * MB, stop), "ahead": Link(2, 5 * MB, stop)}
    monkeypatch.setattr(SafekeeperLink, "open", lambda address, *_, **__: links[address])
    pager: Any = SimpleNamespace(
        base=SimpleNamespace(system_id=SYSTEM, shown="base"),
        wal=SimpleNamespace(timeline=2, segment_bytes=MB, end_lsn=4 * MB),
        start_lsn=4 * MB, applied_lsn=4 * MB,
    )  # fmt: skip
    following = Following(pager, list(links), "main", lambda: None)
    following.run(stop)
    assert not links["late"].streams and links["ahead"].streams == [(4 * MB, 2)]
    assert following._reasons == {"late": "late is on timeline 1 still, and this pager is on 2"}
