"""Members that lose their disk, and changes of members that are taken back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from tests.proof.chaos.fault import FELT_S, Fault, named
from tests.proof.chaos.faulted_cluster import REPAIR_GRACE_S, SAFEKEEPER_PORT
from tests.proof.chaos.verdicts import NoProgress, NotFelt
from tests.support.cluster import WALKEEPER
from tests.support.postgres_server import server_environment
from tests.support.waiting import NotInTime

REPLACED_S = 90.0
SPARE_ID = 4


class MembersFault(Fault):
    """A fault in which `walkeeper replace` runs beside the load."""

    def replace(self, member: int, joining: int, node: str) -> subprocess.Popen[str]:
        """Start to replace `member` by safekeeper `joining` on `node`."""
        address = f"{self.cluster.node(node).address}:{SAFEKEEPER_PORT}"
        return self.command("--member", str(member), "--with", f"{joining}@{address}")

    def command(self, *options: str) -> subprocess.Popen[str]:
        return self.walkeeper("replace", *options)

    def walkeeper(self, *words: str) -> subprocess.Popen[str]:
        """Start a command that asks the safekeepers."""
        where = ("--safekeepers", self.cluster.addresses, "--cluster", self.cluster.name)
        return subprocess.Popen(
            [*WALKEEPER, *words, *where],
            env=server_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ended(self, process: subprocess.Popen[str]) -> str:
        """Wait until the command ends, and return its output; raise NoProgress if it fails."""
        try:
            self.cluster.wait(lambda: process.poll() is not None, REPLACED_S)
        except NotInTime as error:
            process.kill()
            said = process.communicate()[0]
            raise NoProgress(f"replace does not end: {said[-1500:]}") from error
        said = process.communicate()[0]
        if process.returncode:
            raise NoProgress(f"replace ends with {process.returncode}: {said[-1500:]}")
        return said

    def wipe(self, number: int) -> None:
        """Kill safekeeper 1, 2 or 3, and start it on an empty directory."""
        safekeeper = self.cluster.safekeepers[number - 1]
        safekeeper.kill()
        shutil.rmtree(self.cluster.data_dir(number))
        safekeeper.start()

    def members(self) -> Sequence[int]:
        """Return the ids of the members that decide now, those of both sets if there are two."""
        statuses = [self.cluster.log_status(number) for number in (1, 2, 3)]
        known = [status["cluster"] for status in statuses if status]
        newest = max(known, key=lambda cluster: cluster["generation"])
        names = [*newest["members"], *([newest["joining"]] if newest["joining"] else [])]
        return [int(name.partition("#")[0]) for name in names]


class WipedAndReplaced(MembersFault):
    """A safekeeper loses its disk; `walkeeper replace` makes it a member again, under load."""

    name = "wiped_and_replaced"
    hold = (0.0, 1.0)
    renews_members = True

    def inject(self) -> str:
        self.victim = self.some_safekeepers(1)[0]
        self.wipe(self.victim)
        return named([self.victim])

    def heal(self) -> None:
        self.ended(self.replace(self.victim, self.victim, f"safekeeper{self.victim}"))


class ReplacementCancelled(MembersFault):
    """A newcomer dies while it joins, and the administrator takes the change back."""

    name = "replacement_cancelled"
    hold = (0.0, 2.0)
    renews_members = True  # if the newcomer was quicker than its end

    def inject(self) -> str:
        self.victim = self.some_safekeepers(1)[0]
        self.spare = self.cluster.spare
        self.spare.start()
        self.process = self.replace(self.victim, SPARE_ID, "spare")
        try:
            self.cluster.wait(lambda: SPARE_ID in self.members(), FELT_S)
        except NotInTime as error:
            self.process.kill()
            said = self.process.communicate()[0]
            raise NotFelt(f"{self.name}: the newcomer does not join: {said[-1500:]}") from error
        finally:
            self.spare.kill()
        return f"sk{self.victim} by sk{SPARE_ID}"

    def heal(self) -> None:
        members = self.members()
        if SPARE_ID in members and self.victim not in members:  # it was quicker than the kill
            self._take_back_a_member()
        else:
            self.ended(self.command("--cancel", "--member", str(self.victim)))
            self.process.kill()
            self.process.communicate()
        shutil.rmtree(self.cluster.spare_directory)

    def _take_back_a_member(self) -> None:
        self.ended(self.process)
        self.wipe(self.victim)
        self.ended(self.replace(SPARE_ID, self.victim, f"safekeeper{self.victim}"))


class RepairedBySpare(MembersFault):
    """A safekeeper is lost with its disk, and a spare takes its place without a hand.

    The proposer is killed meanwhile. The next one goes on, and may begin as many repairs again.
    """

    renews_members = True
    name = "repaired_by_spare"
    hold = (0.0, 1.0)

    def inject(self) -> str:
        self.victim = self.some_safekeepers(1)[0]
        self.cluster.spare.start()
        address = f"{self.cluster.node('spare').address}:{SAFEKEEPER_PORT}"
        self.ended(self.walkeeper("spare", "add", f"{SPARE_ID}@{address}"))
        self.cluster.safekeepers[self.victim - 1].kill()
        self.cluster.hold(self.chance.uniform(0, REPAIR_GRACE_S + 3))
        self.cluster.proposer.kill()
        return f"sk{self.victim} by sk{SPARE_ID}"

    def heal(self) -> None:
        rest = sorted({1, 2, 3, SPARE_ID} - {self.victim})
        try:
            self.cluster.wait(lambda: sorted(self.members()) == rest, REPLACED_S)
        except NotInTime as error:
            raise NoProgress(f"no repair: members are {self.members()}, not {rest}") from error
        shutil.rmtree(self.cluster.data_dir(self.victim))
        self.cluster.safekeepers[self.victim - 1].start()
        self.ended(self.replace(SPARE_ID, self.victim, f"safekeeper{self.victim}"))
        self.cluster.spare.kill()
        shutil.rmtree(self.cluster.spare_directory)
