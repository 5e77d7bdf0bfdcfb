"""Disks that are full, slow, that fail, or that lose their power."""

from __future__ import annotations

import contextlib
import signal
from typing import ClassVar

import psycopg

from tests.chaos.fault import FELT_S, Fault, named
from tests.chaos.verdicts import NotFelt

FORCED_BYTES = 6 << 20  # several segments: more than anybody has allocated ahead


class FullDisk(Fault):
    """Not one block is left; it must go on by itself when there is room again."""

    name = "full_disk"
    hold = (0.5, 2.0)
    count = 1

    def inject(self) -> str:
        self.victims = self.some_safekeepers(self.count)
        for number in self.victims:
            self.cluster.disks[number - 1].fill()
        self.write_much()
        self.cluster.wait(self.all_refuse, FELT_S)
        return named(self.victims)

    @property
    def stops_commits(self) -> bool:
        return len(self.victims) > 1

    def write_much(self) -> None:
        """So that new segments are needed. Not a transaction: it waits for nobody."""
        with contextlib.suppress(psycopg.Error), self.cluster.primary.connect() as connection:
            text = f"SELECT pg_logical_emit_message(false, 'forced', repeat('x', {FORCED_BYTES}))"
            connection.execute(text.encode())

    def all_refuse(self) -> bool:
        statuses = [self.cluster.log_status(number) for number in self.victims]
        return all(status and "no space" in (status["failure"] or "") for status in statuses)

    def heal(self) -> None:
        for number in self.victims:
            self.cluster.disks[number - 1].release()


class TwoFullDisks(FullDisk):
    """No quorum has room: commits hang until one has."""

    name = "two_full_disks"
    count = 2


class SlowSync(Fault):
    """Every sync takes 20 to 300 ms longer, on one safekeeper or on all."""

    name = "slow_sync"
    hold = (1.0, 3.0)

    def inject(self) -> str:
        self.victims = self.some_safekeepers(self.chance.choice([1, 2, 3]))
        delay_ms = self.chance.randrange(20, 300)
        self.before = [self.cluster.steered[number - 1].delayed for number in self.victims]
        for number in self.victims:
            self.cluster.steered[number - 1].slow(delay_ms)
        return f"{named(self.victims)} by {delay_ms} ms"

    def heal(self) -> None:
        after = [self.cluster.steered[number - 1].delayed for number in self.victims]
        for number in self.victims:
            self.cluster.steered[number - 1].well()
        if any(one == other for one, other in zip(self.before, after, strict=True)):
            raise NotFelt(f"{self.name}: {self.victims}: {self.before} {after}")


class FailingSync(Fault):
    """One fdatasync of WAL fails and the next would succeed: the safekeeper must say so, believe
    nothing after it and acknowledge no more, until its operator restarts it."""

    name = "failing_sync"
    hold = (0.3, 1.5)
    match: ClassVar[str] = "/wal/"

    def inject(self) -> str:
        self.victim = self.some_safekeepers(1)[0]
        self.steered = self.cluster.steered[self.victim - 1]
        self.order()
        self.cluster.wait(self.has_failed, FELT_S)
        status = self.cluster.log_status(self.victim)
        self.flush_lsn = status["flush_lsn"] if status else None
        return named([self.victim])

    def order(self) -> None:
        self.steered.fail_syncs(match=self.match)

    def has_failed(self) -> bool:
        status = self.cluster.log_status(self.victim)
        return bool(status and status["failure"])

    def heal(self) -> None:
        status = self.cluster.log_status(self.victim)
        assert status and status["failure"], f"it forgot its failure: {status}"
        assert status["flush_lsn"] == self.flush_lsn, f"{self.flush_lsn=} {status}"
        assert self.steered.failed, "nothing failed"
        self.steered.well()
        safekeeper = self.cluster.safekeepers[self.victim - 1]
        # The exit code of one whose disk failed is its own affair; that it ends is not.
        safekeeper.terminate()
        safekeeper.start()


class FailingWrite(FailingSync):
    name = "failing_write"

    def order(self) -> None:
        self.steered.fail_writes(match=self.match)


class FailingControl(FailingSync):
    """The promises cannot be saved: commit_lsn is, every few seconds."""

    name = "failing_control_file"
    match = "/control"


class PowerCut(Fault):
    """A safekeeper's machine loses its power: all that it had not synced is gone."""

    name = "power_cut"
    hold = (0.0, 1.0)
    count = 1

    def inject(self) -> str:
        self.victims = self.some_safekeepers(self.count)
        keepers = [self.cluster.safekeepers[number - 1] for number in self.victims]
        for keeper in keepers:  # no word more from any of them
            keeper.signal(signal.SIGSTOP)
        for number in self.victims:
            self.cluster.disks[number - 1].power_cut()
        for keeper in keepers:
            keeper.kill()
        return named(self.victims)

    def heal(self) -> None:
        for number in self.victims:
            self.cluster.disks[number - 1].restore_power()
            self.cluster.safekeepers[number - 1].start(wait=False)


class PowerCutOfAll(PowerCut):
    """All safekeepers at once, and the primary and its proposer are killed with them."""

    name = "power_cut_of_all"
    count = 3

    def inject(self) -> str:
        hit = super().inject()
        self.cluster.proposer.kill()
        self.cluster.primary.kill()
        return hit

    def heal(self) -> None:
        super().heal()
        self.cluster.primary.start()
