"""Quorums and zones of members, for people: the rules in words, and which zone may fail. Pure.

The rules themselves are `MemberSet.commits` and `MemberSet.elects` (quorum.py). Here they are only
asked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from walkeeper_common.errors import Refused
from walkeeper_common.operator_text.counts import counted
from walkeeper_common.quorum import MemberSet


def ack_rule(each: MemberSet) -> str:
    """Return how many members acknowledge a commit, as a clause."""
    zones = f", from at least {each.ack_zones} zones," if each.ack_zones else ""
    return f"{each.ack_quorum}{zones} acknowledge a commit"


def vote_rule(each: MemberSet) -> str:
    """Return which votes elect, as a clause: those that no ack quorum avoids."""
    if not each.ack_zones:
        return f"{each.vote_quorum} elect"
    return f"{each.vote_quorum} elect, or {_all_outside(each)}"


def _all_outside(each: MemberSet) -> str:
    outside = each.ack_zones - 1
    return f"all members outside {'any one zone' if outside == 1 else f'any {outside} zones'}"


def zones_that_may_fail(
    sets: Sequence[MemberSet], well: Collection[str | None]
) -> dict[str, str | None]:
    """Return for each zone None if it may fail now, or else the reason why it may not.

    Without the zone, those that are `well` have to elect and to commit, by each set's own rules.
    """
    labels = sorted({zone for each in sets for zone in each.zones if zone})
    return {zone: _why_not(sets, well, zone) for zone in labels}


def _why_not(sets: Sequence[MemberSet], well: Collection[str | None], zone: str) -> str | None:
    for each in sets:
        left = [m for m in each.members if m in well and each.zone_of(m) != zone]
        if not each.elects(left):
            return "no vote quorum would be left"
        if not each.commits(left):
            return "no ack quorum would be left"
    return None


def zone_that_stops(each: MemberSet) -> str | None:
    """Return which zone's loss leaves a set without a quorum that its rule needs, or None.

    A set whose rule counts no zones promises nothing about them."""
    if not each.ack_zones:
        return None
    for zone, reason in zones_that_may_fail([each], each.members).items():
        if reason is not None:
            return f"with the loss of zone {zone} {reason}"
    return None


def lacking_zones(sets: Sequence[MemberSet], names: Collection[str | None]) -> str | None:
    """Return which zones a commit lacks if only `names` acknowledge, as a clause, or None."""
    for each in sets:
        known = sorted(each.zones_of(names))
        if len(known) < each.ack_zones:
            which = f"only zone {', '.join(known)} does" if known else "none does"
            return f"at least {each.ack_zones} zones have to acknowledge a commit, and {which}"
    return None


def shown_acks(each: MemberSet) -> str:
    """Return `2 of 3`, the acknowledgements that a commit needs; with zones, from how many."""
    zones = f" in {each.ack_zones} zones" if each.ack_zones else ""
    return f"{each.ack_quorum} of {len(each.members)}{zones}"


def shown_votes(each: MemberSet) -> str:
    """Return `2 of 3`, the votes that elect; with zones, also those of which zones."""
    zones = f", or {_all_outside(each)}" if each.ack_zones else ""
    return f"{each.vote_quorum} of {len(each.members)}{zones}"


def refuse_ack_quorum(ack_quorum: int, members: int, *, is_single_allowed: bool) -> None:
    """Raise Refused for an ack quorum that this number of members cannot have, or for 1 of several.

    With `is_single_allowed`, 1 of several passes. A set of one member has no other ack quorum, so
    it needs no permission.
    """
    if not 1 <= ack_quorum <= members:
        raise Refused(
            f"--ack-quorum {ack_quorum} is impossible with "
            f"{counted(members, 'member', 'members')}: give 1 to {members}"
        )
    if ack_quorum == 1 < members and not is_single_allowed:
        raise Refused(
            "an ack quorum of 1 loses acknowledged commits with the one disk that has them; to "
            "accept that, add --allow-single-ack"
        )


def refuse_zone_stop(each: MemberSet, *, is_allowed: bool) -> None:
    """Raise Refused if the loss of one zone would stop commits, and that is not allowed."""
    stops = None if is_allowed else zone_that_stops(each)
    if stops is not None:
        raise Refused(
            f"{stops}, and commits would hang: add members in other zones, or lower --ack-zones or "
            "--ack-quorum; to accept that, add --allow-zone-stop"
        )


def zones_clause(each: MemberSet) -> str:
    """Return ` of 2 zones` after an ack quorum, or an empty text if zones do not count."""
    return f" of {each.ack_zones} zones" if each.ack_zones else ""
