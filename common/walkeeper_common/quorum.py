"""Who keeps the log, how many must have a byte before it counts, and which LSN that makes. Pure.

Flexible Paxos (Howard 2016): a vote quorum and an ack quorum need to intersect, not each to be a
majority. BookKeeper says the same as (Qw - Qa) + 1. A vote quorum of n/2 or less elects safely
only because ballots are pairs that no two proposers share (docs/protocol.md R19).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from walkeeper_common.lsn import Lsn

MEMBERS_MAX = 32
GENERATION_MAX = 2**32 - 1  # what votes and appends have room for
SERVER_VERSION = re.compile(r"[0-9].{0,255}")
MEMBER = re.compile(r"[0-9]{1,20}#[0-9a-f]{1,64}")


class LogKind(Enum):
    """What the bytes are: PostgreSQL's WAL, or a logical decoding stream (a later issue)."""

    PHYSICAL = 1
    LOGICAL = 2


@dataclass(frozen=True, slots=True)
class Configuration:
    """The record that `walkeeper create` makes durable, identical, on every member (R17).

    `members` are `id#incarnation` in the order of their ids; a member that lost its disk comes
    back with another incarnation and so is not a member any more. `creation_lsn` is the start of
    a segment. `server_version` is the primary's own text, served to PostgreSQL clients.

    While a member is replaced, `leaving` is still one of `members` and `joining` is to take its
    place; then every election and every commit needs a quorum of both sets. `address` is where
    the member that joined last listens, for proposers that were started without it.
    """

    generation: int
    log_uuid: bytes
    system_id: int
    segment_bytes: int
    server_version: str
    kind: LogKind
    creation_lsn: Lsn
    timeline: int
    members: tuple[str, ...]
    ack_quorum: int
    leaving: str = ""
    joining: str = ""
    address: str = ""

    @property
    def member_sets(self) -> tuple[tuple[str, ...], ...]:
        """Whose quorums are needed: of the members; during a replacement of the new ones, too."""
        if not self.joining:
            return (self.members,)
        changed = (self.joining if m == self.leaving else m for m in self.members)
        return (self.members, tuple(sorted(changed, key=member_id)))

    @property
    def everyone(self) -> tuple[str, ...]:
        """Whoever may vote and acknowledge, each once."""
        return (*self.members, self.joining) if self.joining else self.members

    def elects(self, names: Collection[str | None]) -> bool:
        """Whether these votes elect: a vote quorum of every set."""
        return self._has(self.vote_quorum, names)

    def commits(self, names: Collection[str | None]) -> bool:
        """Whether what these have is committed: an ack quorum of every set."""
        return self._has(self.ack_quorum, names)

    def _has(self, quorum: int, names: Collection[str | None]) -> bool:
        return all(sum(m in names for m in members) >= quorum for members in self.member_sets)

    @property
    def vote_quorum(self) -> int:
        """How many votes elect: every ack quorum has one of them in it."""
        return len(self.members) - self.ack_quorum + 1


def flaw_of(configuration: Configuration) -> str | None:
    """Why no log can have this configuration, or None; whoever gets one from a peer asks first.

    The rest counts on it: quorums that intersect, numbers that messages have room for, a version
    that clients can be told.
    """
    members, quorum = configuration.members, configuration.ack_quorum
    if len(set(members)) != len(members) or not 1 <= quorum <= len(members):
        return f"an ack quorum of {quorum} of {len(members)} members is impossible"
    if not all(MEMBER.fullmatch(member) for member in members):
        return "a member is not named id#incarnation"
    if not 1 <= configuration.generation <= GENERATION_MAX:
        return f"there is no generation {configuration.generation} of members"
    if not SERVER_VERSION.fullmatch(configuration.server_version):
        return f"{configuration.server_version[:60]!r} is no version of PostgreSQL"
    return _flaw_of_change(configuration)


def _flaw_of_change(configuration: Configuration) -> str | None:
    members, leaving, joining = configuration.members, configuration.leaving, configuration.joining
    if not leaving and not joining:
        return None
    if leaving not in members or joining in members or not MEMBER.fullmatch(joining):
        return f"{leaving!r} cannot be replaced by {joining!r} among {', '.join(members)}"
    staying = {member_id(member) for member in members if member != leaving}
    if member_id(joining) in staying:
        return f"{joining} would be a second member with that id"
    return None


def majority(members: int) -> int:
    """The default ack quorum."""
    return members // 2 + 1


def member_id(member: str) -> int:
    """The safekeeper's id in `id#incarnation`."""
    return int(member.partition("#")[0])


def member_name(acceptor_id: int, incarnation: bytes) -> str:
    """`id#incarnation`, as fragments and configurations name a member."""
    return f"{acceptor_id}#{incarnation.hex()}"


def acknowledged_lsn(flush_lsns: Iterable[Lsn], ack_quorum: int) -> Lsn:
    """The greatest LSN that `ack_quorum` of these are at or beyond; one value for every member."""
    ascending = sorted(flush_lsns)
    return ascending[len(ascending) - ack_quorum]
