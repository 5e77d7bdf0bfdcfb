"""The data source: options, the schema they give, and its readers.

    path                  directory, object store's URL, or walkeeper://host:port,…/cluster: a live
                          log, up to where it is committed (required)
    table                 records (default), blocks, stats, xacts, checkpoints, locks, relations,
                          messages, segments, problems; with options of their own table_at,
                          changes and row_history (pyspark_pgwal.replayed_tables)
    columns               names, separated by commas; Spark cannot tell a Python source which
                          columns a query needs, so leaving them out here is what saves time
    payload               true: with main_data, block_data and block_fpi_data, without `columns`
    startLsn, endLsn      records that start in [startLsn, endLsn), as 0/16B3748 or a number
    startTime, endTime    the same by times of commits
    timeline              by default the newest
    verify                crc (default) or none
    onError               fail (default), skip or report: table problems says what was left out
    segmentsPerPartition  by default as many as make 128 MB to 1 GB
    maxFilesPerTrigger    segments in a micro-batch, by default 64
    catalog               files of `walkeeper history catalog`, separated by commas: names of
                          relations in the tables blocks and relations
    pushdown              true: take filters from Spark (LSNs, timeline, resource_manager, xid,
                          times, relfilenode), which takes spark.sql.python.filterPushdown.enabled
    index                 a file of `walkeeper history index`: with pushdown, segments that have no
                          such xid, relation, time or resource manager are passed over; a stream
                          has no pushdown, and an index for startTime and endTime alone

Contract: names of options do not depend on case, as everywhere in Spark. An unknown option is an
error, because a misspelt range would otherwise read everything.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_pgwal.pgwal_options import PAST_TABLES, PgWalOptions, table_of

LOGGED_TABLES = PAST_TABLES[1:]  # a logical log has these, too (pyspark_pgwal.logical_tables)


class PgWalSource(DataSource):
    """The data source `pgwal`."""

    _past: object = None

    @classmethod
    def name(cls) -> str:
        return "pgwal"

    def _parsed(self) -> PgWalOptions:
        return PgWalOptions.parse(self.options)

    def schema(self) -> StructType:
        if self._needs_replay():
            return self._past_schema()
        arrow = self._parsed().made_table().schema
        return from_arrow_schema(arrow, prefer_timestamp_ntz=False)

    def _needs_replay(self) -> bool:
        """Return True if the table is one of pyspark_pgwal.replayed_tables."""
        table = table_of(self.options)
        return table in PAST_TABLES or (table == "problems" and "of" in self.options)

    def _past_schema(self) -> StructType:
        """Return the schema of a table that needs replay.

        Catalogs are read once, since this object goes on to the reader.
        """
        if self._is_logged():
            from walkeeper_replay.changes.change_rows import SCHEMA

            return from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True)
        from pyspark_pgwal.replayed_tables import past_schema

        arrow, self._past = past_schema(self.options)
        return from_arrow_schema(arrow, prefer_timestamp_ntz=True)

    def _is_logged(self) -> bool:
        """Return True if the query is for changes of a logical log (docs/logical.md)."""
        if table_of(self.options) not in LOGGED_TABLES or not self.options.get("path"):
            return False
        from walkeeper_wal.sources.entry_files import is_entry_log

        return is_entry_log(self.options["path"])

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._is_logged():
            from pyspark_pgwal.logical_tables import LoggedOptions, LoggedReader

            return LoggedReader(LoggedOptions.parse(self.options))
        if self._needs_replay():
            from pyspark_pgwal.replayed_tables import past_reader

            return past_reader(self.options, self._past)
        from pyspark_pgwal.batch import PgWalReader, PushdownReader

        options = self._parsed()
        return PushdownReader(options) if options.pushdown else PgWalReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self._is_logged():
            from pyspark_pgwal.logical_tables import LoggedOptions, LoggedStreamReader

            return LoggedStreamReader(LoggedOptions.parse(self.options))
        if self._needs_replay():
            from pyspark_pgwal.changes_stream import changes_stream

            return changes_stream(self.options)
        from pyspark_pgwal.stream_reader import PgWalStreamReader

        return PgWalStreamReader(self._parsed())
