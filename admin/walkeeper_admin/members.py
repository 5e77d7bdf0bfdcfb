"""`walkeeper members`: shows the sets of members, and performs a change of them. Shell.

The steps of changing.py decide from the answers alone which question is next. So this process may
be killed at any point, and the same command goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from walkeeper_admin.member_sets import (
    failure_lines,
    rules_of,
    set_of,
    shown_spare_list,
    shown_spares,
)
from walkeeper_admin.status import gather
from walkeeper_admin.written_ranges import range_lines, shown_set, written_at, written_ranges
from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.quorum import Configuration, MemberSet, member_id, replaced_set
from walkeeper_proposer.consensus.members.changing import Goal, cancel_change, change_members
from walkeeper_proposer.consensus.members.newcomers import Newcomer
from walkeeper_proposer.consensus.members.spares import SpareGoal
from walkeeper_proposer.consensus.members.spares import change_spares as spare_steps
from walkeeper_proposer.member_changes import Limits, draw, perform

Coming: TypeAlias = tuple[int, Address, str]


@dataclass(frozen=True, slots=True)
class ZoneRule:
    """The rule about zones that a command names (`changing.Goal`). None keeps the present one."""

    ack_zones: int | None = None
    zones: tuple[tuple[int, str], ...] = ()
    allow_stop: bool = False


NO_ZONE_RULE = ZoneRule()


@dataclass(frozen=True, slots=True)
class Wanted:
    """Members `leaving` are to go, safekeepers `joining` are to come, `ack_quorum` is to count.

    `joining` has ids, addresses and zones. `rule` says how many zones count, and who is in which.
    """

    leaving: tuple[int, ...] = ()
    joining: tuple[Coming, ...] = ()
    ack_quorum: int | None = None
    allow_single_ack: bool = False
    rule: ZoneRule = NO_ZONE_RULE


async def change(
    safekeepers: Sequence[Address],
    cluster: str,
    wanted: Wanted,
    limits: Limits,
    tell: Callable[[str], None],
) -> Configuration:
    """Perform the change; return the final members. `tell` gets a line of news. Raise Refused."""
    coming = [address for _, address, _ in wanted.joining]
    addresses = tuple(dict.fromkeys((*safekeepers, *coming)))
    goal = Goal(
        cluster,
        wanted.leaving,
        _newcomers(wanted.joining, addresses),
        wanted.ack_quorum,
        allow_single_ack=wanted.allow_single_ack,
        addresses=tuple(map(shown_address, addresses)),
        ack_zones=wanted.rule.ack_zones,
        zones=wanted.rule.zones,
        allow_zone_stop=wanted.rule.allow_stop,
    )
    steps = change_members(goal, range(len(addresses)), draw)
    return await perform(steps, addresses, limits, tell)


async def cancel(
    safekeepers: Sequence[Address], cluster: str, limits: Limits, tell: Callable[[str], None]
) -> Configuration:
    """Take the change back, and return the old members. Raise Refused if it came too late."""
    steps = cancel_change(cluster, range(len(safekeepers)), draw)
    return await perform(steps, tuple(safekeepers), limits, tell)


async def change_spares(
    safekeepers: Sequence[Address],
    cluster: str,
    adding: Sequence[Coming],
    removing: Sequence[int],
    limits: Limits,
    tell: Callable[[str], None],
) -> Configuration:
    """Return the configuration with the spares wanted. `tell` gets a line when there is news.

    Raise Refused if a change of members is under way, or a new spare cannot become a member.
    """
    addresses = tuple(dict.fromkeys((*safekeepers, *(address for _, address, _ in adding))))
    goal = SpareGoal(cluster, _newcomers(adding, addresses), tuple(removing))
    steps = spare_steps(goal, range(len(addresses)), draw)
    return await perform(steps, addresses, limits, tell)


def _newcomers(joining: Sequence[Coming], addresses: Sequence[Address]) -> tuple[Newcomer, ...]:
    """Return the safekeepers with their places. Raise Refused if one is named twice."""
    coming = [address for _, address, _ in joining]
    numbers = [number for number, _, _ in joining]
    if len(set(coming)) != len(coming) or len(set(numbers)) != len(numbers):
        raise Refused("name each newcomer once, with an id and an address of its own")
    return tuple(
        Newcomer(number, shown_address(address), addresses.index(address), zone)
        for number, address, zone in joining
    )


async def show(safekeepers: Sequence[Address], cluster: str, timeout_s: float) -> dict[str, Any]:
    """Return the sets and what each member has. Raise Refused if no safekeeper has this log."""
    document = await gather(safekeepers, cluster, timeout_s)
    facts, lines = document["cluster"], document["safekeepers"]
    if not facts["members"]:
        reasons = "; ".join(str(line["error"]) for line in lines if line["error"])
        raise Refused(f"none of these safekeepers has a log of cluster {cluster!r}: {reasons}")
    return members_document(facts, lines, document["spares"])


def members_document(
    facts: dict[str, Any],
    lines: Sequence[dict[str, Any]],
    spares: Sequence[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the document of `members show --json` (docs/members.md).

    `spares` are those of `status`; without them this finds them in the facts."""
    present = set_of(facts)
    sets = [_set(present)]
    changing, replacing = facts["changing"], facts["replacing"]
    if changing is not None:
        sets.append(_set(set_of({**changing, "members": map(str, changing["members"])})))
    elif replacing is not None:
        old = next(m for m in present.members if member_id(m) == replacing["leaving"])
        zone = replacing.get("zone") or ""
        joining = f"{replacing['joining']}#"
        sets.append(_set(replaced_set(present, leaving=old, joining=joining, zone=zone)))
    by_id = {line["id"]: line for line in lines if line["id"] is not None}
    everyone = sorted({number for each in sets for number in each["members"]})
    if spares is None:
        spares = shown_spares(facts, lines)
    listed = {*everyone, *(each["id"] for each in spares)}
    under_way = changing or replacing
    learns = bool(under_way and under_way.get("is_learning"))
    newcomer = "learner" if learns else "joining"
    return {
        "cluster": facts["name"],
        "generation": facts["generation"],
        "state": "final" if len(sets) == 1 else "learning" if learns else "joint",
        "sets": sets,
        "bytes_to_go": under_way["bytes_to_go"] if under_way else None,
        "members": [_line(number, sets, by_id.get(number), newcomer) for number in everyone],
        "ranges": ranges([by_id[number] for number in everyone if number in by_id]),
        "written": written_ranges([by_id[number] for number in everyone if number in by_id]),
        "zone_failures": facts.get("zone_failures") or {},
        "spares": list(spares),
        "others": sorted(number for number in by_id if number not in listed),
    }


def _set(each: MemberSet) -> dict[str, Any]:
    known: dict[str, Any] = {
        "members": [member_id(member) for member in each.members],
        "ack_quorum": each.ack_quorum,
        "vote_quorum": each.vote_quorum,
    }
    if each.zones:
        known |= {"ack_zones": each.ack_zones, "zones": list(each.zones)}
    return known


def _line(
    number: int, sets: Sequence[dict[str, Any]], line: dict[str, Any] | None, newcomer: str
) -> dict[str, Any]:
    is_old, is_new = number in sets[0]["members"], number in sets[-1]["members"]
    role = "member" if is_old and is_new else "leaving" if is_old else newcomer
    places = ("address", "reachable", "first_lsn", "flush_lsn", "commit_lsn")
    columns = (*places, "kept_bytes", "lacks_bytes", "lacks_reason", "error")
    known = {name: (line or {}).get(name) for name in columns}
    if line is None:
        known["reachable"] = False
        known["error"] = "its address was not named with --safekeepers"
    return {"id": number, "role": role, **known}


def ranges(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return which members hold which committed WAL: ranges without a gap, the oldest first."""
    held = {
        line["id"]: (Lsn.parse(line["first_lsn"]), Lsn.parse(line["flush_lsn"]))
        for line in lines
        if line.get("first_lsn") and line.get("flush_lsn")
    }
    committed = [Lsn.parse(line["commit_lsn"]) for line in lines if line.get("commit_lsn")]
    end_lsn = max(committed, default=ZERO_LSN)
    ends = sorted({lsn for both in held.values() for lsn in both if lsn < end_lsn} | {end_lsn})
    found: list[dict[str, Any]] = []
    for begin, end in pairwise(ends):
        holders = sorted(i for i, (first, flush) in held.items() if first <= begin and end <= flush)
        if found and found[-1]["holders"] == holders:
            found[-1]["end_lsn"] = str(end)
        else:
            found.append({"begin_lsn": str(begin), "end_lsn": str(end), "holders": holders})
    return found


def locate(document: dict[str, Any], lsn: Lsn) -> list[int]:
    """Return the ids of the members that hold the committed WAL at `lsn`; none may be left."""
    for each in document["ranges"]:
        if Lsn.parse(each["begin_lsn"]) <= lsn < Lsn.parse(each["end_lsn"]):
            holders: list[int] = each["holders"]
            return holders
    return []


def located(document: dict[str, Any], lsn: Lsn) -> str:
    """Return the answer of `members --locate` for people."""
    holders = locate(document, lsn)
    if not holders:
        return f"{lsn}: no member that answers holds it"
    listed = ", ".join(map(str, holders))
    lacking = [each["id"] for each in document["members"] if each["id"] not in holders]
    others = f"; not on {', '.join(map(str, lacking))}" if lacking else ""
    found = written_at(document, lsn)
    written = "" if found is None else f"; {shown_set(found)}"
    return f"{lsn}: on {listed}{others}{written}"


def _zone(document: dict[str, Any], number: int) -> str | None:
    """Return the zone that the member has, or is to have."""
    for each in document["sets"]:
        if number in each["members"] and "zones" in each:
            return each["zones"][each["members"].index(number)] or None
    return None


def _well(line: dict[str, Any]) -> str:
    lacks = line["lacks_bytes"]
    if not lacks:
        return "ok"
    reason = f"; {line['lacks_reason']}" if line["lacks_reason"] else ""
    return f"begins at {line['first_lsn']}: {lacks:,} bytes of older WAL to copy{reason}"


def table(document: dict[str, Any]) -> str:
    """Return the document as lines for people."""
    has_zones = any("zones" in each for each in document["sets"])
    zone = ("zone",) if has_zones else ()
    names = ("id", "role", *zone, "address", "flush_lsn", "commit_lsn", "state")
    rows: list[tuple[str, ...]] = [names]
    for line in document["members"]:
        state = line["error"] or (_well(line) if line["reachable"] else "DOWN")
        known = {**line, "zone": _zone(document, line["id"]), "state": state}
        rows.append(tuple("-" if known[name] is None else str(known[name]) for name in names))
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    text = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    lines = [line.rstrip() for line in text]
    sets = [
        f"{', '.join(map(str, each['members']))}: "
        f"{rules_of({**each, 'members': map(str, each['members'])})}"
        for each in document["sets"]
    ]
    head = f"generation {document['generation']}, {document['state']}: {sets[0]}"
    lines.append(head)
    if len(sets) > 1:
        to_go = document["bytes_to_go"]
        left = "" if to_go is None else f"; {to_go:,} bytes to go"
        when = "and, as the members change," if document["state"] == "joint" else "to be next:"
        lines.append(f"{when} {sets[1]}{left}")
    lines += range_lines(document)
    lines += failure_lines(document["zone_failures"])
    if document["spares"]:
        lines.append(shown_spare_list(document["spares"]))
    if document["others"]:
        lines.append(f"no members: {', '.join(map(str, document['others']))}")
    return "\n".join(lines)
