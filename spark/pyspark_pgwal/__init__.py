"""The Spark data source `pgwal`: archived WAL of PostgreSQL 13 to 18 as tables.

    spark.read.format("pgwal").option("path", "s3://backups/main/wals").option("table", "xacts")

Spark finds it by this package's name, without a registration call, also from SQL
(CREATE TEMPORARY VIEW … USING pgwal OPTIONS (path …)). No logic of its own: rows are those of
walkeeper_history and walkeeper_replay. Tested with PySpark 4.3.
"""

from pyspark_pgwal.source import PgWalSource as DefaultSource

__all__ = ["DefaultSource"]
