"""WAL history: archived WAL of PostgreSQL 13 to 18 as tables, without a server or pg_waldump.

Engine-free: numpy and pyarrow (numba where there is one); Spark is only in `pyspark_pgwal`. Bytes
come in through `wal_files`, `plan` chooses segments, `walk` finds records, and what people ask for
(`stats`, the tables) is made from the columns of one segment at a time.
"""
