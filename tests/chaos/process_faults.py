"""Processes that die, freeze, are replaced or restarted."""

from __future__ import annotations

import signal
from typing import ClassVar

from tests.chaos.fault import Fault, SafekeepersAway, named
from tests.chaos.verdicts import Violation
from tests.waiting import NotInTime
from tests.with_postgres.cluster import Daemon

LEASE_S = 3.0  # heartbeats for which a silent proposer counts as alive
DEPOSED_S = 30.0


class KillSafekeeper(SafekeepersAway):
    name = "kill_safekeeper"
    count = 1

    def inject(self) -> str:
        self.victims = self.some_safekeepers(self.count)
        for number in self.victims:
            self.cluster.safekeepers[number - 1].kill()
        return named(self.victims)

    def heal(self) -> None:
        for number in self.victims:
            self.cluster.safekeepers[number - 1].start(wait=False)
        for number in self.victims:
            self.cluster.safekeepers[number - 1].wait_ready()


class KillTwoSafekeepers(KillSafekeeper):
    """No quorum: commits must hang, not return."""

    name = "kill_two_safekeepers"
    count = 2


class RestartSafekeepers(Fault):
    """One after the other, cleanly, as an upgrade does it."""

    name = "rolling_restart"
    hold = (0.0, 0.0)

    def inject(self) -> str:
        order = self.chance.sample(self.cluster.safekeepers, 3)
        for safekeeper in order:
            code = safekeeper.terminate()
            assert code == 0, f"{safekeeper.name}: {code}: {safekeeper.output()}"
            safekeeper.start()
            self.cluster.hold(self.chance.uniform(0, 0.5))
        return " ".join(safekeeper.name for safekeeper in order)


class KillProposer(Fault):
    """The proposer is killed; its supervisor starts it again."""

    name = "kill_proposer"
    hold = (0.0, 0.5)

    def inject(self) -> str:
        self.cluster.proposer.kill()
        return self.cluster.proposer.name


class KillPrimary(Fault):
    """SIGKILL hits the postmaster and its children; a crash recovery follows."""

    name = "kill_primary"
    hold = (0.0, 1.0)

    @property
    def stops_commits(self) -> bool:
        return True

    def inject(self) -> str:
        self.cluster.primary.kill()
        return "SIGKILL"

    def heal(self) -> None:
        self.cluster.primary.start()


class StopPrimary(KillPrimary):
    """An operator's fast stop, which waits until the proposer has all WAL."""

    name = "restart_primary"

    def inject(self) -> str:
        mode = self.chance.choice(["fast", "immediate"])
        self.cluster.primary.stop(mode)
        return mode


class KillStandby(Fault):
    name = "kill_standby"

    def inject(self) -> str:
        self.cluster.standby.kill()
        return "SIGKILL"

    def heal(self) -> None:
        self.cluster.standby.start()


class KillEverything(Fault):
    """All daemons and the primary at once, as a room without power loses them."""

    name = "kill_everything"
    hold = (0.0, 0.5)

    def inject(self) -> str:
        for daemon in [self.cluster.proposer, *self.cluster.safekeepers]:
            daemon.kill()
        self.cluster.primary.kill()
        return "SIGKILL"

    def heal(self) -> None:
        for safekeeper in self.cluster.safekeepers:
            safekeeper.start(wait=False)
        self.cluster.primary.start()


class FreezeSafekeeper(SafekeepersAway):
    name = "freeze_safekeeper"
    hold = (0.5, 2.5)
    # Beyond the proposer's patience with a silent connection.
    long_hold_s: ClassVar[float | None] = 12.0
    count = 1

    def inject(self) -> str:
        self.victims = self.some_safekeepers(self.count)
        for number in self.victims:
            self.cluster.safekeepers[number - 1].signal(signal.SIGSTOP)
        return named(self.victims)

    def heal(self) -> None:
        for number in self.victims:
            self.cluster.safekeepers[number - 1].signal(signal.SIGCONT)


class FreezeTwoSafekeepers(FreezeSafekeeper):
    name = "freeze_two_safekeepers"
    long_hold_s = None
    count = 2


class FreezeProposer(Fault):
    """The proposer freezes, shorter or longer than its lease; no successor wants its place."""

    name = "freeze_proposer"
    hold = (0.5, LEASE_S + 1)

    @property
    def stops_commits(self) -> bool:
        return True

    def inject(self) -> str:
        self.cluster.proposer.signal(signal.SIGSTOP)
        return self.cluster.proposer.name

    def heal(self) -> None:
        self.cluster.proposer.signal(signal.SIGCONT)


class FreezePrimary(Fault):
    name = "freeze_primary"
    hold = (0.5, 3.0)

    def inject(self) -> str:
        self.cluster.primary.signal_all(signal.SIGSTOP)
        return "SIGSTOP"

    def heal(self) -> None:
        self.cluster.primary.signal_all(signal.SIGCONT)


class TakeOver(Fault):
    """Another proposer takes the place of one that lives; that one must end, deposed."""

    name = "take_over_from_alive"
    hold = (0.2, 1.0)
    freezes = False
    options: tuple[str, ...] = ("--take-over",)

    def inject(self) -> str:
        cluster = self.cluster
        self.old, new = cluster.proposer, cluster.other_seat()
        if self.freezes:
            self.old.signal(signal.SIGSTOP)
        cluster.proposer = new
        new.start(*self.options, wait=False)
        self.wait_ready(new)
        return f"{new.name} from {self.old.name}"

    def wait_ready(self, new: Daemon) -> None:
        """Wait until it leads; without --take-over it may exit while the old lease lasts."""
        self.cluster.wait(lambda: "ready: " in new.output(), DEPOSED_S)

    def heal(self) -> None:
        self.old.signal(signal.SIGCONT)
        try:
            code = self.old.ended(DEPOSED_S)
        except NotInTime as error:
            raise Violation(f"two lead: {self.old.name} goes on: {self.old.output()}") from error
        said = self.old.output()
        assert code == 1 and "deposed" in said, f"{self.old.name}: {code}: {said}"


class TakeOverFrozen(TakeOver):
    """A frozen proposer is replaced without its knowledge; its late messages change nothing."""

    name = "take_over_from_frozen"
    freezes = True


class LeaseRunsOut(TakeOver):
    """It is frozen for longer than its lease; its successor waits and needs no --take-over."""

    name = "lease_runs_out"
    freezes = True
    options = ()


class Settle(Fault):
    """An operator fences the proposer under load; its supervisor starts it again."""

    name = "settle"
    hold = (0.0, 0.5)

    def inject(self) -> str:
        before = len(self.cluster.restarts)
        settled = self.cluster.settle()
        self.cluster.wait(lambda: len(self.cluster.restarts) > before, DEPOSED_S)
        return str(settled["lsn"])
