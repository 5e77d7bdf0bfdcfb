"""The statements of a subscription's worker that copies one table, checked one by one. Pure.

    TableCopy(settings).check(sql)       what the statement asks; SqlRefused for any other one
    TableCopy.learn(asked, rows)         the primary's answer

The worker describes the table, and copies its rows (tablesync.c: fetch_remote_table_info and
copy_table of PostgreSQL 14 to 18). The primary executes its statements with the safekeeper's own
role. So no text of the worker gets there unless all of it is known. The question is one of these
shapes. The table and the publications are those of the log. The COPY has the columns and the row
filter that the primary has named before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_safekeeper.replication.log_settings import LogSettings, check_publications
from walkeeper_safekeeper.replication.sql_text import literals, one_line

FIRST_WITH_LISTS = 15  # the first major with column lists and row filters

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
    r"SELECT (?:a\.attnum, )?a\.attname, a\.atttypid, a\.attnum = ANY\(i\.indkey\)"
    r"(?:, a\.attgenerated != '')? FROM pg_catalog\.pg_attribute a "
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


class Asked(Enum):
    """The kinds of statements."""

    RELATION = "which table it is"
    LISTED = "the columns that publications list"
    COLUMNS = "the columns of the table"
    FILTERS = "the row filters"
    ROWS = "the rows"


class TableCopy:
    """A worker's dialogue with the primary: it may ask next what the answers so far allow."""

    def __init__(self, settings: LogSettings, major: int) -> None:
        """Take the settings with the tables that are published now, and the primary's version."""
        self._settings, self._major = settings, major
        self._table: tuple[str, str] = ("", "")
        self._oid, self._is_plain = "", False
        self._columns: dict[str, str] = {}  # numbers (before 15 places) by name
        self._listed: list[str | None] | None = None
        self._filters: list[str | None] | None = None

    def check(self, sql: str) -> Asked:
        """Return what the statement asks. Raise SqlRefused for one that must not get through."""
        text = one_line(sql)
        if found := _RELATION.fullmatch(text):
            table = (_plain(found[1]), _plain(found[2]))
            if table not in self._settings.tables:
                raise _refused(f"{'.'.join(table)} is not published by this log")
            self._table, self._oid, self._listed, self._filters = table, "", None, None
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
        if found := _COPY.fullmatch(sql.strip()):
            self._check_copy(found[1], found[2], found[3])
            if not self._is_plain or self._wanted_filters():
                raise _refused("a COPY of the table itself lacks its row filter")
            return Asked.ROWS
        if found := _COPY_SELECTED.fullmatch(sql.strip()):
            self._check_copy(found[3], found[4], found[1])
            if bool(found[2]) != self._is_plain:
                raise _refused("ONLY belongs to tables that have rows of their own")
            if (found[5] or "") != " OR ".join(self._wanted_filters()):
                raise _refused("its row filter is not that of the publications")
            return Asked.ROWS
        raise _refused("this statement is no part of it")

    def learn(self, asked: Asked, rows: Sequence[Sequence[str | None]]) -> None:
        """Take the primary's rows for a statement that was checked."""
        match asked:
            case Asked.RELATION:
                oid, _, kind = rows[0] if rows else ("", "", "")
                self._oid, self._is_plain = oid or "", kind == "r"
            case Asked.LISTED:
                self._listed = [row[0] for row in rows]
            case Asked.COLUMNS:
                with_numbers = self._major >= FIRST_WITH_LISTS
                self._columns = {
                    str(row[1 if with_numbers else 0]): str(row[0] if with_numbers else place)
                    for place, row in enumerate(rows)
                }
            case Asked.FILTERS:
                self._filters = [row[0] for row in rows]
            case Asked.ROWS:
                raise AssertionError("rows go to the worker")

    def _check_oid(self, oid: str) -> None:
        if not self._oid or oid != self._oid:
            raise _refused(f"{oid} is not the table that was asked for")

    def _check_copy(self, schema: str, table: str, columns: str | None) -> None:
        if not self._oid or (_unquoted(schema), _unquoted(table)) != self._table:
            raise _refused(f"{schema}.{table} is not the table that was asked for")
        allowed = set(self._columns)
        if self._major >= FIRST_WITH_LISTS:
            if self._listed is None or self._filters is None or columns is None:
                raise _refused("nobody has asked for its columns and its row filter before")
            if listed := [each for each in self._listed if each is not None]:
                numbers = set(listed[0].split())  # an int2vector
                allowed = {name for name, number in self._columns.items() if number in numbers}
        for name in re.findall(_NAME, columns or ""):
            if _unquoted(name) not in allowed:
                raise _refused(f"column {name} is not published by this log")

    def _wanted_filters(self) -> list[str]:
        """Return the filters, or none if one publication has all rows."""
        texts = [each for each in self._filters or () if each is not None]
        return texts if len(texts) == len(self._filters or ()) else []


def _plain(text: str) -> str:
    return text.replace("''", "'")


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _refused(why: str) -> SqlRefused:
    return SqlRefused(
        "0A000",
        f"a safekeeper passes on the copy of a subscription's table alone: {why}",
        hint="Workers of PostgreSQL 14 to 18 are known, in text form: binary = false. Else create "
        "the subscription WITH (copy_data = false), and copy the table from the primary.",
    )
