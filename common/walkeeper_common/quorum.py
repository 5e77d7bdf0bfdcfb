"""The members of a log, the quorums that elect and commit, and the LSN that they make. Pure.

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
GENERATION_MAX = 2**32 - 1  # votes and appends have room for no more
SERVER_VERSION = re.compile(r"[0-9].{0,255}")
MEMBER = re.compile(r"[0-9]{1,20}#[0-9a-f]{1,64}")


class LogKind(Enum):
    """The kind of the bytes: PostgreSQL's WAL, or a logical decoding stream."""

    PHYSICAL = 1
    LOGICAL = 2


@dataclass(frozen=True, slots=True)
class Configuration:
    """The record that `walkeeper create` makes durable, identical, on every member (R17).

    `members` are `id#incarnation` in the order of their ids. A member that lost its disk comes back
    with another incarnation, and so is not a member any more. `creation_lsn` is the start of a
    segment. `server_version` is the primary's own text, served to PostgreSQL clients.

    While a member is replaced, `leaving` is still one of `members`, and `joining` is to take its
    place. Then every election and every commit needs a quorum of both sets. `address` is where the
    member that joined last listens, for proposers that were started without it.
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
        """The sets whose quorums are needed: the members and, in a replacement, the new ones."""
        if not self.joining:
            return (self.members,)
        changed = (self.joining if m == self.leaving else m for m in self.members)
        return (self.members, tuple(sorted(changed, key=member_id)))

    @property
    def everyone(self) -> tuple[str, ...]:
        """All members that may vote and acknowledge, each once."""
        return (*self.members, self.joining) if self.joining else self.members

    def elects(self, names: Collection[str | None]) -> bool:
        """Return True if these votes elect: a vote quorum of every set."""
        return self._has(self.vote_quorum, names)

    def commits(self, names: Collection[str | None]) -> bool:
        """Return True if WAL that these members have is committed: an ack quorum of every set."""
        return self._has(self.ack_quorum, names)

    def _has(self, quorum: int, names: Collection[str | None]) -> bool:
        return all(sum(m in names for m in members) >= quorum for members in self.member_sets)

    @property
    def vote_quorum(self) -> int:
        """The number of votes that elect: every ack quorum has one of them in it."""
        return len(self.members) - self.ack_quorum + 1


def flaw_of(configuration: Configuration) -> str | None:
    """Return why no log can have this configuration, or None.

    A program that receives a configuration from a peer calls this first. The rest relies on it:
    quorums that intersect, numbers that fit into messages, a version that clients can parse.
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
    """Return the default ack quorum."""
    return members // 2 + 1


def member_id(member: str) -> int:
    """Return the safekeeper's id in `id#incarnation`."""
    return int(member.partition("#")[0])


def member_name(acceptor_id: int, incarnation: bytes) -> str:
    """Return `id#incarnation`, as fragments and configurations name a member."""
    return f"{acceptor_id}#{incarnation.hex()}"


def acknowledged_lsn(flush_lsns: Iterable[Lsn], ack_quorum: int) -> Lsn:
    """Return the greatest LSN that `ack_quorum` of these, one for each member, have reached."""
    ascending = sorted(flush_lsns)
    return ascending[len(ascending) - ack_quorum]
