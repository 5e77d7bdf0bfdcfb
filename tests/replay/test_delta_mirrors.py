"""Delta mirrors without a server: keys and values for which delta-rs has rules of its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from walkeeper_replay.changes.change_rows import CHANGE_ROW, INSERT, Piece, covered
from walkeeper_replay.changes.changed_values import ChangedValues
from walkeeper_replay.lakes.change_folds import codes_of
from walkeeper_replay.lakes.delta_mirrors import DeltaMirrors
from walkeeper_replay.lakes.far_dates import columns_with_statistics, far_dates
from walkeeper_replay.lakes.lake_mirrors import MIRROR, _Large
from walkeeper_replay.lakes.large_folds import LargeFold, shares_of
from walkeeper_replay.text.coverage import COMPLETE

deltalake = pytest.importorskip("deltalake", reason="pip install 'walkeeper[lake]'")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
INFINITY, FIRST = (1 << 31) - 1, -2_483_589  # 5881580-07-11, and -infinity is alike; 4713 BC
TABLE: Any = SimpleNamespace(oid=7, schema="public", name="t", shown="public.t", key=("id",))


def dated(first: int, *days: int | None) -> Any:
    ids = pa.array(range(first, first + len(days)), pa.int32())
    dates = pa.array(days, pa.int32()).cast(pa.date32())
    return pa.table({"until": dates, "id": ids, "a`b": ["text"] * len(days)})


def put(sink: DeltaMirrors, rows: Any, end: int) -> None:
    there = np.ones(len(rows), bool)
    sink._merge_rows(TABLE, rows, there, sink._opened(TABLE), end)


def days(url: Path) -> list[tuple[int, int | None]]:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(url))
    found = pa.table(query.execute("SELECT id, CAST(until AS int) AS day FROM t").read_all())
    return sorted((row["id"], row["day"]) for row in found.to_pylist())


def test_infinite_dates_are_written_and_stay_through_later_commits(tmp_path: Path) -> None:
    sink, url = DeltaMirrors(str(tmp_path), MIRROR), tmp_path / "public.t"
    sink._overwrite(TABLE, dated(1, 0, None), 1)
    put(sink, dated(2, INFINITY, -INFINITY - 1), 2)
    assert sink._done(sink._opened(TABLE)) == 2
    put(sink, dated(5, FIRST), 3)
    again = DeltaMirrors(str(tmp_path), MIRROR)
    put(again, dated(1, 7), 4)
    deltalake.DeltaTable(url).optimize.compact()
    deltalake.DeltaTable(url).create_checkpoint()
    put(again, dated(6, INFINITY), 5)
    expected = [(1, 7), (2, INFINITY), (3, -INFINITY - 1), (5, FIRST), (6, INFINITY)]
    assert days(url) == expected
    operations = [each["operation"] for each in deltalake.DeltaTable(url).history()]
    assert operations.count("SET TBLPROPERTIES") == 1


def test_a_new_table_may_begin_with_infinite_dates(tmp_path: Path) -> None:
    url = tmp_path / "public.t"
    sink = DeltaMirrors(str(tmp_path), MIRROR)
    sink._overwrite(TABLE, dated(1, INFINITY), 1)
    sink._overwrite(TABLE, dated(1, INFINITY, 3), 2)
    assert days(url) == [(1, INFINITY), (2, 3)]


def test_a_large_transaction_may_have_infinite_dates(tmp_path: Path) -> None:
    url, sink = tmp_path / "public.t", DeltaMirrors(str(tmp_path), MIRROR)
    for number, rows in enumerate((dated(1, INFINITY), dated(2, 3, INFINITY)), 1):
        with LargeFold(tmp_path, TABLE.key, 2) as fold:
            fold.take([inserted(rows, number)])
            sink._commit_large(_Large(fold, sink._opened(TABLE)), TABLE, number, 0)
    assert days(url) == [(1, INFINITY), (2, 3), (3, INFINITY)]


def inserted(rows: Any, commit: int) -> Piece:
    changes = np.zeros(len(rows), CHANGE_ROW)
    changes["operation"], changes["old"] = INSERT, -1
    changes["new"] = np.arange(len(rows))
    changes["start_lsn"] = changes["commit_lsn"] = commit
    known = np.zeros(len(rows), np.int64)
    arrays = [each.combine_chunks() for each in rows.columns]
    values = ChangedValues(rows.column_names, arrays, [], np.arange(len(rows)), None, known)
    return Piece(TABLE, changes, values, covered(len(rows), COMPLETE), True)


def test_a_table_keeps_statistics_of_its_other_columns(tmp_path: Path) -> None:
    sink = DeltaMirrors(str(tmp_path), MIRROR)
    sink._overwrite(TABLE, dated(1, INFINITY), 1)
    actions = pa.table(deltalake.DeltaTable(tmp_path / "public.t").get_add_actions(flatten=True))
    assert {"min.id", "max.id", "min.a`b"} <= set(actions.column_names)
    assert "min.until" not in actions.column_names
    assert far_dates(dated(1, None)) == far_dates(dated(1)) == far_dates(dated(1, FIRST)) == set()
    wide = pa.schema([(f"c{n}", pa.int32()) for n in range(40)])
    assert columns_with_statistics(wide, ("c39",)).startswith("`c39`,`c0`,")
    assert columns_with_statistics(wide, ("c39",)).count(",") == 31


@pytest.mark.parametrize("type_", [pa.float64(), pa.float32()])
def test_zero_and_minus_zero_are_one_key(tmp_path: Path, type_: Any) -> None:
    """PostgreSQL finds the row of 0 by -0, and so does MERGE."""
    keys = pa.table({"id": pa.array([0.0, -0.0, 1.0], type_)})
    assert codes_of(keys, ("id",)).tolist() == [0, 0, 1]
    assert len(set(shares_of(keys.slice(0, 2), ("id",), 256))) == 1
    sink = DeltaMirrors(str(tmp_path), MIRROR)
    sink._overwrite(TABLE, keys.slice(1).append_column("t", [["zero", "one"]]), 1)
    put(sink, pa.table({"id": pa.array([0.0], type_), "t": ["was updated"]}), 2)
    rows = deltalake.DeltaTable(tmp_path / "public.t").to_pyarrow_table().sort_by("id").to_pylist()
    assert [(str(row["id"]), row["t"]) for row in rows] == [("0.0", "was updated"), ("1.0", "one")]
