"""The proposer's query gives the tables and the clashes that PostgreSQL's own functions give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.installations import binaries_or_skip, versions
from tests.support.postgres_server import PostgresServer, installation
from walkeeper_proposer.postgres.publication_tables import published_query

pytestmark = pytest.mark.postgres
DEBIANS, FIRST_WITH_GENERATED = 15, 18
# A subscription asks so: fetch_table_list of 15, and of 16 to 18.
VIEW = """SELECT DISTINCT schemaname, tablename, attnames::text FROM pg_publication_tables
           WHERE pubname IN ({})"""
FUNCTION = """SELECT DISTINCT n.nspname, c.relname, gpt.attrs::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN (SELECT (pg_get_publication_tables(VARIADIC array_agg(pubname::text))).*
          FROM pg_publication WHERE pubname IN ({})) AS gpt ON gpt.relid = c.oid"""
CLASHING = ("part, whole", "part, other", "part, all_tables", "low_part, low_whole")
GENERATED = "publish_generated_columns = stored"
EQUAL = ("part", "part, same", "whole, named", "whole, all_tables", "dropped, rest, named")
MIXED = ("via, plain_leaf", "via, low_part", "all_tables, via", "via_all, schemas, plain_leaf")


@pytest.fixture(scope="module", params=[DEBIANS, *versions([18])])
def primary(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with ExitStack() as stack:
        if request.param != DEBIANS:
            stack.enter_context(installation(binaries_or_skip(request.param)))
        server = stack.enter_context(PostgresServer.create({"wal_level": "logical"}))
        root = "WITH (publish_via_partition_root = true)"
        server.sql(
            "CREATE SCHEMA s",
            "CREATE TABLE t (id int, v text, w int, g int GENERATED ALWAYS AS (0) STORED)",
            "CREATE TABLE s.u (id int, gone int, v text)",
            "ALTER TABLE s.u DROP COLUMN gone",
            "CREATE TABLE root (id int, v text) PARTITION BY RANGE (id)",
            "CREATE TABLE s.high PARTITION OF root FOR VALUES FROM (9) TO (99) "
            "PARTITION BY LIST (id)",
            "CREATE TABLE s.leaf PARTITION OF s.high FOR VALUES IN (9)",
            "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (9)",
            "CREATE PUBLICATION part FOR TABLE t (id, v)",
            "CREATE PUBLICATION same FOR TABLE t (v, id)",
            "CREATE PUBLICATION other FOR TABLE t (id)",
            "CREATE PUBLICATION whole FOR TABLE t, root",
            "CREATE PUBLICATION named FOR TABLE t (w, id, v)",
            "CREATE PUBLICATION all_tables FOR ALL TABLES",
            "CREATE PUBLICATION schemas FOR TABLES IN SCHEMA s",
            "CREATE PUBLICATION dropped FOR TABLE s.u (id, v)",
            "CREATE PUBLICATION rest FOR TABLE s.u",
            "CREATE PUBLICATION low_part FOR TABLE low (id)",
            "CREATE PUBLICATION low_whole FOR TABLE low",
            f"CREATE PUBLICATION via FOR TABLE root (id) {root}",
            f"CREATE PUBLICATION via_all FOR ALL TABLES {root}",
            "CREATE PUBLICATION plain_leaf FOR TABLE low, s.leaf",
        )
        if request.param >= FIRST_WITH_GENERATED:
            server.sql(
                "CREATE PUBLICATION generated FOR TABLE t WITH (publish_generated_columns = stored)"
            )
        yield server


def published(primary: PostgresServer, names: str) -> dict[tuple[str, str], bool]:
    version = int(primary.sql("SHOW server_version_num"))
    found = primary.rows(published_query(names.split(", "), version))
    assert len({row[:2] for row in found}) == len(found)
    return {(schema, table): has_clash for schema, table, has_clash in found}


def postgresqls(primary: PostgresServer, names: str, query: str) -> dict[tuple[str, str], bool]:
    listed = ", ".join(f"'{name}'" for name in names.split(", "))
    rows = primary.rows(query.format(listed))
    tables = [(schema, table) for schema, table, _ in rows]
    return {table: tables.count(table) > 1 for table in tables}


@pytest.mark.parametrize("names", [*CLASHING, *EQUAL])
def test_tables_and_clashes_are_those_of_a_stock_publisher(
    primary: PostgresServer, names: str
) -> None:
    version = int(primary.sql("SHOW server_version_num")) // 10000
    found = published(primary, names)
    assert found == postgresqls(primary, names, FUNCTION if version > DEBIANS else VIEW)
    # In 15 "whole" and "named" differ by the generated column.
    assert any(found.values()) == (names in CLASHING) or (version, names) == (15, "whole, named")
    if version >= FIRST_WITH_GENERATED:
        with_generated = f"{names}, generated"
        found = published(primary, with_generated)
        assert found == postgresqls(primary, with_generated, FUNCTION)


@pytest.mark.parametrize("names", MIXED)
def test_a_partition_comes_with_its_root_alone_if_one_publication_has_the_root(
    primary: PostgresServer, names: str
) -> None:
    """PostgreSQL 15 lists both, so a subscription would copy the partition's rows twice."""
    found = published(primary, names)
    assert ("public", "root") in found and ("public", "low") not in found
    if int(primary.sql("SHOW server_version_num")) >= 160000:
        assert found == postgresqls(primary, names, FUNCTION)
