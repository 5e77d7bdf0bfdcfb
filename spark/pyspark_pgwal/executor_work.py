"""Run the per-segment work of `walkeeper history` on Spark's executors.

Contract: as in threaded_reading.py, segments come back in the order of the log. Their
results travel pickled and the driver holds them, so they must be small: sums, findings, names of
written files. Executors need walkeeper installed and the same path to the archive. It works without
pandas, since it is a map over partitions, not a function over frames.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from pyspark_pgwal.batch import partitions_of
from pyspark_pgwal.session import session
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.sources.reading import Reading
from walkeeper_wal.sources.threaded_reading import DEFAULT, Part, SweepOptions, read_each
from walkeeper_wal.sources.wal_files import WalFiles


def job_session() -> SparkSession:
    """Return the session of spark-submit, or else one on this machine."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return SparkSession.builder.appName("walkeeper history").getOrCreate()
    return session()


def read_each_on(url: str) -> Callable[..., Iterator[Part[Any]]]:
    """Return a function like `read_each` that reads the archive at `url` on the executors."""

    def read(
        files: WalFiles,
        plan: Plan,
        make: Callable[[Reading], Any],
        options: SweepOptions = DEFAULT,
    ) -> Iterator[Part[Any]]:
        parts = [each.plan for each in partitions_of(plan, None)]
        single = replace(options, threads=1)

        def work(part: Plan) -> list[Part[Any]]:
            return list(read_each(open_files(url), part, make, single))

        context = job_session().sparkContext
        for done in context.parallelize(parts, len(parts)).map(work).collect():
            yield from done

    return read
