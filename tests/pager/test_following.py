"""The pager's choice of a safekeeper to follow, without a network."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.history.test_archives import files_of, filled, lay
from tests.support.wal_maker import WalMaker
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_pager.following import Following
from walkeeper_pager.received_wal import ReceivedWal
from walkeeper_wal.sources.opening import open_files
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


class Received:
    """The part of a pager that the archive needs: its received WAL, applied up to an LSN."""

    def __init__(self, wal: ReceivedWal, applied_lsn: int) -> None:
        self.wal, self.applied_lsn = wal, applied_lsn

    @property
    def start_lsn(self) -> int:
        return self.wal.end_lsn or 0


def test_the_archives_newer_timeline_begins_before_an_unfinished_record(tmp_path: Path) -> None:
    """The torn record stayed, with the newer timeline's WAL after it."""
    maker = filled(WalMaker(Random(1), segment_bytes=MB), 2 * MB)
    torn = next(each for each in maker.records if each.start_lsn > 2 * MB + 300_000)
    switch, end = int(torn.start_lsn), int(torn.end_lsn) - 8
    wal = ReceivedWal(tmp_path / "wal", MB)
    wal.write(1, MB, maker.read(Lsn(MB), Lsn(end)))
    newer = filled(WalMaker(Random(2), segment_bytes=MB, timeline=2), 2 * MB)
    older, name = files_of(maker), segment_name(2, Lsn(2 * MB), MB)
    first = segment_name(1, Lsn(MB), MB)
    own = older[segment_name(1, Lsn(2 * MB), MB)]
    shared = own[: switch - 2 * MB] + files_of(newer)[name][switch - 2 * MB :]
    archive = lay(tmp_path / "archive", {first: older[first], name: shared})
    (archive / "00000002.history").write_bytes(f"1\t{torn.start_lsn}\tno target\n".encode())
    pager: Any = Received(wal, switch)
    Following(pager, [], "main", lambda: None, open_files(str(archive)))._from_archive()
    assert wal.timeline == 2 and wal.end_lsn == 3 * MB
    assert wal.read(2 * MB, 3 * MB) == shared
    wal.close()
