"""SQL that finds rows which an undo changed beside those of its own statements. Pure.

    rows = OtherRows()
    rows.first_lines()                      before all statements
    rows.put_back(table, 100), rows.removed(table), rows.changed(table)     as the statements come
    rows.of_foreign_keys(), rows.removed_lines()    after them: an exception, if there is such a row

Contract: the server counts the rows that a transaction changes in each table. More of them than the
undo's own statements change are those of a foreign key, a trigger or a rule. Later rows that refer
to a row are no change of it. ON DELETE CASCADE would delete them in silence, and SET NULL or SET
DEFAULT would take their values. ON UPDATE CASCADE keeps rows together, and is no exception. In the
tables of the undo no other row may go. Triggers may change other tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from walkeeper_common.operator_text.printable import printable
from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.columns.written_rows import block, literal

REMEDY = (
    "A superuser may put SET session_replication_role = replica; in front. It turns off triggers, "
    "rules and the checks of foreign keys. Or disable the trigger or the rule, and run this again."
)
_LATER = "Later rows refer to those that the undo takes away. Delete them or change them before it."
_BEFORE, _OWN = 'pg_temp."walkeeper undo before"', 'pg_temp."walkeeper undo own"'
_COUNTS = "pg_catalog.pg_stat_xact_user_tables"
_UNKNOWN = "pg_catalog.current_setting('track_counts') = 'off'"


@dataclass(slots=True)
class _Own:
    """How many rows of a table the statements of an undo put back, change and remove."""

    table: Table
    put_back: int = 0
    changed: int = 0
    removed: int = 0


class OtherRows:
    """See the module."""

    def __init__(self) -> None:
        self._own: dict[int, _Own] = {}

    def first_lines(self) -> Iterator[str]:
        """Yield a statement that keeps what the session had counted before."""
        yield (
            f"CREATE TEMPORARY TABLE {_BEFORE} USING heap ON COMMIT DROP AS "
            f"SELECT s.relid, s.n_tup_ins, s.n_tup_upd, s.n_tup_del FROM {_COUNTS} AS s "
            "WHERE s.n_tup_ins + s.n_tup_upd + s.n_tup_del > 0;"
        )

    def put_back(self, table: Table, rows: int) -> None:
        """Note rows that a statement inserts."""
        self._of(table).put_back += rows

    def removed(self, table: Table) -> None:
        """Note a row that a statement deletes."""
        self._of(table).removed += 1

    def changed(self, table: Table) -> None:
        """Note a row that a statement updates."""
        self._of(table).changed += 1

    def _of(self, table: Table) -> _Own:
        return self._own.setdefault(table.oid, _Own(table))

    def of_foreign_keys(self) -> Iterator[str]:
        """Yield a statement for each table to which others may refer."""
        referred = [own for own in self._own.values() if own.removed or own.changed]
        if not referred:
            return
        rows = ", ".join(f"({regclass(o.table)}::oid, {o.removed}, {o.changed})" for o in referred)
        yield (
            f"CREATE TEMPORARY TABLE {_OWN} USING heap ON COMMIT DROP AS "
            f"SELECT * FROM (VALUES {rows}) AS o (relid, removed, changed);"
        )
        for own in referred:
            yield block(
                f"BEGIN IF EXISTS ({_referring(own)}) THEN RAISE EXCEPTION "
                "'a foreign key to % changed rows that the undo does not name', "
                f"{_shown(own.table)} USING HINT = {literal(_LATER)}; END IF; END"
            )

    def removed_lines(self) -> Iterator[str]:
        """Yield a statement for each table, which raises an exception if other rows went, too."""
        for own in self._own.values():
            more = _more("s.n_tup_del", "b.n_tup_del", str(own.removed))
            yield block(
                f"BEGIN IF EXISTS (SELECT FROM {_counts(regclass(own.table))} AND {more}) THEN "
                "RAISE EXCEPTION 'a trigger or a rule removed rows of % that the undo does not "
                f"name', {_shown(own.table)} USING HINT = {literal(REMEDY)}; END IF; END"
            )

    def wrote_more(self, table: Table) -> str:
        """Return a condition: perhaps more rows of a table were written than by the statements."""
        own = self._of(table)
        more = _more(
            "s.n_tup_ins + s.n_tup_upd", "b.n_tup_ins + b.n_tup_upd",
            str(own.put_back + own.changed),
        )  # fmt: skip
        return f"({_UNKNOWN} OR EXISTS (SELECT FROM {_counts(regclass(table))} AND {more}))"


def _referring(own: _Own) -> str:
    """Return a query for tables of which a foreign key changed rows, or their partitions."""
    name = regclass(own.table)
    refers = (
        f"c.confrelid IN (SELECT {name}::oid UNION ALL "
        f"SELECT a.relid::oid FROM pg_catalog.pg_partition_ancestors({name}) AS a)"
    )
    removed = f"({_more('s.n_tup_del', 'b.n_tup_del', 'COALESCE(o.removed, 0)')} OR {_UNKNOWN})"
    changed = f"({_more('s.n_tup_upd', 'b.n_tup_upd', 'COALESCE(o.changed, 0)')} OR {_UNKNOWN})"
    kinds = [f"c.confupdtype IN ('n', 'd') AND {changed}"]
    if own.removed:
        kinds += [
            f"c.confdeltype = 'c' AND {removed}",
            f"c.confdeltype IN ('n', 'd') AND {changed}",
        ]
    return (
        "SELECT FROM pg_catalog.pg_constraint AS c CROSS JOIN LATERAL (SELECT c.conrelid AS "
        "relid UNION SELECT p.relid::oid FROM pg_catalog.pg_partition_tree(c.conrelid) AS p) "
        f"AS f LEFT JOIN {_OWN} AS o ON o.relid = f.relid "
        f"CROSS JOIN LATERAL (SELECT FROM {_counts('f.relid')} AND "
        f"({' OR '.join(f'({kind})' for kind in kinds)})) AS more "
        f"WHERE c.contype = 'f' AND {refers}"
    )


def _counts(relid: str) -> str:
    """Return a FROM and a WHERE for a table's counts: those of now (s), and of before (b)."""
    return f"{_COUNTS} AS s LEFT JOIN {_BEFORE} AS b ON b.relid = s.relid WHERE s.relid = {relid}"


def _more(now: str, before: str, own: str) -> str:
    return f"{now} - COALESCE({before}, 0) > {own}"


def _shown(table: Table) -> str:
    return literal(printable(table.shown))


def regclass(table: Table) -> str:
    """Return a value of SQL that names a table, where no table can stand."""
    names = (name.replace('"', '""') for name in (table.schema, table.name))
    shown = ".".join(f'"{name}"' for name in names)
    return f"{literal(shown)}::pg_catalog.regclass"
