"""`walkeeper replace`: the requests, batch by batch, until a member is replaced. Pure.

    replace_member(goal, places, draw)     a generator: it yields a Batch and is sent the answers
    cancel_replacement(cluster, leaving, places, draw)     likewise, until the old members are final

It has no state: each round asks all safekeepers for theirs, and takes the next step. So a second
run resumes one that was killed at any point, and two runs at once do each other no harm.

    1. prepare    the newcomer makes its incarnation durable
    2. decide     generation g + 1, joint: Paxos among the members of g
    3. install    on every member that answers: both sets decide from here on
    4. join       the newcomer begins an empty log where every member may have removed WAL; a
                  proposer fills it from a donor, as it does for any laggard
    5. decide     generation g + 2, final, when the newcomer has what is committed
    6. install    on the new members, and on the one that was replaced if it answers

A final configuration is proposed only when a leader with the joint one has committed the start of
its term (`has_committed`). All earlier commits are before that start, and a quorum of the new
members has it. Otherwise WAL that only the old members have could be lost.

A cancel decides in step 5 that the old members are final. The register of the joint generation
holds one of the two. docs/steps.md, "Members change", has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from walkeeper_common.errors import Refused
from walkeeper_common.lsn import ZERO_LSN
from walkeeper_common.quorum import Configuration, member_id, member_name
from walkeeper_common.wire.member_change import (
    InstallMembers,
    cancelled,
    final,
    joint,
    shown_change,
)
from walkeeper_common.wire.messages import Reject
from walkeeper_common.wire.requests import LogQuery, LogState
from walkeeper_proposer.consensus.deciding import (
    Answers,
    Batch,
    Steps,
    decide,
    holds_quorum,
    install,
    look,
    standing,
    states_of,
)
from walkeeper_proposer.consensus.newcomers import (
    Newcomer,
    begin_log,
    filling,
    prepare,
    what_it_waits_for,
)

NO_LOG = bytes(16)


@dataclass(frozen=True, slots=True)
class Goal:
    """Member `leaving` is to be replaced by safekeeper `joining`, which is at place `at`.

    `instead`: a newcomer of a replacement that is under way, and is lost, is given up for it.
    """

    cluster: str
    leaving: int
    joining: int
    address: str
    at: int
    instead: bool = False

    @property
    def newcomer(self) -> Newcomer:
        return Newcomer(self.joining, self.address, self.at)


def replace_member(goal: Goal, places: Sequence[int], draw: Callable[[], bytes]) -> Steps:
    """Return the final configuration; raise Refused, with the reason, if it is impossible.

    `places` are all that are known, the newcomer's among them; `draw` gives 16 random bytes.
    """
    known_lsn, begun = ZERO_LSN, None
    while True:
        current, answers = yield from look(goal.cluster, places)
        if current is None:
            continue
        states = states_of(answers)
        _check_ids(goal, current)
        newcomer = _newcomer(goal, current, (yield Batch({goal.at: LogQuery(goal.cluster)})))
        yield from install(goal.cluster, current, states)
        if begun is not None and _is_taken_back(begun, current):
            raise Refused(
                f"the replacement of {shown_change(begun)} was cancelled (generation "
                f"{current.generation}): to begin it again, repeat this command"
            )
        if newcomer is None:
            yield Batch(text=goal.newcomer.absence, current=current)
            continue
        at_work = [s for s in states.values() if s.configuration == current]
        if _is_done(goal, current, newcomer):
            if holds_quorum(current, at_work):
                return current
            text = "waiting until a quorum of the new members knows of it"
            yield Batch(text=text, current=current)
            continue
        following = _following(goal, current, newcomer)
        if following is None:
            begun = current
        if following is None and newcomer.configuration is None:
            yield from begin_log(goal.cluster, current, goal.newcomer, at_work)
            continue
        if following is None:
            filled, to_go = filling(current, at_work, known_lsn)
            known_lsn = max(s.commit_lsn for s in at_work) if at_work else known_lsn
            if not filled:
                text = what_it_waits_for(current, at_work, to_go)
                yield Batch(text=text, to_go=to_go, current=current)
                continue
            following = final(current)
        else:
            name = yield from prepare(goal.cluster, current, goal.newcomer)
            if name is None:
                yield Batch(text=goal.newcomer.absence, current=current)
                continue
            following = joint(current, leaving=following.leaving, joining=name,
                              address=goal.address)  # fmt: skip
        decided = yield from decide(goal.cluster, current, following, places, states, draw)
        if decided is not None:
            begun = decided if decided == following and decided.joining else begun
            yield Batch(dict.fromkeys(places, InstallMembers(goal.cluster, decided)))


def cancel_replacement(
    cluster: str, leaving: int | None, places: Sequence[int], draw: Callable[[], bytes]
) -> Steps:
    """Return the final configuration of the old members; raise Refused if it came too late.

    If no replacement is under way, return the present configuration. `leaving` is the id of the
    member that the operator wants to keep, or None.
    """
    joint_seen: Configuration | None = None
    while True:
        current, answers = yield from look(cluster, places)
        if current is None:
            continue
        states = states_of(answers)
        yield from install(cluster, current, states)
        _check_kept(leaving, current, joint_seen)
        if not current.joining:
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


def _check_kept(
    leaving: int | None, current: Configuration, joint_seen: Configuration | None
) -> None:
    """Raise Refused if another member is being replaced, or the one to keep was replaced."""
    if current.joining and leaving not in (None, member_id(current.leaving)):
        raise Refused(f"another replacement is under way: {shown_change(current)}")
    if joint_seen is not None and joint_seen.leaving not in current.members:
        number = member_id(joint_seen.leaving)
        raise Refused(f"safekeeper {number} was replaced before the cancel: {standing(current)}")
    if leaving is not None and leaving not in map(member_id, current.members):
        raise no_member(leaving, current)


def _is_taken_back(begun: Configuration, current: Configuration) -> bool:
    """Return True if the old members are final again after the joint configuration `begun`."""
    is_later = current.generation > begun.generation
    return is_later and not current.joining and begun.leaving in current.members


def _check_ids(goal: Goal, current: Configuration) -> None:
    """Raise Refused for impossible ids at once, also if the newcomer does not answer yet."""
    if current.joining:
        return
    members = [member_id(member) for member in current.members]
    if goal.leaving not in members and goal.joining not in members:
        raise no_member(goal.leaving, current)
    if goal.leaving != goal.joining and goal.leaving in members and goal.joining in members:
        raise Refused(f"safekeeper {goal.joining} is a member already; name one that is not")


def no_member(number: int, current: Configuration) -> Refused:
    members = ", ".join(str(member_id(member)) for member in current.members)
    return Refused(f"safekeeper {number} is no member; members are {members}")


def _newcomer(goal: Goal, current: Configuration, answers: Answers) -> LogState | None:
    """Return the newcomer's log state, or None; raise Refused if it belongs to another log."""
    answer = answers.get(goal.at)
    if isinstance(answer, Reject):
        raise Refused(f"safekeeper at {goal.address}: {answer.text}")
    if not isinstance(answer, LogState):
        return None
    if answer.acceptor_id != goal.joining:
        raise Refused(f"{goal.address} is safekeeper {answer.acceptor_id}, not {goal.joining}")
    is_ours = answer.log_uuid in (NO_LOG, current.log_uuid)
    name = member_name(answer.acceptor_id, answer.incarnation)
    if not is_ours or (answer.configuration is not None and name not in current.everyone):
        raise Refused(
            f"safekeeper {goal.joining} at {goal.address} holds a log of cluster "
            f"{goal.cluster!r} as {name}, which is no member. Stop it, remove that log's directory "
            "and start it again; then repeat this command"
        )
    return answer


def _is_done(goal: Goal, current: Configuration, newcomer: LogState) -> bool:
    name = member_name(newcomer.acceptor_id, newcomer.incarnation)
    return not current.joining and name in current.members


def _following(goal: Goal, current: Configuration, newcomer: LogState) -> Configuration | None:
    """Return the next joint configuration, or None if the present one is it already.

    It lacks the newcomer's name, which prepare gives. Raise Refused if another one is under way."""
    name = member_name(newcomer.acceptor_id, newcomer.incarnation)
    if current.joining:
        same = (goal.leaving, goal.joining) == (
            member_id(current.leaving),
            member_id(current.joining),
        )
        if same and name == current.joining:
            return None
        if name in current.members:
            raise Refused(
                f"safekeeper {goal.joining} at {goal.address} is a member still, and a replacement "
                f"is under way, {shown_change(current)} at {current.address}: to keep the old "
                "members, take it back with --cancel"
            )
        if not same and not (goal.instead and goal.leaving == member_id(current.leaving)):
            raise Refused(
                f"a replacement is under way, {shown_change(current)} at {current.address}: repeat "
                "its command to finish it, add --instead if that newcomer is lost, or take it "
                "back with --cancel"
            )
        return joint(current, leaving=current.leaving, joining="", address="")
    leaving = [member for member in current.members if member_id(member) == goal.leaving]
    if not leaving:
        raise no_member(goal.leaving, current)
    return joint(current, leaving=leaving[0], joining="", address="")
