"""The SQL of CREATE SUBSCRIPTION has answers: the texts of PostgreSQL 15 to 18, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from walkeeper_common.postgres.pgwire import MessageBuffer, SqlRefused
from walkeeper_safekeeper.replication.log_settings import LogSettings
from walkeeper_safekeeper.replication.sql_text import literals
from walkeeper_safekeeper.replication.subscription_queries import answer, asks_for_tables

SETTINGS = LogSettings(("p", "it's"), "shop", {}, {}, (("public", "t"), ("s", "u")))
TABLES_16 = """SELECT DISTINCT N.nspname, C.relname,
       ( CASE WHEN (array_length(GPT.attrs, 1) = C.relnatts)
              THEN NULL ELSE GPT.attrs END
       ) AS attnames
 FROM pg_class C
   JOIN pg_namespace N ON N.oid = C.relnamespace
   JOIN ( SELECT (pg_get_publication_tables(VARIADIC array_agg(pubname::text))).*
          FROM pg_publication
          WHERE pubname IN ( 'p', 'it''s' )) AS GPT
       ON GPT.relid = C.oid
"""
TABLES_17 = """SELECT DISTINCT n.nspname, c.relname, gpt.attrs
       FROM pg_class c
         JOIN pg_namespace n ON n.oid = c.relnamespace
         JOIN ( SELECT (pg_get_publication_tables(VARIADIC array_agg(pubname::text))).*
                FROM pg_publication
                WHERE pubname IN ( 'p', 'it''s' )) AS gpt
             ON gpt.relid = c.oid
"""


def rows(sql: str) -> list[list[bytes | None]]:
    data = answer(sql, SETTINGS)
    assert data is not None, sql
    buffer, found = MessageBuffer(), list[list[bytes | None]]()
    buffer.feed(data)
    while (message := buffer.next_message()) is not None:
        if message.tag != b"D":
            continue
        row, at = list[bytes | None](), 2
        for _ in range(int.from_bytes(message.body[:2], "big")):
            size = int.from_bytes(message.body[at : at + 4], "big", signed=True)
            at += 4
            row.append(None if size < 0 else message.body[at : at + size])
            at += max(size, 0)
        found.append(row)
    return found


def test_publications_are_those_of_the_log() -> None:
    """ADD PUBLICATION asks for the added ones alone."""
    ask = "SELECT t.pubname FROM\n pg_catalog.pg_publication t WHERE\n t.pubname IN ({})"
    assert rows(ask.format("'p', 'it''s'")) == [[b"p"], [b"it's"]]
    assert rows(ask.format("'it''s'")) == [[b"it's"]]
    assert not asks_for_tables(ask.format("'p'"))
    refused(ask.format("'p', 'q'"))


TABLES_15 = (
    "SELECT DISTINCT t.schemaname, t.tablename \n{}FROM pg_catalog.pg_publication_tables t\n"
    " WHERE t.pubname IN ( 'p', 'it''s' )"
)


def test_tables_are_those_that_the_primary_publishes() -> None:
    with_columns = [[b"public", b"t", None], [b"s", b"u", None]]
    assert rows(TABLES_15.format(", t.attnames\n")) == with_columns
    assert rows(TABLES_15.format("")) == [[b"public", b"t"], [b"s", b"u"]]
    for since in (TABLES_16, TABLES_17):
        assert rows(since) == with_columns
        assert asks_for_tables(since)


@pytest.mark.parametrize("ask", [TABLES_15.format(""), TABLES_16, TABLES_17])
@pytest.mark.parametrize("others", ["'p'", "'q'", "'p', 'it''s', 'q'"])
def test_tables_of_other_publications_are_refused(ask: str, others: str) -> None:
    refused(ask.replace("'p', 'it''s'", others))


@pytest.mark.parametrize(
    "ask", [TABLES_15.format(""), TABLES_15.format(", t.attnames\n"), TABLES_17]
)
def test_a_table_whose_column_lists_differ_is_refused_as_a_publisher_does(ask: str) -> None:
    """Subscribers before 15 do not ask for lists, and would get no change of it either."""
    with pytest.raises(SqlRefused) as caught:
        answer(ask, replace(SETTINGS, clashing=(("s", "u"),)))
    said = 'cannot use different column lists for table "s.u" in different publications'
    assert (caught.value.sqlstate, caught.value.message) == ("0A000", said)


def refused(sql: str) -> None:
    with pytest.raises(SqlRefused, match="this log has publications p, it's, not ") as caught:
        answer(sql, SETTINGS)
    assert caught.value.sqlstate == "42704" and "p, it's" in caught.value.hint


def test_the_search_path_may_be_emptied() -> None:
    assert rows("SELECT pg_catalog.set_config('search_path', '', false);") == [[b""]]


@pytest.mark.parametrize("sql", ["SELECT 1", "COPY public.t TO STDOUT", "BEGIN READ ONLY"])
def test_no_other_query_is_answered(sql: str) -> None:
    assert answer(sql, SETTINGS) is None


def test_literals_are_read_as_they_are_quoted() -> None:
    assert literals("'a', 'it''s',''") == {"a", "it's", ""}
