"""The sets of a log's members, its zones and its spares, from the document of `status`. Pure.

sets_of(facts)            the sets whose quorums are needed; the rules are MemberSet's
zone_facts(facts, well)   the zones, and the reason why one may not fail now
zone_lines, spare_lines   the same for people
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from walkeeper_common.addresses import Address, parse_address
from walkeeper_common.operator_text.zones import (
    ack_rule,
    lacking_zones,
    vote_rule,
    zones_that_may_fail,
)
from walkeeper_common.quorum import (
    MemberSet,
    member_id,
    replaced_set,
    spare_address,
    spare_id,
    spare_zone,
)


def set_of(facts: dict[str, Any]) -> MemberSet:
    """Return the set in `members`, `ack_quorum`, `ack_zones` and `zones`.

    A safekeeper of an older version reports no zones."""
    members, zones = tuple(facts["members"]), tuple(facts.get("zones") or ())
    return MemberSet(members, facts["ack_quorum"], facts.get("ack_zones") or 0, zones)


def sets_of(facts: dict[str, Any]) -> list[MemberSet]:
    """Return each set that has to elect and to commit: two while the members are joint.

    A safekeeper of an older version reports replacements alone, and no target."""
    present = set_of(facts)
    if is_learning(facts):
        return [present]
    if target := facts.get("target"):
        return [present, set_of(target)]
    if facts.get("joining"):
        leaving, joining = facts["leaving"], facts["joining"]
        return [present, replaced_set(present, leaving=leaving, joining=joining)]
    return [present]


def is_learning(facts: dict[str, Any]) -> bool:
    """Return True while newcomers get WAL and are in no set (M2); older safekeepers never do."""
    target = facts.get("target")
    return bool(target and target.get("is_learning"))


def have_quorum(facts: dict[str, Any], names: Collection[str]) -> bool:
    """Return True if these are an ack quorum of each set."""
    return all(each.commits(names) for each in sets_of(facts))


def zone_facts(facts: dict[str, Any], well: Collection[str]) -> dict[str, Any]:
    """Return the part of `cluster` about zones. `well` are members that acknowledge WAL."""
    return {
        "ack_zones": facts.get("ack_zones") or 0,
        "zones": facts.get("zones") or [],
        "zone_failures": zones_that_may_fail(sets_of(facts), well),
    }


def zone_lines(cluster: dict[str, Any]) -> list[str]:
    """Return the lines that say which members are in which zone, and which zone may fail."""
    failures: dict[str, str | None] = cluster.get("zone_failures") or {}
    if not failures:
        return []
    pairs = list(zip(cluster["members"], cluster["zones"], strict=False))
    here = {
        zone: ", ".join(str(member_id(member)) for member, label in pairs if label == zone)
        for zone in failures
    }
    lines = [f"zones: {'; '.join(f'{zone}: {ids}' for zone, ids in here.items() if ids)}"]
    return [*lines, *(f"  {line}" for line in failure_lines(failures))]


def failure_lines(failures: dict[str, str | None]) -> list[str]:
    """Return the lines that say which zone may fail now, and why another may not."""
    if not failures:
        return []
    able = [zone for zone, reason in failures.items() if reason is None]
    one = f"any one of {', '.join(able)}" if len(able) > 1 else "".join(able) or "none"
    lines = [f"zone that may fail now: {one}"]
    return lines + [
        f"zone that may not fail now: {zone} ({reason})"
        for zone, reason in failures.items()
        if reason
    ]


def commit_with(cluster: dict[str, Any], numbers: Collection[int]) -> bool:
    """Return True if the present members with these ids are an ack quorum."""
    names = [member for member in cluster["members"] if member_id(member) in numbers]
    return bool(cluster["members"]) and set_of(cluster).commits(names)


def lacking_in(cluster: dict[str, Any], heard: Collection[int]) -> str | None:
    """Return which zones a commit lacks if only the members with these ids acknowledge, or None."""
    if not cluster.get("ack_zones"):
        return None
    names = [member for member in cluster["members"] if member_id(member) in heard]
    return lacking_zones([set_of(cluster)], names)


def rules_of(facts: dict[str, Any]) -> str:
    """Return both rules of the present set, in words."""
    present = set_of(facts)
    return f"{ack_rule(present)}, {vote_rule(present)}"


def spares_to_ask(facts: dict[str, Any] | None, asked: Collection[Address]) -> list[Address]:
    """Return the addresses of spares that were not asked. A peer's text may be no address."""
    found = []
    for spare in (facts or {}).get("spares") or []:
        try:
            address = parse_address(spare_address(spare))
        except ValueError:
            continue
        if address not in asked:
            found.append(address)
    return found


def shown_spares(facts: dict[str, Any], answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each spare, and whether it answers: `reachable` is None if it was not asked."""
    by_address = {answer["address"]: answer for answer in answers}
    found = []
    for spare in facts.get("spares") or []:
        address = spare_address(spare)
        reachable = by_address.get(address, {}).get("reachable")
        known = {"id": spare_id(spare), "address": address, "zone": spare_zone(spare) or None}
        found.append({**known, "reachable": reachable})
    return found


def spare_lines(document: dict[str, Any]) -> list[str]:
    """Return a line with the spares, and one about a repair that runs or is held back."""
    shown = document.get("spares") or []
    lines = [shown_spare_list(shown)] if shown else []
    if repair := document["cluster"].get("repair"):
        lines.append(f"repair: {repair}")
    return lines


def shown_spare_list(spares: Sequence[dict[str, Any]]) -> str:
    """Return a line with each spare, and whether it answers."""
    states = {True: "", False: " (does not answer)", None: " (was not asked)"}
    shown = (
        f"{each['id']} at {each['address']}{' in ' if each['zone'] else ''}{each['zone'] or ''}"
        f"{states[each['reachable']]}"
        for each in spares
    )
    return f"spares: {', '.join(shown)}"
