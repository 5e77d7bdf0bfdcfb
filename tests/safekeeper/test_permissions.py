"""One table says which role may send what, and it has no gap."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tests.safekeeper.test_proposer_session import GREETING, Peer, session_of
from walkeeper_common.access.identity import ANYBODY, Identity, Role
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.history import NO_BALLOT, Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.replication_commands import (
    BEGIN_COPY,
    Command,
    CreateSlot,
    DropSlot,
    IdentifySystem,
    SqlCommand,
    StartLogical,
    StartReplication,
    parse_command,
)
from walkeeper_common.wire import framing
from walkeeper_common.wire.framing import FRAME_HEAD
from walkeeper_common.wire.messages import AppendRequest, Reject, VoteRequest
from walkeeper_common.wire.requests import LogQuery, PrepareLog, ReadRequest, StatusRequest
from walkeeper_safekeeper.connections import permissions
from walkeeper_safekeeper.connections.permissions import (
    COMMANDS,
    MESSAGES,
    may_perform,
    may_send,
    tags_of,
)

ROOT = Path(__file__).resolve().parents[2]
READ = ReadRequest(NO_BALLOT, Lsn(0), 1)
PINNED = ReadRequest(Ballot(1, bytes(16)), Lsn(0), 1)


def one(role: Role, *clusters: str, name: str = "peer") -> Identity:
    return Identity(name, frozenset((role,)), frozenset(clusters or ("main",)), None, "certificate")


def test_each_message_and_each_command_has_an_entry() -> None:
    kinds = {*framing._FIELDED.values(), *framing._LAID_OUT.values()}
    assert set(MESSAGES) == kinds
    assert set(COMMANDS) == set(get_args(Command))


def test_the_document_has_the_table() -> None:
    lines = (ROOT / "docs/access.md").read_text().splitlines()
    missing = [line for line in permissions.table_lines() if line not in lines]
    assert not missing, "\n".join(missing)


def test_the_security_notes_say_what_each_role_can_do() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert [role for role in Role if f"\n| {role} |" not in text] == []


def test_an_unknown_peer_of_an_open_daemon_may_do_all_that_a_peer_sends() -> None:
    sent = {kind for kind, roles in MESSAGES.items() if roles}
    assert {kind for kind in MESSAGES if may_send(ANYBODY, kind.TAG)} == sent
    assert not may_send(ANYBODY, 0) and not may_send(ANYBODY, 255)


CHANGES = (
    *("VoteRequest", "ProposerElected", "AppendRequest"),
    *("PrepareLog", "PromiseMembers", "AcceptMembers", "InstallMembers", "JoinLog"),
)


def test_creation_is_the_administrators() -> None:
    for kind in ("ConfigureLog", "ReserveTimeline", "DropLog"):
        (roles,) = (roles for k, roles in MESSAGES.items() if k.__name__ == kind)
        assert roles == {Role.ADMIN}, kind


@pytest.mark.parametrize("role", Role)
def test_only_a_proposer_and_an_administrator_change_the_log(role: Role) -> None:
    """Votes, elections, appends and members, need one of two roles."""
    for kind in MESSAGES:
        if kind.__name__ in CHANGES:
            assert may_send(one(role), kind.TAG) is (role in (Role.PROPOSER, Role.ADMIN))
    assert len(tags_of(one(role))) == sum(may_send(one(role), kind.TAG) for kind in MESSAGES)


def test_a_replica_has_its_own_slots() -> None:
    """Each peer could drop the slots of others before."""
    standby = one(Role.REPLICA, name="standby1")
    for slot, is_own in (("standby1", True), ("standby1_b", True), ("standby12", False)):
        assert may_perform(standby, DropSlot(slot, wait=False)) is is_own
        assert may_perform(standby, CreateSlot(slot, False, True)) is is_own
        assert may_perform(standby, StartReplication(slot, Lsn(0), 1)) is is_own
        assert may_perform(one(Role.ADMIN), DropSlot(slot, wait=False))
    assert may_perform(standby, StartReplication(None, Lsn(0), 1))


def test_a_pager_reads_without_a_slot() -> None:
    pager = one(Role.PAGER)
    assert may_perform(pager, StartReplication(None, Lsn(0), 1))
    assert not may_perform(pager, StartReplication("peer", Lsn(0), 1))
    assert not may_perform(one(Role.MONITOR), StartReplication(None, Lsn(0), 1))
    assert may_perform(one(Role.MONITOR), IdentifySystem())
    assert may_perform(one(Role.MONITOR), SqlCommand("select 1"))


@pytest.mark.parametrize("role", Role)
def test_only_who_may_stream_begins_a_copy_on_the_primary(role: Role) -> None:
    """Any client could hold a connection of --copy-dsn open before."""
    begin = parse_command(f"{BEGIN_COPY};")
    assert may_perform(one(role), begin) is may_perform(one(role), StartLogical("peer", Lsn(0), ()))


# In a session


def test_a_forbidden_message_is_refused_before_its_body_is_received() -> None:
    """A JoinLog of 3.7 MB cost 555 ms before it was refused; now its head is enough."""
    peer = Peer()
    session_of(peer, one(Role.REPLICA), greet=False)
    assert peer.limit_of is not None
    for message in (VoteRequest.TAG, AppendRequest.TAG, PrepareLog.TAG):
        with pytest.raises(RemoteProtocolError, match="may not send"):
            peer.limit_of(message)
    reader = framing.FrameReader(limit_of=peer.limit_of)
    reader.buffer()[: FRAME_HEAD.size] = FRAME_HEAD.pack(1 << 20, AppendRequest.TAG)
    with pytest.raises(RemoteProtocolError, match="replica"):
        list(reader.received(FRAME_HEAD.size))


def test_a_message_of_a_newer_version_is_no_matter_of_roles() -> None:
    """The operator of an older safekeeper read that the role with all rights had too few."""
    peer = Peer()
    session_of(peer, one(Role.ADMIN), greet=False)
    assert peer.limit_of is not None
    with pytest.raises(RemoteProtocolError, match="message 0x00 is unknown; a newer version"):
        peer.limit_of(0)


def test_a_role_holds_after_the_greeting() -> None:
    peer = Peer()
    session, posted = session_of(peer, one(Role.RESTORE), greet=True)
    assert peer.limit_of is not None
    with pytest.raises(RemoteProtocolError):
        peer.limit_of(AppendRequest.TAG)
    assert session.on_frames(bytearray(9), 9) == 0
    session.on_message(READ)
    assert posted == [READ]
    session.on_message(PINNED)
    assert posted == [READ] and isinstance(peer.sent[-1], Reject)


@pytest.mark.parametrize("ask", [GREETING, StatusRequest("main"), LogQuery("main")])
def test_another_cluster_is_out_of_reach(ask: StatusRequest) -> None:
    peer = Peer()
    session, posted = session_of(peer, one(Role.PROPOSER, "other"), greet=False)
    session.on_message(ask)
    assert isinstance(peer.sent[-1], Reject) and "main" in peer.sent[-1].text
    assert not posted and peer.closed
