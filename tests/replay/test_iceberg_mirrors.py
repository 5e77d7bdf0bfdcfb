"""Iceberg mirrors without a server: the filters of a window, and the notes of a namespace."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from walkeeper_replay.lakes import iceberg_mirrors
from walkeeper_replay.lakes.iceberg_mirrors import IcebergMirrors, filter_of
from walkeeper_replay.lakes.lake_mirrors import MIRROR, SCD2
from walkeeper_wal.wal_errors import HistoryError

pytest.importorskip("pyiceberg", reason="pip install 'walkeeper[lake]'")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ROWS = pa.table({"day": pa.array([1, 2, 3], pa.date32()), "a": [7, 7, 7], "b": ["x", "z", "y"]})


def admitted(found: Any) -> list[int]:
    """Return the places of ROWS and one more row that a filter admits."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.expressions.visitors import bind
    from pyiceberg.io.pyarrow import expression_to_pyarrow
    from pyiceberg.schema import Schema
    from pyiceberg.types import DateType, LongType, NestedField, StringType

    kinds = {"day": DateType(), "a": LongType(), "b": StringType()}
    schema = Schema(
        *(NestedField(i, n, kinds[n], required=False) for i, n in enumerate(ROWS.schema.names, 1))
    )
    more = pa.table({"day": pa.array([9, 9], pa.date32()), "a": [7, 8], "b": ["xx", "zz"]})
    rows = pa.concat_tables([ROWS, more]).append_column("place", pa.array(range(5)))
    if isinstance(found, AlwaysTrue):
        return list(range(5))
    kept = rows.filter(expression_to_pyarrow(bind(schema, found, case_sensitive=True)))
    places: list[int] = kept["place"].to_pylist()
    return places


def test_a_filter_admits_each_key_and_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert admitted(filter_of(ROWS, ("a", "b"))) == [0, 1, 2]
    assert admitted(filter_of(ROWS, ("a",))) == [0, 1, 2, 3]
    assert admitted(filter_of(ROWS, ("day",))) == [0, 1, 2, 3, 4]
    monkeypatch.setattr(iceberg_mirrors, "VALUES_MAX", 2)
    assert admitted(filter_of(ROWS, ("a", "b"))) == [0, 1, 2, 3]


def test_a_namespace_is_of_one_stream_one_log_and_one_mode(tmp_path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    sink = IcebergMirrors("lake", "shop", MIRROR, opened=catalog)
    sink.claim("host:/state")
    sink.claim("host:/state")
    assert sink.position() == 0
    sink.beat(0x1000028, {"system": "7", "tables": ["orders"]})
    again = IcebergMirrors("lake", "shop", SCD2, opened=catalog)
    assert again.position() == 0x1000028
    with pytest.raises(HistoryError, match=r"the state host:/state, writes here"):
        again.claim("host:/other")
    with pytest.raises(HistoryError, match="mode 'mirror', and this stream's is 'scd2'"):
        again.refuse_other({"system": "7", "tables": ["orders"]})
    sink.refuse_other({"system": "7", "tables": ["orders"]})


def test_two_tables_with_one_name_in_the_namespace_are_refused(tmp_path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    sink: Any = IcebergMirrors("lake", "shop", MIRROR, opened=catalog)
    one = SimpleNamespace(oid=7, schema="a_b", name="c", shown="a_b.c", key=("id",))
    other = SimpleNamespace(oid=8, schema="a", name="b_c", shown="a.b_c", key=("id",))
    sink._note(one)
    sink._note(one)
    with pytest.raises(HistoryError, match=r"a_b_c.oid .* says 7 primary key .* now it is 8"):
        sink._note(other)
