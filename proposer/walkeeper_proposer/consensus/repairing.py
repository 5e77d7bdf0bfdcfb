"""Decides when a spare takes the place of a silent member (M6). Pure.

    well_members(members)               the names of members that are well
    audit(configuration, well, now_s)   the repair to perform now, or None
    rest()                              this proposer does not lead: nobody is known to be silent

Only the elected proposer audits. A member is *well* if it acknowledges WAL, or refuses it for want
of space. A member is *silent* if a leader has not seen it well for `grace_s`. One repair is under
way at a time. A repair that another proposer has begun is in the configuration, and goes on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from walkeeper_common.quorum import Configuration, member_id, spare_address, spare_id
from walkeeper_proposer.consensus.changing import Goal
from walkeeper_proposer.consensus.newcomers import Newcomer
from walkeeper_proposer.consensus.progress import Member

REPAIRS_MAX, REPAIRS_S = 2, 3600.0  # repairs begun in so long: members that flap use up no more


@dataclass(frozen=True, slots=True)
class Repair:
    """Spare `spare`, ID@HOST:PORT, is to take the place of member `leaving`.

    `instead`: of another spare, which was to do so and gets no further.
    """

    leaving: str
    spare: str
    instead: bool = False

    @property
    def shown(self) -> str:
        """Both safekeepers, for people."""
        number, address = spare_id(self.spare), spare_address(self.spare)
        return f"safekeeper {member_id(self.leaving)} by spare {number} at {address}"

    def goal(self, cluster: str, at: int, addresses: tuple[str, ...] = ()) -> Goal:
        """Return the change of members that the repair is. `at` is the spare's place.

        `addresses` are those of all places."""
        newcomer = Newcomer(spare_id(self.spare), spare_address(self.spare), at)
        whom = (cluster, (member_id(self.leaving),), (newcomer,))
        return Goal(*whom, instead=self.instead, addresses=addresses)


def well_members(members: Iterable[Member]) -> list[str | None]:
    """Return the names of the members that acknowledge WAL, or refuse it for want of space."""
    return [member.name for member in members if member.attached or member.is_probed]


class Auditor:
    """Remembers when one proposer has seen each member well. Times are seconds of one clock."""

    def __init__(self, grace_s: float) -> None:
        """Begin no repair with a `grace_s` of 0."""
        self.grace_s = grace_s
        self._well_s: dict[str, float] = {}  # when each member was last seen well
        self._failures: Counter[str] = Counter()  # by spare
        self._begun_s: deque[float] = deque(maxlen=REPAIRS_MAX)

    def rest(self) -> None:
        """Forget since when members are silent."""
        self._well_s.clear()

    def failed(self, repair: Repair) -> None:
        """Record that a repair got no further; other spares come first from now on."""
        self._failures[repair.spare] += 1

    def audit(
        self, configuration: Configuration, well: Collection[str | None], now_s: float
    ) -> Repair | None:
        """Return the repair to perform now. `well` are names of members."""
        silent = self._silent(configuration, well, now_s)
        if self.grace_s <= 0:
            return None
        if configuration.target is not None:
            return self._under_way(configuration)
        spare = self._best_spare(configuration)
        if not silent or spare is None or not configuration.commits(well):
            return None
        if len(self._begun_s) == REPAIRS_MAX and now_s - self._begun_s[0] < REPAIRS_S:
            return None
        self._begun_s.append(now_s)
        return Repair(silent[0], spare)

    def _silent(
        self, configuration: Configuration, well: Collection[str | None], now_s: float
    ) -> list[str]:
        """Return the members that are silent for the grace time, the longest silent first."""
        known = self._well_s
        self._well_s = {
            member: now_s if member in well else known.get(member, now_s)
            for member in configuration.members
        }
        silent = [m for m, last_s in self._well_s.items() if now_s - last_s >= self.grace_s]
        return sorted(silent, key=lambda member: self._well_s[member])

    def _under_way(self, configuration: Configuration) -> Repair | None:
        """Return the repair that is under way, with the next spare if its own one has failed."""
        if not configuration.is_replacing:
            return None
        number = member_id(configuration.joining)
        own = next((each for each in configuration.spares if spare_id(each) == number), None)
        best = self._best_spare(configuration)
        if own is None or best is None:
            return None  # an operator's change: its newcomer is no spare
        if self._failures[best] < self._failures[own]:
            return Repair(configuration.leaving, best, instead=True)
        return Repair(configuration.leaving, own)

    def _best_spare(self, configuration: Configuration) -> str | None:
        """Return the first spare that has failed least, and is no member's safekeeper."""
        members = set(map(member_id, configuration.members))
        free = [spare for spare in configuration.spares if spare_id(spare) not in members]
        return min(free, key=lambda spare: self._failures[spare], default=None)
