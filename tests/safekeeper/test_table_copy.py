"""A worker that copies a table gets that table's published rows, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_safekeeper.replication.log_settings import LogSettings
from walkeeper_safekeeper.replication.table_copy import Asked, TableCopy

SETTINGS = LogSettings(("p", "q"), "postgres", {}, {}, tables=(("public", "t"), ("s", 'o"dd  x')))
RELATION = """SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c
    INNER JOIN pg_catalog.pg_namespace n        ON (c.relnamespace = n.oid)
    WHERE n.nspname = '{}'   AND c.relname = '{}'"""
LISTED = """SELECT DISTINCT  (CASE WHEN (array_length(gpt.attrs, 1) = c.relnatts)   THEN NULL
    ELSE gpt.attrs END)  FROM pg_publication p,
    LATERAL pg_get_publication_tables(p.pubname) gpt,  pg_class c WHERE gpt.relid = {}
    AND c.oid = gpt.relid   AND p.pubname IN ( {} )"""
COLUMNS = """SELECT a.attnum,       a.attname,       a.atttypid,
    a.attnum = ANY(i.indkey){}  FROM pg_catalog.pg_attribute a
    LEFT JOIN pg_catalog.pg_index i       ON (i.indexrelid = pg_get_replica_identity_index({}))
    WHERE a.attnum > 0::pg_catalog.int2   AND NOT a.attisdropped{} AND a.attrelid = {}
    ORDER BY a.attnum"""
COLUMNS_15 = COLUMNS.format("", "{}", " AND a.attgenerated = ''  ", "{}")
COLUMNS_14 = COLUMNS_15.replace("a.attnum,       ", "", 1)
COLUMNS_13 = COLUMNS_14.replace("a.atttypid,", "a.atttypid,       a.atttypmod,")
COLUMNS_18 = COLUMNS.format(", a.attgenerated != ''", "{}", "", "{}")
FILTERS = """SELECT DISTINCT pg_get_expr(gpt.qual, gpt.relid)  FROM pg_publication p,
    LATERAL pg_get_publication_tables(p.pubname) gpt WHERE gpt.relid = {}
    AND p.pubname IN ( {} )"""
PUBLICATIONS = "'p', 'q'"
ROWS = [("1", "id", "f"), ("2", "v", "f"), ("3", "se cret", "f"), ("5", "made", "t")]


def copying(
    filters: Sequence[str | None] = (None,),
    listed: str | None = None,
    kind: str = "r",
    major: int = 15,
) -> TableCopy:
    """Return a copy of public.t, with all questions asked and answered."""
    copy = TableCopy(SETTINGS, major)
    assert copy.check(RELATION.format("public", "t")) is Asked.RELATION
    copy.learn_table([("16384", "d", kind)])
    for asked, sql in copy.questions():
        assert "16384" in sql and ("'p', 'q'" in sql) is (asked is not Asked.COLUMNS)
        answers: dict[Asked, Sequence[Sequence[str | None]]] = {
            Asked.COLUMNS: ROWS,
            Asked.LISTED: [(listed,)],
            Asked.FILTERS: [(each,) for each in filters],
        }
        copy.learn(asked, answers[asked])
    for text in (COLUMNS_13, COLUMNS_14, COLUMNS_15, COLUMNS_18):
        assert copy.check(text.format(16384, 16384)) is Asked.COLUMNS
    return copy


def refusal(copy: TableCopy, sql: str) -> SqlRefused:
    with pytest.raises(SqlRefused) as caught:
        copy.check(sql)
    return caught.value


def test_the_statements_of_workers_get_through() -> None:
    assert copying().check('COPY public.t (id, v, "se cret") TO STDOUT') is Asked.ROWS
    filtered = copying(("(id < 5)", "(v = 'a  b'::text)"))
    selected = "COPY (SELECT id FROM ONLY public.t WHERE (id < 5) OR (v = 'a  b'::text)) TO STDOUT"
    assert filtered.check(selected) is Asked.ROWS
    one_has_all = copying(("(id < 5)", None))
    assert one_has_all.check("COPY public.t (id) TO STDOUT") is Asked.ROWS
    assert copying(kind="p").check("COPY (SELECT id FROM public.t) TO STDOUT") is Asked.ROWS
    in_binary = "COPY public.t (id, v) TO STDOUT WITH (FORMAT binary)"
    assert copying().check(in_binary) is Asked.ROWS_IN_BINARY
    copy = TableCopy(SETTINGS, 18)
    copy.check(RELATION.format("s", 'o"dd  x'))
    copy.learn_table([("7", "d", "r")])
    assert copy.check(COLUMNS_18.format(7, 7)) is Asked.COLUMNS


@pytest.mark.parametrize("major", [13, 14, 15, 18])
def test_a_worker_of_13_or_14_names_no_columns(major: int) -> None:
    """Its table is copied as a whole, so all of it has to be published."""
    assert copying(major=major).check("COPY public.t TO STDOUT") is Asked.ROWS
    assert copying(listed="1 2 3 5", major=18).check("COPY public.t TO STDOUT") is Asked.ROWS
    listed, filtered = copying(listed="1 2"), copying(("(id < 5)",))
    assert "column se cret is not published" in str(refusal(listed, "COPY public.t TO STDOUT"))
    assert "lacks its row filter" in str(refusal(filtered, "COPY public.t TO STDOUT"))


def test_generated_columns_are_published_since_18() -> None:
    sql = "COPY (SELECT id, made FROM ONLY public.t) TO STDOUT"
    assert copying(major=18).check(sql) is Asked.ROWS
    assert "column made" in str(refusal(copying(major=17), sql))
    assert "column made" in str(refusal(copying(major=18, listed="1 2 3"), sql))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "COPY public.t (id) TO PROGRAM 'sh'",
        "COPY public.t (id) TO STDOUT; DROP TABLE t",
        "COPY public.t (id) TO STDOUT WITH (FORMAT csv)",
        "COPY public.u (id) TO STDOUT",
        'COPY public.t (id, "xmin") TO STDOUT',
        "COPY (SELECT id FROM public.t) TO STDOUT",
        "COPY (SELECT id FROM ONLY public.t WHERE pg_sleep(9) IS NULL) TO STDOUT",
        "COPY (SELECT pg_read_file('x') FROM ONLY public.t) TO STDOUT",
        RELATION.format("public", "u"),
        RELATION.format("s", 'o"dd x'),
        RELATION.format("public", "t' OR true --"),
        LISTED.format(16385, PUBLICATIONS),
        COLUMNS_15.format(16384, 1260),
        FILTERS.format(16384, PUBLICATIONS) + " OR true",
    ],
)
def test_nothing_else_gets_through(sql: str) -> None:
    assert refusal(copying(), sql).sqlstate == "0A000"


def test_a_row_filter_and_a_column_list_hold() -> None:
    filtered = copying(("(id < 5)",))
    for sql in (
        "COPY public.t (id) TO STDOUT",
        "COPY (SELECT id FROM ONLY public.t) TO STDOUT",
        "COPY (SELECT id FROM ONLY public.t WHERE (id < 6)) TO STDOUT",
    ):
        assert refusal(filtered, sql).sqlstate == "0A000"
    listed = copying(listed="1 2")
    assert listed.check("COPY public.t (id, v) TO STDOUT") is Asked.ROWS
    assert "se cret" in str(refusal(listed, 'COPY public.t (id, "se cret") TO STDOUT'))


def test_a_copy_waits_for_its_questions_and_their_publications() -> None:
    copy = TableCopy(SETTINGS, 15)
    assert refusal(copy, "COPY public.t (id) TO STDOUT").sqlstate == "0A000"
    assert copy.questions() == ()
    copy.check(RELATION.format("public", "t"))
    copy.learn_table([("16384", "d", "r")])
    assert "column id" in str(refusal(copy, "COPY public.t (id) TO STDOUT"))
    assert refusal(copy, FILTERS.format(16384, "'p', 'other'")).sqlstate == "42704"
