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

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from walkeeper_common.errors import Refused
from walkeeper_common.history import Ballot, History
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.quorum import Configuration, flaw_of, member_id, member_name
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import (
    AcceptMembers,
    InstallMembers,
    JoinLog,
    MembersQuery,
    MembersState,
    PromiseMembers,
    cancelled,
    final,
    joint,
    shown_change,
)
from walkeeper_common.wire.messages import Reject
from walkeeper_common.wire.requests import LogQuery, LogState, PrepareLog

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


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests to send at once, by place; if there are none, wait a moment.

    `text` says for what, and `to_go` how many bytes the newcomer still lacks. `current` is the
    newest configuration that a safekeeper has shown."""

    requests: Mapping[int, Message] = field(default_factory=dict)
    text: str = ""
    to_go: int | None = None
    current: Configuration | None = None


Answers: TypeAlias = Mapping[int, Message]  # only from safekeepers that answered
Steps: TypeAlias = Generator[Batch, Answers, Configuration]
Seen: TypeAlias = tuple[Configuration | None, Answers]


def replace_member(goal: Goal, places: Sequence[int], draw: Callable[[], bytes]) -> Steps:
    """Return the final configuration; raise Refused, with the reason, if it is impossible.

    `places` are all that are known, the newcomer's among them; `draw` gives 16 random bytes.
    """
    known_lsn, begun = ZERO_LSN, None
    while True:
        current, answers = yield from _look(goal.cluster, places)
        if current is None:
            continue
        states = _states(answers)
        _check_ids(goal, current)
        newcomer = _newcomer(goal, current, (yield Batch({goal.at: LogQuery(goal.cluster)})))
        yield from _install(goal.cluster, current, states)
        if begun is not None and _is_taken_back(begun, current):
            raise Refused(
                f"the replacement of {shown_change(begun)} was cancelled (generation "
                f"{current.generation}): to begin it again, repeat this command"
            )
        if newcomer is None:
            text = f"safekeeper {goal.joining} at {goal.address} does not answer"
            yield Batch(text=text, current=current)
            continue
        at_work = [s for s in states.values() if s.configuration == current]
        if _is_done(goal, current, newcomer):
            if _holds_quorum(current, at_work):
                return current
            text = "waiting until a quorum of the new members knows of it"
            yield Batch(text=text, current=current)
            continue
        following = _following(goal, current, newcomer)
        if following is None:
            begun = current
        if following is None and newcomer.configuration is None:
            yield from _join(goal, current, at_work)
            continue
        if following is None:
            filled, to_go = _filling(current, at_work, known_lsn)
            known_lsn = max(s.commit_lsn for s in at_work) if at_work else known_lsn
            if not filled:
                text = _waits(current, at_work, to_go)
                yield Batch(text=text, to_go=to_go, current=current)
                continue
            following = final(current)
        else:
            name = yield from _prepare(goal, current)
            if name is None:
                text = f"safekeeper {goal.joining} at {goal.address} does not answer"
                yield Batch(text=text, current=current)
                continue
            following = joint(current, leaving=following.leaving, joining=name,
                              address=goal.address)  # fmt: skip
        decided = yield from _decide(goal.cluster, current, following, places, states, draw)
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
        current, answers = yield from _look(cluster, places)
        if current is None:
            continue
        states = _states(answers)
        yield from _install(cluster, current, states)
        _check_kept(leaving, current, joint_seen)
        if not current.joining:
            at_work = [s for s in states.values() if s.configuration == current]
            if _holds_quorum(current, at_work):
                return current
            text = "waiting until a quorum of the members knows of it"
            yield Batch(text=text, current=current)
            continue
        joint_seen = current
        wanted = cancelled(current)
        decided = yield from _decide(cluster, current, wanted, places, states, draw)
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
        raise _no_member(leaving, current)


def standing(configuration: Configuration) -> str:
    """Return the members that decide now, for an operator whose command ends here."""
    members = ", ".join(str(member_id(member)) for member in configuration.members)
    generation = f"generation {configuration.generation}"
    if not configuration.joining:
        return f"members are {members} ({generation})"
    return (
        f"a replacement is under way, {shown_change(configuration)} at {configuration.address} "
        f"({generation}), and commits need both sets of members"
    )


def _look(cluster: str, places: Sequence[int]) -> Generator[Batch, Answers, Seen]:
    """Return the newest configuration and the answers; wait, and return None, if there is none."""
    answers = yield Batch(dict.fromkeys(places, MembersQuery(cluster)))
    current = _newest(_states(answers))
    if current is None:
        yield Batch(text=_no_log(answers))
    return current, answers


def _install(
    cluster: str, current: Configuration, states: Mapping[int, MembersState]
) -> Generator[Batch, Answers, None]:
    """Install the newest configuration where an older one was found."""
    behind = [p for p, s in states.items() if s.configuration != current]
    if behind:
        yield Batch(dict.fromkeys(behind, InstallMembers(cluster, current)))


def _is_taken_back(begun: Configuration, current: Configuration) -> bool:
    """Return True if the old members are final again after the joint configuration `begun`."""
    is_later = current.generation > begun.generation
    return is_later and not current.joining and begun.leaving in current.members


def _states(answers: Answers) -> dict[int, MembersState]:
    return {p: answer for p, answer in answers.items() if isinstance(answer, MembersState)}


def _no_log(answers: Answers) -> str:
    """Return the text for no answer, with the refusals of safekeepers without this log."""
    said = [answer.text for _, answer in sorted(answers.items()) if isinstance(answer, Reject)]
    return "; ".join(["no safekeeper with this log answers", *said])


def _newest(states: Mapping[int, MembersState]) -> Configuration | None:
    known = [state.configuration for state in states.values()]
    if len({configuration.log_uuid for configuration in known}) > 1:
        raise Refused("these safekeepers hold different logs under this cluster's name")
    return max(known, key=lambda configuration: configuration.generation, default=None)


def _check_ids(goal: Goal, current: Configuration) -> None:
    """Raise Refused for impossible ids at once, also if the newcomer does not answer yet."""
    if current.joining:
        return
    members = [member_id(member) for member in current.members]
    if goal.leaving not in members and goal.joining not in members:
        raise _no_member(goal.leaving, current)
    if goal.leaving != goal.joining and goal.leaving in members and goal.joining in members:
        raise Refused(f"safekeeper {goal.joining} is a member already; name one that is not")


def _no_member(number: int, current: Configuration) -> Refused:
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
        raise _no_member(goal.leaving, current)
    return joint(current, leaving=leaving[0], joining="", address="")


def _waits(current: Configuration, at_work: Sequence[MembersState], to_go: int | None) -> str:
    if any(s.has_committed and s.member in current.everyone for s in at_work):
        return "the newcomer is being filled" if to_go else "the newcomer has not attached yet"
    return (
        f"no proposer has committed with generation {current.generation} yet: start one, or run "
        "`walkeeper settle` if there is no primary"
    )


def _prepare(goal: Goal, current: Configuration) -> Generator[Batch, Answers, str | None]:
    answers = yield Batch({goal.at: PrepareLog(goal.cluster, current.log_uuid)})
    answer = answers.get(goal.at)
    if isinstance(answer, Reject):
        raise Refused(f"safekeeper at {goal.address}: {answer.text}")
    if not isinstance(answer, LogState):
        return None
    return member_name(answer.acceptor_id, answer.incarnation)


def _decide(
    cluster: str,
    current: Configuration,
    wanted: Configuration,
    places: Sequence[int],
    states: Mapping[int, MembersState],
    draw: Callable[[], bytes],
) -> Generator[Batch, Answers, Configuration | None]:
    """Run one round of Paxos for the configuration after `current`.

    Return the decided one, perhaps of another run, or None after a pause if another round is
    necessary. While `current` is joint its old members decide: a lost newcomer must not keep
    another one out. Raise Refused if no log can have the members that are wanted."""
    flaw = flaw_of(wanted)
    if flaw is not None:
        raise Refused(flaw)
    old = replace(current, leaving="", joining="")
    term = max(state.round.term for state in states.values()) + 1
    round_ = Ballot(term, draw())
    ask = PromiseMembers(cluster, current.log_uuid, current.generation, round_)
    promised = _granting(current, round_, (yield Batch(dict.fromkeys(places, ask))))
    if not old.elects([state.member for state in promised]):
        answering = {state.member for state in states.values()}
        absent = ", ".join(str(member_id(m)) for m in old.members if m not in answering)
        named = f": not {absent} (--safekeepers has to name where they are now)" if absent else ""
        yield Batch(text=f"too few members answer{named}", current=current)
        return None
    last = max(promised, key=lambda state: state.accepted_round)
    following = last.accepted or wanted
    accept = AcceptMembers(cluster, round_, following)
    answers = yield Batch(dict.fromkeys(places, accept))
    accepted = _granting(current, round_, answers)
    if old.commits([state.member for state in accepted]):
        return following
    yield Batch(text=_undecided(old, current, round_, answers), current=current)
    return None


def _undecided(old: Configuration, current: Configuration, round_: Ballot, answers: Answers) -> str:
    """Return the members that refuse a round which nobody else has overtaken, as a text."""
    unwilling = [
        str(member_id(state.member))
        for state in _states(answers).values()
        if not state.granted
        and (state.configuration, state.round) == (current, round_)
        and state.member in old.members
    ]
    if not unwilling:
        return "too few members accept the next members, or another command is at work"
    return (
        f"safekeeper {', '.join(sorted(unwilling))} accepts no such change of members: is its "
        "version older than this command's?"
    )


def _granting(current: Configuration, round_: Ballot, answers: Answers) -> list[MembersState]:
    return [
        state
        for state in _states(answers).values()
        if state.granted and state.round == round_ and state.configuration == current
    ]


def _holds_quorum(current: Configuration, at_work: Sequence[MembersState]) -> bool:
    names = [state.member for state in at_work]
    return current.elects(names) and current.commits(names)


def _join(
    goal: Goal, current: Configuration, at_work: Sequence[MembersState]
) -> Generator[Batch, Answers, None]:
    """Begin the newcomer's log at the oldest WAL that is surely kept for it.

    While it is a member without WAL, restart_lsn does not move."""
    old = current.member_sets[0]
    serving = [state for state in at_work if state.member in old]
    if len(serving) < current.vote_quorum:
        text = "too few of the old members know of the newcomer yet"
        yield Batch(text=text, current=current)
        return
    donor = max(serving, key=lambda state: min(state.restart_lsn, state.commit_lsn))
    reached = min(donor.restart_lsn, donor.commit_lsn)
    first_lsn = max(state.first_lsn for state in serving)
    base_lsn = _oldest_kept(current, reached, donor.whole_lsn, first_lsn)
    history = _below(donor.history, base_lsn)
    join = JoinLog(goal.cluster, current, base_lsn, history)
    answer = (yield Batch({goal.at: join})).get(goal.at)
    if isinstance(answer, Reject):
        raise Refused(f"safekeeper at {goal.address}: {answer.text}")


def _oldest_kept(current: Configuration, restart_lsn: Lsn, whole_lsn: Lsn, first_lsn: Lsn) -> Lsn:
    """Return the start of the segment before that of the last whole record below restart_lsn.

    Retention leaves both (docs/steps.md, "Truncation by retention"). One alone, with nothing but
    the end of a record in it perhaps, would show of no primary that it wrote this log. An
    unfinished record may lie around restart_lsn and be many segments long. Every next term starts
    at its start, so a log that begins inside it can follow no leader (M3,
    scenarios/newcomer_begins_before_an_unfinished_record.txt). If its start is not known, the
    newcomer gets all WAL. The base is not below first_lsn, where all old members have WAL. It is
    not above the segment of whole_lsn: what lies there is all kept, and an archive may have what
    the disks have not.
    """
    segment_bytes, creation_lsn = current.segment_bytes, current.creation_lsn
    known_lsn = whole_lsn or restart_lsn
    latest_lsn = max(known_lsn.round_down(segment_bytes), creation_lsn)
    record = Lsn(max(int(whole_lsn) - 1, creation_lsn)).round_down(segment_bytes)
    return min(latest_lsn, max(Lsn(record - segment_bytes), creation_lsn, first_lsn))


def _below(history: History, lsn: Lsn) -> History:
    """Return the history of the WAL below; a later entry may not be committed."""
    return (*history[:1], *(entry for entry in history[1:] if entry.start_lsn < lsn))


def _filling(
    current: Configuration, at_work: Sequence[MembersState], known_lsn: Lsn
) -> tuple[bool, int | None]:
    """Return (newcomer has all that was committed a round ago, bytes that it lacks)."""
    newcomer = next((s for s in at_work if s.member == current.joining), None)
    if newcomer is None:
        return False, None
    committed = max(state.commit_lsn for state in at_work)
    to_go = max(0, committed - newcomer.flush_lsn)
    filled = newcomer.has_committed and known_lsn > ZERO_LSN and newcomer.commit_lsn >= known_lsn
    return filled, to_go
