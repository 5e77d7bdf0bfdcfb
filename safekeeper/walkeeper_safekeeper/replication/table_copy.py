"""The statements of a subscription's worker that copies one table, checked one by one. Pure.

    copy = TableCopy(settings, major)
    copy.check(sql)                      what the statement asks; SqlRefused for any other one
    copy.learn_table(rows)               the primary's answer to the question which table it is
    copy.questions(), copy.learn(…)      what the safekeeper itself has to ask then

The worker describes the table, and copies its rows (tablesync.c: fetch_remote_table_info and
copy_table of PostgreSQL 13 to 18). The primary executes its statements with the safekeeper's own
role. So no text of the worker gets there unless all of it is known. The question is one of these
shapes. The table and the publications are those of the log. The COPY has the columns and the row
filter of the publications. The safekeeper asks the primary for these itself, as workers of 13 and
14 do not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_safekeeper.replication.log_settings import LogSettings, check_publications
from walkeeper_safekeeper.replication.sql_text import literals, one_line

FIRST_WITH_LISTS = 15  # the first major with column lists and row filters
FIRST_WITH_GENERATED = 18  # the first major that publishes generated columns

_TEXT, _TEXTS = r"'((?:[^']|'')*)'", r"('(?:[^']|'')*'(?:, ?'(?:[^']|'')*')*)"
_RELATION = re.compile(
    r"SELECT c\.oid, c\.relreplident, c\.relkind FROM pg_catalog\.pg_class c INNER JOIN "
    r"pg_catalog\.pg_namespace n ON \(c\.relnamespace = n\.oid\) "
    rf"WHERE n\.nspname = {_TEXT} AND c\.relname = {_TEXT}"
)
_LISTED = re.compile(
    r"SELECT DISTINCT \(CASE WHEN \(array_length\(gpt\.attrs, 1\) = c\.relnatts\) THEN NULL ELSE "
    r"gpt\.attrs END\) FROM pg_publication p, LATERAL pg_get_publication_tables\(p\.pubname\) gpt, "
    r"pg_class c WHERE gpt\.relid = (\d+) AND c\.oid = gpt\.relid "
    rf"AND p\.pubname IN \( {_TEXTS} \)"
)
_COLUMNS = re.compile(
    r"SELECT (?:a\.attnum, )?a\.attname, a\.atttypid, (?:a\.atttypmod, )?"
    r"a\.attnum = ANY\(i\.indkey\)(?:, a\.attgenerated != '')? FROM pg_catalog\.pg_attribute a "
    r"LEFT JOIN pg_catalog\.pg_index i "
    r"ON \(i\.indexrelid = pg_get_replica_identity_index\((\d+)\)\) "
    r"WHERE a\.attnum > 0::pg_catalog\.int2 AND NOT a\.attisdropped(?: AND a\.attgenerated = '')? "
    r"AND a\.attrelid = (\d+) ORDER BY a\.attnum"
)
_FILTERS = re.compile(
    r"SELECT DISTINCT pg_get_expr\(gpt\.qual, gpt\.relid\) FROM pg_publication p, "
    r"LATERAL pg_get_publication_tables\(p\.pubname\) gpt WHERE gpt\.relid = (\d+) "
    rf"AND p\.pubname IN \( {_TEXTS} \)"
)
_NAME = r'(?:[a-z_][a-z0-9_]*|"(?:[^"]|"")+")'
_NAMES = rf"{_NAME}(?:, {_NAME})*"
_COPY = re.compile(rf"COPY ({_NAME})\.({_NAME})(?: \(({_NAMES})\))? TO STDOUT")
_COPY_SELECTED = re.compile(
    rf"COPY \(SELECT ({_NAMES}) FROM (ONLY )?({_NAME})\.({_NAME})(?: WHERE (.*))?\) TO STDOUT",
    re.DOTALL,
)
_BINARY = " WITH (FORMAT binary)"
# The safekeeper's own questions, about one table.
_OWN_COLUMNS = (
    "SELECT attnum, attname, attgenerated <> '' FROM pg_catalog.pg_attribute "
    "WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
_OWN_LISTS = (
    "SELECT DISTINCT gpt.attrs FROM pg_catalog.pg_publication p, "
    "LATERAL pg_catalog.pg_get_publication_tables(p.pubname) gpt "
    "WHERE gpt.relid = {oid} AND p.pubname IN ({publications})"
)
_OWN_FILTERS = (
    "SELECT DISTINCT pg_catalog.pg_get_expr(gpt.qual, gpt.relid) "
    "FROM pg_catalog.pg_publication p, "
    "LATERAL pg_catalog.pg_get_publication_tables(p.pubname) gpt "
    "WHERE gpt.relid = {oid} AND p.pubname IN ({publications})"
)


class Asked(Enum):
    """The kinds of statements."""

    RELATION = "which table it is"
    LISTED = "the columns that publications list"
    COLUMNS = "the columns of the table"
    FILTERS = "the row filters"
    ROWS = "the rows"
    ROWS_IN_BINARY = "the rows in binary form"


class TableCopy:
    """A worker's dialogue with the primary: it may ask next what the answers so far allow."""

    def __init__(self, settings: LogSettings, major: int) -> None:
        """Take the settings with the tables that are published now, and the primary's version."""
        self._settings, self._major = settings, major
        self._table: tuple[str, str] = ("", "")
        self._oid, self._is_plain = "", False
        self._columns: dict[str, tuple[str, bool]] = {}  # numbers, whether generated, by name
        self._lists: list[set[str]] = []  # numbers of columns
        self._filters: list[str | None] = []

    def check(self, sql: str) -> Asked:
        """Return what the statement asks. Raise SqlRefused for one that must not get through."""
        text = one_line(sql)
        if found := _RELATION.fullmatch(text):
            table = (_plain(found[1]), _plain(found[2]))
            if table not in self._settings.tables:
                raise _refused(f"{'.'.join(table)} is not published by this log")
            self._table, self._oid = table, ""
            return Asked.RELATION
        for pattern, asked in ((_LISTED, Asked.LISTED), (_FILTERS, Asked.FILTERS)):
            if found := pattern.fullmatch(text):
                self._check_oid(found[1])
                check_publications(sorted(literals(found[2])), self._settings.publications)
                return asked
        if found := _COLUMNS.fullmatch(text):
            self._check_oid(found[1])
            self._check_oid(found[2])
            return Asked.COLUMNS
        # A filter is compared with the primary's text, so its spaces stay as they are.
        copy = sql.strip()
        self._check_copy(copy.removesuffix(_BINARY))
        return Asked.ROWS_IN_BINARY if copy.endswith(_BINARY) else Asked.ROWS

    def learn_table(self, rows: Sequence[Sequence[str | None]]) -> None:
        """Take the primary's answer to Asked.RELATION."""
        oid, _, kind = rows[0] if rows else ("", "", "")
        self._oid, self._is_plain = oid or "", kind == "r"
        self._columns, self._lists, self._filters = {}, [], []

    def questions(self) -> Sequence[tuple[Asked, str]]:
        """Return what the safekeeper asks the primary before any row of the table."""
        if not self._oid.isdecimal():
            return ()
        names = ", ".join(f"'{_doubled(name)}'" for name in self._settings.publications)
        asked = [(Asked.COLUMNS, _OWN_COLUMNS)]
        if self._major >= FIRST_WITH_LISTS:
            asked += [(Asked.LISTED, _OWN_LISTS), (Asked.FILTERS, _OWN_FILTERS)]
        return [(each, sql.format(oid=self._oid, publications=names)) for each, sql in asked]

    def learn(self, asked: Asked, rows: Sequence[Sequence[str | None]]) -> None:
        """Take the primary's answer to one of `questions`."""
        match asked:
            case Asked.COLUMNS:
                self._columns = {
                    str(name): (str(number), is_generated == "t")
                    for number, name, is_generated in rows
                }
            case Asked.LISTED:  # an int2vector
                self._lists = [set(row[0].split()) for row in rows if row[0] is not None]
            case Asked.FILTERS:
                self._filters = [row[0] for row in rows]
            case _:
                raise AssertionError(f"{asked=} is no question of the safekeeper")

    def _check_oid(self, oid: str) -> None:
        if not self._oid or oid != self._oid:
            raise _refused(f"{oid} is not the table that was asked for")

    def _check_copy(self, copy: str) -> None:
        if found := _COPY.fullmatch(copy):
            self._check_columns(found[1], found[2], found[3])
            if not self._is_plain or self._wanted_filters():
                raise _refused("a COPY of the table itself lacks its row filter")
        elif found := _COPY_SELECTED.fullmatch(copy):
            self._check_columns(found[3], found[4], found[1])
            if bool(found[2]) != self._is_plain:
                raise _refused("ONLY belongs to tables that have rows of their own")
            if (found[5] or "") != " OR ".join(self._wanted_filters()):
                raise _refused("its row filter is not that of the publications")
        else:
            raise _refused("this statement is no part of it")

    def _check_columns(self, schema: str, table: str, columns: str | None) -> None:
        if not self._oid or (_unquoted(schema), _unquoted(table)) != self._table:
            raise _refused(f"{schema}.{table} is not the table that was asked for")
        allowed = self._allowed()
        whole = [name for name, (_, is_generated) in self._columns.items() if not is_generated]
        if columns is None and not set(whole) <= allowed:
            raise _refused(
                "workers of PostgreSQL 13 and 14 copy all columns, and column "
                f"{next(name for name in whole if name not in allowed)} is not published"
            )
        for name in re.findall(_NAME, columns or ""):
            if _unquoted(name) not in allowed:
                raise _refused(f"column {name} is not published by this log")

    def _allowed(self) -> set[str]:
        """Return the names of the columns that are published."""
        with_generated = self._major >= FIRST_WITH_GENERATED
        return {
            name
            for name, (number, is_generated) in self._columns.items()
            if (with_generated or not is_generated)
            and all(number in listed for listed in self._lists)
        }

    def _wanted_filters(self) -> list[str]:
        """Return the filters, or none if one publication has all rows."""
        texts = [each for each in self._filters if each is not None]
        return texts if len(texts) == len(self._filters) else []


def _plain(text: str) -> str:
    return text.replace("''", "'")


def _doubled(text: str) -> str:
    return text.replace("'", "''")


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _refused(why: str) -> SqlRefused:
    return SqlRefused(
        "0A000",
        f"a safekeeper passes on the copy of a subscription's table alone: {why}",
        hint="Workers of PostgreSQL 13 to 18 are known. Those of 13 and 14 know neither column "
        "lists nor row filters. Else create the subscription WITH (copy_data = false), and copy "
        "the table from the primary.",
    )
