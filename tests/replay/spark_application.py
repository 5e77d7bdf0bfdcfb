"""A Spark application of its own: changes of a log, as a stream into Parquet files.

    python -m tests.replay.spark_application LOG FOLDER          until it is killed
    python -m tests.replay.spark_application LOG FOLDER --once   up to the log's end

FOLDER/out has the files, beside Spark's checkpoint and the state of the source.
"""

from __future__ import annotations

import sys

from pyspark_pgwal.session import session


def run(log: str, folder: str, *, once: bool) -> None:
    """Start the query, and wait for its end."""
    spark = session("local[2]", spark_sql_shuffle_partitions="2")
    spark.sparkContext.setLogLevel("ERROR")
    stream = spark.readStream.format("pgwal").option("path", log).option("table", "changes")
    stream = stream.option("database", "postgres").option("state", f"{folder}/state")
    writer = stream.option("maxBytesPerTrigger", str(1 << 20)).load().writeStream
    writer = writer.format("parquet").option("path", f"{folder}/out")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    ticks = {"availableNow": True} if once else {"processingTime": "200 milliseconds"}
    writer.trigger(**ticks).start().awaitTermination()


if __name__ == "__main__":
    run(*sys.argv[1:3], once="--once" in sys.argv[3:])
