"""Cables that are cut, in both directions or in one, or that are bad."""

from __future__ import annotations

from tests.proof.chaos.fault import Fault, SafekeepersAway, named
from tests.proof.chaos.namespaces import Node

PARTITION_S = (0.5, 3.0)
# Longer than the proposer tolerates a silent safekeeper (10 s), and longer than its
# TCP_USER_TIMEOUT to the primary (4 s).
OUTLASTS_S = 12.0


class NetworkFault(Fault):
    hold = PARTITION_S

    @property
    def proposer(self) -> Node:
        return self.cluster.proposer_node()

    @property
    def primary(self) -> Node:
        return self.cluster.node("primary")

    def safekeepers(self, count: int) -> list[Node]:
        self.victims = self.some_safekeepers(count)
        return [self.cluster.node(f"safekeeper{number}") for number in self.victims]

    def heal(self) -> None:
        self.cluster.network.heal()


class CutSafekeeper(SafekeepersAway, NetworkFault):
    name = "cut_safekeeper"
    long_hold_s = OUTLASTS_S
    count = 1

    def inject(self) -> str:
        for node in self.safekeepers(self.count):
            self.cluster.network.cut(self.proposer, node)
        return named(self.victims)


class CutTwoSafekeepers(CutSafekeeper):
    """The proposer reaches only one safekeeper."""

    name = "cut_two_safekeepers"
    count = 2


class DeafSafekeeper(SafekeepersAway, NetworkFault):
    """It receives nothing from the proposer, which receives its messages."""

    name = "deaf_safekeeper"
    long_hold_s = OUTLASTS_S

    def inject(self) -> str:
        count = self.chance.choice([1, 1, 2])
        for node in self.safekeepers(count):
            self.cluster.network.deafen(node, self.proposer)
        return named(self.victims)


class DeafToSafekeeper(SafekeepersAway, NetworkFault):
    """Its acknowledgements are lost; it receives the proposer's messages and writes the WAL."""

    name = "deaf_to_safekeeper"
    long_hold_s = OUTLASTS_S

    def inject(self) -> str:
        count = self.chance.choice([1, 1, 2])
        for node in self.safekeepers(count):
            self.cluster.network.deafen(self.proposer, node)
        return named(self.victims)


class CutPrimary(NetworkFault):
    name = "cut_primary"
    long_hold_s = OUTLASTS_S

    @property
    def stops_commits(self) -> bool:
        return True

    def inject(self) -> str:
        self.cluster.network.cut(self.proposer, self.primary)
        return f"from {self.proposer.name}"


class DeafPrimary(NetworkFault):
    """One direction between proposer and primary is cut.

    WAL flows and its acknowledgement does not, or the other way round.
    """

    name = "deaf_primary"
    long_hold_s = OUTLASTS_S

    @property
    def stops_commits(self) -> bool:
        return True

    def inject(self) -> str:
        ends = [self.primary, self.proposer]
        self.chance.shuffle(ends)
        self.cluster.network.deafen(*ends)
        return f"{ends[0].name} deaf to {ends[1].name}"


class CutFromSuccessor(NetworkFault):
    """The proposer is cut off from all safekeepers and keeps its primary; another takes over.

    From then on the primary may get acknowledgements only from the successor.
    """

    name = "cut_off_and_succeeded"
    hold = (0.5, 2.0)

    def inject(self) -> str:
        cluster = self.cluster
        self.old, new = cluster.proposer, cluster.other_seat()
        for node in self.safekeepers(3):
            cluster.network.cut(self.proposer, node)
        cluster.proposer = new
        new.start("--take-over", wait=False)
        cluster.wait(lambda: "ready: " in new.output(), 30)
        return f"{self.old.name}, for {new.name}"

    def heal(self) -> None:
        super().heal()
        code = self.old.ended(40)
        said = self.old.output()
        assert code == 1 and "deposed" in said, f"{self.old.name}: {code}: {said}"


class LossyNetwork(NetworkFault):
    """One packet in ten is lost between the proposer and all other nodes."""

    name = "lossy_network"
    hold = (2.0, 4.0)

    def inject(self) -> str:
        for node in [*self.safekeepers(3), self.primary]:
            self.cluster.network.lose_packets(self.proposer, node)
        return "10 % between proposer and all"


class SlowNetwork(NetworkFault):
    """Packets to some node are late (the kernel's netem; without it a narrow pipe)."""

    name = "slow_network"
    hold = (1.0, 4.0)

    def inject(self) -> str:
        nodes = [*self.safekeepers(2), self.proposer]
        for node in nodes:
            self.cluster.network.narrow(node)
        return " ".join(node.name for node in nodes)
