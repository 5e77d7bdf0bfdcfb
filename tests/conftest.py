"""One Java machine for all tests that take one: its start is seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pyspark_pgwal.session import session

    made = session(
        "local[2]",
        spark_sql_shuffle_partitions="2",
        # Short queries in one process: to compile thoroughly costs more than it saves.
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
