"""A safekeeper on a simulated machine: the shipping core, driver, store and control file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.proof.sim.archive import Archived, NodesArchive
from tests.proof.sim.clock import Clock
from tests.proof.sim.disk_trouble import Disks, Loss
from tests.proof.sim.network import Connection
from tests.proof.sim.oracle import Oracles
from tests.proof.sim.reader import PinnedReader, Reader
from tests.proof.sim.safekeeper_claims import SafekeeperClaims
from tests.proof.sim.worker import Bunches, Worker
from tests.proof.sim.world import World
from tests.support.faulty_disk import PowerCut
from tests.support.faulty_shelf import FaultyShelf
from tests.support.frames import taken_at_once
from walkeeper_common.errors import CorruptWal, StorageError
from walkeeper_common.history import NO_BALLOT, Ballot, cut
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.postgres.walpages import page_flaw
from walkeeper_common.quorum import Configuration, member_name
from walkeeper_common.timelines import Timelines
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import (
    Feedback,
    ProposerGreeting,
    Reject,
    RejectCode,
)
from walkeeper_fastpath.switch import append_path
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import (
    ConnectionLost,
    Received,
    SegmentsRemoved,
    StandbysReported,
    Tick,
)
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.hosting.retention import remove_unwanted
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.storage.log_folder import LogFolder, OpenedWal

RESTART_MS, TICK_MS = (200, 4000), (900, 1100)


class SafekeeperNode(Bunches):
    """The driver's Surroundings; `lives` tells late callbacks from those of this life."""

    def __init__(
        self, world: World, number: int, durable: Durable, oracles: Oracles, archived: Archived
    ) -> None:
        self.archived = archived
        self._archive: NodesArchive | None = None
        self.world, self.number, self.name = world, number, f"sk{number}"
        self.oracles, self.created = oracles, durable
        assert durable.configuration is not None
        timelines = Timelines(durable.history)
        self.disks = Disks(world, durable.configuration.segment_bytes, timelines)
        self._folder().create_wal(durable)
        self._folder().save_control(durable)
        self.driver: Driver | None = None
        self.lives = 0
        self.loss: Loss | None = None
        self.on_changed: Callable[[SafekeeperNode], None] = lambda _: None
        self.on_committed: Callable[[], None] = lambda: None
        self.on_removed: Callable[[SafekeeperNode, Lsn], None] = lambda _node, _lsn: None
        self._numbers = itertools.count(1)
        self._connections: dict[int, Connection] = {}
        self._workers: list[Worker] = []
        self._readers: list[Reader] = []
        self._pinned: list[PinnedReader] = []
        self._claims = SafekeeperClaims(world, self.name, self.disks, oracles)
        self._oldest_lsn = Lsn(0)
        self._clock, self._rank = Clock(world, self.name), (NO_BALLOT, Lsn(0))
        self.start()

    @property
    def member(self) -> str:
        """The member that it was when it began; with its disk it loses the name, too."""
        return member_name(self.created.acceptor_id, self.created.incarnation)

    @property
    def configuration(self) -> Configuration:
        """The configuration in its control file, also while it is down."""
        durable = self._durable()
        assert durable is not None and durable.configuration is not None, f"{self.name=}"
        return durable.configuration

    @property
    def durable_commit_lsn(self) -> Lsn:
        """Return the commit_lsn that a power failure leaves, or 0 if the disk was lost."""
        try:
            durable = self._durable()
        except CorruptWal:  # Loss.DAMAGED
            return ZERO_LSN
        return ZERO_LSN if durable is None else durable.commit_lsn

    def _durable(self) -> Durable | None:
        driver = self.driver
        return self._folder().load_control() if driver is None else driver.acceptor.durable

    def _folder(self) -> LogFolder:
        shelf = FaultyShelf(self.disks.orphans)
        return LogFolder(self.name, self.disks.folder, self.disks.wal, shelf)

    def _save(self, durable: Durable) -> None:
        """Save the control file. A cut that it announces must have kept what it takes."""
        if durable.truncating_to is not None and self.driver is not None:
            self._claims.on_cut(self.driver.store, durable.truncating_to)
        self._folder().save_control(durable)

    # Lives

    def start(self) -> None:
        """Recover, perhaps interrupted by the next power cut."""
        if self.loss in (Loss.WIPED, Loss.PREPARED):
            return
        if self.world.chance(0.2):
            self.disks.wal.operations_left = self.world.random.randrange(10)
        try:
            opened = self._folder().open_wal()
        except CorruptWal as error:
            if self.loss is Loss.DAMAGED:
                return
            self.oracles.recovery.fail(f"{self.name} takes itself for damaged: {error}")
        except (PowerCut, StorageError) as error:
            self._end(is_power_cut=isinstance(error, PowerCut))
            return
        finally:
            self.disks.wal.operations_left = None
        self._live(opened)

    def _live(self, opened: OpenedWal) -> None:
        self.lives += 1
        durable, store = opened.durable, opened.store
        acceptor = Acceptor(
            durable,
            oldest_lsn=store.first_lsn,
            flush_lsn=opened.flush_lsn,
            record_lsn=opened.record_lsn,
            flaw_of_wal=page_flaw if durable.is_physical else None,
        )
        self.disks.timelines = store.timelines
        writer, reader, allocator = self._workers = [Worker(self.world) for _ in range(3)]
        self.driver = Driver(
            acceptor, store, self._save,
            writer=writer, reader=reader, allocator=allocator, around=self, fast=append_path(),
        )  # fmt: skip
        self.driver.orphans = self._folder().orphans
        self._archive = None
        if self.world.options.has_archive:
            self._workers.append(Worker(self.world))
            self._archive = self.driver.older = NodesArchive(
                self.name, self.archived, store, self._workers[-1], self.oracles.committed
            )
            self.driver.post(SegmentsRemoved(self._archive.reaches()))
        facts = f"ballot={durable.ballot} flush={acceptor.flush_lsn} commit={acceptor.commit_lsn}"
        self.world.say(self.name, f"boot {facts}")
        self._oldest_lsn = store.first_lsn
        self._claims.on_boot(self.driver, is_lost=self.loss is not None)
        if self.loss is None:
            self.on_changed(self)
        self._readers, self._pinned = [], []
        self._tick(self.lives)

    def crash(self, *, is_power_cut: bool | None = None) -> None:
        """Cut the power, or kill the process: then the page cache survives, with unsynced WAL."""
        if self.driver is None:
            return
        if is_power_cut is None:
            is_power_cut = self.world.random.random() < 0.7
        what = "CRASH" if is_power_cut else "KILL"
        kind = "power cuts" if is_power_cut else "safekeepers killed"
        text = f"{what} flush={self.driver.acceptor.flush_lsn}"
        self.world.trouble(kind, self.name, text)
        job = self._workers[0].current_job()
        if job is not None and self.world.random.random() < 0.7:
            self.disks.half_do(job)
        self._end(is_power_cut=is_power_cut)

    def crash_at_work(self) -> None:
        """Crash as soon as WAL is being written, of which any part may then be there."""
        if self.driver is None:
            return
        worker, acceptor = self._workers[0], self.driver.acceptor

        def job_began() -> None:
            if acceptor.write_lsn > acceptor.flush_lsn:
                self.crash()
            else:
                worker.awaited = job_began

        worker.awaited = job_began

    def stop(self) -> None:
        """Stop cleanly, as after SIGTERM. The power may be cut right after it."""
        if self.driver is None:
            return
        life = self.lives
        self.world.trouble("clean stops", self.name, "STOP asked for")

        def stopped(result: object) -> None:
            if life == self.lives:
                self.world.say(self.name, f"STOP {result or 'clean'}")
                self._end(is_power_cut=self.world.random.random() < 0.5)

        self.driver.close(stopped)

    def _end(self, *, is_power_cut: bool) -> None:
        """Drop the memory, and start the process again after a while."""
        if self.driver is not None:
            _ = self.rank
            self._claims.on_end(self.driver, is_lost=self.loss is not None)
        self.driver, self.lives = None, self.lives + 1
        readers: list[Reader | PinnedReader] = [*self._readers, *self._pinned]
        for reader in readers:
            reader.is_over = True
        for worker in self._workers:
            worker.is_dead = True
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
        if is_power_cut:
            self.disks.power_cut(self._claims.vouched_lsn)
        delay_ms = 50 if self.world.is_healed else self.world.random.uniform(*RESTART_MS)
        self.world.later(delay_ms, self.start)

    def lose_disk(self, loss: Loss) -> None:
        """Lose the disk for good, and with it all promises."""
        if self.driver is None:
            return
        self.world.trouble("disks lost", self.name, f"LOST its disk, comes back with {loss.value}")
        self.loss = loss
        self.disks.lose(loss)
        self._end(is_power_cut=False)
        self.oracles.promises.forget(self.name)
        if loss is Loss.REBORN:
            durable = replace(self.created, incarnation=self.world.random.randbytes(16))
            self._folder().create_wal(durable)
            self._folder().save_control(durable)

    @property
    def rank(self) -> tuple[Ballot, Lsn]:
        """The rank of its log that a vote would carry; while it is down, the rank before."""
        if self.driver is not None:
            flush_lsn = self.driver.flush_lsn
            last = cut(self.driver.acceptor.durable.history, flush_lsn)[-1]
            self._rank = (last.ballot, flush_lsn)
        return self._rank

    @property
    def flush_lsn(self) -> Lsn:
        """As far as it says while it is up."""
        return self.driver.flush_lsn if self.driver is not None else Lsn(0)

    # Trouble

    def fail_sync(self) -> None:
        if self.driver is not None:
            self.disks.fail_sync(self.driver.flush_lsn)
            self.world.trouble("failing syncs", self.name, "the next sync fails")

    def fill_disk(self) -> None:
        """Let no new segment be allocated for a while."""
        self.disks.fill()
        self.world.trouble("full disks", self.name, "disk full")
        self.world.later(self.world.random.uniform(500, 8000), self.disks.heal)

    def stall(self, for_ms: float) -> None:
        """Stall the disk, which answers no request, so that WAL queues up."""
        self.world.trouble("stalled disks", self.name, f"disk stalls for {for_ms:.0f} ms")
        for worker in self._workers:
            worker.stall(for_ms)

    def jump_clock(self) -> None:
        def tick() -> None:
            if self.driver is not None:
                self.driver.post(Tick())

        self._clock.jump(tick)

    def heal(self) -> None:
        """Let no operation fail from here on; restart a node that is not well."""
        self.disks.heal()
        self._clock.heal()
        if self.driver is not None and self.driver.acceptor.failure is not None:
            self.crash()

    def _tick(self, life: int) -> None:
        if life != self.lives or self.driver is None:
            return
        self.world.later(self.world.random.uniform(*TICK_MS), lambda: self._tick(life))
        if self._clock.stands:
            return
        driver, random = self.driver, self.world.random
        driver.post(Tick())
        self._claims.on_last_ballot(driver, is_lost=self.loss is not None)
        failure = driver.acceptor.failure
        if failure is not None:
            if "Input/output error" not in failure:
                self.oracles.recovery.fail(f"{self.name} takes itself for damaged: {failure}")
            if random.random() < 0.3:
                self.crash()  # its operator starts it again
            return
        if driver.acceptor.oldest_lsn > self._oldest_lsn:
            self._oldest_lsn = driver.acceptor.oldest_lsn
            self.on_removed(self, self._oldest_lsn)
        keep_bytes = self.world.options.retention_bytes
        if keep_bytes is not None and random.random() < 0.3:
            self._retain(driver, keep_bytes)
        if random.random() < 0.2:
            applied = driver.acceptor.commit_lsn.round_down(random.choice((1, 1 << 16)))
            xmin = random.randrange(3)
            # A standby is taken at its word, and may be wrong.
            said = Feedback(applied + (1 << 20) if xmin == 2 else applied, xmin, 0)
            driver.post(StandbysReported(said))
        self._attend_readers(driver)

    def _attend_readers(self, driver: Driver) -> None:
        options, oracles = self.world.options, self.oracles
        self._readers = [r for r in self._readers if not r.is_over]
        while self.loss is None and len(self._readers) < options.readers:
            self._readers.append(Reader(self.world, self.name, driver, oracles.committed))
        self._pinned = [r for r in self._pinned if not r.is_over]
        while self.loss is None and len(self._pinned) < options.pinned_readers:
            number = next(self._numbers)
            pinned = PinnedReader(
                self.world, self.name, driver, oracles, connection=number, votes=self._claims.votes
            )
            self._pinned.append(pinned)

    def _retain(self, driver: Driver, keep_bytes: int) -> None:
        archived_lsn = None
        if self._archive is not None:
            self._archive.check_removal(self.oracles.retention, driver.acceptor.durable.begin_lsn)
            segments_max = self.world.random.choice((0, 0, 1, 100))
            self._archive.archive(driver.acceptor.commit_lsn, segments_max)
            archived_lsn = self._archive.archived_lsn
            reached_lsn = self._archive.reaches()
            if self.world.options.late and reached_lsn < driver.acceptor.oldest_lsn:
                driver.post(SegmentsRemoved(reached_lsn))  # another member has closed the gap
        promised = [r.promised_lsn for r in self._readers if not r.is_over]
        horizon_lsn = min([driver.acceptor.commit_lsn, *promised])
        remove_unwanted(driver, horizon_lsn, keep_bytes=keep_bytes, archived_lsn=archived_lsn)

    # Connections

    def accept(self, connection: Connection) -> bool:
        """Return True if a process listens."""
        if self.driver is None:
            return self._accept_without_log(connection)
        number, life = next(self._numbers), self.lives
        self._connections[number] = connection

        def received(message: Message) -> None:
            if life == self.lives and self.driver is not None:
                self.driver.post(Received(number, message))

        def take(memory: bytearray, size: int) -> int:
            if life != self.lives or self.driver is None:
                return 0
            return taken_at_once(self.driver, number, self.send, memory, size)

        def closed() -> None:
            if life == self.lives and self.driver is not None:
                self._connections.pop(number, None)
                self.driver.post(ConnectionLost(number))

        connection.server.on_message, connection.server.on_closed = received, closed
        connection.server.on_frames = take
        return True

    def _accept_without_log(self, connection: Connection) -> bool:
        """Answer greetings as a process without this log, or with a broken one (log_catalog.py)."""
        codes = {
            Loss.WIPED: RejectCode.UNKNOWN_LOG,
            Loss.PREPARED: RejectCode.NOT_A_MEMBER,
            Loss.DAMAGED: RejectCode.STORAGE_FAILED,
        }
        if self.loss not in codes:
            return False
        reject = Reject(codes[self.loss], f"{self.name} has {self.loss.value}", NO_BALLOT)

        def received(message: Message) -> None:
            if isinstance(message, ProposerGreeting):
                connection.server.send(reject)

        connection.server.on_message = received
        return True

    # The driver's Surroundings

    def send(self, connection: int, message: Message) -> None:
        assert self.driver is not None
        self._claims.on_message(self.driver, message, is_lost=self.loss is not None)
        for pinned in self._pinned:
            if pinned.connection == connection:
                pinned.on_message(message)
        if connection in self._connections:
            self._connections[connection].server.send(message)

    def commit_moved(self, commit_lsn: Lsn) -> None:
        """Show a reader every whole record up to here at once."""
        assert self.driver is not None
        if self._claims.on_commit(self.driver.store, commit_lsn):
            self.on_committed()

    def end_readers(self, above_lsn: Lsn) -> None:
        """Do nothing, since no reader was sent more: `_on_following` looks."""

    def note(self, text: str, facts: Sequence[tuple[str, object]], *_: object) -> None:
        shown = " ".join(f"{name}={value}" for name, value in facts)
        self.world.say(self.name, f"{text} {shown}")
        if text == "following an elected proposer":
            self._on_following()
        if self.world.chance(self.world.options.ambushes):
            life = self.lives
            delay_ms = self.world.random.choice((0, 5, 50, 500)) * self.world.random.random()
            self.world.later(delay_ms, lambda: self.crash() if life == self.lives else None)

    def _on_following(self) -> None:
        """Take the leader's history; the log is cut where it diverges from the leader's."""
        assert self.driver is not None
        self.disks.timelines = self.driver.store.timelines
        for reader in self._readers:
            reader.check_cut(self.driver.acceptor.flush_lsn)
        self._claims.on_following(self.driver)
        self.on_changed(self)
