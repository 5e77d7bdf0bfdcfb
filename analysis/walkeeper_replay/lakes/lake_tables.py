"""Tables of a lake as sinks of a stream of changes: Delta Lake and Apache Iceberg, by append.

    DeltaChanges("s3://lake/changes")          by delta-rs
    IcebergChanges("prod", "lake.changes")     by pyiceberg, with the catalogs that it knows

Both have the methods of change_files.ChangeFiles. A commit of the table has the changes of a range
of the log and the end of that range. So a stream that comes back goes on there. In Delta the end is
the version of the application transaction `walkeeper`, and `walkeeper.lsn` of the commit. In
Iceberg it is the property `walkeeper.lsn` of the table, and of the snapshot. Contract: a range is
in the table with its end, or neither is. The columns are those of changes, so an ALTER TABLE on the
server changes no column here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from walkeeper_common.lsn import Lsn
from walkeeper_history.change_files import row_groups
from walkeeper_replay.changes.change_rows import SCHEMA
from walkeeper_replay.lakes.delta_maintenance import maintain_delta
from walkeeper_replay.lakes.iceberg_maintenance import maintain_iceberg
from walkeeper_replay.lakes.table_maintenance import Maintained, Retention
from walkeeper_wal.wal_errors import HistoryError

APPLICATION = "walkeeper"
LSN, FACTS = "walkeeper.lsn", "walkeeper.facts"
BEAT_S = 300.0  # a commit of the table each time, so they are few
DELTA_RETENTION_S = 86_400
ICEBERG_RETENTION_S = 3600  # Each commit writes the list of all snapshots anew.
_MERGE_BYTES = 128 << 20
_NEEDS = "lakes need two more libraries: pip install 'walkeeper[lake]'"


def refuse_facts(shown: str, known: dict[str, Any], facts: dict[str, Any]) -> None:
    """Raise HistoryError if a table has changes with other facts."""
    for name, value in facts.items():
        if known.get(name, value) != value:
            raise HistoryError(
                f"{shown}: it has changes with {name} {known[name]!r}, and this stream's is "
                f"{value!r}: name another --to"
            )


def delta_api(url: str) -> Any:
    """Return delta-rs; raise HistoryError if it is not installed."""
    try:
        import deltalake
        import deltalake.transaction
    except ModuleNotFoundError as error:
        raise HistoryError(f"{url}: {_NEEDS}") from error
    return deltalake


class DeltaChanges:
    """A Delta table at a path or a URL. Its first write makes it."""

    beat_s, retention_s = BEAT_S, DELTA_RETENTION_S

    def __init__(self, url: str) -> None:
        self._api = delta_api(url)
        self._url, self._facts, self._has_facts = url, dict[str, Any](), False

    def position(self) -> int:
        """Return the end of the last range that is in the table, or 0."""
        table = self._table()
        return 0 if table is None else int(table.transaction_version(APPLICATION) or 0)

    def refuse_other(self, facts: dict[str, Any]) -> None:
        """Raise HistoryError if the table has changes of another log; keep facts for commits."""
        table = self._table()
        known = None if table is None else table.metadata().configuration.get(FACTS)
        if known is None:
            commits = [] if table is None else table.history()
            known = next((commit[FACTS] for commit in commits if FACTS in commit), "{}")
        refuse_facts(self._url, json.loads(known), facts)
        self._facts = facts

    def claim(self, owner: str) -> None:
        """Do nothing: the table refuses a commit of another stream as a conflict."""

    def write(self, changes: Any, begin: int, end: int) -> None:
        """Append the changes of one range in one commit."""
        if self.position() > begin:
            raise HistoryError(f"{self._url}: another stream writes here")
        self._commit(changes, end)

    def beat(self, end: int, facts: dict[str, Any]) -> None:
        """Commit how far the log went, unless the last range ended there."""
        if end > self.position():
            self._commit(SCHEMA.empty_table().to_reader(), end)

    def tables(self) -> list[str]:
        """Return the tables that need maintenance."""
        return [self._url]

    def maintain(self, name: str, retention: Retention, now_s: float) -> Maintained:
        """Merge small files of a table, and remove those that were replaced long ago."""
        return maintain_delta(self._api, name, retention, self._of_maintenance, _MERGE_BYTES)

    def _of_maintenance(self, table: Any) -> Any:
        end = int(table.transaction_version(APPLICATION) or 0)
        return self._api.CommitProperties(custom_metadata={LSN: str(Lsn(end))})

    def _commit(self, changes: Any, end: int) -> None:
        properties = self._api.CommitProperties(
            custom_metadata={LSN: str(Lsn(end)), FACTS: json.dumps(self._facts)},
            app_transactions=[self._api.transaction.Transaction(APPLICATION, end, None)],
        )
        try:
            self._api.write_deltalake(
                self._url, changes, mode="append", commit_properties=properties
            )
            if not self._has_facts:
                self._keep_facts()
        except self._api.exceptions.DeltaError as error:
            raise HistoryError(f"{self._url}: {error}") from error

    def _keep_facts(self) -> None:
        """Set the facts as a property of the table: entries of its log are removed in time."""
        table = self._api.DeltaTable(self._url)
        if FACTS not in table.metadata().configuration:
            table.alter.set_table_properties(
                {FACTS: json.dumps(self._facts)}, raise_if_not_exists=False,
                commit_properties=self._of_maintenance(table),
            )  # fmt: skip
        self._has_facts = True

    def _table(self) -> Any:
        try:
            return self._api.DeltaTable(self._url)
        except self._api.exceptions.TableNotFoundError:
            return None
        except (self._api.exceptions.DeltaError, OSError) as error:
            raise HistoryError(f"{self._url}: {error}") from error


def iceberg_catalog(shown: str, catalog: str, namespace: str, opened: Any = None) -> Any:
    """Return a catalog with the namespace in it: `opened`, or one that the configuration names."""
    try:
        from pyiceberg.catalog import load_catalog
    except ModuleNotFoundError as error:
        raise HistoryError(f"{shown}: {_NEEDS}") from error
    try:
        found = load_catalog(catalog) if opened is None else opened
        found.create_namespace_if_not_exists(namespace)
    except Exception as error:  # each catalog has errors of its own
        raise HistoryError(f"{shown}: {error}") from error
    return found


class IcebergChanges:
    """An Iceberg table, with its namespace made if there is none."""

    beat_s, retention_s = BEAT_S, ICEBERG_RETENTION_S

    def __init__(self, catalog: str, name: str, *, opened: Any = None) -> None:
        """Open the table in a catalog: `opened`, or one that pyiceberg's configuration names."""
        self._shown = f"iceberg:{catalog}/{name}"
        self._facts: dict[str, Any] = {}
        self._catalog = iceberg_catalog(self._shown, catalog, name.rpartition(".")[0], opened)
        from pyiceberg.exceptions import CommitFailedException

        self._conflict = CommitFailedException
        try:
            self._table: Any = self._catalog.create_table_if_not_exists(name, schema=SCHEMA)
        except Exception as error:  # each catalog has errors of its own
            raise HistoryError(f"{self._shown}: {error}") from error

    def position(self) -> int:
        """Return the end of the last range that is in the table, or 0."""
        lsn = self._properties().get(LSN)
        return 0 if lsn is None else int(Lsn.parse(lsn))

    def refuse_other(self, facts: dict[str, Any]) -> None:
        """Raise HistoryError if the table has changes of another log; keep facts for commits."""
        refuse_facts(self._shown, json.loads(self._properties().get(FACTS, "{}")), facts)
        self._facts = facts

    def claim(self, owner: str) -> None:
        """Do nothing: the table refuses a commit of another stream as a conflict."""

    def write(self, changes: Any, begin: int, end: int) -> None:
        """Append the changes of one range, and its end, in one commit.

        A large range is several snapshots of that commit, which readers see together.
        """
        if self.position() > begin:
            raise HistoryError(f"{self._shown}: another stream writes here")
        self._commit(row_groups(changes), end)

    def beat(self, end: int, facts: dict[str, Any]) -> None:
        """Set how far the log went, without a snapshot."""
        if end > self.position():
            self._commit(iter(()), end)

    def tables(self) -> list[str]:
        """Return the tables that need maintenance."""
        return [self._shown]

    def maintain(self, name: str, retention: Retention, now_s: float) -> Maintained:
        """Expire older snapshots of the table, and remove the files that only they had."""
        return maintain_iceberg(self._table.refresh(), retention, int(now_s * 1000))

    def _properties(self) -> dict[str, str]:
        properties: dict[str, str] = self._table.refresh().properties
        return properties

    def _commit(self, tables: Iterator[Any], end: int) -> None:
        lsn = str(Lsn(end))
        try:
            with self._table.transaction() as change:
                for table in tables:
                    change.append(table, snapshot_properties={LSN: lsn})
                change.set_properties({LSN: lsn, FACTS: json.dumps(self._facts)})
        except self._conflict as error:
            raise HistoryError(f"{self._shown}: another writer was first: {error}") from error
