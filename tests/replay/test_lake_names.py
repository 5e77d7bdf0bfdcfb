"""Names that a lake's tables cannot have are refused before a row is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.lakes.delta_mirrors import DeltaMirrors
from walkeeper_replay.lakes.iceberg_mirrors import IcebergMirrors
from walkeeper_replay.lakes.lake_mirrors import VALIDITY, Mirrors
from walkeeper_replay.lakes.lake_names import refuse_names
from walkeeper_wal.wal_errors import HistoryError

DELTA, ICEBERG = DeltaMirrors, IcebergMirrors


def table(*columns: str, schema: str = "public", name: str = "t") -> Table:
    found: Any = SimpleNamespace(schema=schema, name=name, shown=f"{schema}.{name}")
    found.columns = [SimpleNamespace(name=column) for column in columns]
    return cast(Table, found)


@pytest.mark.parametrize("kind", [DELTA, ICEBERG])
def test_ordinary_names_are_taken(kind: type[Mirrors]) -> None:
    refuse_names(table("id", "ID 2", "naïve", "`"), VALIDITY, kind.name_rules)
    refuse_names(table("valid_to_lsn"), (), kind.name_rules)


@pytest.mark.parametrize(
    ("kind", "columns", "why"),
    [
        (DELTA, ("a", "A"), "public.t: columns a and A differ by case alone"),
        (ICEBERG, ("a", "b.c"), "public.t: column b.c has a dot"),
        (DELTA, ("a", "valid_to_lsn"), "public.t has columns valid_to_lsn"),
        (DELTA, ("a", "VALID_TO_LSN"), "public.t has columns VALID_TO_LSN"),
        (ICEBERG, ("a", "valid_to_lsn"), "public.t has columns valid_to_lsn"),
    ],
    ids=["case", "dot", "added", "added case", "added too"],
)
def test_a_column_that_a_lake_reads_as_another_one_is_refused(
    kind: type[Mirrors], columns: tuple[str, ...], why: str
) -> None:
    with pytest.raises(HistoryError) as raised:
        refuse_names(table(*columns), VALIDITY, kind.name_rules)
    assert why in str(raised.value)


def test_each_lake_takes_what_only_the_other_one_cannot() -> None:
    refuse_names(table("a", "A"), VALIDITY, ICEBERG.name_rules)
    refuse_names(table("b.c"), VALIDITY, DELTA.name_rules)


@pytest.mark.parametrize(("schema", "name"), [("a/b", "t"), ("public", "t.u"), ("public", "ä")])
def test_a_table_whose_name_a_lake_may_not_take_is_refused(schema: str, name: str) -> None:
    with pytest.raises(HistoryError, match="characters that a lake may not take"):
        refuse_names(table("a", schema=schema, name=name), (), DELTA.name_rules)
