"""Changes of members of every kind, there and back, while one of those that take part is killed.

    python -m tests.proof.chaos --only members_added --only zones_set ...

The two commands of a fault are two changes, and each has a kill of its own.
"""

from __future__ import annotations

import shutil
from abc import abstractmethod
from typing import ClassVar

from tests.proof.chaos.fault import FELT_S
from tests.proof.chaos.faulted_cluster import NUMBERS, SAFEKEEPER_PORT
from tests.proof.chaos.member_faults import SPARE_ID, MembersFault

KILL_S = (0.05, 1.5)  # when, after the command began
AWAY_S = 0.5


class ChangeFault(MembersFault):
    """A change, and then the one that takes it back."""

    renews_members = True
    hold = (0.0, 0.5)
    victims: ClassVar[tuple[str, ...]] = ("nobody", "command", "proposer", "safekeeper")

    def inject(self) -> str:
        self.prepare()
        return f"there: {self.changed(*self.there())}"

    def heal(self) -> None:
        self.changed(*self.back())
        self.clean()

    @abstractmethod
    def there(self) -> tuple[str, ...]:
        """Return the words of the command that makes the change."""

    @abstractmethod
    def back(self) -> tuple[str, ...]:
        """Return the words of the command that takes it back."""

    def prepare(self) -> None:
        """Start what the change needs."""

    def clean(self) -> None:
        """Remove what the change has left."""

    def changed(self, *words: str) -> str:
        """Run the command to its end, kill one that takes part, and return whom."""
        process = self.walkeeper(*words)
        self.cluster.hold(self.chance.uniform(*KILL_S))
        victim = self.chance.choice(self.victims)
        match victim:
            case "command":
                process.kill()
                process.communicate()
                process = self.walkeeper(*words)
            case "proposer":
                self.cluster.proposer.kill()
            case "newcomer":
                self.restart_spare()
            case "safekeeper":
                (number,) = self.some_safekeepers(1)
                safekeeper = self.cluster.safekeepers[number - 1]
                safekeeper.kill()
                self.cluster.hold(AWAY_S)
                safekeeper.start()
                victim = f"sk{number}"
        self.ended(process)
        return victim

    def restart_spare(self) -> None:
        self.cluster.spare.kill()
        self.cluster.hold(AWAY_S)
        self.cluster.spare.start()

    def generation(self) -> int:
        """Return the greatest generation of members that a safekeeper knows."""
        statuses = [self.cluster.log_status(number) for number in NUMBERS]
        return max((status["cluster"]["generation"] for status in statuses if status), default=0)

    @property
    def spare(self) -> str:
        return f"{SPARE_ID}@{self.cluster.node('spare').address}:{SAFEKEEPER_PORT}"


class SpareFault(ChangeFault):
    """A change with safekeeper 4, which is empty before it and after it."""

    def prepare(self) -> None:
        self.cluster.spare.start()

    def clean(self) -> None:
        self.cluster.spare.kill()
        shutil.rmtree(self.cluster.spare_directory)


class MembersAdded(SpareFault):
    """Three members become four, and three again."""

    name = "members_added"
    victims = (*ChangeFault.victims, "newcomer")

    def there(self) -> tuple[str, ...]:
        return ("members", "add", self.spare)

    def back(self) -> tuple[str, ...]:
        return ("members", "remove", str(SPARE_ID))


class AckQuorumSet(ChangeFault):
    """All three members have to acknowledge a commit, and then two again."""

    name = "ack_quorum_set"

    def there(self) -> tuple[str, ...]:
        return ("members", "set-ack-quorum", "3")

    def back(self) -> tuple[str, ...]:
        return ("members", "set-ack-quorum", "2")


class ZonesSet(ChangeFault):
    """Acknowledgements come from two of three zones, and then zones do not count."""

    name = "zones_set"

    def there(self) -> tuple[str, ...]:
        zones = self.chance.sample("abc", 3)
        labels = [f"{number}={zone}" for number, zone in enumerate(zones, 1)]
        return ("members", "set-zone", *labels, "--ack-zones", "2")

    def back(self) -> tuple[str, ...]:
        return ("members", "set-ack-quorum", "2", "--ack-zones", "1")


class SparesListed(SpareFault):
    """A spare is named, and taken off the list. No member dies: the spare would take its place."""

    name = "spares_listed"
    victims = ("nobody", "command", "proposer")

    def there(self) -> tuple[str, ...]:
        return ("spare", "add", self.spare)

    def back(self) -> tuple[str, ...]:
        return ("spare", "rm", str(SPARE_ID))


class AdditionCancelled(SpareFault):
    """A member is to be added, and the operator takes that back, or removes a quick one."""

    name = "addition_cancelled"

    def there(self) -> tuple[str, ...]:
        return ("members", "add", self.spare)

    def back(self) -> tuple[str, ...]:
        return ("members", "cancel")

    def inject(self) -> str:
        self.prepare()
        before = self.generation()
        process = self.walkeeper(*self.there())
        try:
            self.cluster.wait(lambda: self.generation() > before, FELT_S)
        finally:
            process.kill()
            process.communicate()
        return f"sk{SPARE_ID}"

    def heal(self) -> None:
        self.changed(*self.back())
        if SPARE_ID in self.members():
            self.changed("members", "remove", str(SPARE_ID))
        self.clean()


CHANGES = (MembersAdded, AckQuorumSet, ZonesSet, SparesListed, AdditionCancelled)
