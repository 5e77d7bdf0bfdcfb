"""A fault breaks a part, keeps it broken for a while, and mends it.

    fault = KillSafekeeper(cluster, chance)
    fault.inject(); cluster.hold(fault.hold_s); fault.heal()

A fault gets only the cluster and a source of chance. It leaves the cluster as it found it: the
same processes, the same disks, an open network. A fault that cannot show its effect raises NotFelt,
since a runner whose faults do nothing proves nothing.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tests.proof.chaos.faulted_cluster import NUMBERS, ChaosCluster

FELT_S = 20.0


class Fault(ABC):
    """One occasion of a fault."""

    name: ClassVar[str]
    hold: ClassVar[tuple[float, float]] = (0.3, 2.0)  # seconds, drawn between them
    long_hold_s: ClassVar[float | None] = None  # instead, one time in LONG
    LONG: ClassVar[int] = 6
    # A newcomer's log then begins after an older base backup, so the runner takes a newer one.
    renews_members: ClassVar[bool] = False

    def __init__(self, cluster: ChaosCluster, chance: random.Random) -> None:
        self.cluster, self.chance = cluster, chance
        self.hold_s = chance.uniform(*self.hold)
        if self.long_hold_s is not None and chance.randrange(self.LONG) == 0:
            self.hold_s = self.long_hold_s

    @abstractmethod
    def inject(self) -> str:
        """Break it, and return the names of the parts that it hits, for the line of progress."""

    def heal(self) -> None:  # noqa: B027  (most override it)
        """Mend it; do nothing for a fault that mends itself."""

    @property
    def stops_commits(self) -> bool:
        """True if no commit may return while it lasts. Read it after `inject`."""
        return False

    def some_safekeepers(self, count: int = 1) -> list[int]:
        return sorted(self.chance.sample(NUMBERS, count))


class SafekeepersAway(Fault):
    """The victims acknowledge nothing while it lasts; with two of three the quorum is gone."""

    victims: list[int]

    @property
    def stops_commits(self) -> bool:
        return len(self.victims) > 1


def named(numbers: Sequence[int]) -> str:
    return " ".join(f"sk{number}" for number in numbers)
