"""The pager's report of a disk that is full or failing, and its table after a failed commit."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from walkeeper_pager.page_table import PageTable
from walkeeper_pager.pager_daemon import storage_failures
from walkeeper_wal.wal_errors import HistoryError


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), sqlite3.OperationalError("full")]
)
def test_a_full_disk_is_one_line_that_names_the_place(error: Exception) -> None:
    text = r"^/srv/pager: (No space|full).*goes on from there"
    with pytest.raises(HistoryError, match=text), storage_failures(Path("/srv/pager")):
        raise error


def test_a_full_disk_leaves_the_table_as_it_was_and_is_named(tmp_path: Path) -> None:
    """SQLite ends the transaction itself then; there is none left to be rolled back."""
    table = PageTable(tmp_path / "pages")
    with table.change():
        table.set("horizon_lsn", 1)
    table._sql.execute("PRAGMA max_page_count = 8")
    with pytest.raises(sqlite3.OperationalError, match="full"), table.change():
        for number in range(10_000):
            table.set(f"name {number}", "x" * 1000)
    assert table.get("horizon_lsn") == "1" and table.get("name 0") is None
    table._sql.execute("PRAGMA max_page_count = 1000")
    with table.change():
        table.set("horizon_lsn", 2)
    assert table.get("horizon_lsn") == "2"
    table.close()
