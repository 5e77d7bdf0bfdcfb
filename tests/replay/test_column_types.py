"""Texts of a mirror's column are those of its type, or the table is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from walkeeper_history.change_files import ChangeFiles
from walkeeper_replay.catalogs.catalog import Attribute, Table
from walkeeper_replay.lakes.column_types import ColumnTypes
from walkeeper_replay.lakes.delta_mirrors import DeltaMirrors
from walkeeper_replay.lakes.lake_mirrors import MIRROR
from walkeeper_replay.redo.store import Relation
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.wal_errors import HistoryError

TEXT, VARCHAR, CIDR, INET, OWN = 25, 1043, 650, 869, 16500


def table_of(file: int, **types: int) -> Table:
    columns = tuple(
        Attribute(name, number, type_, -1, -1, 4)
        for number, (name, type_) in enumerate(types.items())
    )
    return Table(16384, "public", "t", Relation(1663, 5, file), columns, None, ("id",))


def test_a_type_with_other_texts_in_the_same_file_is_refused_by_each_later_stream(
    tmp_path: Path,
) -> None:
    notes = ChangeFiles.open(str(tmp_path))
    for _ in range(2):
        types = ColumnTypes(notes, "lake")
        types.refuse_others(table_of(1, a=CIDR, t=TEXT))
        types.refuse_others(table_of(1, a=CIDR, t=VARCHAR, added=INET))
        with pytest.raises(HistoryError, match=r"a in lake was of type cidr, .* of type inet"):
            types.refuse_others(table_of(1, a=INET, t=TEXT))
        with pytest.raises(HistoryError, match=r"was of type cidr, .* 16500 \(oid of pg_type\)"):
            types.refuse_others(table_of(1, a=OWN, t=TEXT))


def test_the_first_rows_of_a_mirror_have_types(tmp_path: Path) -> None:
    pytest.importorskip("deltalake", reason="pip install 'walkeeper[lake]'")
    known = {"coverage": COMPLETE, "has_all": "True", "has_values": "True"}
    facts = {f"walkeeper.{name}": text for name, text in known.items()}
    rows = pa.table({"id": [1], "a": ["10.1.2.3/32"]}).replace_schema_metadata(facts)
    DeltaMirrors(str(tmp_path), MIRROR).load(table_of(1, id=TEXT, a=CIDR), rows, 8)
    with pytest.raises(HistoryError, match="was of type cidr"):
        DeltaMirrors(str(tmp_path), MIRROR)._types.refuse_others(table_of(1, id=TEXT, a=INET))


def test_a_file_that_was_written_anew_may_have_other_types(tmp_path: Path) -> None:
    notes = ChangeFiles.open(str(tmp_path))
    types = ColumnTypes(notes, "lake")
    types.refuse_others(table_of(1, a=CIDR))
    types.refuse_others(table_of(2, a=INET))
    again = ColumnTypes(notes, "lake")
    again.refuse_others(table_of(2, a=INET))
    with pytest.raises(HistoryError, match="was of type inet, and now it is of type cidr"):
        again.refuse_others(table_of(2, a=CIDR))
    again.refuse_others(table_of(1, a=CIDR))  # A stream that died reads a window again.
