"""SQL that checks at the end of an undo that its rows are as they were before the changes. Pure.

    rows = CheckedRows(changes, conditions)
    rows.put_back(table, names, values)     as the statements of the undo come
    rows.removed(table, row)
    rows.lines()                            the check, which raises an exception

Contract: a trigger or a rule cannot leave other rows in silence. A row with a key has to be there
with its values, or no row of its key. A later statement replaces what an earlier one of its key
asks for. Without a key, rows are counted: those that the transaction wrote. It may write no other
row of these tables. The check costs statements by tables and by hundreds of rows. It needs the rows
in memory, most of which are there.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from walkeeper_common.operator_text.printable import printable
from walkeeper_replay.catalogs.catalog import Attribute, Table
from walkeeper_replay.changes.change_rows import Change
from walkeeper_replay.changes.found_rows import OWN_XID, Conditions, Row, lasting_keys
from walkeeper_replay.changes.other_rows import REMEDY, OtherRows, regclass
from walkeeper_replay.columns.written_rows import block, inserts, literal, qualified, quoted_name

Names = tuple[str, ...]
Values = tuple[str | None, ...]
# The rows of this transaction, those in savepoints of triggers too, and perhaps of a later one.
_WRITTEN = (
    f"pg_catalog.mod(t.xmin::text::bigint - (SELECT {OWN_XID}::text::bigint) + 4294967296, "
    "4294967296) < 10000000"
)
_SAVEPOINTS = "the rows that this transaction wrote are not known if savepoints are around them"
BEGIN_CHECK = block(
    "BEGIN IF NOT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMPORARY') "
    "THEN RAISE EXCEPTION 'the check of rows that come back needs temporary tables, and % may make "
    "none', current_user USING HINT = 'GRANT TEMPORARY ON DATABASE to this role, or run this SQL "
    "as another one.'; END IF; END"
)


@dataclass(slots=True)
class _Expected:
    """The rows of one table that have to be there at the end."""

    table: Table
    attributes: dict[str, Attribute] = field(default_factory=dict)
    by_key: dict[Values, tuple[Names, Values] | None] = field(default_factory=dict)
    """The row of each key, or None for a key without a row."""
    counted: dict[Names, dict[Values, list[int]]] = field(default_factory=dict)
    """By columns and values: how many rows were put back, and how many were removed."""


class CheckedRows:
    """See the module."""

    def __init__(self, changes: Sequence[Change], conditions: Conditions) -> None:
        self._conditions, self._keys = conditions, lasting_keys(changes)
        self._tables: dict[int, _Expected] = {}
        self._numbers = count(1)

    def put_back(self, table: Table, names: Names, rows: Iterable[Values]) -> None:
        """Note rows that the SQL puts back, or gives these values again."""
        found, key = self._expected(table), self._key(table)
        if not key or not set(key) <= set(names):
            counts = found.counted.setdefault(names, {})
            for row in rows:
                counts.setdefault(row, [0, 0])[0] += 1
            return
        places = [names.index(name) for name in key]
        for row in rows:
            found.by_key[tuple(row[place] for place in places)] = (names, row)

    def removed(self, table: Table, names: Names, row: Row) -> None:
        """Note a row that the SQL removes, or gives other values."""
        found, key = self._expected(table), self._key(table)
        if key:
            found.by_key[tuple(row[n] for n in key)] = None
            return
        counts = found.counted.setdefault(names, {})
        counts.setdefault(tuple(row[name] for name in names), [0, 0])[1] += 1

    def _expected(self, table: Table) -> _Expected:
        found = self._tables.setdefault(table.oid, _Expected(table))
        if table is not found.table or not found.attributes:
            found.table = table
            found.attributes |= {a.name: a for a in table.columns}
        return found

    def _key(self, table: Table) -> Names:
        """Return the key by which rows are checked; a generated one follows from other columns."""
        key = self._keys[table.oid]
        generated = {a.name for a in table.columns if a.generated}
        return () if generated & set(key) else key

    def lines(self, others: OtherRows) -> Iterator[str]:
        """Yield the check, which comes after the triggers that wait for the commit."""
        for expected in self._tables.values():
            if expected.by_key:
                yield from self._check_by_key(expected, others)
            if expected.counted:
                yield from self._check_counts(expected, others)

    def _check_by_key(self, expected: _Expected, others: OtherRows) -> Iterator[str]:
        table, key = expected.table, self._key(expected.table)
        there: dict[Names, list[Values]] = {}
        for found in expected.by_key.values():
            if found is not None:
                there.setdefault(found[0], []).append(found[1])
        made = []
        for names, rows in there.items():
            made.append(self._temporary())
            yield from _filled(made[-1], table, names, rows)
            parts = [f"t.{quoted_name(n)} = e.{quoted_name(n)}" for n in key]
            parts += [
                " IS NOT DISTINCT FROM ".join(
                    self._conditions.compared(f"{of}.{quoted_name(n)}", expected.attributes[n])
                    for of in "te"
                )
                for n in names
            ]
            there_now = f"SELECT FROM ONLY {qualified(table)} AS t WHERE {' AND '.join(parts)}"
            yield _none_of(f"{made[-1]} AS e WHERE NOT EXISTS ({there_now})", table)
        same = " AND ".join(f"t.{quoted_name(n)} = e.{quoted_name(n)}" for n in key)
        absent = [values for values, found in expected.by_key.items() if found is None]
        if absent:
            gone = self._temporary()
            yield from _filled(gone, table, key, absent)
            still = f"EXISTS (SELECT FROM ONLY {qualified(table)} AS t WHERE {same})"
            # Two texts may be one key, such as 1.0 and 1.00.
            equal = [f"NOT EXISTS (SELECT FROM {each} AS t WHERE {same})" for each in made]
            yield _none_of(f"{gone} AS e WHERE {' AND '.join([still, *equal])}", table)
        # A scan of the whole table, which only a trigger or a rule makes necessary.
        named = "".join(f" AND NOT EXISTS (SELECT FROM {e} AS e WHERE {same})" for e in made)
        own = f"{qualified(table)} AS t WHERE {_WRITTEN}{named}"
        yield _none_of(f"ONLY {own}", table, others.wrote_more(table))

    def _check_counts(self, expected: _Expected, others: OtherRows) -> Iterator[str]:
        table, made = expected.table, self._temporary()
        names, counts = _in_common(expected.counted)
        if any(len(own) > len(names) for own in expected.counted):
            yield _no_triggers(table)
        rows = [(*row, str(max(back - gone, 0)), str(back)) for row, (back, gone) in counts.items()]
        numbers = _free_names(expected.attributes)
        yield from _filled(made, table, names, rows, numbers)
        least, most = map(quoted_name, numbers)
        columns = {
            of: "".join(
                f"{self._conditions.compared(f'{of}.{quoted_name(n)}', expected.attributes[n])} "
                f'AS "{number}", '
                for number, n in enumerate(names, 1)
            )
            for of in "te"
        }
        own = f"SELECT {OWN_XID}"
        each = (
            f"SELECT {columns['e']}e.{least} AS low, e.{most} AS high, 0 AS own, 0 AS written "
            f"FROM {made} AS e UNION ALL SELECT {columns['t']}NULL, NULL, "
            f"(t.xmin = ({own}))::int, 1 FROM ONLY {qualified(table)} AS t WHERE {_WRITTEN}"
        )
        groups = ", ".join(f'u."{number}"' for number, _ in enumerate(names, 1)) or "()"
        fewer, more = "sum(u.own) < sum(u.low)", "sum(u.written) > COALESCE(sum(u.high), 0)"
        other = f"{fewer} OR ({more} AND {others.wrote_more(table)})"
        grouped = f"SELECT FROM ({each}) AS u GROUP BY {groups} HAVING {other}"
        yield block(
            f"BEGIN IF EXISTS (SELECT FROM {made} AS e WHERE e.xmin <> ({own})) THEN RAISE "
            f"EXCEPTION '{_SAVEPOINTS}' USING HINT = 'With psql, ON_ERROR_ROLLBACK makes them.'; "
            "END IF; END"
        )
        yield _none_of(f"({grouped}) AS g", table)

    def _temporary(self) -> str:
        return f'pg_temp."walkeeper undo {next(self._numbers)}"'


def _in_common(
    counted: dict[Names, dict[Values, list[int]]],
) -> tuple[Names, dict[Values, list[int]]]:
    """Return the counts by the columns that all rows have, as a column was added between them."""
    first, *others = counted
    names = tuple(name for name in first if all(name in other for other in others))
    found: dict[Values, list[int]] = {}
    for own, counts in counted.items():
        places = [own.index(name) for name in names]
        for row, (back, gone) in counts.items():
            sums = found.setdefault(tuple(row[place] for place in places), [0, 0])
            sums[0], sums[1] = sums[0] + back, sums[1] + gone
    return names, found


def _free_names(taken: Container[str]) -> Names:
    """Return two names that no column has."""
    names = (f"walkeeper {number}" for number in count(1))
    free = (name for name in names if name not in taken)
    return next(free), next(free)


def _filled(
    target: str, table: Table, names: Names, rows: Iterable[Values], numbers: Names = ()
) -> Iterator[str]:
    """Yield a temporary table with the types of a table's columns, and further ones of numbers."""
    own = [*map(quoted_name, names), *(f"0::bigint AS {quoted_name(n)}" for n in numbers)]
    columns = ", ".join(own)
    yield (
        f"CREATE TEMPORARY TABLE {target} USING heap ON COMMIT DROP AS "
        f"SELECT {columns} FROM ONLY {qualified(table)} WITH NO DATA;"
    )
    yield from inserts(target, names + numbers, rows)
    yield f"ANALYZE {target};"


def _none_of(query: str, table: Table, condition: str = "true") -> str:
    """Return a statement that raises an exception if `SELECT FROM query` finds a row.

    It runs the query only under the condition.
    """
    return block(
        f"BEGIN IF {condition} AND EXISTS (SELECT FROM {query}) THEN RAISE EXCEPTION 'a trigger "
        "or a rule changed rows of %, so that they would not be as before', "
        f"{literal(printable(table.shown))} USING HINT = {literal(REMEDY)}; END IF; END"
    )


def _no_triggers(table: Table) -> str:
    """Return a statement that raises an exception if triggers or rules may have changed rows."""
    return block(
        "BEGIN IF pg_catalog.current_setting('session_replication_role') <> 'replica' AND ("
        "EXISTS (SELECT FROM pg_catalog.pg_trigger AS r "
        f"WHERE r.tgrelid = {regclass(table)} AND NOT r.tgisinternal) OR "
        f"EXISTS (SELECT FROM pg_catalog.pg_rewrite AS r WHERE r.ev_class = {regclass(table)})) "
        "THEN RAISE EXCEPTION 'a column was added to % between the changes, and it has no primary "
        "key: what its triggers or rules changed is not known', "
        f"{literal(printable(table.shown))} USING HINT = {literal(REMEDY)}; END IF; END"
    )
