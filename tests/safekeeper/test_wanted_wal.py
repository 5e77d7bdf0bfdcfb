"""WAL that a known reader lacks stays in the page cache, from its slot to the disk's hint."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tests.safekeeper.test_safekeeper_driver import SEGMENT_BYTES, START, Bench, made_wal
from tests.support.fake_served_log import FakeLog
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.hosting.log_retention import LogRetention
from walkeeper_safekeeper.hosting.readable_log import ReadableLog
from walkeeper_safekeeper.safekeeper_settings import SafekeeperSettings
from walkeeper_safekeeper.storage import wal_store


def test_wal_that_a_slot_lacks_stays_in_the_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, maker, log = Bench(), made_wal(7 * SEGMENT_BYTES), FakeLog()
    settings = SafekeeperSettings(1, "", ("", 0))
    LogRetention(cast(ReadableLog, log), bench.driver, settings, lambda: None)
    dropped: list[str] = []
    monkeypatch.setattr(wal_store, "CACHED_BYTES", SEGMENT_BYTES)
    monkeypatch.setattr(bench.disk, "drop_cached", dropped.append)
    asyncio.run(log.slots.create("lags", temporary=False, restart_lsn=segment_begin(2), pid=1))

    def write_into(number: int) -> None:
        """Write WAL up to the begin of this segment, and let the next one be allocated."""
        begin = bench.driver.acceptor.flush_lsn
        bench.append(begin, maker.read(begin, segment_begin(number) + 1000))
        bench.writer.run_all()
        bench.others.run_all()

    for number in range(6):
        write_into(number)
    names = [bench.driver.store.name_of(segment_begin(number)) for number in range(5)]
    assert dropped == names[:2]
    asyncio.run(log.slots.drop("lags", pid=1, wait=False))
    write_into(6)
    assert dropped == names[:5]


def segment_begin(number: int) -> Lsn:
    return Lsn(START + number * SEGMENT_BYTES)
