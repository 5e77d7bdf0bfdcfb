"""A Spark application dies by SIGKILL while it follows a live log: each change is written once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import Row, SparkSession

from tests.support.cluster import Cluster, walkeeper
from tests.support.postgres_server import PostgresServer, server_environment
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = [
    pytest.mark.soak,
    pytest.mark.postgres,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

KILLS = 4
JSON = ("--format", "json")
CHANGES = (
    "INSERT INTO t SELECT g, repeat('x', 300) FROM generate_series({n}, {n} + 9) g",
    "UPDATE t SET v = v || 'y' WHERE i BETWEEN {n} - 15 AND {n}",
    "DELETE FROM t WHERE i BETWEEN {n} - 39 AND {n} - 38",
)


class Application:
    """The application with its Java, as one group of processes."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.folder, self.log = folder, folder / "application.log"
        self.url = f"walkeeper://{cluster.addresses}/{cluster.name}"
        self._process: subprocess.Popen[bytes] | None = None
        self._seen = 0

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "tests.replay.spark_application", self.url]
        self._seen = self._batches()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*words, str(self.folder), *options],
                env=server_environment(), stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return self._process

    def kill(self) -> None:
        """Kill the driver and its Java at once, while they run."""
        assert self._process is not None and self._process.poll() is None, self.said()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def has_gone_on(self) -> bool:
        """Return True if two micro-batches were written for good since its start."""
        return self._batches() > self._seen + 1

    def _batches(self) -> int:
        done = self.folder / "out" / "_spark_metadata"
        return sum(path.name.isdigit() for path in done.iterdir()) if done.is_dir() else 0

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


def write_until(stop: threading.Event, server: PostgresServer) -> None:
    with server.connect() as connection:
        for n in range(100, 1 << 20, 10):
            for change in CHANGES:
                connection.execute(change.format(n=n).encode())
            if stop.wait(0.02):
                return


def test_a_killed_application_writes_each_change_once(spark: SparkSession, tmp_path: Path) -> None:
    random = Random(7)
    segments = ["--wal-segsize=1"]
    with (
        PostgresServer.create({}, initdb_options=segments) as server,
        Cluster.create(server) as cluster,
    ):
        server.sql("CREATE TABLE t (i int PRIMARY KEY, v text)")
        stop, application = threading.Event(), Application(cluster, tmp_path)
        writer = threading.Thread(target=write_until, args=(stop, server), name="writer")
        writer.start()
        try:
            for _ in range(KILLS):
                application.start()
                wait_until(application.has_gone_on)
                time.sleep(random.uniform(0, 1))
                application.kill()
        finally:
            stop.set()
            writer.join()
        cluster.wait_all_equal()
        assert application.start("--once").wait(2 * LIMIT_S) == 0, application.said()
        done = walkeeper("history", "changes", "--path", application.url, "--table", "t", *JSON)
        rows = server.sql("SELECT json_object_agg(i, v) FROM t")
    assert done.returncode == 0, done.stderr
    expected = [json.loads(line) for line in done.stdout.splitlines()]
    frame = spark.read.parquet(str(tmp_path / "out")).where("table = 't'")
    found = frame.orderBy("commit_lsn", "start_lsn").collect()
    assert [(row.operation, row.old, row.new) for row in found] == [
        (line["operation"], line["old"], line["new"]) for line in expected
    ]
    assert folded(found) == rows and len(found) > 1000


def folded(changes: list[Row]) -> dict[str, str]:
    """Return the table's rows after its changes."""
    table = dict[str, str]()
    for change in changes:
        if change.old is not None:
            del table[change.old["i"]]
        if change.new is not None:
            table[change.new["i"]] = change.new["v"]
    return table
