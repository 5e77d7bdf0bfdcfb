"""What CREATE SUBSCRIPTION asks in SQL: the texts of PostgreSQL 15 to 18, and nothing else."""

from __future__ import annotations

import pytest

from walkeeper_common.postgres.pgwire import MessageBuffer
from walkeeper_safekeeper.replication.log_settings import LogSettings
from walkeeper_safekeeper.replication.subscription_queries import answer, literals

SETTINGS = LogSettings(("p", "it's"), "shop", {}, {}, (("public", "t"), ("s", "u")))
TABLES_16 = """SELECT DISTINCT N.nspname, C.relname,
       ( CASE WHEN (array_length(GPT.attrs, 1) = C.relnatts)
              THEN NULL ELSE GPT.attrs END
       ) AS attnames
 FROM pg_class C
   JOIN pg_namespace N ON N.oid = C.relnamespace
   JOIN ( SELECT (pg_get_publication_tables(VARIADIC array_agg(pubname::text))).*
          FROM pg_publication
          WHERE pubname IN ( 'p' )) AS GPT
       ON GPT.relid = C.oid
"""
TABLES_17 = """SELECT DISTINCT n.nspname, c.relname, gpt.attrs
       FROM pg_class c
         JOIN pg_namespace n ON n.oid = c.relnamespace
         JOIN ( SELECT (pg_get_publication_tables(VARIADIC array_agg(pubname::text))).*
                FROM pg_publication
                WHERE pubname IN ( 'p' )) AS gpt
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
    ask = "SELECT t.pubname FROM\n pg_catalog.pg_publication t WHERE\n t.pubname IN ({})"
    assert rows(ask.format("'p', 'q'")) == [[b"p"]]
    assert rows(ask.format("'it''s'")) == [[b"it's"]]


def test_tables_are_those_that_the_log_knows() -> None:
    ask = (
        "SELECT DISTINCT t.schemaname, t.tablename \n{}FROM pg_catalog.pg_publication_tables t\n"
        " WHERE t.pubname IN ('p')"
    )
    assert rows(ask.format(", t.attnames\n")) == [[b"public", b"t", None], [b"s", b"u", None]]
    assert rows(ask.format("")) == [[b"public", b"t"], [b"s", b"u"]]
    assert rows(ask.format("").replace("'p'", "'q'")) == []
    for since in (TABLES_16, TABLES_17):
        assert rows(since) == [[b"public", b"t", None], [b"s", b"u", None]]


def test_the_search_path_may_be_emptied() -> None:
    assert rows("SELECT pg_catalog.set_config('search_path', '', false);") == [[b""]]


@pytest.mark.parametrize("sql", ["SELECT 1", "COPY public.t TO STDOUT", "BEGIN READ ONLY"])
def test_nothing_else_is_answered(sql: str) -> None:
    assert answer(sql, SETTINGS) is None


def test_literals_are_read_as_they_are_quoted() -> None:
    assert literals("'a', 'it''s',''") == {"a", "it's", ""}
