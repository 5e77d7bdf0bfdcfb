"""Mirrors in Delta tables, by delta-rs: a MERGE for each window.

Each table is a Delta table `SCHEMA.NAME` below the URL. The end of a window is the version of the
application transaction `walkeeper`, and `walkeeper.lsn` of the commit. `position.json` beside the
tables says how far all of them are. The rules are those of lake_mirrors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from walkeeper_common.lsn import Lsn
from walkeeper_history.change_files import ChangeFiles
from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.lakes.delta_maintenance import maintain_delta
from walkeeper_replay.lakes.far_dates import (
    STATISTICS,
    columns_with_statistics,
    far_dates,
    in_backticks,
)
from walkeeper_replay.lakes.lake_mirrors import ENDED, ENDED_AT, STEP, Load, Mirrors, plain
from walkeeper_replay.lakes.lake_names import NameRules
from walkeeper_replay.lakes.lake_tables import APPLICATION, DELTA_RETENTION_S, LSN, delta_api
from walkeeper_replay.lakes.large_folds import Span
from walkeeper_replay.lakes.table_maintenance import Maintained, Retention
from walkeeper_wal.records.gather import MICROSECONDS_1970_TO_2000
from walkeeper_wal.records.segment import Column
from walkeeper_wal.wal_errors import HistoryError

_PUT, _TAKE, _ADD = 0, 1, 2
_MERGE_BYTES = 32 << 20  # A MERGE writes whole files anew, so they are not large.
_MICROSECONDS = 'Timestamp(Microsecond, Some("UTC"))'


class DeltaMirrors(Mirrors):
    """The mirrors below one URL."""

    retention_s = DELTA_RETENTION_S
    name_rules = NameRules(is_case_blind=True)

    def __init__(self, url: str, mode: str, load: Load | None = None) -> None:
        """Open the tables at a path or a URL."""
        self._api = delta_api(url)
        self._new: dict[int, dict[str, str]] = {}
        """Properties of tables that the next write makes."""
        super().__init__(url, ChangeFiles.open(url), mode, load)

    def maintain(self, name: str, retention: Retention, now_s: float) -> Maintained:
        """Merge small files of a table, and remove those that were replaced long ago."""
        return maintain_delta(
            self._api, self._url_of(name), retention, self._of_maintenance, _MERGE_BYTES
        )

    def _of_maintenance(self, target: Any) -> Any:
        return self._api.CommitProperties(custom_metadata={LSN: str(Lsn(self._done(target)))})

    def _done(self, target: Any) -> int:
        return int(target.transaction_version(APPLICATION) or 0)

    def _schema(self, target: Any) -> Any:
        return pa.schema([plain(field) for field in pa.schema(target.schema().to_arrow())])

    def _merge_rows(self, table: Table, rows: Any, there: Column, target: Any, end: int) -> None:
        target = self._prepared(table, rows.schema, far_dates(rows), target)
        names = rows.column_names
        source = rows.append_column(STEP, pa.array(np.where(there, _PUT, _TAKE)))
        merged = target.merge(
            source, _same(table.key), "s", "t", merge_schema=True,
            commit_properties=self._properties(end),
        )  # fmt: skip
        puts = f"s.`{STEP}` = {_PUT}"
        self._execute(
            merged.when_matched_delete(f"s.`{STEP}` = {_TAKE}")
            .when_matched_update(_taken(names), puts)
            .when_not_matched_insert(_taken(names), puts)
        )

    def _merge_versions(
        self, table: Table, added: Any, closed: Any, emptied: tuple[int, int] | None,
        target: Any, end: int,
    ) -> None:  # fmt: skip
        source = self._schema(target).append(pa.field(STEP, pa.int64())).empty_table()
        if added is not None:
            target = self._prepared(table, added.schema, far_dates(added), target)
            source = pa.concat_tables([_stepping(added, _ADD), _stepping(closed, _TAKE)])
        names = [name for name in source.column_names if name != STEP]
        merged = target.merge(
            source, f"{_same(table.key)} AND t.`{ENDED}` IS NULL AND s.`{STEP}` = {_TAKE}",
            "s", "t", merge_schema=True, commit_properties=self._properties(end),
        )  # fmt: skip
        if emptied is None:
            merged = merged.when_matched_update(_taken([ENDED, ENDED_AT]))
        else:
            lsn, time = emptied
            shown_at = f"arrow_cast({time + MICROSECONDS_1970_TO_2000}, '{_MICROSECONDS}')"
            closing = {f"t.`{ENDED}`": str(lsn), f"t.`{ENDED_AT}`": shown_at}
            # The TRUNCATE ended all current versions, before any step.
            merged = merged.when_matched_update(closing)
            merged = merged.when_not_matched_by_source_update(closing, f"t.`{ENDED}` IS NULL")
        self._execute(merged.when_not_matched_insert(_taken(names), f"s.`{STEP}` = {_ADD}"))

    def _execute(self, merged: Any) -> None:
        try:
            merged.execute()
        except self._api.exceptions.DeltaError as error:
            raise HistoryError(f"{self._root}: {error}") from error

    def _prepared(self, table: Table, schema: Any, far: set[str], target: Any) -> Any:
        if not far:
            return target
        wanted = {STATISTICS: columns_with_statistics(schema, table.key)}
        if target is None:
            self._new[table.oid] = wanted
        elif target.metadata().configuration.get(STATISTICS) != wanted[STATISTICS]:
            target.alter.set_table_properties(
                wanted, commit_properties=self._of_maintenance(target)
            )
            return self._opened(table)
        return target

    def _overwrite(self, table: Table, rows: Any, end: int) -> None:
        if far := far_dates(rows):
            self._prepared(table, rows.schema, far, self._opened(table))
        try:
            self._api.write_deltalake(
                self._url(table), rows, mode="overwrite", schema_mode="overwrite",
                configuration=self._new.pop(table.oid, None),
                commit_properties=self._properties(end),
            )  # fmt: skip
        except self._api.exceptions.DeltaError as error:
            raise HistoryError(f"{self._url(table)}: {error}") from error

    def _scan(self, target: Any, span: Span | None) -> Iterator[Any]:
        where = f" WHERE {_within(span)}" if span is not None else ""
        query = self._api.QueryBuilder().register("t", target)
        for found in query.execute(f"SELECT * FROM t{where}"):
            batch = pa.record_batch(found)
            yield batch.cast(pa.schema([plain(field) for field in batch.schema]))

    def _replace(
        self, table: Table, schema: Any, rows: Iterator[Any], target: Any, span: Span | None,
        end: int,
    ) -> None:  # fmt: skip
        batches = (batch for part in rows for batch in part.to_batches())
        try:
            self._api.write_deltalake(
                self._url(table), pa.RecordBatchReader.from_batches(schema, batches),
                mode="overwrite", schema_mode="overwrite" if target is None else "merge",
                predicate=None if target is None or span is None else _within(span),
                configuration=self._new.pop(table.oid, None),
                commit_properties=self._properties(end),
            )  # fmt: skip
        except self._api.exceptions.DeltaError as error:
            raise HistoryError(f"{self._url(table)}: {error}") from error

    def _properties(self, end: int) -> Any:
        return self._api.CommitProperties(
            custom_metadata={LSN: str(Lsn(end))},
            app_transactions=[self._api.transaction.Transaction(APPLICATION, end, None)],
        )

    def _url(self, table: Table) -> str:
        return self._url_of(table.shown)

    def _url_of(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _opened(self, table: Table) -> Any:
        try:
            found = self._api.DeltaTable(self._url(table))
        except self._api.exceptions.TableNotFoundError:
            return None
        except (self._api.exceptions.DeltaError, OSError) as error:
            raise HistoryError(f"{self._url(table)}: {error}") from error
        return found


def _within(span: Span) -> str:
    """Return the SQL that is true for the rows of a span."""
    name, *ends = span
    least, most = (
        str(end) if isinstance(end, int) else "'{}'".format(end.replace("'", "''")) for end in ends
    )
    column = '"{}"'.format(name.replace('"', '""'))
    return f"{column} >= {least} AND {column} <= {most}"


def _same(key: Sequence[str]) -> str:
    return " AND ".join(f"t.{in_backticks(name)} = s.{in_backticks(name)}" for name in key)


def _taken(names: Sequence[str]) -> dict[str, str]:
    return {f"t.{in_backticks(name)}": f"s.{in_backticks(name)}" for name in names}


def _stepping(rows: Any, step: int) -> Any:
    return rows.append_column(STEP, pa.array(np.full(len(rows), step)))
