"""The claims of one simulated safekeeper, held against its disk by the oracles.

The node reports each answer that it sends, and where its life begins, goes on and ends. This module
changes nothing of the node.
"""

from __future__ import annotations

from tests.proof.sim.disk_trouble import Disks
from tests.proof.sim.oracle import Oracles
from tests.proof.sim.world import World
from tests.support.faulty_shelf import FaultyShelf, holds_tail
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import (
    AcceptorGreeting,
    AppendResponse,
    Reject,
    VoteResponse,
)
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.storage.wal_store import WalStore


class SafekeeperClaims:
    """The claims of one safekeeper in this life, and how far they were judged."""

    def __init__(self, world: World, name: str, disks: Disks, oracles: Oracles) -> None:
        self.world, self.name, self.disks, self.oracles = world, name, disks, oracles
        self.vouched_lsn = Lsn(0)
        """A power cut must leave all WAL below it."""
        self.votes: dict[Ballot, Lsn] = {}
        self._judged_lsn = self._committed_lsn = Lsn(0)

    def on_boot(self, driver: Driver, *, is_lost: bool) -> None:
        """Begin a life: judge what recovery has found."""
        acceptor = driver.acceptor
        self.vouched_lsn, self.votes = acceptor.flush_lsn, {}
        self._judged_lsn = self._committed_lsn = driver.store.first_lsn
        if not is_lost:
            self.oracles.promises.speaks_as(self.name, acceptor.durable.ballot)
            self._judge_log(driver, "recovered", acceptor.flush_lsn)

    def on_end(self, driver: Driver, *, is_lost: bool) -> None:
        """End a life; the next one must have all WAL that is flushed by now."""
        self.on_last_ballot(driver, is_lost=is_lost)
        self.vouched_lsn = max(self.vouched_lsn, driver.acceptor.flush_lsn)

    def on_following(self, driver: Driver) -> None:
        """Judge the log again from where it was cut to follow a leader."""
        at_lsn = driver.acceptor.flush_lsn
        self.vouched_lsn = at_lsn
        self._judged_lsn = min(self._judged_lsn, at_lsn)
        self._judge_log(driver, "goes on from", at_lsn)

    def on_commit(self, store: WalStore, commit_lsn: Lsn) -> bool:
        """Judge the whole records up to here; return True if no node has shown them before."""
        committed = self.oracles.committed
        end_lsn = committed.whole_end(self.name, store, commit_lsn)
        begin_lsn = max(self._committed_lsn, store.first_lsn)
        if end_lsn <= begin_lsn:
            return False
        is_new = committed.check(self.name, begin_lsn, store.read(begin_lsn, end_lsn))
        self._committed_lsn = end_lsn
        return is_new

    def on_message(self, driver: Driver, message: Message, *, is_lost: bool) -> None:
        """Hold what an answer claims against the disk and against earlier promises."""
        promises = self.oracles.promises
        match message:
            case AppendResponse():
                self.oracles.admission.check_member(self.name, is_lost=is_lost)
                self._judge_log(driver, "acknowledged", message.flush_lsn)
            case VoteResponse() if message.granted:
                self.oracles.admission.check_member(self.name, is_lost=is_lost)
                promises.granted(self.name, message.ballot, message.flush_lsn)
                self.votes[message.ballot] = message.record_lsn
                self._judge_log(driver, "voted with", message.flush_lsn)
            case Reject() if driver.acceptor.failure is not None:
                pass  # it names no ballot: what it last promised may not be durable
            case VoteResponse() | AcceptorGreeting() | Reject() if not is_lost:
                promises.speaks_as(self.name, message.ballot)

    def on_cut(self, store: WalStore, begin_lsn: Lsn) -> None:
        """Judge that the whole records after the cut, if any, are durable in orphans/."""
        end_lsn = store.scan(begin_lsn, store.contiguous_end(begin_lsn)).end_lsn
        if end_lsn <= begin_lsn:
            return
        self.world.trouble("tails kept", self.name, f"KEPT {begin_lsn} to {end_lsn}")
        wal, shelf = store.read(begin_lsn, end_lsn), FaultyShelf(self.disks.orphans.crash())
        kept = [shelf.files(name) for name in shelf.names()]
        if not any(holds_tail(files, store, begin_lsn, wal) for files in kept):
            self.oracles.durability.fail(
                f"{self.name} cuts at {begin_lsn} and has not kept what it takes, up to {end_lsn}"
            )

    def on_last_ballot(self, driver: Driver, *, is_lost: bool) -> None:
        """Judge that its log ends no earlier than its promises say."""
        acceptor = driver.acceptor
        if not is_lost:
            last = acceptor.durable.history[-1].ballot
            self.oracles.promises.log_ends(self.name, last, acceptor.flush_lsn)

    def _judge_log(self, driver: Driver, said: str, flush_lsn: Lsn) -> None:
        """Judge that acknowledged WAL is what a power cut leaves, and what its history says."""
        store, history = driver.store, driver.acceptor.durable.history
        self.vouched_lsn = max(self.vouched_lsn, flush_lsn)
        begin_lsn = max(self._judged_lsn, store.first_lsn)
        if flush_lsn <= begin_lsn:
            return
        try:
            wal = store.read(begin_lsn, flush_lsn)
        except WalkeeperError as error:
            self.oracles.durability.fail(f"{self.name} {said} {flush_lsn}, but {error}")
        kept = self.disks.kept_bytes(begin_lsn, flush_lsn)
        self.oracles.durability.check(self.name, said, flush_lsn, kept, wal)
        self.oracles.authorship.check(self.name, history, begin_lsn, wal)
        self._judged_lsn = flush_lsn
