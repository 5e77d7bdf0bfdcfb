"""A member reads WAL that it does not hold from one that does, and waits for silent ones (M8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused, Unreachable, WalRemoved
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.archiving import member_copies
from walkeeper_safekeeper.archiving.member_copies import OwnLog
from walkeeper_safekeeper.archiving.member_wal import MemberWal

FIRST_LSN, COMMIT_LSN = Lsn(100), Lsn(900)
OWN = OwnLog("main", b"u" * 16, 4)
PEERS: tuple[Address, ...] = (("h1", 1), ("h2", 2), ("h3", 3))


@dataclass
class Peer:
    """A member that holds [oldest_lsn, commit_lsn), and its greeting."""

    acceptor_id: int
    oldest_lsn: Lsn = FIRST_LSN
    commit_lsn: Lsn = COMMIT_LSN
    log_uuid: bytes = b"u" * 16
    is_up: bool = True
    reads: list[tuple[Lsn, Lsn]] = field(default_factory=list)
    connections: int = 0


class Connection:
    """A connection to a peer, as `committed_wal.Safekeeper`."""

    peers: dict[str, Peer]

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.shown, self.peer = f"safekeeper at {address[0]}", self.peers[address[0]]
        if not self.peer.is_up:
            raise Unreachable(f"{self.shown} is unreachable")
        self.peer.connections += 1

    def greet(self, cluster: str, name: str) -> Peer:
        return self.peer

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> Iterator[tuple[Lsn, memoryview]]:
        if not self.peer.is_up:
            raise Unreachable(f"{self.shown} closed the connection")
        self.peer.reads.append((begin_lsn, end_lsn))
        half = Lsn((begin_lsn + end_lsn) // 2)
        for begin, end in ((half, end_lsn), (begin_lsn, half)):  # pieces come in any order
            yield begin, memoryview(bytes(at % 251 for at in range(begin, end)))

    def close(self) -> None:
        self.peer.connections -= 1


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Peer]:
    peers = {"h1": Peer(1, oldest_lsn=Lsn(500)), "h2": Peer(2), "h3": Peer(3)}
    monkeypatch.setattr(Connection, "peers", peers, raising=False)
    monkeypatch.setattr(member_copies, "Safekeeper", Connection)
    return peers


def wal(begin: int, end: int) -> bytes:
    return bytes(at % 251 for at in range(begin, end))


def test_the_first_member_that_holds_the_range_is_read_and_kept(peers: dict[str, Peer]) -> None:
    source = MemberWal(OWN, PEERS)
    assert source.read(Lsn(200), Lsn(300)) == wal(200, 300)
    assert source.read(Lsn(300), Lsn(400)) == wal(300, 400)
    assert peers["h2"].reads == [(200, 300), (300, 400)] and peers["h2"].connections == 1
    assert not peers["h1"].reads and peers["h1"].connections == 0
    source.close()
    assert peers["h2"].connections == 0


def test_another_member_is_read_when_the_one_before_is_lost(peers: dict[str, Peer]) -> None:
    source = MemberWal(OWN, PEERS)
    source.read(Lsn(200), Lsn(300))
    peers["h2"].is_up = False
    assert source.read(Lsn(300), Lsn(400)) == wal(300, 400)
    assert peers["h3"].reads == [(300, 400)]


def test_wal_that_is_not_committed_there_is_not_asked_for(peers: dict[str, Peer]) -> None:
    source = MemberWal(OWN, PEERS)
    with pytest.raises(WalRemoved):
        source.read(Lsn(850), Lsn(901))
    assert not any(peer.reads for peer in peers.values())


def test_a_log_of_the_same_name_is_not_read(peers: dict[str, Peer]) -> None:
    peers["h2"].log_uuid, peers["h3"].acceptor_id = b"o" * 16, OWN.acceptor_id
    source = MemberWal(OWN, PEERS)
    with pytest.raises(WalRemoved):
        source.read(Lsn(200), Lsn(300))
    assert not source.reaches(Lsn(200)) and source.reaches(Lsn(500))
    assert peers["h2"].connections == peers["h3"].connections == 0


def test_wal_is_not_called_removed_while_a_member_is_silent(peers: dict[str, Peer]) -> None:
    peers["h2"].is_up = peers["h3"].is_up = False
    source = MemberWal(OWN, PEERS)
    with pytest.raises(Refused, match=r"h2 is unreachable.*h3 is unreachable") as caught:
        source.read(Lsn(200), Lsn(300))
    assert not isinstance(caught.value, WalRemoved)
    assert not source.reaches(Lsn(200)), "a client tries its restore_command meanwhile"
