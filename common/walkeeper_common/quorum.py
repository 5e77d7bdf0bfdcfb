"""The members of a log, the quorums that elect and commit, and the LSN that they make. Pure.

Flexible Paxos (Howard 2016): a vote quorum and an ack quorum need to intersect, not each to be a
majority. BookKeeper says the same as (Qw - Qa) + 1. A vote quorum of n/2 or less elects safely
only because ballots are pairs that no two proposers share (docs/protocol.md R19). With an ack rule
that counts zones, the votes that elect are again those that no ack set avoids.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from walkeeper_common.lsn import Lsn

MEMBERS_MAX = 32
GENERATION_MAX = 2**32 - 1  # votes and appends have room for no more
SERVER_VERSION = re.compile(r"[0-9].{0,255}")
MEMBER = re.compile(r"[0-9]{1,20}#[0-9a-f]{1,64}")
SPARE = re.compile(r"[0-9]{1,20}@[!-+\--?A-~]{1,300}")  # no comma, no second @
ZONE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
IN_ZONE = "/zone="  # between an address and a zone's label


class LogKind(Enum):
    """The kind of the bytes: PostgreSQL's WAL, or a logical decoding stream."""

    PHYSICAL = 1
    LOGICAL = 2


@dataclass(frozen=True, slots=True)
class MemberSet:
    """Members that elect and commit among themselves, of any number and with any ack quorum.

    `zones` has a label for each member, or is empty. An empty label means no known zone. With
    `ack_zones`, of 2 or more, an ack quorum also has members of that many zones.
    """

    members: tuple[str, ...]
    ack_quorum: int
    ack_zones: int = 0
    zones: tuple[str, ...] = ()

    @property
    def vote_quorum(self) -> int:
        """The number of votes that elect, whichever they are: each ack quorum has one of them."""
        return len(self.members) - self.ack_quorum + 1

    @property
    def voters_min(self) -> int:
        """The least number of votes with which an election can be won.

        With zones, the votes of all members outside the largest zones may do."""
        if not self.ack_zones:
            return self.vote_quorum
        sizes = sorted((self.zones.count(zone) for zone in set(self.zones)), reverse=True)
        return min(self.vote_quorum, len(self.members) - sum(sizes[: self.ack_zones - 1]))

    @property
    def holders_min(self) -> int:
        """The least number of members with which WAL can be committed."""
        return max(self.ack_quorum, self.ack_zones)

    def elects(self, names: Collection[str | None]) -> bool:
        """Return True if these votes are a vote quorum: the others are no ack quorum."""
        return not self.commits([m for m in self.members if m not in names])

    def commits(self, names: Collection[str | None]) -> bool:
        """Return True if these members are an ack quorum of this set."""
        if sum(m in names for m in self.members) < self.ack_quorum:
            return False
        return len(self.zones_of(names)) >= self.ack_zones

    def acknowledged(self, flush_lsns: Sequence[Lsn]) -> Lsn:
        """Return the greatest LSN that an ack quorum has; the LSNs are in the members' order."""
        lsn = acknowledged_lsn(flush_lsns, self.ack_quorum)
        if not self.ack_zones:
            return lsn
        farthest: dict[str, Lsn] = {}
        for zone, reached in zip(self.zones, flush_lsns, strict=True):
            farthest[zone] = max(reached, farthest.get(zone, reached))
        return min(lsn, acknowledged_lsn(farthest.values(), self.ack_zones))

    def zone_of(self, member: str) -> str:
        """Return the member's zone, or an empty label."""
        return self.zones[self.members.index(member)] if self.zones else ""

    def zones_of(self, names: Collection[str | None]) -> set[str]:
        """Return the labels of the named members that have a label."""
        return {self.zone_of(m) for m in self.members if m in names} - {""}


@dataclass(frozen=True, slots=True)
class Configuration:
    """The record that `walkeeper create` makes durable, identical, on every member (R17).

    `members` are `id#incarnation` in the order of their ids. A member that lost its disk comes back
    with another incarnation, and so is not a member any more. `creation_lsn` is the start of a
    segment. `server_version` is the primary's own text, served to PostgreSQL clients.

    While the members change, `target` is the set that is to follow. Then every election and every
    commit needs a quorum of both sets, each by its own numbers (M1). With `is_learning` the
    newcomers of the target get WAL, and the present set decides alone (M2). `address` is where
    members that joined since the creation listen, for proposers that were started without them: see
    `joined_addresses`. `spares` are ID@HOST:PORT of safekeepers that may take the place of a silent
    member (M6), the first one first. With `begins_late` a member's log may begin after WAL that
    others hold (M5). It stays set, so that no earlier version decides on such members.
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
    target: MemberSet | None = None
    address: str = ""
    is_learning: bool = False
    spares: tuple[str, ...] = ()
    begins_late: bool = False
    ack_zones: int = 0
    zones: tuple[str, ...] = ()

    @property
    def present(self) -> MemberSet:
        """The set that decides what follows this configuration."""
        return MemberSet(self.members, self.ack_quorum, self.ack_zones, self.zones)

    def having(self, present: MemberSet) -> Configuration:
        """Return this configuration with another present set, and all else as it is."""
        return replace(
            self,
            members=present.members,
            ack_quorum=present.ack_quorum,
            ack_zones=present.ack_zones,
            zones=present.zones,
        )

    @property
    def named_generation(self) -> int:
        """The generation that a fragment names, or 0 while earlier versions may read the log."""
        return self.generation if self.begins_late else 0

    @property
    def uses_zones(self) -> bool:
        """Return True if a member of a set, or a spare, has a zone."""
        has_label = bool(self.zones or self.wanted.zones)
        return has_label or any(map(spare_zone, self.spares))

    @property
    def sets(self) -> tuple[MemberSet, ...]:
        """The sets whose quorums are needed: one, or two while the members are joint."""
        if self.target is None or self.is_learning:
            return (self.present,)
        return (self.present, self.target)

    @property
    def wanted(self) -> MemberSet:
        """The set that a change under way leads to, or the present one."""
        return self.target or self.present

    @property
    def newcomers(self) -> tuple[str, ...]:
        """The members of the target that are none yet."""
        return tuple(m for m in self.wanted.members if m not in self.members)

    @property
    def learners(self) -> tuple[str, ...]:
        """The newcomers that get WAL and are in no set yet (M2)."""
        return self.newcomers if self.is_learning else ()

    @property
    def leavers(self) -> tuple[str, ...]:
        """The members that the target lacks."""
        return tuple(m for m in self.members if m not in self.wanted.members)

    @property
    def is_replacing(self) -> bool:
        """Return True if the change is that one newcomer takes the place of one member."""
        target, present = self.target, self.present
        if target is None or not len(self.newcomers) == len(self.leavers) == 1:
            return False
        if (target.ack_quorum, target.ack_zones) != (present.ack_quorum, present.ack_zones):
            return False
        staying = [member for member in present.members if member in target.members]
        return all(target.zone_of(member) == present.zone_of(member) for member in staying)

    @property
    def leaving(self) -> str:
        """The member whose place a newcomer takes, or an empty name for any other change."""
        return self.leavers[0] if self.is_replacing else ""

    @property
    def joining(self) -> str:
        """The newcomer that takes one member's place, or an empty name for any other change."""
        return self.newcomers[0] if self.is_replacing else ""

    @property
    def everyone(self) -> tuple[str, ...]:
        """All members and learners, each once: they get WAL, vote and acknowledge."""
        return (*self.members, *self.newcomers)

    def elects(self, names: Collection[str | None]) -> bool:
        """Return True if these votes elect: a vote quorum of every set."""
        return all(each.elects(names) for each in self.sets)

    def commits(self, names: Collection[str | None]) -> bool:
        """Return True if WAL that these members have is committed: an ack quorum of every set."""
        return all(each.commits(names) for each in self.sets)

    @property
    def vote_quorum(self) -> int:
        """The number of the present members' votes that elect."""
        return self.present.vote_quorum

    @property
    def voters_min(self) -> int:
        """The least number of votes with which an election can be won."""
        return max(each.voters_min for each in self.sets)

    @property
    def holders_min(self) -> int:
        """The least number of members with which WAL can be committed."""
        return max(each.holders_min for each in self.sets)


def flaw_of(configuration: Configuration) -> str | None:
    """Return why no log can have this configuration, or None.

    A program that receives a configuration from a peer calls this first. The rest relies on it:
    quorums that intersect, numbers that fit into messages, a version that clients can parse.
    """
    for each in (configuration.present, configuration.wanted):
        flaw = flaw_of_set(each)
        if flaw is not None:
            return flaw
    if not 1 <= configuration.generation <= GENERATION_MAX:
        return f"there is no generation {configuration.generation} of members"
    if not SERVER_VERSION.fullmatch(configuration.server_version):
        return f"{configuration.server_version[:60]!r} is no version of PostgreSQL"
    if configuration.target == configuration.present:
        return "the members would stay as they are"
    if configuration.is_learning and not configuration.newcomers:
        return "no newcomer has to learn"
    if len(configuration.everyone) > MEMBERS_MAX:
        return f"more than {MEMBERS_MAX} members, with those that are to leave, are impossible"
    return _flaw_of_spares(configuration.spares)


def _flaw_of_spares(spares: tuple[str, ...]) -> str | None:
    if len(spares) > MEMBERS_MAX:
        return f"more than {MEMBERS_MAX} spares are impossible"
    if not all(SPARE.fullmatch(spare) for spare in spares):
        return "a spare is not named ID@HOST:PORT"
    if not all(ZONE.fullmatch(spare.partition(IN_ZONE)[2]) for spare in spares if IN_ZONE in spare):
        return "a spare's zone is not named with letters, digits, points, dashes and underscores"
    if len({spare_id(spare) for spare in spares}) != len(spares):
        return f"two of the spares {', '.join(spares)} have the same id"
    return None


def flaw_of_set(each: MemberSet) -> str | None:
    """Return why no log can have this set, or None."""
    members, quorum = each.members, each.ack_quorum
    if len(set(members)) != len(members) or not 1 <= quorum <= len(members):
        return f"an ack quorum of {quorum} of {len(members)} members is impossible"
    if not all(MEMBER.fullmatch(member) for member in members):
        return "a member is not named id#incarnation"
    if len({member_id(member) for member in members}) != len(members):
        return f"two of the members {', '.join(members)} have the same id"
    return _flaw_of_zones(each)


def _flaw_of_zones(each: MemberSet) -> str | None:
    zones, ack_zones = each.zones, each.ack_zones
    if zones and (len(zones) != len(each.members) or not any(zones)):
        return "the zones are not those of the members"
    if not all(ZONE.fullmatch(zone) for zone in zones if zone):
        return "a zone is not named with letters, digits, points, dashes and underscores"
    if not ack_zones:
        return None
    known = sorted(set(zones))
    unknown = [str(member_id(m)) for m in each.members if not each.zone_of(m)]
    if unknown:
        return f"acknowledgements from {ack_zones} zones need a zone of safekeeper {unknown[0]}"
    if not 2 <= ack_zones <= len(known):
        return f"acknowledgements from {ack_zones} of the zones {', '.join(known)} are impossible"
    return None


def member_set(zones: Mapping[str, str], *, ack_quorum: int, ack_zones: int = 0) -> MemberSet:
    """Return the set of these members, with their zones, in the order of the ids."""
    members = tuple(sorted(zones, key=member_id))
    labels = tuple(zones[member] for member in members)
    return MemberSet(members, ack_quorum, ack_zones, labels if any(labels) else ())


def replaced_set(present: MemberSet, *, leaving: str, joining: str, zone: str = "") -> MemberSet:
    """Return the set in which one member takes another's place, in the order of the ids."""
    zones = {m: present.zone_of(m) for m in present.members if m != leaving}
    zones[joining] = zone
    return member_set(zones, ack_quorum=present.ack_quorum, ack_zones=present.ack_zones)


def is_plain_replacement(configuration: Configuration) -> bool:
    """Return True if `leaving` and `joining` say all of the change, as in older versions."""
    if not configuration.is_replacing:
        return False
    leaving, joining = configuration.leaving, configuration.joining
    named = replaced_set(configuration.present, leaving=leaving, joining=joining)
    return configuration.target == named and not configuration.uses_zones


def joined_entries(configuration: Configuration) -> tuple[tuple[str, str], ...]:
    """Return id, or an empty text, and address of those that joined and have not left again.

    `address` lists them as H:P or ID@H:P. An entry stays there when its member leaves.
    """
    ids = {str(member_id(member)) for member in configuration.everyone}
    entries = (entry.rpartition("@") for entry in configuration.address.split(",") if entry)
    return tuple((number, at) for number, _, at in entries if not number or number in ids)


def joined_addresses(configuration: Configuration) -> tuple[str, ...]:
    """Return the addresses alone of `joined_entries`."""
    return tuple(where for _, where in joined_entries(configuration))


def majority(members: int) -> int:
    """Return the default ack quorum of a set with so many members."""
    return members // 2 + 1


def member_id(member: str) -> int:
    """Return the safekeeper's id in `id#incarnation`."""
    return int(member.partition("#")[0])


def spare_id(spare: str) -> int:
    """Return the safekeeper's id in `id@host:port`."""
    return int(spare.partition("@")[0])


def spare_address(spare: str) -> str:
    """Return `host:port` in `id@host:port` or `id@host:port/zone=label`."""
    return spare.partition("@")[2].partition(IN_ZONE)[0]


def spare_zone(spare: str) -> str:
    """Return the label in `id@host:port/zone=label`, or an empty one."""
    return spare.partition(IN_ZONE)[2]


def shown_spare(number: int, address: str, zone: str) -> str:
    """Return `id@host:port`, with `/zone=label` if it has one."""
    return f"{number}@{address}{IN_ZONE + zone if zone else ''}"


def member_name(acceptor_id: int, incarnation: bytes) -> str:
    """Return `id#incarnation`, as fragments and configurations name a member."""
    return f"{acceptor_id}#{incarnation.hex()}"


def acknowledged_lsn(flush_lsns: Iterable[Lsn], ack_quorum: int) -> Lsn:
    """Return the greatest LSN that `ack_quorum` of these, one for each member, have reached."""
    ascending = sorted(flush_lsns)
    return ascending[len(ascending) - ack_quorum]
