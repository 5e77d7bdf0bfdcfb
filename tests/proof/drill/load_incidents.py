"""Incidents under load: slow disks, and more WAL than the members take."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

import psycopg

from tests.proof.drill.incident import Commits, Expected, Incident
from tests.proof.drill.member_incidents import TwoMembersDown
from tests.support.cluster import lsn_of
from tests.support.waiting import wait_until

VICTIM = 3
SLOW_MS = 800
WARNING_MS = 50
STILL_MS = 40_000  # no commit returns while an alert waits for its 30 s
VERY_SLOW_MS = 600  # an append may have eight segments, each with a sync
LAG_BYTES = 128 << 20
BULK = "SELECT count(pg_logical_emit_message(true, 'bulk', repeat(md5(i::text), 16384)))"
HALF_MEGABYTES = 160
COMMIT = "SELECT pg_logical_emit_message(true, 'load', 'x')"
PAUSE_S = 0.2


class Load:
    """A thread that repeats a job until `stop`."""

    def __init__(self, job: Callable[[], object]) -> None:
        self._job, self._stopped = job, threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(psycopg.Error):  # the stage is taken down
            while not self._stopped.wait(PAUSE_S):
                self._job()

    def stop(self) -> None:
        """Return once the last job has ended."""
        self._stopped.set()
        self._thread.join()


class BulkWithoutQuorum(TwoMembersDown):
    name = "bulk_without_quorum"
    about = "Two of three safekeepers are killed while a transaction writes 80 MB."
    expected = replace(
        TwoMembersDown.expected,
        metrics=r"walkeeper_proposer_paused\{.*\} 1", alerts=("WalkeeperWindowFull",),
    )  # fmt: skip

    def cause(self) -> None:
        super().cause()
        self._bulk = self.stage.primary.psql(
            "-c", f"{BULK} FROM generate_series(1, {HALF_MEGABYTES}) i"
        )

    def mend(self) -> None:
        super().mend()
        said, _ = self._bulk.communicate()
        assert self._bulk.returncode == 0, said


class LaggingMember(Incident):
    name = "lagging_member"
    about = "One disk takes 0.6 s longer for each fdatasync, and the primary writes a lot."
    expected = Expected(
        status="lagging", exit_code=1, check="members: .*behind the quorum",
        metrics=r"walkeeper_member_lag_bytes\{.*\} [0-9.]+e\+0[78]",
        alerts=("WalkeeperMemberLags",), remedy="that disk or network is too slow",
    )  # fmt: skip
    remedied = "another disk."

    def cause(self) -> None:
        self.stage.steered[VICTIM - 1].slow(VERY_SLOW_MS, match="/wal/")
        self.stage.begin()
        self._load = Load(self._keep_lag)

    def _keep_lag(self) -> None:
        ends = [lsn_of(end) for end in self.stage.flush_lsns().values()]
        if max(ends) - min(ends) < LAG_BYTES:
            self.stage.fill(64)

    def mend(self) -> None:
        self._load.stop()
        self.stage.steered[VICTIM - 1].well()


class SlowQuorum(Incident):
    name = "slow_quorum"
    about = "Each fdatasync of each safekeeper takes 800 ms longer."
    commits = Commits.GO_ON
    expected = Expected(
        check="fdatasync: .*safekeeper 3", alerts=("WalkeeperSlowCommits", "WalkeeperSlowDisk"),
        metrics=r"walkeeper_proposer_commit_seconds_sum\{.*\} [1-9]",
        page='"fsync_s": ?0.[1-9]', remedy="slow_disk",
    )  # fmt: skip
    remedied = "other disks."

    def cause(self) -> None:
        for disk in self.stage.steered:
            disk.slow(SLOW_MS)
        self.stage.begin()
        self._load = Load(lambda: self.stage.primary.sql(COMMIT))

    def mend(self) -> None:
        for disk in self.stage.steered:
            disk.well()
        self._load.stop()


class SlowMajority(Incident):
    name = "slow_majority"
    about = "Each fdatasync of two of three safekeepers takes 40 s longer."
    expected = Expected(
        status="commits_wait", exit_code=2, alerts=("WalkeeperCommitsWait",),
        check="FAILED members: .*commits? waits? since .*safekeeper 2, safekeeper 3 have WAL to",
        log="proposer: .*ERROR.*commits hang: .*no quorum has acknowledged",
        metrics=r"walkeeper_proposer_commits_waiting\{.*\} [1-9]", page='"waiting": ?[1-9]',
        remedy="if these disks stay slow, repair or replace them",
    )  # fmt: skip
    remedied = "other disks."

    def cause(self) -> None:
        """Slow the disks step by step: their syncs leave the event loop before they hang."""
        disks = self.stage.steered[1:VICTIM]
        for disk in disks:
            disk.slow(WARNING_MS, match="/wal/")
        self.stage.fill(8)
        wait_until(lambda: all(disk.delayed for disk in disks))
        for disk in disks:
            disk.slow(STILL_MS, match="/wal/")
        self.stage.begin()

    def mend(self) -> None:
        for disk in self.stage.steered[1:VICTIM]:
            disk.well()
