"""The member at an address that does not answer, and since when it is away. Pure.

    name_silent(lines, cluster)     fills `expected_id` and `away_since`

The leading proposer reports the members without an answer, with their addresses. An operator may
write an address in another way. Then the id follows if only one member and one address are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from walkeeper_common.quorum import member_id


def name_silent(lines: Sequence[dict[str, Any]], cluster: dict[str, Any]) -> None:
    """Fill `expected_id` of each line without an answer, and `away_since` of each line.

    A reported absence is of a member, so an address that no member has gets no id."""
    away = cluster.get("away")
    reported = {each["address"]: each for each in away or ()}
    for line in lines:
        found = reported.get(line["address"])
        line["expected_id"] = None if line["reachable"] or found is None else found["id"]
        line["away_since"] = found["since"] if found else None
    _name_last(lines, cluster, away)
    by_id = {each["id"]: each["since"] for each in away or () if each["id"] is not None}
    for line in lines:
        number = line["id"] if line["reachable"] else line["expected_id"]
        line["away_since"] = line["away_since"] or by_id.get(number)


def _name_last(
    lines: Sequence[dict[str, Any]], cluster: dict[str, Any], away: Sequence[dict[str, Any]] | None
) -> None:
    """Give the only member without an address to the only address without a member."""
    silent = [line for line in lines if not line["reachable"] and line["expected_id"] is None]
    seen = {line["id"] if line["reachable"] else line["expected_id"] for line in lines}
    left = {member_id(member) for member in cluster["members"]} - seen
    if len(silent) != 1 or len(left) != 1:
        return
    (number,) = left
    if away is None or any(each["id"] in (number, None) for each in away):
        silent[0]["expected_id"] = number
