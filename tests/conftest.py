"""Which tests run side by side, and one Java machine for all that take one: its start is seconds.

Files are run side by side, each by one worker. Those that take longest begin first, so that nobody
is left with one of them in the end; all others come in another order each time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

WITH_SPARK = (
    "tests/history/test_live_cluster.py",
    "tests/history/test_pushdown.py",
    "tests/history/test_pyspark.py",
    "tests/replay/test_logged_changes.py",
    "tests/replay/test_pyspark_past.py",
)
LONGEST = (  # 40 s and more on two cores
    *WITH_SPARK,
    "tests/test_mutants.py",
    "tests/test_chaos.py",
    "tests/with_postgres/test_restore.py",
    "tests/with_postgres/test_bench.py",
    "tests/with_postgres/test_other_versions.py",
    "tests/pager/test_pager_postgres.py",
    "tests/with_postgres/test_demo.py",
    "tests/test_simulator.py",
    "tests/test_explore.py",
    "tests/with_postgres/test_logical.py",
    "tests/with_postgres/test_logical_streaming.py",
    "tests/replay/test_redo_postgres.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Behind pytest-randomly, whose order all workers share."""
    place = {file: number for number, file in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """All that takes Spark is one worker's."""
    from xdist.scheduler import LoadFileScheduling

    class OneJavaMachine(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return WITH_SPARK[0] if file in WITH_SPARK else file

    return OneJavaMachine(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that a test runs in its process may say where this process logs, and how much."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


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
