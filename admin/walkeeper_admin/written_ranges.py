"""The ranges of a log by the members that each was written to, from its fragments. Pure.

A fragment names the set of members and the ack quorum that its leader committed with. It also names
its generation, from the first newcomer on whose log began late (docs/protocol.md M5).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from walkeeper_common.lsn import Lsn


def written_ranges(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the ranges with their sets, the oldest first, from the log that would be elected.

    Safekeepers show the last fragments alone. Those of an earlier version show no sets."""
    known = [line for line in lines if line.get("history") and line.get("flush_lsn")]
    if not known:
        return []
    best = max(known, key=lambda line: (line["history"][-1]["term"], Lsn.parse(line["flush_lsn"])))
    found: list[dict[str, Any]] = []
    for each, after in zip_longest(best["history"], best["history"][1:]):
        if "members" not in each:
            continue
        names = {name: each[name] for name in ("generation", "members", "ack_quorum")}
        end_lsn = best["flush_lsn"] if after is None else after["start_lsn"]
        if found and {name: found[-1][name] for name in names} == names:
            found[-1]["end_lsn"] = end_lsn
        elif end_lsn != each["start_lsn"]:
            found.append({"begin_lsn": each["start_lsn"], "end_lsn": end_lsn, **names})
    return found


def written_at(document: dict[str, Any], lsn: Lsn) -> dict[str, Any] | None:
    """Return the range with this LSN, or None if no fragment that is known has it."""
    for each in document["written"]:
        if Lsn.parse(each["begin_lsn"]) <= lsn < Lsn.parse(each["end_lsn"]):
            found: dict[str, Any] = each
            return found
    return None


def shown_set(each: dict[str, Any]) -> str:
    """Return the set of a range, as a clause."""
    members = ", ".join(map(str, each["members"]))
    number = each["generation"]
    by = "" if number is None else f" in generation {number}"
    return f"written{by} to {members}, of which {each['ack_quorum']} acknowledged"


def range_lines(document: dict[str, Any]) -> list[str]:
    """Return a line for each range if their sets differ."""
    written = document["written"]
    if len(written) < 2:
        return []
    return [f"{each['begin_lsn']} to {each['end_lsn']}: {shown_set(each)}" for each in written]
