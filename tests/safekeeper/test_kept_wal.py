"""The WAL that a safekeeper keeps on its disk, as status and /metrics show it."""

from __future__ import annotations

from pathlib import Path

from tests.safekeeper.test_dropped_logs import make, on_safekeeper
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.hosting.log_catalog import LogCatalog
from walkeeper_safekeeper.hosting.log_status import log_status
from walkeeper_safekeeper.safekeeper_metrics import OF_LOG


def test_wal_in_the_archive_is_not_kept_on_the_disk(tmp_path: Path) -> None:
    """An archive that reached further back than the disk made kept_bytes grow for ever."""

    async def story(catalog: LogCatalog) -> None:
        await make(catalog)
        (log,) = catalog.logs()
        begin_lsn = log.driver.store.first_lsn
        log.archive_reaches(Lsn(0))
        assert log.readable.oldest_lsn == 0 and begin_lsn > 0
        assert log_status(log)["kept_bytes"] == 0
        (first,) = (f for f in OF_LOG if f.metric.name == "walkeeper_safekeeper_first_lsn_bytes")
        assert first.read(log) == begin_lsn

    on_safekeeper(tmp_path, story)
