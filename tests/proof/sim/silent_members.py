"""Spares take the place of silent members (`python -m tests.proof.sim --replace --repair`).

Operators name spares and take them off the list. Each elected proposer has the shipping Auditor,
and performs the repairs that it wants. A repair ends with its proposer's process. The next one that
is elected finds it in the configuration, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.proof.sim.disk_trouble import Loss
from tests.proof.sim.proposer_node import ProposerNode
from tests.proof.sim.replacing import NEWCOMER, Newcomer, Operator
from tests.proof.sim.scene import Command, Scene
from tests.proof.sim.zones import zone_of
from walkeeper_common.quorum import shown_spare, spare_id
from walkeeper_proposer.consensus.members import newcomers
from walkeeper_proposer.consensus.members.changing import Goal
from walkeeper_proposer.consensus.members.deciding import Steps
from walkeeper_proposer.consensus.members.repairing import Auditor, Repair, well_members
from walkeeper_proposer.consensus.members.spares import SpareGoal, change_spares

GRACE_S = 2.5
LOOK_MS = 500
NAMED_A_MINUTE = 20
LOST_A_MINUTE = 4
SPARES_MAX = 3


class SpareOperator(Operator):
    """Runs `walkeeper spare`, and repeats it until the list is as wanted or it was refused."""

    kind = done = "lists of spares"

    def __init__(self, scene: Scene, spares: SpareGoal, coming: Sequence[Newcomer]) -> None:
        self.spares = spares
        super().__init__(scene, Goal("main"), coming)

    def begin(self, places: Sequence[int], draw: Callable[[], bytes]) -> Steps:
        return change_spares(self.spares, places, draw)


class Repairer(Operator):
    """Performs a repair as long as its proposer lives."""

    kind, done = "repairs", "members repaired"

    def __init__(
        self, scene: Scene, repair: Repair, spare: Newcomer, by: ProposerNode, auditor: Auditor
    ) -> None:
        self.repair, self.by, self.auditor = repair, by, auditor
        super().__init__(scene, repair.goal("main", NEWCOMER), [spare])

    def is_dead(self) -> bool:
        return not self.by.is_alive and self.by.stop is None  # killed; it goes on after an election

    def gave_up(self) -> bool:
        self.auditor.failed(self.repair)
        return True


class Watch:
    """The spares' processes, and what each proposer has seen of the members."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.world = scene, scene.world
        self.processes: dict[str, Newcomer] = {}
        self._auditors: dict[str, Auditor] = {}

    def name_spares(self) -> None:
        """Let an operator add a spare, or take one off the list."""
        random, listed = self.world.random, self.scene.newest_members().spares
        if any(isinstance(each, SpareOperator) for each in self._at_work()):
            return
        if listed and (len(listed) == SPARES_MAX or random.random() < 0.3):
            gone = random.choice(listed)
            self.scene.operators.append(
                SpareOperator(self.scene, SpareGoal("main", (), (spare_id(gone),)), [])
            )
            return
        number = 100 + len(self.processes)
        coming = Newcomer(self.scene, number)
        zone = zone_of(number, is_used=self.world.options.has_zones)
        self.processes[shown_spare(number, f"n{number}:1", zone)] = coming
        wanted = (newcomers.Newcomer(number, f"n{number}:1", NEWCOMER, zone),)
        goal = SpareGoal("main", wanted)
        self.scene.operators.append(SpareOperator(self.scene, goal, [coming]))

    def lose_disk(self) -> None:
        """Let a member lose its disk, if so many others are left that nothing is lost."""
        well = [each for each in self.scene.safekeepers if each.loss is None and each.driver]
        if self.scene.newest_members().spares and self.scene.disks_to_lose() > 0:
            self.world.random.choice(well).lose_disk(self.world.random.choice(list(Loss)))

    def _at_work(self) -> list[Command]:
        return [each for each in self.scene.operators if not each.is_over]

    def look(self) -> None:
        """Let each proposer that leads audit its members."""
        for proposer in self.scene.alive():
            self._audit(proposer)
        self.world.later(LOOK_MS, self.look)

    def _audit(self, proposer: ProposerNode) -> None:
        auditor = self._auditors.setdefault(proposer.name, Auditor(GRACE_S))
        leader = proposer.core.leader
        if leader is None:
            auditor.rest()
            return
        if any(isinstance(each, Repairer) and each.by is proposer for each in self._at_work()):
            return
        well = well_members(proposer.core.members)
        repair = auditor.audit(leader.configuration, well, self.world.now_ms / 1000)
        if repair is None:
            return
        self.world.say(proposer.name, f"REPAIR {repair.shown}")
        spare = self.processes[repair.spare]
        self.scene.operators.append(Repairer(self.scene, repair, spare, proposer, auditor))


def schedule(scene: Scene) -> None:
    """Name spares and lose disks now and then, and audit all the time."""
    watch = Watch(scene)
    scene.world.every(NAMED_A_MINUTE, watch.name_spares)
    scene.world.every(LOST_A_MINUTE, watch.lose_disk)
    scene.world.later(LOOK_MS, watch.look)
