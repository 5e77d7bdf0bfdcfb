"""WAL history: archived WAL of PostgreSQL 13 to 18 as tables, without a server or pg_waldump.

Engine-free: numpy and pyarrow, and numba if it is installed. Spark is only in `pyspark_pgwal`.

    wal/       bytes come in (wal_files), and segments are chosen (plan) and read in order (reading)
    records/   the walk over a segment's bytes
    rows/      from its records to rows, column by column, one segment at a time
    tables, find, times, parquet, follow, segment_index, report/    what people ask for
"""
