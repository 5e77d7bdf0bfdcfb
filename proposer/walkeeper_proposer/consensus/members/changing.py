"""A change from any set of members to any other: the requests, batch by batch. Pure.

    change_members(goal, places, draw)     a generator: it yields a Batch, and receives its answers
    cancel_change(cluster, places, draw)   likewise, until the old set is final

Each round asks all safekeepers for their state, and takes the next step from there. The generator
keeps nothing that another run would need. So a second run resumes one that was killed at any point,
and two runs at once do each other no harm.

    1. prepare    each newcomer makes its incarnation durable
    2. decide     generation g + 1, learning: Paxos among the members of g
    3. install    on every member that answers: the old set still decides alone
    4. join       each newcomer begins an empty log at the oldest WAL that the members surely keep,
                  or late (M5); a proposer fills it from a donor, as it does for any laggard
    5. decide     generation g + 2, joint, when the newcomers lack less than a window (M2)
    6. install    likewise: both sets decide from here on
    7. decide     generation g + 3, final, when the newcomers have what is committed
    8. install    on the new members, and on those that leave if they answer

Without newcomers it begins with step 5. A final configuration is proposed only when a leader with
the joint one has committed the start of its term (`has_committed`). All earlier commits are before
that start, and a quorum of the new members has it. Otherwise WAL that only the old members have
could be lost.

A cancel takes the place of step 5 or 7, and decides that the old members are final. The register of
that generation holds one of the two decisions. docs/steps.md, "Members change", has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from walkeeper_common.errors import Refused
from walkeeper_common.history import History
from walkeeper_common.lsn import ZERO_LSN
from walkeeper_common.operator_text.zones import refuse_ack_quorum, refuse_zone_stop
from walkeeper_common.quorum import (
    Configuration,
    MemberSet,
    flaw_of_set,
    majority,
    member_id,
    member_set,
)
from walkeeper_common.wire.member_change import (
    InstallMembers,
    MembersState,
    cancelled,
    final,
    joint_with,
    kept_addresses,
    learning_late,
    learning_with,
    plain_addresses,
    shown_change,
    with_ids,
)
from walkeeper_common.wire.requests import LogQuery, LogState
from walkeeper_proposer.consensus.members.deciding import (
    Answers,
    Batch,
    Steps,
    decide,
    holds_quorum,
    install,
    look,
    standing,
    states_of,
    under_way,
    way_back,
)
from walkeeper_proposer.consensus.members.newcomers import (
    Newcomer,
    begin_log,
    filling,
    is_far,
    learning,
    log_of,
    name_of,
    prepare,
    what_it_waits_for,
)
from walkeeper_proposer.consensus.wal_window import WINDOW_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Goal:
    """The members `leaving` are to go, `joining` are to come, and `ack_quorum` is to count.

    An id may be in both: the safekeeper comes back on an empty disk. With `ack_quorum` None the
    quorum stays as it is, or stays a majority. With `instead`, a change that is under way gives up
    its lost newcomers for these. An ack quorum of 1 among several needs `allow_single_ack`.
    `addresses` are those of all places, in their order. With them the newcomers' logs may begin
    late, if a leader would have to feed them more than `fed_bytes_max` bytes first (M5).

    `ack_zones` is the number of zones from which acknowledgements have to come. 0 means no such
    rule, and None keeps the present one. `zones` has labels of members by id. A rule under which
    the loss of one zone stops commits needs `allow_zone_stop`.
    """

    cluster: str
    leaving: tuple[int, ...] = ()
    joining: tuple[Newcomer, ...] = ()
    ack_quorum: int | None = None
    instead: bool = False
    allow_single_ack: bool = False
    addresses: tuple[str, ...] = ()
    fed_bytes_max: int = WINDOW_BYTES_MAX
    ack_zones: int | None = None
    zones: tuple[tuple[int, str], ...] = ()
    allow_zone_stop: bool = False

    @property
    def is_replacement(self) -> bool:
        return bool(self.leaving and self.joining)

    def target(self, present: MemberSet, names: Sequence[str]) -> MemberSet:
        """Return the wanted set; `names` are the newcomers'. Raise Refused if there can be none."""
        going = {*self.leaving, *(newcomer.number for newcomer in self.joining)}
        staying = [member for member in present.members if member_id(member) not in going]
        members = {*staying, *names}
        if not members:
            raise Refused("a log needs a member: name one that stays, or one that joins")
        self._check_labelled({member_id(member) for member in members})
        labels = {member_id(member): present.zone_of(member) for member in present.members}
        labels |= self._labels
        wanted = member_set(
            {member: labels.get(member_id(member), "") for member in members},
            ack_quorum=self._quorum(present, len(members)),
            ack_zones=present.ack_zones if self.ack_zones is None else self.ack_zones,
        )
        if flaw_of_set(wanted) is None:
            refuse_zone_stop(wanted, is_allowed=self.allow_zone_stop)
        return wanted

    @property
    def _labels(self) -> dict[int, str]:
        """The zones that are named, by id."""
        return {new.number: new.zone for new in self.joining if new.zone} | dict(self.zones)

    def _check_labelled(self, ids: set[int]) -> None:
        for number, _ in self.zones:
            if number not in ids:
                members = ", ".join(map(str, sorted(ids)))
                raise Refused(f"safekeeper {number} is no member; members are {members}")

    def fits(self, each: MemberSet) -> bool:
        """Return True if the set has the quorums and the zones that are wanted of it."""
        if self.ack_quorum not in (None, each.ack_quorum):
            return False
        if self.ack_zones not in (None, each.ack_zones):
            return False
        known = {member_id(member): each.zone_of(member) for member in each.members}
        return all(known.get(number) == zone for number, zone in self._labels.items())

    def _quorum(self, present: MemberSet, size: int) -> int:
        if self.ack_quorum is not None:
            refuse_ack_quorum(self.ack_quorum, size, is_single_allowed=self.allow_single_ack)
            return self.ack_quorum
        if size == len(present.members):
            return present.ack_quorum
        if present.ack_quorum == majority(len(present.members)):
            return majority(size)
        raise Refused(
            f"the ack quorum, {present.ack_quorum} of {len(present.members)} members, is no "
            f"majority: name --ack-quorum for {size} members"
        )


Logs: TypeAlias = Mapping[Newcomer, LogState]  # without the newcomers that do not answer


def change_members(goal: Goal, places: Sequence[int], draw: Callable[[], bytes]) -> Steps:
    """Return the final configuration; raise Refused, with the reason, if it is impossible.

    `places` are the numbers of all known safekeepers, with the newcomers. `draw` returns 16 random
    bytes.
    """
    known_lsn, begun = ZERO_LSN, None
    while True:
        current, answers = yield from look(goal.cluster, places)
        if current is None:
            continue
        states = states_of(answers)
        if begun is not None and _is_taken_back(begun, current):
            yield from install(goal.cluster, current, states)
            what = "replacement of" if begun.is_replacing else "change of members from"
            raise Refused(
                f"the {what} {shown_change(begun)} was cancelled (generation "
                f"{current.generation}): to begin it again, repeat this command"
            )
        _check_ids(goal, current)
        logs = yield from _ask_newcomers(goal, current)
        yield from install(goal.cluster, current, states)
        absent = [newcomer for newcomer in goal.joining if newcomer not in logs]
        if absent:
            yield Batch(text=absent[0].absence, current=current)
            continue
        at_work = [s for s in states.values() if s.configuration == current]
        if _is_done(goal, current, logs):
            if holds_quorum(current, at_work):
                return current
            text = "waiting until a quorum of the new members knows of it"
            yield Batch(text=text, current=current)
            continue
        if _is_under_way(goal, current, logs):
            begun = current
            empty = [newcomer for newcomer, log in logs.items() if log.configuration is None]
            if empty:
                donors = _donors(goal, current, states)
                yield from begin_log(goal.cluster, current, empty[0], at_work, donors)
                continue
            if current.is_learning:
                learned, to_go = learning(current, at_work)
            else:
                learned, to_go = filling(current, at_work, known_lsn)
            known_lsn = max(s.commit_lsn for s in at_work) if at_work else known_lsn
            if not learned:
                text = what_it_waits_for(current, at_work, to_go)
                yield Batch(text=text, to_go=to_go, current=current)
                continue
            following = _next_step(current)
        else:
            prepared = yield from _prepare_all(goal, current)
            if prepared is None:
                continue
            histories = [state.history for state in states.values()]
            following = _begun(goal, current, prepared, at_work, histories)
        decided = yield from decide(goal.cluster, current, following, places, states, draw)
        if decided is not None:
            begun = decided if decided == following and decided.target is not None else begun
            yield Batch(dict.fromkeys(places, InstallMembers(goal.cluster, decided)))


def cancel_change(
    cluster: str, places: Sequence[int], draw: Callable[[], bytes], kept: int | None = None
) -> Steps:
    """Return the final configuration of the old members; raise Refused if the cancel is too late.

    If no change is under way, return the present configuration. `kept` is the id of the member
    that the operator wants to keep, or None.
    """
    joint_seen: Configuration | None = None
    while True:
        current, answers = yield from look(cluster, places)
        if current is None:
            continue
        states = states_of(answers)
        yield from install(cluster, current, states)
        _check_kept(kept, current, joint_seen)
        if current.target is None:
            at_work = [s for s in states.values() if s.configuration == current]
            if holds_quorum(current, at_work):
                return current
            text = "waiting until a quorum of the members knows of it"
            yield Batch(text=text, current=current)
            continue
        joint_seen = current
        wanted = cancelled(current)
        decided = yield from decide(cluster, current, wanted, places, states, draw)
        if decided is not None:
            yield Batch(dict.fromkeys(places, InstallMembers(cluster, decided)))


def _check_kept(kept: int | None, current: Configuration, joint_seen: Configuration | None) -> None:
    """Raise Refused if another member is being replaced, or the change could not be taken back."""
    if current.target is not None and kept is not None:
        if kept not in map(member_id, current.leavers):
            name = "another replacement" if current.is_replacing else "another change of members"
            raise Refused(f"{name} is under way: {shown_change(current)}")
        return
    if joint_seen is not None and not _is_taken_back(joint_seen, current):
        if current.target is not None and current.present == joint_seen.present:
            return  # another target of the same members, which is taken back as well
        if joint_seen.is_replacing:
            what = f"safekeeper {member_id(joint_seen.leaving)} was replaced"
        else:
            what = f"the members changed from {shown_change(joint_seen)}"
        raise Refused(f"{what} before the cancel: {standing(current)}")
    if kept is not None and kept not in map(member_id, current.members):
        raise _no_member(kept, current)


def _is_taken_back(begun: Configuration, current: Configuration) -> bool:
    """Return True if the old members are final again after the joint configuration `begun`."""
    if current.generation <= begun.generation or current.target is not None:
        return False
    if begun.leavers:
        return any(member in current.members for member in begun.leavers)
    if begun.newcomers:
        return not any(member in current.members for member in begun.newcomers)
    return current.present == begun.present


def _check_ids(goal: Goal, current: Configuration) -> None:
    """Raise Refused for impossible ids at once, also if a newcomer does not answer yet."""
    if current.target is not None or not goal.is_replacement:
        return
    members = [member_id(member) for member in current.members]
    coming = [newcomer.number for newcomer in goal.joining]
    for number in goal.leaving:
        if number not in members and not any(each in members for each in coming):
            raise _no_member(number, current)
    for number in coming:
        gone = any(each not in members for each in goal.leaving)
        if number not in goal.leaving and number in members and not gone:
            raise Refused(f"safekeeper {number} is a member already; name one that is not")


def _no_member(number: int, current: Configuration) -> Refused:
    members = ", ".join(str(member_id(member)) for member in current.members)
    return Refused(f"safekeeper {number} is no member; members are {members}")


def _ask_newcomers(goal: Goal, current: Configuration) -> Generator[Batch, Answers, Logs]:
    """Return the states of the newcomers' logs; raise Refused if one belongs to another log."""
    if not goal.joining:
        return {}
    query = LogQuery(goal.cluster)
    answers = yield Batch({newcomer.at: query for newcomer in goal.joining})
    logs = {}
    for newcomer in goal.joining:
        log = log_of(goal.cluster, current, newcomer, answers)
        if log is not None:
            logs[newcomer] = log
    return logs


def _is_done(goal: Goal, current: Configuration, logs: Logs) -> bool:
    if current.target is not None or not goal.fits(current.present):
        return False
    coming = {newcomer.number for newcomer in goal.joining}
    left = {member_id(member) for member in current.members}
    gone = all(number in coming or number not in left for number in goal.leaving)
    return gone and all(name_of(log) in current.members for log in logs.values())


def _is_under_way(goal: Goal, current: Configuration, logs: Logs) -> bool:
    """Return True if the present configuration is a step of this very change.

    Raise Refused if another change is under way, and this one may not take its place.
    """
    if current.target is None:
        return False
    coming = {newcomer.number: name_of(log) for newcomer, log in logs.items()}
    present = current.members if goal.is_replacement else current.leavers
    for number, name in coming.items():
        if name in present:
            raise Refused(
                f"safekeeper {number} is a member still, and {under_way(current)}: to keep the old "
                f"members, take it back with {way_back(current)}"
            )
    arriving = {member_id(m) for m in current.newcomers}
    leaving = {member_id(m) for m in current.leavers}
    wanted = {number for number, name in coming.items() if name not in current.members}
    is_same = _leave(goal, current) == leaving and wanted == arriving
    is_same = is_same and goal.fits(current.target)
    if is_same and all(coming[number] in current.newcomers for number in wanted):
        return True
    if not is_same and not (goal.instead and _leave(goal, current) == leaving):
        lost = ", add --instead if that newcomer is lost" if current.is_replacing else ""
        raise Refused(
            f"{under_way(current)}: repeat its command to finish it{lost}, or take it back with "
            f"{way_back(current)}"
        )
    return False


def _leave(goal: Goal, current: Configuration) -> set[int]:
    """Return the ids of the present members that the goal wants to leave."""
    return {number for number in map(member_id, current.members) if number in goal.leaving}


def _prepare_all(goal: Goal, current: Configuration) -> Generator[Batch, Answers, list[str] | None]:
    """Return the names of the newcomers, or None, after a pause, if one does not answer."""
    names = []
    for newcomer in goal.joining:
        name = yield from prepare(goal.cluster, current, newcomer)
        if name is None:
            yield Batch(text=newcomer.absence, current=current)
            return None
        names.append(name)
    return names


def _next_step(current: Configuration) -> Configuration:
    """Return what follows the present step of a change: joint after learning, then final."""
    if current.is_learning:
        return joint_with(current, current.wanted, current.address)
    return final(current)


def _donors(
    goal: Goal, current: Configuration, states: Mapping[int, MembersState]
) -> tuple[str, ...]:
    """Return the addresses of the present members that answer."""
    known = [place for place, state in states.items() if state.member in current.members]
    return tuple(goal.addresses[place] for place in known if place < len(goal.addresses))


def _begun(
    goal: Goal,
    current: Configuration,
    names: Sequence[str],
    at_work: Sequence[MembersState],
    histories: Sequence[History],
) -> Configuration:
    """Return the first configuration of the change, which `decide` checks for other flaws.

    Raise Refused if a newcomer has the id of a member that stays, or if no such set is possible.
    """
    for name in names:
        number = member_id(name)
        others = [m for m in current.members if member_id(m) == number and m != name]
        if others and number not in goal.leaving:
            raise Refused(
                f"safekeeper {number} is a member already, as {others[0]}: `walkeeper replace "
                f"--member {number}` puts another disk into its place"
            )
    target = goal.target(current.present, names)
    known = {name: newcomer.address for newcomer, name in zip(goal.joining, names, strict=True)}
    joining = {name: at for name, at in known.items() if name not in current.members}
    begin = joint_with
    if joining:
        is_late = bool(goal.addresses) and is_far(current, at_work, goal.fed_bytes_max)
        begin = learning_late if is_late else learning_with
    following = begin(current, target, "")
    known_so_far = with_ids(current, histories)
    plain = [each for each in plain_addresses(known_so_far) if each not in joining.values()]
    staying = kept_addresses(known_so_far, (*current.members, *target.members))
    is_first = not plain and not staying and "@" not in current.address and not current.spares
    if following.is_replacing and is_first and not following.uses_zones:
        return begin(current, target, next(iter(joining.values())))  # as older versions do
    added = [f"{member_id(name)}@{at}" for name, at in joining.items()]
    entries = [entry for entry in (*plain, *staying.split(","), *added) if entry]
    return begin(current, target, ",".join(dict.fromkeys(entries)))
