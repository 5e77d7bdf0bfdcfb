"""Decides when a spare takes the place of a silent member (M6). Pure.

    well_members(members)               the names of members that are well
    audit(configuration, well, now_s)   the repair to perform now, or None
    rest()                              this proposer does not lead, so it forgets who is silent
    held                                why no repair begins although a member is silent

Only the elected proposer audits. A member is *well* if it acknowledges WAL, or refuses it for want
of space. A member is *silent* if a leader has not seen it well for `grace_s`. One repair is under
way at a time. A repair that another proposer has begun is in the configuration, and goes on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from walkeeper_common.operator_text.zones import zone_that_stops
from walkeeper_common.quorum import (
    Configuration,
    MemberSet,
    flaw_of_set,
    member_id,
    replaced_set,
    spare_address,
    spare_id,
    spare_zone,
)
from walkeeper_proposer.consensus.members.changing import Goal
from walkeeper_proposer.consensus.members.newcomers import Newcomer
from walkeeper_proposer.consensus.progress import Member

# At most REPAIRS_MAX repairs begin within REPAIRS_S, so that a flapping member uses up no spares.
REPAIRS_MAX, REPAIRS_S = 2, 3600.0


@dataclass(frozen=True, slots=True)
class Repair:
    """Spare `spare`, ID@HOST:PORT, is to take the place of member `leaving`.

    With `instead`, it takes the place of another spare, whose repair did not succeed.
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
        spare = self.spare
        newcomer = Newcomer(spare_id(spare), spare_address(spare), at, spare_zone(spare))
        whom = (cluster, (member_id(self.leaving),), (newcomer,))
        goal = Goal(*whom, instead=self.instead, addresses=addresses)
        return replace(goal, allow_zone_stop=True)  # `_fits` has judged it


def well_members(members: Iterable[Member]) -> list[str | None]:
    """Return the names of the members that acknowledge WAL, or refuse it for want of space."""
    return [member.name for member in members if member.attached or member.is_probed]


@dataclass(frozen=True, slots=True)
class Held:
    """The reason `why` no repair of member `silent` begins now.

    It may begin at `until_s`, or at a time that is not known if that is None.
    """

    silent: str
    why: str
    until_s: float | None = None


class Auditor:
    """Remembers when one proposer has seen each member well. Times are seconds of one clock."""

    def __init__(self, grace_s: float) -> None:
        """Take the time after which a member counts as silent. With 0, no repair begins."""
        self.grace_s = grace_s
        self.held: Held | None = None
        self._well_s: dict[str, float] = {}  # when each member was last seen well
        self._failures: Counter[str] = Counter()  # by spare
        self._begun_s: deque[float] = deque(maxlen=REPAIRS_MAX)

    def rest(self) -> None:
        """Forget when each member was last seen well."""
        self._well_s.clear()
        self.held = None

    def failed(self, repair: Repair) -> None:
        """Record that a repair did not succeed; other spares come first from now on."""
        self._failures[repair.spare] += 1

    def audit(
        self, configuration: Configuration, well: Collection[str | None], now_s: float
    ) -> Repair | None:
        """Return the repair to perform now. `well` are names of members."""
        silent = self._silent(configuration, well, now_s)
        self.held = None
        if self.grace_s <= 0:
            return None
        if configuration.target is not None:
            return self._under_way(configuration)
        if not silent or not any(self._free(configuration)):
            return None
        spare = self._best_spare(configuration, silent[0])
        self.held = self._held(configuration, silent[0], spare, well, now_s)
        if self.held is not None or spare is None:
            return None
        self._begun_s.append(now_s)
        return Repair(silent[0], spare)

    def _held(
        self,
        configuration: Configuration,
        silent: str,
        spare: str | None,
        well: Collection[str | None],
        now_s: float,
    ) -> Held | None:
        """Return why the repair may not begin now, or None."""
        if not configuration.commits(well):
            return Held(silent, "no ack quorum of the members is well: bring one back")
        if spare is None:
            lack = "no spare is in a zone that its place needs: add one with `walkeeper spare add`"
            return Held(silent, lack)
        if len(self._begun_s) == REPAIRS_MAX and now_s - self._begun_s[0] < REPAIRS_S:
            until_s = self._begun_s[0] + REPAIRS_S
            return Held(silent, f"{REPAIRS_MAX} repairs have begun in an hour", until_s)
        return None

    def _silent(
        self, configuration: Configuration, well: Collection[str | None], now_s: float
    ) -> list[str]:
        """Return the members that have been silent for `grace_s`, the longest silent first."""
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
        best = self._best_spare(configuration, configuration.leaving)
        if own is None or best is None:
            return None  # an operator's change: its newcomer is no spare
        if self._failures[best] < self._failures[own]:
            return Repair(configuration.leaving, best, instead=True)
        return Repair(configuration.leaving, own)

    def _free(self, configuration: Configuration) -> list[str]:
        """Return the spares that are no member's safekeeper."""
        members = set(map(member_id, configuration.members))
        return [spare for spare in configuration.spares if spare_id(spare) not in members]

    def _best_spare(self, configuration: Configuration, leaving: str) -> str | None:
        """Return the spare that has failed least, is in the best zone, and comes first.

        The best zone has the fewest of the members that stay. A spare does not qualify if the loss
        of its zone would stop commits (docs/protocol.md M6).
        """
        present = configuration.present
        staying = [present.zone_of(m) for m in present.members if m != leaving]

        def rank(spare: str) -> tuple[int, int]:
            zone = spare_zone(spare)
            crowd = staying.count(zone) if zone else len(staying)
            return self._failures[spare], crowd if present.zones else 0

        fitting = [each for each in self._free(configuration) if _fits(present, leaving, each)]
        return min(fitting, key=rank, default=None)


def _fits(present: MemberSet, leaving: str, spare: str) -> bool:
    """Return True if the set with this spare keeps the promises of a rule that counts zones."""
    joining, zone = f"{spare_id(spare)}#0", spare_zone(spare)
    wanted = replaced_set(present, leaving=leaving, joining=joining, zone=zone)
    if flaw_of_set(wanted) is not None:
        return False
    return zone_that_stops(wanted) is None or zone_that_stops(present) is not None
