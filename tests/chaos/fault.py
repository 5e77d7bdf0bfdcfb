"""What a fault is: something breaks, stays broken for a while, is mended.

    fault = KillSafekeeper(cluster, chance)
    fault.inject(); cluster.hold(fault.hold_s); fault.heal()

A fault is told nothing but the cluster and a source of chance, and leaves the cluster as it found
it: same processes, same disks, an open network. One that cannot show that it was felt raises
NotFelt: a runner whose faults do nothing proves nothing.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tests.chaos.cluster import NUMBERS, ChaosCluster

FELT_S = 20.0


class Fault(ABC):
    """One occasion of it."""

    name: ClassVar[str]
    hold: ClassVar[tuple[float, float]] = (0.3, 2.0)  # seconds, drawn between them
    long_hold_s: ClassVar[float | None] = None  # instead, one time in LONG
    LONG: ClassVar[int] = 6

    def __init__(self, cluster: ChaosCluster, chance: random.Random) -> None:
        self.cluster, self.chance = cluster, chance
        self.hold_s = chance.uniform(*self.hold)
        if self.long_hold_s is not None and chance.randrange(self.LONG) == 0:
            self.hold_s = self.long_hold_s

    @abstractmethod
    def inject(self) -> str:
        """Whom it hits, for the line of progress."""

    def heal(self) -> None:  # noqa: B027  (most override it)
        """Nothing to do for faults that mend themselves."""

    @property
    def stops_commits(self) -> bool:
        """Whether none may return while it lasts. Asked after `inject`."""
        return False

    def some_safekeepers(self, count: int = 1) -> list[int]:
        return sorted(self.chance.sample(NUMBERS, count))


class SafekeepersAway(Fault):
    """Its victims acknowledge nothing while it lasts; two of three are a quorum that is gone."""

    victims: list[int]

    @property
    def stops_commits(self) -> bool:
        return len(self.victims) > 1


def named(numbers: Sequence[int]) -> str:
    return " ".join(f"sk{number}" for number in numbers)
