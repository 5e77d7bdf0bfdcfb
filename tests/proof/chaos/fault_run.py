"""One run of the fault runner: chosen faults under load, and the checks between and after them."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.proof.chaos.checked_loads import Loads
from tests.proof.chaos.checker import PrimaryIsLost
from tests.proof.chaos.fault import Fault
from tests.proof.chaos.fault_report import Occasion, Report
from tests.proof.chaos.faulted_cluster import ChaosCluster, status_command
from tests.proof.chaos.verdicts import NoProgress, Violation
from tests.support.cluster import lsn_of
from tests.support.waiting import NotInTime

RESUMED_COMMITS = 10
RESUMED_S = 30.0
WHOLE_S = 60.0
STANDBY_S = 60.0
PAUSE_S = (0.1, 0.6)
WAL_BETWEEN_CHECKS_MAX = 800 << 20


@dataclass(frozen=True)
class Plan:
    """A run's end: after `rounds` of every kind, or after `minutes`, at the earlier of both."""

    kinds: Sequence[type[Fault]]
    seed: int
    minutes: float
    rounds: int | None
    check_every: int  # faults


class Runner:
    """One run. `run` raises the verdict; the report has the figures up to that point."""

    def __init__(self, plan: Plan, cluster: ChaosCluster, loads: Loads, report: Report) -> None:
        self._plan, self._cluster, self._loads, self._report = plan, cluster, loads, report
        self._chance = random.Random(plan.seed)
        self._began_s = time.monotonic()
        self._disaster = PrimaryIsLost(cluster, loads)

    def run(self) -> None:
        try:
            self._wait_for_commits(time.monotonic())
            since_check = 0
            for kind in self._schedule():
                self.one_fault(kind)
                if kind.renews_members:
                    self._disaster.renew_backup()
                since_check += 1
                if since_check >= self._plan.check_every or self._much_wal():
                    self.lose_the_primary(go_on=True)
                    since_check = 0
            self.wait_for_standby()
            self.lose_the_primary(go_on=False)
            self._report.lost = 0
        finally:
            self._account()

    def _schedule(self) -> Iterator[type[Fault]]:
        """Yield each kind once in every round, each time in another order, until the time is up."""
        end_s = self._began_s + self._plan.minutes * 60
        number = 0
        while self._plan.rounds is None or number < self._plan.rounds:
            number += 1
            for kind in self._chance.sample(list(self._plan.kinds), len(self._plan.kinds)):
                if time.monotonic() >= end_s:
                    return
                yield kind

    def _much_wal(self) -> bool:
        return self._disaster.wal_since_backup > WAL_BETWEEN_CHECKS_MAX

    def one_fault(self, kind: type[Fault]) -> Occasion:
        cluster, loads = self._cluster, self._loads
        fault = kind(cluster, random.Random(self._chance.random()))
        cluster.hold(self._chance.uniform(*PAUSE_S))
        began_s, commits, unknown = time.monotonic(), loads.acknowledged, loads.unknown
        try:
            hit = fault.inject()
            injected_s = time.monotonic()
            cluster.hold(fault.hold_s)
            if fault.stops_commits:
                self._check_silence(injected_s, time.monotonic())
            fault.heal()
        except BaseException as error:
            error.add_note(f"during {kind.name}, after {time.monotonic() - began_s:.1f} s")
            raise
        healed_s = time.monotonic()
        resumed_s = self._wait_for_commits(healed_s)
        whole_s = self._wait_until_whole()
        occasion = Occasion(
            kind=kind.name,
            hit=hit,
            held_s=healed_s - began_s,
            commits=loads.acknowledged - commits,
            unknown=loads.unknown - unknown,
            stall_s=loads.longest_gap_s(began_s, whole_s),
            resumed_s=resumed_s - healed_s,
            whole_s=whole_s - healed_s,
        )
        self._report.occasions.append(occasion)
        self.say(f"{kind.name} {self._report.times(kind.name)}: {occasion.line()}")
        return occasion

    def _check_silence(self, since_s: float, until_s: float) -> None:
        """Raise Violation if a commit began and returned while no quorum could acknowledge it.

        A commit that began before may return at any time: its acknowledgement was on its way.
        """
        if returned := self._loads.begun_and_returned(since_s, until_s):
            raise Violation(f"{returned} commits began and returned without a quorum")

    def _wait_for_commits(self, since_s: float) -> float:
        """Return when the first commit returned after that; raise NoProgress if none does."""

        def enough() -> bool:
            return len(self._loads.times_s(since_s, time.monotonic())) >= RESUMED_COMMITS

        try:
            self._cluster.wait(enough, RESUMED_S)
        except NotInTime as error:
            raise NoProgress(f"no commits within {RESUMED_S:g} s; {self._state()}") from error
        return self._loads.times_s(since_s, time.monotonic())[0]

    def _wait_until_whole(self) -> float:
        self._cluster.check_safekeepers_run()
        try:
            self._cluster.wait(lambda: self._cluster.why_not_whole() is None, WHOLE_S)
        except NotInTime as error:
            raise NoProgress(f"not whole within {WHOLE_S:g} s; {self._state()}") from error
        return time.monotonic()

    def _state(self) -> str:
        cluster = self._cluster
        lines = [
            f"{cluster.why_not_whole()}",
            f"{cluster.proposer.name}: {cluster.proposer.output()[-1500:]}",
            status_command(cluster),
        ]
        return "\n".join(lines)

    def lose_the_primary(self, *, go_on: bool) -> None:
        began_s = time.monotonic()
        restores = self._disaster.restores
        self._wait_until_whole()
        self._disaster.play()
        if go_on:
            self._disaster.go_on()
            self._wait_for_commits(time.monotonic())
            self._wait_until_whole()
        self._report.primaries_lost += 1
        self.say(
            f"the primary was lost: {self._disaster.restores - restores} restores are whole, "
            f"{self._loads.acknowledged} commits in them; {time.monotonic() - began_s:.1f} s"
        )

    def wait_for_standby(self) -> None:
        """Wait until the standby has all WAL that the primary had a moment ago."""
        cluster = self._cluster
        end = lsn_of(cluster.primary.sql("SELECT pg_current_wal_flush_lsn()"))

        def is_there() -> bool:
            replayed = cluster.standby.sql("SELECT pg_last_wal_replay_lsn()")
            return lsn_of(replayed) >= end

        try:
            cluster.wait(is_there, STANDBY_S)
        except NotInTime as error:
            said = cluster.standby.log_text()[-1500:]
            raise NoProgress(f"the standby is not at {end:X}: {said}") from error

    def _account(self) -> None:
        report, loads = self._report, self._loads
        report.acknowledged, report.unknown = loads.acknowledged, loads.unknown
        report.snapshots = sum(snapshots.taken for snapshots in loads.snapshots)
        report.restores = self._disaster.restores
        report.segments_compared = self._disaster.segments
        report.wal_bytes = self._disaster.wal_bytes
        report.proposer_restarts = len(self._cluster.restarts)
        report.seconds = time.monotonic() - self._began_s

    def say(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began_s:7.1f} s  {text}\n")
        sys.stdout.flush()


def kept_evidence(directory: Path) -> str:
    """Return the text that names the files to look at after a failure."""
    size = subprocess.run(["du", "-sh", str(directory)], capture_output=True, text=True).stdout
    return (
        f"kept: {directory} ({size.split()[0] if size else '?'}): *.log of the daemons, primary/log"
        ", standby/log, acknowledged_*, and the safekeepers' disks: mount -o loop,ro "
        f"{directory}/safekeeper1.ext4 /mnt"
    )
