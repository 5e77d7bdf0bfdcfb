"""Our greeting, and what theirs say: who may take part, and who leads elsewhere. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeGuard

from walkeeper_common.history import Ballot, is_forged, is_well_formed
from walkeeper_common.quorum import Configuration, flaw_of, member_name
from walkeeper_common.wire.member_change import replaced_text
from walkeeper_common.wire.messages import (
    PROTOCOL_VERSION,
    UNKNOWN_LOG_UUID,
    AcceptorGreeting,
    ProposerGreeting,
)
from walkeeper_proposer.consensus import admission
from walkeeper_proposer.consensus.campaign import Campaign
from walkeeper_proposer.consensus.primary_check import scope_of_greetings
from walkeeper_proposer.consensus.progress import Member
from walkeeper_proposer.consensus.proposer_events import PrimaryIdentity

# A lease is 3 heartbeats at the acceptor; two more, because its clock and ours are not in step.
LEASE_WAIT_TICKS = 5


def greeting_for(
    campaign: Campaign, primary: PrimaryIdentity | None, configuration: Configuration | None
) -> ProposerGreeting:
    """Return the greeting for our log.

    With `configuration` None the log is still open, and each safekeeper says which log it holds.
    A greeting with the uuid of another log would be refused.
    """
    return ProposerGreeting(
        protocol_version=PROTOCOL_VERSION,
        cluster=campaign.cluster,
        log_uuid=configuration.log_uuid if configuration else UNKNOWN_LOG_UUID,
        system_id=primary.system_id if primary else 0,
        segment_bytes=primary.segment_bytes if primary else 0,
        server_version=primary.server_version if primary else "",
        proposer_id=campaign.proposer_id,
        kind=campaign.kind,
        application_name=campaign.application_name,
        configuration=configuration,
    )


def is_newer(one: Configuration | None, other: Configuration | None) -> TypeGuard[Configuration]:
    """Return True if `one` has a later generation of the same log's members.

    A quorum of the older configuration has decided the newer one, so the older one is over. The
    proposer sends it to safekeepers that missed it (docs/steps.md, "Members change").
    """
    if one is None or other is None or one.log_uuid != other.log_uuid:
        return False
    return one.generation > other.generation and flaw_of(one) is None


def replaces(
    theirs: Configuration | None, ours: Configuration | None, members: Sequence[Member]
) -> TypeGuard[Configuration]:
    """Return True if a safekeeper's configuration replaces ours.

    It does if it has later members, or is of a log that more safekeepers hold. Ours may only be of
    the first one that answered. One exchanged disk must not shut out a quorum
    (scenarios/settle_goes_with_the_log_of_more.txt).
    """
    held = Counter(member.log_uuid for member in members)
    if theirs is None or ours is None or held[theirs.log_uuid] <= held[ours.log_uuid]:
        return is_newer(theirs, ours)
    return True


def unwelcome(
    greeting: AcceptorGreeting, configuration: Configuration | None, *, twin: bool
) -> str | None:
    """Return why this safekeeper cannot take part, or None (docs/protocol.md R17 and R19).

    `configuration` is the one that the others hold, `twin` whether another link reached it too.
    """
    who = f"safekeeper {greeting.acceptor_id}"
    if greeting.configuration is None:
        return f"{who} was prepared but not configured: run `walkeeper create` again"
    name = member_name(greeting.acceptor_id, greeting.incarnation)
    if name not in greeting.configuration.everyone:
        return replaced_text(name, greeting.configuration, greeting.history) or (
            f"{who} came back with another incarnation: it lost its promises and may not vote; "
            "run `walkeeper replace`"
        )
    flaw = flaw_of(greeting.configuration)
    if flaw is not None:
        return f"{who} has a configuration that no log can have: {flaw}"
    if not is_well_formed(greeting.history):
        return f"{who} has a history that no safekeeper can have: {greeting.history[:3]}"
    if is_forged(greeting.ballot, greeting.history[-1].ballot):
        return (
            f"{who} has promised ballot {greeting.ballot}, which no candidate reaches: it is "
            "forged or damaged; run "
            f"`walkeeper replace --member {greeting.acceptor_id} --with ID@HOST:PORT`"
        )
    if configuration is not None and greeting.configuration != configuration:
        return f"{who} holds another log or another configuration than the other safekeepers"
    if twin:
        return f"{who} answers at two of the addresses; name each safekeeper once"
    return None


def kept_out(
    greeted: Sequence[AcceptorGreeting],
    configuration: Configuration,
    primary: PrimaryIdentity | None,
    waited_ticks: int,
) -> str | None:
    """Return the text that names another leader, "" while its lease runs, or None (R20)."""
    live = live_elsewhere(greeted, configuration)
    if live is None or waited_ticks < LEASE_WAIT_TICKS:
        return None if live is None else ""
    log = scope_of_greetings(configuration, [(g, 0) for g in greeted])[0]
    return admission.kept_out_by(live, primary, log)


def live_elsewhere(
    greeted: Sequence[AcceptorGreeting], configuration: Configuration
) -> Ballot | None:
    """Return the elected proposer that may still have an ack quorum, or None (R20: advice).

    It may if enough safekeepers are in contact with it within its lease, or out of our reach.
    """
    named = {member_name(g.acceptor_id, g.incarnation): g.live for g in greeted}
    unreachable = [name for name in configuration.everyone if name not in named]
    for ballot in sorted({live for live in named.values() if live is not None}, reverse=True):
        hearing = [name for name, live in named.items() if live == ballot]
        if configuration.commits([*hearing, *unreachable]):
            return ballot
    return None
