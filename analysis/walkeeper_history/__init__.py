"""WAL history: archived WAL of PostgreSQL 13 to 18 as tables, without a server or pg_waldump.

It needs numpy and pyarrow, and no Spark, which only `pyspark_pgwal` uses.

    rows/      from a segment's records to rows, column by column, one segment at a time
    tables, find, lsn_of_time, parquet, follow, report/    the answers for people
segment_index, segment_facts, indexed_find             segments that a query need not read
change_files                                           the sink of a stream of changes
"""
