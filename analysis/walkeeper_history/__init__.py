"""WAL history: archived WAL of PostgreSQL 13 to 18 as tables, without a server or pg_waldump.

Engine-free: numpy and pyarrow. Spark is only in `pyspark_pgwal`.

    rows/      from a segment's records to rows, column by column, one segment at a time
    tables, find, lsn_of_time, parquet, follow, segment_index, report/    what people ask for
"""
