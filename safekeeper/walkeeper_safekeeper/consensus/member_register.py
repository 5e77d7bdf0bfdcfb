"""The register of the next configuration: an acceptor's part in a change of members. Pure.

Each generation writes the register once, by single decree Paxos. Its acceptors are the members of
that generation. `_installed` ends the generation and its promises; from then on the acceptor
refuses messages of the old generation. docs/steps.md, "Members change".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, TypeAlias

from walkeeper_common.addresses import is_address
from walkeeper_common.history import NO_BALLOT, cut, is_well_formed
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import MEMBERS_MAX, SPARE, Configuration, flaw_of, member_name
from walkeeper_common.wire.member_change import (
    AcceptMembers,
    InstallMembers,
    JoinLog,
    MembersQuery,
    MembersState,
    PromiseMembers,
    is_successor,
    may_follow,
)
from walkeeper_safekeeper.consensus.durable import Durable

MembersRequest: TypeAlias = MembersQuery | PromiseMembers | AcceptMembers | InstallMembers


class Member(Protocol):
    """The part of the acceptor that its state consists of."""

    durable: Durable
    member: str
    elected: bool
    oldest_lsn: Lsn
    flush_lsn: Lsn
    commit_lsn: Lsn
    restart_lsn: Lsn
    elected_commit_lsn: Lsn
    term_start_lsn: Lsn


def changed(durable: Durable, ask: MembersRequest) -> Durable | None:
    """Return the control file that must be durable before the grant, or None for a refusal.

    It is the same object if no Persist is due.
    """
    match ask:
        case MembersQuery():
            return durable
        case PromiseMembers():
            return _promised(durable, ask)
        case AcceptMembers():
            return _accepted(durable, ask)
        case InstallMembers(_, configuration):
            return _installed(durable, configuration)


def _promised(durable: Durable, ask: PromiseMembers) -> Durable | None:
    ours = durable.configuration
    if ours is None or (ask.log_uuid, ask.generation) != (ours.log_uuid, ours.generation):
        return None
    if ask.round < durable.change_round or ask.round == NO_BALLOT:
        return None
    return replace(durable, change_round=ask.round)


def _accepted(durable: Durable, ask: AcceptMembers) -> Durable | None:
    ours, following = durable.configuration, ask.following
    if ours is None or flaw_of(following) is not None or not is_successor(ours, following):
        return None
    if ask.round < durable.change_round:
        return None  # a greater round has read the accepted value before this one
    return replace(durable, change_round=ask.round, accepted_round=ask.round, accepted=following)


def _installed(durable: Durable, configuration: Configuration) -> Durable | None:
    """Install a later generation; a member that was down may skip generations."""
    ours = durable.configuration
    if ours is None or configuration.log_uuid != ours.log_uuid:
        return None
    if configuration.generation <= ours.generation:
        return durable if configuration == ours else None
    if flaw_of(configuration) is not None or not may_follow(ours, configuration):
        return None
    return replace(
        durable,
        configuration=configuration,
        change_round=NO_BALLOT,
        accepted_round=NO_BALLOT,
        accepted=None,
    )


def members_state(acceptor: Member, *, granted: bool) -> MembersState:
    """Return the state of this member as of now."""
    durable = acceptor.durable
    assert durable.configuration is not None, f"{durable=}"
    return MembersState(
        member=acceptor.member,
        granted=granted,
        configuration=durable.configuration,
        round=durable.change_round,
        accepted_round=durable.accepted_round,
        accepted=durable.accepted,
        # `elected` is of this generation, since leaving one ends it. A leader sends no commit_lsn
        # before it has committed its term's start, so its own commit_lsn counts, not ours.
        has_committed=acceptor.elected and acceptor.elected_commit_lsn >= acceptor.term_start_lsn,
        flush_lsn=acceptor.flush_lsn,
        commit_lsn=acceptor.commit_lsn,
        restart_lsn=acceptor.restart_lsn,
        history=cut(durable.history, acceptor.flush_lsn),
        oldest_lsn=acceptor.oldest_lsn,
    )


def _is_donor(text: str) -> bool:
    """Return True for an address without a comma. This log connects to it after each start."""
    return SPARE.fullmatch(f"0@{text}") is not None and is_address(text)


def joined(existing: Durable, ask: JoinLog) -> Durable | str:
    """Return a newcomer's control file, `existing` itself if it has joined already, or the flaw.

    Its log is empty, and begins at WAL that every member has committed. So its votes and
    acknowledgements are true from the start. If it begins late, WAL from restart_lsn on is missing
    below it, and comes from `donors` (M5).
    """
    name = member_name(existing.acceptor_id, existing.incarnation)
    configuration, base_lsn, history = ask.configuration, ask.base_lsn, ask.history
    if existing.log_uuid != configuration.log_uuid:
        return f"safekeeper {name} was prepared for another log"
    if existing.configuration is not None:
        return existing
    flaw = flaw_of(configuration)
    if flaw is not None:
        return flaw
    if name not in configuration.newcomers:
        return f"{' and '.join(configuration.newcomers) or 'nobody'} is to join, this is {name}"
    if base_lsn % configuration.segment_bytes or base_lsn < configuration.creation_lsn:
        return f"no log of this cluster can start at {base_lsn}"
    if (ask.restart_lsn or ask.donors) and not configuration.begins_late:
        return "this configuration lets no log begin after WAL that others hold"
    if len(ask.donors) > MEMBERS_MAX or not all(map(_is_donor, ask.donors)):
        return "the members that hold older WAL have no such addresses"
    if not is_well_formed(history) or any(e.start_lsn >= base_lsn for e in history[1:]):
        return f"the history of a log that starts at {base_lsn} is not {history[-2:]}"
    return replace(
        existing,
        configuration=configuration,
        history=history,
        commit_lsn=base_lsn,
        restart_lsn=max(configuration.creation_lsn, min(base_lsn, ask.restart_lsn or base_lsn)),
        reached_lsn=history[-1].start_lsn,
        base_lsn=base_lsn,
        donors=ask.donors,
    )
