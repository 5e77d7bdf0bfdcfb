"""Disks that are full, slow, that fail, or that lose their power."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import psycopg

from tests.chaos.fault import FELT_S, Fault, SafekeepersAway, named
from tests.chaos.verdicts import NotFelt, Violation
from tests.waiting import NotInTime

ADMITTED_S = 5.0
FORCED_BYTES = 6 << 20  # several segments: more than any safekeeper has allocated ahead


class FullDisk(SafekeepersAway):
    """No block is left on a disk. The safekeeper must go on by itself when there is room again."""

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

    def write_much(self) -> None:
        """Write so much that new segments are needed, in no transaction, so without a wait."""
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
    """One fdatasync of WAL fails and the next would succeed.

    The safekeeper must report it, trust no sync after it, and acknowledge no more, until its
    operator restarts it.
    """

    name = "failing_sync"
    hold = (0.3, 1.5)
    match: ClassVar[str] = "/wal/"

    def inject(self) -> str:
        self.victim = self.some_safekeepers(1)[0]
        self.steered = self.cluster.steered[self.victim - 1]
        failed = self.steered.failed
        self.order()
        try:
            self.cluster.wait(lambda: self.steered.failed > failed, FELT_S)
        except NotInTime as error:
            raise NotFelt(f"{self.name}: sk{self.victim} asked nothing of its disk") from error
        try:
            self.cluster.wait(self.has_failed, ADMITTED_S)
        except NotInTime as error:
            raise Violation(f"sk{self.victim} goes on although its disk failed") from error
        self.flush_lsn = self.status()["flush_lsn"]
        return named([self.victim])

    def order(self) -> None:
        self.steered.fail_syncs(match=self.match)

    def status(self) -> dict[str, Any]:
        status = self.cluster.log_status(self.victim)
        assert status is not None, f"sk{self.victim} does not answer"
        return status

    def has_failed(self) -> bool:
        return bool(self.status()["failure"])

    def heal(self) -> None:
        status = self.status()
        if not status["failure"] or status["flush_lsn"] != self.flush_lsn:
            raise Violation(f"sk{self.victim} went on after its disk failed: {status}")
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
    """The promises cannot be saved. Every few seconds the safekeeper saves its commit_lsn."""

    name = "failing_control_file"
    match = "/control"


class PowerCut(Fault):
    """A safekeeper's machine loses its power, and all bytes that it had not synced."""

    name = "power_cut"
    hold = (0.0, 1.0)
    count = 1

    def inject(self) -> str:
        self.victims = self.some_safekeepers(self.count)
        self.cluster.cut_power(self.victims)
        return named(self.victims)

    def heal(self) -> None:
        self.cluster.restore_power(self.victims)


class PowerCutOfAll(PowerCut):
    """All safekeepers lose power at once; the primary and its proposer are killed with them."""

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
