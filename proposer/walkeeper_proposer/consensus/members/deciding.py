"""The register's rounds, batch by batch, which decide the next configuration. Pure.

    look(cluster, places)       the newest configuration that a safekeeper has, and all answers
    decide(...)                 one round of Paxos among the members of the present one
    install(...)                the newest one, on those that have missed it

A command is a generator of such batches. The command says which configuration it wants
(changing.py, spares.py). The rounds take it as it is: they do not compare the two sets of members.
docs/steps.md, "Members change", has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from walkeeper_common.errors import Refused
from walkeeper_common.history import Ballot
from walkeeper_common.quorum import Configuration, MemberSet, flaw_of, joined_addresses, member_id
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import (
    AcceptMembers,
    InstallMembers,
    MembersQuery,
    MembersState,
    PromiseMembers,
    shown_change,
)
from walkeeper_common.wire.messages import Reject


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests to send at once, by place; if there are none, wait a moment.

    `text` says what the wait is for, and `to_go` how many bytes the newcomer still lacks. `current`
    is the newest configuration that a safekeeper has shown.
    """

    requests: Mapping[int, Message] = field(default_factory=dict)
    text: str = ""
    to_go: int | None = None
    current: Configuration | None = None


Answers: TypeAlias = Mapping[int, Message]  # only from safekeepers that answered
Steps: TypeAlias = Generator[Batch, Answers, Configuration]
Seen: TypeAlias = tuple[Configuration | None, Answers]


def look(cluster: str, places: Sequence[int]) -> Generator[Batch, Answers, Seen]:
    """Return the newest configuration and the answers. If there is none, wait and return None."""
    answers = yield Batch(dict.fromkeys(places, MembersQuery(cluster)))
    current = _newest(states_of(answers))
    if current is None:
        yield Batch(text=_no_log(answers))
    return current, answers


def install(
    cluster: str, current: Configuration, states: Mapping[int, MembersState]
) -> Generator[Batch, Answers, None]:
    """Install the newest configuration where an older one was found."""
    behind = [p for p, s in states.items() if s.configuration != current]
    if behind:
        yield Batch(dict.fromkeys(behind, InstallMembers(cluster, current)))


def decide(
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
    old = current.present
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


def _undecided(old: MemberSet, current: Configuration, round_: Ballot, answers: Answers) -> str:
    """Return the members that refuse a round which no other round has overtaken, as a text."""
    unwilling = [
        str(member_id(state.member))
        for state in states_of(answers).values()
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
        for state in states_of(answers).values()
        if state.granted and state.round == round_ and state.configuration == current
    ]


def holds_quorum(current: Configuration, at_work: Sequence[MembersState]) -> bool:
    """Return True if these members are both a vote quorum and an ack quorum of `current`."""
    names = [state.member for state in at_work]
    return current.elects(names) and current.commits(names)


def states_of(answers: Answers) -> dict[int, MembersState]:
    return {p: answer for p, answer in answers.items() if isinstance(answer, MembersState)}


def _newest(states: Mapping[int, MembersState]) -> Configuration | None:
    known = [state.configuration for state in states.values()]
    if len({configuration.log_uuid for configuration in known}) > 1:
        raise Refused(
            "these safekeepers hold different logs under this cluster's name: name the members of "
            "one log with --safekeepers"
        )
    return max(known, key=lambda configuration: configuration.generation, default=None)


def _no_log(answers: Answers) -> str:
    """Return the text for the case that no safekeeper has shown the log, with their refusals."""
    said = [answer.text for _, answer in sorted(answers.items()) if isinstance(answer, Reject)]
    return "; ".join(["no safekeeper with this log answers", *said])


def standing(configuration: Configuration) -> str:
    """Return the members that decide now, for an operator whose command ends here."""
    members = ", ".join(str(member_id(member)) for member in configuration.members)
    generation = f"generation {configuration.generation}"
    if configuration.target is None:
        return f"members are {members} ({generation})"
    if configuration.is_learning:
        return f"{under_way(configuration)} ({generation}), and commits need the old members alone"
    return f"{under_way(configuration)} ({generation}), and commits need both sets of members"


def under_way(configuration: Configuration) -> str:
    """Return the change of members that a learning or joint configuration is, for people."""
    change = shown_change(configuration)
    if configuration.is_replacing:
        at = joined_addresses(configuration)[-1:]
        return f"a replacement is under way, {change}{f' at {at[0]}' if at else ''}"
    return f"a change of members is under way, {change}"


def way_back(configuration: Configuration) -> str:
    """Return how an operator takes back the change that is under way."""
    return "--cancel" if configuration.is_replacing else "`walkeeper members cancel`"
