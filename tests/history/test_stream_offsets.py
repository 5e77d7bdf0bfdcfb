"""Offsets of a stream belong to one cluster's log: LSNs of another one mean nothing there."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark.sql.streaming.datasource import ReadMaxFiles

from pyspark_pgwal.options import PgWalOptions
from pyspark_pgwal.stream import Offset, PgWalStreamReader
from tests.history.test_archives import MB, files_of, filled, lay
from tests.wal_maker import SYSTEM_ID, WalMaker
from walkeeper_history.errors import HistoryError

OTHER = 7_000_000_000_000_000_002


def reader(root: Path, *, system_id: int = SYSTEM_ID) -> PgWalStreamReader:
    maker = filled(WalMaker(Random(3), segment_bytes=MB, system_id=system_id), 5 * MB // 2)
    lay(root, files_of(maker))
    return PgWalStreamReader(PgWalOptions.parse({"path": str(root)}))


def test_a_checkpoint_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """Its commits up to the old LSN were passed over without a word."""
    of_this, of_other = reader(tmp_path / "a"), reader(tmp_path / "b", system_id=OTHER)
    read = of_this.latestOffset(of_this.initialOffset(), ReadMaxFiles(64))
    text = f"b: what the checkpoint has read is of the system .*, this log of the system {OTHER}"
    with pytest.raises(HistoryError, match=text):
        of_other.latestOffset(read, ReadMaxFiles(64))
    with pytest.raises(HistoryError, match=text):
        of_other.partitions(of_this.initialOffset(), read)


def test_offsets_of_before_have_no_system_and_go_on(tmp_path: Path) -> None:
    made = reader(tmp_path)
    first = made.initialOffset()
    old: Offset = {name: value for name, value in first.items() if name != "system"}
    assert set(old) == {"timeline", "lsn"}
    then = made.latestOffset(old, ReadMaxFiles(64))
    assert then == made.latestOffset(first, ReadMaxFiles(64)) != first
    assert made.partitions(old, then)
