"""The compiled engine: its sums and its CRC by the table are those of the slower twins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from crc32c import crc32c

from tests.history.engines_here import engines_here
from tests.history.test_archives import files_of, lay, made_stream
from tests.support.waiting import LIMIT_S
from walkeeper_history.rows import record_kinds
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.records.walk import RECORD_ROW

pytestmark = pytest.mark.skipif(
    "compiled" not in engines_here(), reason="the walk over records was not compiled"
)


def test_the_table_gives_the_crc_of_the_instruction() -> None:
    from walkeeper_wal.records._walk import crc_by_best, crc_by_table

    random = Random(7)
    for size in (0, 1, 7, 8, 63, 191, 192, 200, 1535, 1536, 4096, 20_001):
        data = random.randbytes(size)
        assert crc_by_table(data) == crc_by_best(data) == crc32c(data), f"{size=}"


def test_the_compiled_sums_by_kind_are_those_of_numpy() -> None:
    from walkeeper_wal.records._walk import add_kinds

    random = np.random.default_rng(7)
    rows = np.frombuffer(random.bytes(RECORD_ROW.itemsize * 3000), RECORD_ROW).copy()
    rows["rmid"][::3] = RMGR_IDS["Transaction"]
    sums = []
    for add in (add_kinds, record_kinds.add_kinds):
        made = np.zeros((3, record_kinds.KINDS), np.int64)
        for part in (rows[:1000], rows[1000:], rows[:0]):
            add(part, RMGR_IDS["Transaction"], *made)
        sums.append(made)
    assert (sums[0] == sums[1]).all() and sums[0][0].sum() == len(rows)


STARTED = """
import sys
from walkeeper_cli.program import run
assert run(["history", "stats", "--path", sys.argv[1]]) == 0
print("HEAVY", sorted({"numpy", "pandas", "psycopg", "pyarrow"} & set(sys.modules)))
"""


def test_a_command_that_only_counts_loads_nothing_heavy(tmp_path: Path) -> None:
    """These libraries take longer to load than a gigabyte of WAL to count."""
    wal = lay(tmp_path / "wal", files_of(made_stream()))
    command = [sys.executable, "-c", STARTED, str(wal)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"
