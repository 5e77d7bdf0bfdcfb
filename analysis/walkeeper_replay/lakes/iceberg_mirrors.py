"""Mirrors in Iceberg tables, by pyiceberg: rows of the keys that changed are read and replaced.

    IcebergMirrors("prod", "shop", "mirror")      table public.orders is shop.public_orders

The end of a window is the property `walkeeper.lsn` of the table and of the snapshots, in the same
commit. The namespace has properties too: how far all tables are, and whose they are. pyiceberg has
no MERGE that deletes. So a window reads the rows that a filter on one column of the key admits, and
writes them anew. The filter has the values of that column, or their range if they are many. A key
without a column of a plain type reads the whole table. Contract: memory has these rows. The rules
are those of lake_mirrors.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from walkeeper_common.lsn import Lsn
from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.lakes.change_folds import has_key_of
from walkeeper_replay.lakes.iceberg_maintenance import maintain_iceberg
from walkeeper_replay.lakes.lake_mirrors import ENDED, Load, Mirrors, closed_versions, plain
from walkeeper_replay.lakes.lake_names import NameRules
from walkeeper_replay.lakes.lake_tables import (
    FACTS,
    ICEBERG_RETENTION_S,
    LSN,
    iceberg_catalog,
    refuse_facts,
)
from walkeeper_replay.lakes.large_folds import Span
from walkeeper_replay.lakes.table_maintenance import Maintained, Retention
from walkeeper_wal.records.segment import Column
from walkeeper_wal.wal_errors import HistoryError

OWNER = "walkeeper.owner"
_METRICS = "write.metadata.metrics.column"
VALUES_MAX = 10_000
"""The most values of a filter. With more of them it has their range alone."""


class NamespaceNotes:
    """Notes as properties of an Iceberg namespace, which is made if there is none."""

    def __init__(self, catalog: Any, namespace: str, shown: str) -> None:
        self._catalog, self._namespace, self._shown = catalog, namespace, shown

    def position(self) -> int:
        """Return the LSN up to which all tables have the changes, or 0."""
        return int(Lsn.parse(self._all().get(LSN, "0/0")))

    def claim(self, owner: str) -> None:
        """Claim the namespace for the stream `owner`; raise HistoryError if another one has it."""
        if (found := self.keep(OWNER, owner)) != owner:
            raise HistoryError(
                f"{self._shown}: another stream, with the state {found}, writes here: name another "
                f"--to; if that stream is gone for good, remove the property {OWNER}"
            )

    def refuse_other(self, facts: dict[str, Any]) -> None:
        """Raise HistoryError if the tables are of another log, other tables or another mode."""
        refuse_facts(self._shown, json.loads(self._all().get(FACTS, "{}")), facts)

    def beat(self, end: int, facts: dict[str, Any]) -> None:
        """Record how far the log went."""
        self._set({LSN: str(Lsn(end)), FACTS: json.dumps(facts)})

    def keep(self, name: str, text: str) -> str:
        """Set a property unless it is set; return its text."""
        if name not in (found := self._all()):
            self._set({name: text})
            found = self._all()
        return found[name]

    def put(self, name: str, text: str) -> None:
        """Set a property, in place of an earlier text."""
        self._set({name: text})

    def kept(self, ending: str) -> list[str]:
        """Return the names of properties with this ending, without it."""
        return [name.removesuffix(ending) for name in self._all() if name.endswith(ending)]

    def _all(self) -> dict[str, str]:
        found: dict[str, str] = self._catalog.load_namespace_properties(self._namespace)
        return found

    def _set(self, properties: dict[str, str]) -> None:
        self._catalog.update_namespace_properties(self._namespace, updates=properties)


class IcebergMirrors(Mirrors):
    """The mirrors in one namespace."""

    retention_s = ICEBERG_RETENTION_S
    name_rules = NameRules(has_paths=True)

    def __init__(
        self, catalog: str, namespace: str, mode: str, load: Load | None = None, *,
        opened: Any = None,
    ) -> None:  # fmt: skip
        """Open the tables of a namespace in a catalog: `opened`, or one of the configuration."""
        shown = f"iceberg:{catalog}/{namespace}"
        self._catalog = iceberg_catalog(shown, catalog, namespace, opened)
        self._namespace = namespace
        super().__init__(shown, NamespaceNotes(self._catalog, namespace, shown), mode, load)

    def _lake_name(self, table: Table) -> str:
        return f"{table.schema}_{table.name}"

    def _name(self, table: Table) -> str:
        return f"{self._namespace}.{self._lake_name(table)}"

    def maintain(self, name: str, retention: Retention, now_s: float) -> Maintained:
        """Expire older snapshots of a table, and remove the files that only they had."""
        if not self._catalog.table_exists(full := f"{self._namespace}.{name}"):
            return Maintained()
        return maintain_iceberg(self._catalog.load_table(full), retention, int(now_s * 1000))

    def _opened(self, table: Table) -> Any:
        # A table without a position has nothing yet: the stream died before its first commit.
        if not self._catalog.table_exists(self._name(table)):
            return None
        found = self._catalog.load_table(self._name(table))
        return found if LSN in found.properties else None

    def _done(self, target: Any) -> int:
        return int(Lsn.parse(target.properties[LSN]))

    def _schema(self, target: Any) -> Any:
        return pa.schema([plain(field) for field in target.schema().as_arrow()])

    def _stored(self, type_: Any) -> Any:
        return pa.int32() if type_ == pa.int16() else type_

    def _as_stored(self, rows: Any) -> Any:
        fields = [pa.field(each.name, self._stored(each.type)) for each in rows.schema]
        return rows.cast(pa.schema(fields))

    def _merge_rows(self, table: Table, rows: Any, there: Column, target: Any, end: int) -> None:
        rows = self._as_stored(rows)
        chosen = filter_of(rows, table.key)
        found = self._read(target, chosen)
        kept = found.filter(pa.array(~has_key_of(found, rows, table.key)))
        self._replace_found(target, chosen, found, [kept, rows.filter(pa.array(there))], end)

    def _merge_versions(
        self, table: Table, added: Any, closed: Any, emptied: tuple[int, int] | None,
        target: Any, end: int,
    ) -> None:  # fmt: skip
        chosen = _filters().IsNull(ENDED)
        if added is not None:
            added, closed = self._as_stored(added), self._as_stored(closed)
        if emptied is None:
            chosen = _filters().And(chosen, filter_of(closed, table.key))
        found = self._read(target, chosen)
        found = closed_versions(found, closed, emptied, table.key)
        self._replace_found(
            target, chosen, found, [found] if added is None else [found, added], end
        )

    def _read(self, target: Any, chosen: Any) -> Any:
        found = target.scan(row_filter=chosen).to_arrow()
        return found.cast(pa.schema([plain(field) for field in found.schema]))

    def _replace_found(
        self, target: Any, chosen: Any, found: Any, pieces: list[Any], end: int
    ) -> None:
        """Put the pieces in place of the rows that were found, in one commit."""
        rows = pa.concat_tables(pieces, promote_options="default")
        self._write_commit(target, chosen if len(found) else None, rows.schema, [rows], [], end)

    def _scan(self, target: Any, span: Span | None) -> Iterator[Any]:
        for batch in target.scan(row_filter=_filter_of_span(span)).to_arrow_batch_reader():
            yield batch.cast(pa.schema([plain(field) for field in batch.schema]))

    def _replace(
        self, table: Table, schema: Any, rows: Iterator[Any], target: Any, span: Span | None,
        end: int,
    ) -> None:  # fmt: skip
        chosen = None if target is None else _filter_of_span(span)
        target = self._made(table, schema) if target is None else target
        self._write_commit(target, chosen, schema, rows, [], end)

    def _made(self, table: Table, schema: Any) -> Any:
        """Make a table, in place of one that has no position yet."""
        name = self._name(table)
        if self._catalog.table_exists(name):
            self._catalog.drop_table(name)
        return self._catalog.create_table(name, schema=schema)

    def _overwrite(self, table: Table, rows: Any, end: int) -> None:
        rows = self._as_stored(rows)
        target = self._opened(table) or self._made(table, rows.schema)
        own = {each.name: each.type for each in rows.schema}
        gone = [each.name for each in self._schema(target) if own.get(each.name) != each.type]
        chosen = _filters().AlwaysTrue() if target.current_snapshot() else None
        self._write_commit(target, chosen, rows.schema, [rows], gone, end)

    def _write_commit(
        self, target: Any, chosen: Any, schema: Any, tables: Iterable[Any], gone: list[str],
        end: int,
    ) -> None:  # fmt: skip
        from pyiceberg.exceptions import CommitFailedException

        properties = self._properties(end)
        # pyiceberg makes Python dates of a column's least and largest value, which do not exist for
        # infinity.
        unbounded = {
            f"{_METRICS}.{each.name}": "counts"
            for each in schema
            if pa.types.is_temporal(each.type)
        }
        try:
            with warnings.catch_warnings(), target.transaction() as change:
                warnings.simplefilter("ignore")  # a filter that matches no row of a file
                change.set_properties(properties | unbounded)
                if chosen is not None:
                    change.delete(chosen, snapshot_properties=properties)
                if gone:
                    with change.update_schema(allow_incompatible_changes=True) as columns:
                        for name in gone:
                            columns.delete_column(name)
                with change.update_schema() as columns:
                    columns.union_by_name(schema)
                for rows in tables:
                    if len(rows):
                        change.append(rows, snapshot_properties=properties)
        except CommitFailedException as error:
            raise HistoryError(f"{self._root}: another writer was first: {error}") from error

    def _properties(self, end: int) -> dict[str, str]:
        return {LSN: str(Lsn(end))}


def _filters() -> Any:
    """Return pyiceberg's filters. The sink has opened a catalog, so they are there."""
    import pyiceberg.expressions

    return pyiceberg.expressions


def _filter_of_span(span: Span | None) -> Any:
    """Return a filter that admits the rows of a span, or all rows."""
    if span is None:
        return _filters().AlwaysTrue()
    name, least, most = span
    filters = _filters()
    return filters.And(filters.GreaterThanOrEqual(name, least), filters.LessThanOrEqual(name, most))


def filter_of(rows: Any, key: tuple[str, ...]) -> Any:
    """Return a filter that admits the rows of these keys, and perhaps of others."""
    values: dict[str, Any] = {
        name: rows[name].unique()
        for name in key
        if pa.types.is_integer(rows.schema.field(name).type)
        or pa.types.is_string(rows.schema.field(name).type)
    }
    if not values or not len(rows):
        return _filters().AlwaysTrue()
    name = max(values, key=lambda each: len(values[each]))
    least, most = pc.min_max(values[name]).as_py().values()
    filters, span = _filters(), _filter_of_span((name, least, most))
    if len(values[name]) > VALUES_MAX:
        return span
    return filters.And(span, filters.In(name, values[name].to_pylist()))
