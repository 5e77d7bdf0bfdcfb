"""The roles that may send each message and each command. Pure; the only table of this kind.

    may_send        whether an identity may send a kind of message, by its tag
    may_reach       whether an identity may name a cluster
    may_perform     whether an identity may run a command of a PostgreSQL client
    table_lines     the table as docs/access.md has it

The role of a connection is fixed before its first message. A session asks once for its tags, so WAL
on the fast path costs no question. A kind without an entry is refused, and fails a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from walkeeper_common.access.identity import Identity, Role
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.postgres.replication_commands import (
    AlterSlot,
    BeginCopy,
    Command,
    CreateLogicalSlot,
    CreateSlot,
    DropSlot,
    IdentifySystem,
    PrimaryOnly,
    ReadSlot,
    Show,
    SqlCommand,
    StartLogical,
    StartReplication,
    TimelineHistory,
)
from walkeeper_common.wire.consumer_slots import ConsumerSlots, TablesQuery
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.log_removal import DropLog
from walkeeper_common.wire.member_change import (
    AcceptMembers,
    InstallMembers,
    JoinLog,
    MembersQuery,
    MembersState,
    PromiseMembers,
)
from walkeeper_common.wire.members_report import MembersReport
from walkeeper_common.wire.messages import (
    AcceptorGreeting,
    AppendRequest,
    AppendResponse,
    ProposerElected,
    ProposerGreeting,
    Reject,
    VoteRequest,
    VoteResponse,
)
from walkeeper_common.wire.primary_report import PrimaryReport
from walkeeper_common.wire.range_digest import DigestQuery, RangeDigest
from walkeeper_common.wire.requests import (
    ConfigureLog,
    LogQuery,
    LogState,
    PrepareLog,
    ReadRequest,
    ReadResponse,
    StatusRequest,
    StatusResponse,
)
from walkeeper_common.wire.shared_slots import SharedSlots
from walkeeper_common.wire.timeline_reservation import ReserveTimeline, TimelineReserved

_ADMIN = frozenset((Role.ADMIN,))
_LEADERS = _ADMIN | {Role.PROPOSER}
_PEERS = _LEADERS | {Role.SAFEKEEPER}
_READERS = _PEERS | {Role.RESTORE, Role.PAGER}
_STREAMS = _ADMIN | {Role.REPLICA}
_ALL = frozenset(Role)
_NOBODY: frozenset[Role] = frozenset()  # a safekeeper's own answers

MESSAGES: Mapping[type[Message], frozenset[Role]] = {
    # Consensus
    ProposerGreeting: _READERS,
    VoteRequest: _LEADERS,
    ProposerElected: _LEADERS,
    AppendRequest: _LEADERS,
    ReadRequest: _READERS,
    PrimaryReport: _LEADERS,
    MembersReport: _LEADERS,
    SharedSlots: _LEADERS,  # and a safekeeper's own answer
    # Members: an elected proposer replaces a silent member by a spare (M6)
    MembersQuery: _PEERS,
    PromiseMembers: _LEADERS,
    AcceptMembers: _LEADERS,
    InstallMembers: _LEADERS,
    # Creation
    PrepareLog: _LEADERS,
    ConfigureLog: _ADMIN,
    JoinLog: _LEADERS,
    ReserveTimeline: _ADMIN,
    DropLog: _ADMIN,
    # Questions
    DigestQuery: _PEERS,
    LogQuery: _READERS | {Role.MONITOR},
    StatusRequest: _READERS | {Role.MONITOR},
    # Answers
    AcceptorGreeting: _NOBODY,
    VoteResponse: _NOBODY,
    AppendResponse: _NOBODY,
    ReadResponse: _NOBODY,
    Reject: _NOBODY,
    LogState: _NOBODY,
    StatusResponse: _NOBODY,
    ConsumerSlots: _NOBODY,
    TablesQuery: _NOBODY,
    MembersState: _NOBODY,
    RangeDigest: _NOBODY,
    TimelineReserved: _NOBODY,
}

COMMANDS: Mapping[type[Command], frozenset[Role]] = {
    IdentifySystem: _ALL,
    Show: _ALL,
    SqlCommand: _ALL,  # it answers tools that ask for settings
    BeginCopy: _STREAMS,  # a connection to the primary, which is not for every client
    PrimaryOnly: _ALL,  # refused with advice
    TimelineHistory: _STREAMS | {Role.PAGER, Role.RESTORE},
    ReadSlot: _STREAMS | {Role.MONITOR},
    StartReplication: _STREAMS | {Role.PAGER, Role.RESTORE},
    StartLogical: _STREAMS,
    CreateSlot: _STREAMS,
    CreateLogicalSlot: _STREAMS,
    AlterSlot: _STREAMS,
    DropSlot: _STREAMS,
}

_KINDS: Mapping[int, type[Message]] = {kind.TAG: kind for kind in MESSAGES}


def is_known(tag: int) -> bool:
    """Return whether this version has a message with this tag."""
    return tag in _KINDS


def kind_name(tag: int) -> str:
    """Return the name of a kind of message, for texts."""
    kind = _KINDS.get(tag)
    return kind.__name__ if kind is not None else f"message {tag:#04x}"


def tags_of(identity: Identity) -> frozenset[int]:
    """Return the tags of the messages that this identity may send."""
    return frozenset(kind.TAG for kind, roles in MESSAGES.items() if roles & identity.roles)


def may_send(identity: Identity, tag: int) -> bool:
    """Return whether this identity may send this kind of message."""
    kind = _KINDS.get(tag)
    return kind is not None and bool(MESSAGES[kind] & identity.roles)


def may_read(identity: Identity, read: ReadRequest) -> bool:
    """Return whether this identity may read: all readers see committed WAL, leaders all of it."""
    return read.ballot == NO_BALLOT or bool(identity.roles & _PEERS)


def may_reach(identity: Identity, cluster: str) -> bool:
    """Return whether this identity may name this cluster."""
    return identity.clusters is None or cluster in identity.clusters


def may_perform(identity: Identity, command: Command) -> bool:
    """Return whether this identity may run this command, with the slot that it names."""
    roles = COMMANDS.get(type(command), _NOBODY) & identity.roles
    if not roles:
        return False
    match command:
        case CreateSlot() | CreateLogicalSlot() | AlterSlot() | DropSlot() | StartLogical():
            return _owns(identity, command.slot)
        case StartReplication(slot) if slot is not None:
            return bool(roles & _STREAMS) and _owns(identity, slot)
        case _:
            return True


def _owns(identity: Identity, slot: str) -> bool:
    """Return whether the slot has this identity's name, or begins with it and `_`."""
    if Role.ADMIN in identity.roles:
        return True
    return slot == identity.name or slot.startswith(f"{identity.name}_")


def table_lines() -> Iterator[str]:
    """Yield the rows of the table in docs/access.md."""
    for kind, roles in MESSAGES.items():
        if roles:
            yield _line(f"`{kind.__name__}`", roles)
    for command, roles in COMMANDS.items():
        yield _line(f"{command.__name__} (PostgreSQL)", roles)


def _line(name: str, roles: frozenset[Role]) -> str:
    shown = "all" if roles == _ALL else ", ".join(role for role in Role if role in roles)
    return f"| {name} | {shown} |"
