"""The history of a new term: the donor's, shortened if it is long, and the term's own entry. Pure.

The entry starts at the donor's record end A (docs/protocol.md R5). The size of a history has a
bound. The last part below that bound is for the elections that shorten the history again (R25).
"""

from __future__ import annotations

from collections.abc import Sequence

from walkeeper_common.history import (
    HISTORY_ENTRIES_MAX,
    HISTORY_RESERVE,
    Ballot,
    Fragment,
    History,
    cut,
    foldable_lsn,
    folded,
)
from walkeeper_common.quorum import Configuration, member_id
from walkeeper_common.timelines import extended_over
from walkeeper_common.wire.messages import VoteResponse
from walkeeper_proposer.consensus.admission import successors
from walkeeper_proposer.consensus.campaign import Campaign, Purpose, closes, seals
from walkeeper_proposer.consensus.progress import Member
from walkeeper_proposer.consensus.proposer_events import PrimaryIdentity


def entry_of_term(
    configuration: Configuration,
    ballot: Ballot,
    donor: VoteResponse,
    campaign: Campaign,
    primary: PrimaryIdentity | None,
) -> Fragment:
    """Return the entry of the term with this ballot."""
    last = cut(donor.history, donor.record_lsn)[-1]
    promoted = primary is not None and primary.timeline > last.timeline
    return Fragment(
        ballot=ballot,
        start_lsn=donor.record_lsn,  # A, always (R5)
        timeline=last.timeline,
        sealed=seals(campaign.purpose, promoted=promoted, was_sealed=last.sealed),
        members=configuration.members,
        ack_quorum=configuration.ack_quorum,
        closed=closes(campaign.purpose, was_closed=last.closed),
        generation=configuration.named_generation,
    )


def with_term(history: History, entry: Fragment, primary: PrimaryIdentity | None) -> History:
    """Return the history with the term's entry. Without `primary` it forks no timeline."""
    return extended_over(
        history,
        entry,
        successors(primary, entry.timeline) if primary is not None else [],
        primary.timeline if primary is not None else entry.timeline,
        primary.timeline_file if primary is not None else b"",
    )


def shortened(configuration: Configuration, donor: VoteResponse, campaign: Campaign) -> History:
    """Return the donor's history, folded if it is long, up to the donor's own restart_lsn.

    Another voter may know a greater one, of a term that the donor has not seen and whose
    WAL was cut since (scenarios/long_history_is_folded.txt)."""
    is_kept = campaign.purpose is not Purpose.ATTACH or configuration.target
    if is_kept or len(donor.history) <= campaign.terms_max:
        return donor.history
    reached_lsn = min(donor.restart_lsn, donor.record_lsn)
    short = folded(donor.history, foldable_lsn(donor.history, reached_lsn))
    return short if len(short) < len(donor.history) else donor.history


def fullness(
    history: History, configuration: Configuration, members: Sequence[Member], purpose: Purpose
) -> str | None:
    """Return why no safekeeper may get this history, or None if there is room for it.

    Only entries that all members have are folded, so a history grows while one is away. A
    leader for a primary is refused while there is still room to make it short again (R25). The
    room is for `settle`, for the elections of a replacement, and for elections with all
    members.
    """
    here = {member.name for member in members}
    away = [str(member_id(name)) for name in configuration.everyone if name not in here]
    is_way_out = purpose is not Purpose.ATTACH or configuration.target or not away
    size, most = len(history), HISTORY_ENTRIES_MAX
    if size <= (most if is_way_out else most - HISTORY_RESERVE):
        return None
    return (
        f"the history of this log is full: it has {size:,} entries (most: {most:,}), and grows "
        f"while a member lacks WAL; missing: safekeeper {', '.join(away) or 'none'}. Start it, "
        "or replace it: `walkeeper replace --member ID --with ID@HOST:PORT`"
    )
