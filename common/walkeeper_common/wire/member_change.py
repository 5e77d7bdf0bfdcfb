"""A change of members: its messages, and which configuration follows which.

The members change in steps, each a configuration with the next generation. While it is *learning*,
the newcomers get WAL and are in no set. While it is *joint*, every election and commit needs a
quorum of the old and of the new set. When it is *final*, the new set is alone. The two may have any
sizes and ack quorums. A cancel makes the old set final again. The members of generation g decide
once what follows it, by single decree Paxos (PromiseMembers, AcceptMembers; quorums as in an
election and a commit). Only a decided configuration is installed (InstallMembers). docs/steps.md,
"Members change".

Pure. The messages share the port, the framing and the rules of `messages.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from walkeeper_common.history import Ballot, History
from walkeeper_common.lsn import LSN_MAX, ZERO_LSN, Lsn
from walkeeper_common.quorum import Configuration, MemberSet, member_id, replaced_set, spare_id
from walkeeper_common.wire.fields import Reader, Writer
from walkeeper_common.wire.named_log import NamedCluster, NamedMembers

GENERATION_JUMP_MAX = 1 << 16  # changes of members that one may miss


def joint_with(current: Configuration, target: MemberSet, address: str) -> Configuration:
    """Return the joint configuration that follows `current`: both sets decide.

    `current` may be joint itself. Then its target is given up for this one, and the old members
    stay one of the two sets.
    """
    following = replace(current, target=target, address=address, is_learning=False)
    return replace(following, generation=current.generation + 1)


def joint(current: Configuration, *, leaving: str, joining: str, address: str) -> Configuration:
    """Return what may follow `current`, with a newcomer that is to take one member's place."""
    target = replaced_set(current.present, leaving=leaving, joining=joining)
    return joint_with(current, target, address)


def learning_with(current: Configuration, target: MemberSet, address: str) -> Configuration:
    """Return what follows `current` while the newcomers of `target` are in no set (M2).

    The present set decides alone. A dead newcomer holds up nothing.
    """
    return replace(joint_with(current, target, address), is_learning=True)


def learning_late(current: Configuration, target: MemberSet, address: str) -> Configuration:
    """Return what follows `current` if the newcomers' logs begin at a term's start (M5)."""
    return replace(learning_with(current, target, address), begins_late=True)


def final(current: Configuration) -> Configuration:
    """Return what follows a joint configuration: the new set alone.

    A spare that has become a member is no spare any more."""
    assert current.target is not None and not current.is_learning, f"{current=}"
    ids = {member_id(member) for member in current.target.members}
    spares = tuple(spare for spare in current.spares if spare_id(spare) not in ids)
    following = replace(current.having(current.target), target=None)
    return replace(following, generation=current.generation + 1, spares=spares)


def cancelled(current: Configuration) -> Configuration:
    """Return the configuration that takes a change back: the old members are final again.

    It has no spares, so that no repair begins what an operator has taken back (M6)."""
    assert current.target is not None, f"{current=}"
    is_list = "@" in current.address  # else it is the newcomer's own
    plain = plain_addresses(current.address) if is_list else ()
    named = kept_addresses(current.address, current.members)
    address = ",".join(entry for entry in (*plain, named) if entry)
    following = replace(current, target=None, address=address, is_learning=False, spares=())
    return replace(following, generation=current.generation + 1)


def with_spares(current: Configuration, spares: tuple[str, ...]) -> Configuration:
    """Return what follows a final configuration with other spares, and the same members (M6)."""
    assert current.target is None, f"{current=}"
    return replace(current, generation=current.generation + 1, spares=spares)


def kept_addresses(address: str, members: Iterable[str]) -> str:
    """Return the entries that name one of these members by its id."""
    ids = {str(member_id(member)) for member in members}
    return ",".join(entry for entry in address.split(",") if entry.partition("@")[0] in ids)


def with_ids(current: Configuration, histories: Iterable[History]) -> str:
    """Return the addresses, with an id for the one that the first replacement has left without.

    That one is of the last newcomer. The histories tell it, unless they are folded."""
    entries = current.address.split(",")
    plain, owner = plain_addresses(current.address), _last_newcomer(current, histories)
    if owner is None or len(plain) != 1 or current.target is not None:
        return current.address
    named = f"{member_id(owner)}@{plain[0]}"
    return ",".join(named if entry == plain[0] else entry for entry in entries)


def _last_newcomer(current: Configuration, histories: Iterable[History]) -> str | None:
    """Return the present member that no earlier set had, or None if there is not one of them."""
    earlier = {
        members
        for history in histories
        for members in (fragment.members for fragment in history)
        if not set(current.members) <= set(members)
    }
    new = [m for m in current.members if earlier and not any(m in each for each in earlier)]
    return new[0] if len(new) == 1 else None


def plain_addresses(address: str) -> tuple[str, ...]:
    """Return the entries without an id: the first replacement of a log has made one.

    As long as its member is not known, no later change forgets the entry."""
    return tuple(entry for entry in address.split(",") if entry and "@" not in entry)


def is_successor(current: Configuration, following: Configuration) -> bool:
    """Return True if `following` may be the next after `current`, of which no flaw is known.

    Either the target changes and nothing else. Or a change that is under way ends, with the new set
    or with the old one. Or none is under way, and the spares change alone. Learners are in no set,
    so no set of them may become final (M2, M4).
    """
    target = following.target
    if target is not None:
        begin = joint_with
        if following.is_learning:
            begin = learning_late if following.begins_late else learning_with
        begun = begin(current, target, following.address)
        return following == begun
    if current.target is None:
        others = following.spares != current.spares
        return others and following == with_spares(current, following.spares)
    return following == cancelled(current) or (
        not current.is_learning and following == final(current)
    )


def may_follow(current: Configuration, later: Configuration) -> bool:
    """Return True if changes of members lead from `current` to `later`, of a greater generation.

    A configuration that was missed is not known, but how many there were is. A set becomes final
    one generation after it was a joint target. Anything else is forged, or the work of a flipped
    bit (R25).
    """
    steps = later.generation - current.generation
    if steps == 1:
        return is_successor(current, later)
    same = replace(
        current.having(later.present),
        generation=later.generation,
        target=later.target,
        address=later.address,
        is_learning=later.is_learning,
        spares=later.spares,
        begins_late=current.begins_late or later.begins_late,
    )
    if later.is_learning and later.target is None:
        return False
    needed = 1
    if later.present != current.present:
        was_target = later.present == current.target and not current.is_learning
        needed = (1 if was_target else 2) + (later.target is not None)
    return later == same and needed <= steps <= GENERATION_JUMP_MAX


def wiped_member(name: str, configuration: Configuration, history: History) -> str | None:
    """Return the member whose id this safekeeper has and whose log it lacks, or None.

    A wiped disk and an abandoned join look alike: both begin with a new incarnation."""
    if name in configuration.everyone or any(name in fragment.members for fragment in history):
        return None
    same = (each for each in configuration.everyone if member_id(each) == member_id(name))
    return next(same, None)


def replaced_text(name: str, configuration: Configuration, history: History) -> str | None:
    """Return what a safekeeper that is no member any more has to know, or None for another one.

    Its own history names it a member if it has followed a leader as one
    (scenarios/replaced_member_is_told_by_whom.txt); a newcomer that was given up is in none. The
    text deletes nothing before the members are well: a configuration may be forged (R25).
    """
    with_it = [fragment.members for fragment in history if name in fragment.members]
    if lost := wiped_member(name, configuration, history):
        number = member_id(name)
        return (
            f"safekeeper {name} came back with another incarnation: {lost} is the member "
            f"(generation {configuration.generation}). Its disk was wiped, or its join was given "
            "up; without the member's promises it does not vote. If the disk of that member is "
            f"lost, run `walkeeper replace --member {number} --with {number}@HOST:PORT`; else "
            "start the member with its own directory"
        )
    if name in configuration.everyone or (not with_it and configuration.generation == 1):
        return None
    newcomers = [m for m in configuration.members if with_it and m not in with_it[-1]]
    by = f"was replaced by {' and '.join(newcomers)}" if newcomers else "was removed"
    was = by if with_it else "was to become a member, and was given up"
    return (
        f"safekeeper {name} {was} (generation {configuration.generation}): it no longer votes. "
        "Once `walkeeper status` shows the members well, stop it and remove this log's directory; "
        "`walkeeper replace` can make it a new member"
    )


def shown_change(configuration: Configuration) -> str:
    """Return `3 by 4` if one takes another's place, or both sets, for people."""
    if configuration.is_replacing:
        return f"{member_id(configuration.leaving)} by {member_id(configuration.joining)}"
    return " to ".join(map(shown_set, (configuration.present, configuration.wanted)))


def shown_set(each: MemberSet) -> str:
    """Return `1, 2, 3 (ack quorum 2)`, with zones if there are some, for people."""
    shown = (
        f"{member_id(member)} in {each.zone_of(member)}"
        if each.zone_of(member)
        else str(member_id(member))
        for member in each.members
    )
    rule = f", of {each.ack_zones} zones" if each.ack_zones else ""
    return f"{', '.join(shown)} (ack quorum {each.ack_quorum}{rule})"


@dataclass(frozen=True, slots=True)
class MembersQuery(NamedCluster):
    """Ask a member for its configuration and its positions; change nothing."""

    TAG: ClassVar[int] = ord("m")


@dataclass(frozen=True, slots=True)
class PromiseMembers:
    """Paxos, phase 1: accept nothing of a smaller round for what follows this generation."""

    TAG: ClassVar[int] = ord("P")
    cluster: str
    log_uuid: bytes
    generation: int
    round: Ballot

    def pack(self, w: Writer) -> None:
        w.text(self.cluster)
        w.raw(self.log_uuid, 16)
        w.u64(self.generation)
        w.ballot(self.round)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(r.text(), r.raw(16), r.u64(), r.ballot())


@dataclass(frozen=True, slots=True)
class AcceptMembers:
    """Paxos, phase 2: this configuration shall follow the one before it."""

    TAG: ClassVar[int] = ord("n")
    cluster: str
    round: Ballot
    following: Configuration

    def pack(self, w: Writer) -> None:
        w.text(self.cluster)
        w.ballot(self.round)
        w.configuration(self.following)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(r.text(), r.ballot(), r.configuration())


@dataclass(frozen=True, slots=True)
class InstallMembers(NamedMembers):
    """This configuration was decided; also what a proposer tells a member that has missed it."""

    TAG: ClassVar[int] = ord("i")


@dataclass(frozen=True, slots=True)
class JoinLog:
    """Tell a prepared newcomer to start its log, empty, at base_lsn.

    WAL below base_lsn is committed, and `history` says which terms wrote it. If the log begins late
    (M5), members hold WAL from restart_lsn on, and the newcomer gets what lies below base_lsn from
    the addresses `donors`. Earlier versions know neither field.
    """

    TAG: ClassVar[int] = ord("j")
    cluster: str
    configuration: Configuration
    base_lsn: Lsn
    history: History
    restart_lsn: Lsn = ZERO_LSN
    donors: tuple[str, ...] = ()

    def pack(self, w: Writer) -> None:
        w.text(self.cluster)
        w.configuration(self.configuration)
        w.lsn(self.base_lsn)
        w.history(self.history)
        if self.restart_lsn:
            w.lsn(self.restart_lsn)
            w.text(",".join(self.donors))

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        begun = cls(r.text(), r.configuration(), r.lsn(), r.history())
        if not r.remaining:
            return begun
        restart_lsn, donors = r.lsn(), tuple(filter(None, r.text().split(",")))
        return replace(begun, restart_lsn=restart_lsn, donors=donors)


@dataclass(frozen=True, slots=True)
class MembersState:
    """The answer to all messages of a change of members but JoinLog.

    granted            the request was fulfilled: promised, accepted, installed
    round              promised to; `accepted` in `accepted_round`, if anything
    has_committed      a leader of this very configuration has committed the start of its term
    oldest_lsn         where its WAL begins; LSN_MAX of a safekeeper of a version that does not say
    whole_lsn          the end of the last whole record at or below restart_lsn, of committed WAL.
                       Zero means not known. Only in the answer to a MembersQuery, since an older
                       proposer, which does not know the field, reads the other answers
    """

    TAG: ClassVar[int] = ord("M")
    member: str
    granted: bool
    configuration: Configuration
    round: Ballot
    accepted_round: Ballot
    accepted: Configuration | None
    has_committed: bool
    flush_lsn: Lsn
    commit_lsn: Lsn
    restart_lsn: Lsn
    history: History
    oldest_lsn: Lsn = LSN_MAX
    whole_lsn: Lsn = ZERO_LSN

    def pack(self, w: Writer) -> None:
        w.text(self.member)
        w.boolean(self.granted)
        w.configuration(self.configuration)
        w.ballot(self.round)
        w.ballot(self.accepted_round)
        w.optional_configuration(self.accepted)
        w.boolean(self.has_committed)
        for lsn in (self.flush_lsn, self.commit_lsn, self.restart_lsn):
            w.lsn(lsn)
        w.history(self.history)
        w.lsn(self.oldest_lsn)
        if self.whole_lsn:
            w.lsn(self.whole_lsn)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(
            r.text(),
            r.boolean(),
            r.configuration(),
            r.ballot(),
            r.ballot(),
            r.optional_configuration(),
            r.boolean(),
            r.lsn(),
            r.lsn(),
            r.lsn(),
            r.history(),
            r.lsn() if r.remaining else LSN_MAX,
            r.lsn() if r.remaining else ZERO_LSN,
        )
