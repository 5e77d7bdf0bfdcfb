"""The members that are not attached, and since when. Pure.

ids.learn(members)          the ids of members that have greeted
away.observe(members, now)  the members without an answer now, for the report
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from walkeeper_common.wire.members_report import AWAY_MAX, AwayMember


@dataclass(frozen=True, slots=True)
class MemberView:
    """One safekeeper as the leader has it. `acceptor_id` is None until it has greeted."""

    address: str
    acceptor_id: int | None
    attached: bool


class MemberIds:
    """The ids by address. A member that is lost forgets its greeting, and this does not."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def learn(self, members: Sequence[MemberView]) -> None:
        """Keep the ids of these members."""
        self._ids |= {each.address: each.acceptor_id for each in members if each.acceptor_id}

    def of(self, address: str) -> int | None:
        """Return the id of the safekeeper that greeted last at this address, or None."""
        return self._ids.get(address)


class AwayMembers:
    """Remember since when each address has no attached member, also across terms."""

    def __init__(self) -> None:
        self._ids, self._since = MemberIds(), dict[str, int]()

    def observe(self, members: Sequence[MemberView], now: int) -> tuple[AwayMember, ...]:
        """Return the members that are not attached. `now` is Unix time.

        A member that was away before this process began is away since its first look."""
        self._ids.learn(members)
        away = [each.address for each in members if not each.attached]
        self._since = {address: self._since.get(address, now) for address in away}
        return tuple(
            AwayMember(self._ids.of(address) or 0, address, since)
            for address, since in list(self._since.items())[:AWAY_MAX]
        )
