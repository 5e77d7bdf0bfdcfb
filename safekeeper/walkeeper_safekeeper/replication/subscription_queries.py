"""The SQL queries of a subscription to its publisher, answered from what the log knows. Pure.

    answer(sql, settings)    the rows, or None: it is another question

A safekeeper executes no SQL. CREATE SUBSCRIPTION and ALTER SUBSCRIPTION … REFRESH ask for the
publications and their tables (subscriptioncmds.c: check_publications, fetch_table_list). Every
libpq client of replication=database begins with a set_config. The texts are those of PostgreSQL 15
to 18, spaces aside. Only the primary can copy tables (table_copy.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from walkeeper_common.postgres.pgwire import Column, SqlRefused, result
from walkeeper_safekeeper.replication.log_settings import LogSettings, check_publications
from walkeeper_safekeeper.replication.sql_text import literals, one_line

SET_CONFIG = re.compile(
    r"SELECT pg_catalog\.set_config ?\( ?'search_path', ?'', ?false ?\) ?;?", re.IGNORECASE
)
PUBLICATIONS = re.compile(
    r"SELECT t\.pubname FROM pg_catalog\.pg_publication t WHERE t\.pubname IN \((.*)\) ?;?"
)
TABLES = re.compile(
    r"SELECT DISTINCT t\.schemaname, t\.tablename(, t\.attnames)? "
    r"FROM pg_catalog\.pg_publication_tables t WHERE t\.pubname IN \((.*)\) ?;?"
)
TABLES_SINCE_16 = re.compile(
    r"SELECT DISTINCT n\.nspname, c\.relname, (?:\( ?CASE WHEN .* AS attnames|gpt\.attrs) "
    r"FROM pg_class c .*pg_get_publication_tables\(.*WHERE pubname IN \((.*?)\).*",
    re.IGNORECASE,
)


def asks_for_tables(sql: str) -> bool:
    """Return True if the answer depends on what is published at the time of the question."""
    text = one_line(sql)
    return bool(TABLES.fullmatch(text) or TABLES_SINCE_16.fullmatch(text))


def answer(sql: str, settings: LogSettings) -> bytes | None:
    """Return the rows, or None if it is another question.

    Raise SqlRefused 42704 for publications that the log does not have. CREATE SUBSCRIPTION asks for
    all that it names, ADD PUBLICATION for the added ones alone. Both ask for tables of all of them.
    Raise 0A000 if the publications list different columns of a table.
    """
    text = one_line(sql)
    if SET_CONFIG.fullmatch(text):
        return result((Column("set_config"),), [("",)], "SELECT 1")
    if found := PUBLICATIONS.fullmatch(text):
        asked = literals(found[1])
        if not asked <= set(settings.publications):
            check_publications(sorted(asked), settings.publications)
        return _rows(("pubname",), [(name,) for name in settings.publications if name in asked])
    if found := TABLES.fullmatch(text):
        columns: tuple[str, ...] = ("schemaname", "tablename")
        return _tables((*columns, "attnames") if found[1] else columns, found[2], settings)
    if found := TABLES_SINCE_16.fullmatch(text):
        return _tables(("nspname", "relname", "attnames"), found[1], settings)
    return None


def _tables(columns: Sequence[str], asked: str, settings: LogSettings) -> bytes:
    """List the tables without column lists. Subscribers compare lists, so equal ones are NULL."""
    check_publications(sorted(literals(asked)), settings.publications)
    if settings.clashing:
        raise _clash(*settings.clashing[0])
    padding = (None,) * (len(columns) - 2)
    return _rows(columns, [(*table, *padding) for table in settings.tables])


def _clash(schema: str, table: str) -> SqlRefused:
    """Return the refusal of a table whose changes the primary cannot decode, in its words."""
    return SqlRefused(
        "0A000",
        f'cannot use different column lists for table "{schema}.{table}" in different publications',
        hint="ALTER PUBLICATION … SET TABLE gives it the same columns in each. Or make a log for "
        "each publication.",
    )


def _rows(columns: Sequence[str], rows: Sequence[tuple[str | None, ...]]) -> bytes:
    return result([Column(name) for name in columns], rows, f"SELECT {len(rows)}")
