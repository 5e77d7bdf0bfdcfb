"""The files in which records change rows, or may, by records that are made here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from walkeeper_history.rows.heap_changes import heap_changes
from walkeeper_wal.records import walk
from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import RMGR_IDS

INSERT, LOCK = 0x00, 0x60
FILES = ((1663, 5, 20000), (1663, 5, 20001))


@dataclass
class OneRecord:
    """A batch of one record with two blocks, of two files."""

    records: Column
    blocks: Column


def one_record(rmid: int, info: int) -> OneRecord:
    records, blocks = np.zeros(1, walk.RECORD_ROW), np.zeros(2, walk.BLOCK_ROW)
    records["rmid"], records["info"], records["xid"] = rmid, info, 741
    blocks["block_id"] = 0, 1
    for n, name in enumerate(("tablespace", "database", "relfilenode")):
        blocks[name] = [file[n] for file in FILES]
    return OneRecord(records, blocks)


@pytest.mark.parametrize(
    ("rmid", "info", "count"),
    [
        (RMGR_IDS["Heap"], INSERT, 1),
        (RMGR_IDS["Heap"], LOCK, 0),
        (RMGR_IDS["Generic"], INSERT, 0),
        (128, INSERT, 2),
        (255, LOCK, 2),
    ],
)
def test_files_of_an_extensions_records_may_have_rows(rmid: int, info: int, count: int) -> None:
    """No other record tells of a table that an extension stores in its own way."""
    found = heap_changes(one_record(rmid, info))  # type: ignore[arg-type]
    assert found.tolist() == [[*file, 741] for file in FILES[:count]]
