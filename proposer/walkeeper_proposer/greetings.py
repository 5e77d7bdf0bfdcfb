"""Our greeting, and what theirs say: who may take part, and who leads elsewhere. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from walkeeper_common.history import Ballot, is_well_formed
from walkeeper_common.messages import (
    PROTOCOL_VERSION,
    UNKNOWN_LOG_UUID,
    AcceptorGreeting,
    ProposerGreeting,
)
from walkeeper_common.quorum import Configuration, flaw_of, member_name
from walkeeper_proposer.campaign import Campaign
from walkeeper_proposer.proposer_events import PrimaryIdentity

# A lease is 3 heartbeats at the acceptor; two more, because its clock and ours are not in step.
LEASE_WAIT_TICKS = 5


def greeting_for(
    campaign: Campaign, primary: PrimaryIdentity | None, configuration: Configuration | None
) -> ProposerGreeting:
    """For which log we come: as much as is known of it."""
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


def unwelcome(
    greeting: AcceptorGreeting, configuration: Configuration | None, *, twin: bool
) -> str | None:
    """Why this safekeeper cannot take part, or None (PROTOCOL.md rules 17 and 19).

    `configuration` is the one that the others hold, `twin` whether another link reached it too.
    """
    who = f"safekeeper {greeting.acceptor_id}"
    if greeting.configuration is None:
        return f"{who} was prepared but not configured: run `walkeeper create` again"
    name = member_name(greeting.acceptor_id, greeting.incarnation)
    if name not in greeting.configuration.members:
        return (
            f"{who} came back with another incarnation: it lost its promises and may not vote; "
            "run `walkeeper replace`"
        )
    flaw = flaw_of(greeting.configuration)
    if flaw is not None:
        return f"{who} has a configuration that no log can have: {flaw}"
    if not is_well_formed(greeting.history):
        return f"{who} has a history that no safekeeper can have: {greeting.history[:3]}"
    if configuration is not None and greeting.configuration != configuration:
        return f"{who} holds another log or another configuration than the other safekeepers"
    if twin:
        return f"{who} answers at two of the addresses; name each safekeeper once"
    return None


def live_elsewhere(
    greeted: Sequence[AcceptorGreeting], configuration: Configuration
) -> Ballot | None:
    """The elected proposer that may still have an ack quorum, or None (rule 20: advice).

    It may if those that heard it within its lease and those that we cannot reach are enough.
    """
    unreachable = len(configuration.members) - len(greeted)
    heard = Counter(g.live for g in greeted if g.live is not None)
    for ballot, count in sorted(heard.items(), reverse=True):
        if count + unreachable >= configuration.ack_quorum:
            return ballot
    return None
