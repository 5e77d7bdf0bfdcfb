"""`history tables` keeps the memory of a segment's columns for the next one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

from tests.history.test_archives import files_of, lay, made_stream
from walkeeper_cli.program import cli


def test_tables_are_written_from_the_heap_one_group_a_segment(tmp_path: Path) -> None:
    """Arrow's own pool gives each buffer back, and the kernel zeroes its pages for the next."""
    before = pa.default_memory_pool()
    lay(tmp_path / "wal", files_of(made_stream()))
    command = ["history", "tables", "--path", str(tmp_path / "wal"), "--quiet"]
    try:
        done = CliRunner().invoke(cli, [*command, "--output", str(tmp_path / "out")])
        assert done.exit_code == 0, done.output
        assert pa.default_memory_pool().backend_name == "system"
    finally:
        pa.set_memory_pool(before)
    found = sorted((tmp_path / "out/records").iterdir())
    assert len(found) == 3
    assert all(pq.read_metadata(path).num_row_groups == 1 for path in found)
