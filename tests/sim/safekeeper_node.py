"""A safekeeper on a simulated machine: the shipping core, driver, store and control file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress

from tests.faulty_disk import FaultyDisk, PowerCut
from tests.sim.oracle import Committed, Promises, Violation
from tests.sim.world import Connection, Worker, World
from walkeeper_common.errors import StorageError
from walkeeper_common.framing import Message
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_common.messages import AppendResponse, VoteResponse
from walkeeper_safekeeper.acceptor import Acceptor
from walkeeper_safekeeper.acceptor_events import ConnectionLost, Received, Tick
from walkeeper_safekeeper.driver import Driver
from walkeeper_safekeeper.durable import Durable
from walkeeper_safekeeper.log_folder import LogFolder

RESTART_MS = (200, 4000)


class SafekeeperNode:
    """The driver's Surroundings; `lives` tells late callbacks from those of this life."""

    def __init__(
        self, world: World, number: int, durable: Durable, committed: Committed, promises: Promises
    ) -> None:
        self.world, self.number, self.name = world, number, f"sk{number}"
        self.committed, self.promises = committed, promises
        assert durable.configuration is not None
        self.segment_bytes = durable.configuration.segment_bytes
        self.folder_disk, self.wal_disk = FaultyDisk(world.random), FaultyDisk(world.random)
        self._folder().create_wal(durable)
        self._folder().save_control(durable)
        self.driver: Driver | None = None
        self.lives = 0
        self._numbers = itertools.count(1)
        self._connections: dict[int, Connection] = {}
        self._workers: list[Worker] = []
        self._checked_lsn = Lsn(0)
        self.start()

    def _folder(self) -> LogFolder:
        return LogFolder(self.name, self.folder_disk, self.wal_disk)

    def start(self) -> None:
        """Recover, perhaps interrupted by the next power cut."""
        folder, random = self._folder(), self.world.random
        if self.world.chance(0.1):
            self.wal_disk.operations_left = random.randrange(20)
        try:
            opened = folder.open_wal()
        except PowerCut:
            self._lose_power()
            return
        finally:
            self.wal_disk.operations_left = None
        self.lives += 1
        durable = opened.durable
        self.promises.restarted(self.name, durable.ballot)
        acceptor = Acceptor(
            durable,
            first_lsn=opened.store.first_lsn,
            flush_lsn=opened.flush_lsn,
            record_lsn=opened.flush_lsn,
        )
        self._checked_lsn = opened.store.first_lsn
        self._workers = [Worker(self.world) for _ in range(3)]
        writer, reader, allocator = self._workers
        self.driver = Driver(
            acceptor,
            opened.store,
            folder.save_control,
            writer=writer,
            reader=reader,
            allocator=allocator,
            around=self,
        )
        facts = f"ballot={durable.ballot} flush={acceptor.flush_lsn} commit={acceptor.commit_lsn}"
        self.world.say(self.name, f"boot {facts}")
        self._tick(self.lives)

    def _tick(self, life: int) -> None:
        if life == self.lives and self.driver is not None:
            self.driver.post(Tick())
            self.world.later(self.world.random.uniform(900, 1100), lambda: self._tick(life))

    def crash(self) -> None:
        """SIGKILL and power cut in one: what was not synced is lost in any subset."""
        if self.driver is None:
            return
        self.world.say(self.name, f"CRASH flush={self.driver.acceptor.flush_lsn}")
        job = self._workers[0].current_job()
        if job is not None and self.world.random.random() < 0.7:
            self._half_do(job)
        self._lose_power()

    def _half_do(self, job: Callable[[], object]) -> None:
        """The job that is under way gets as far as some operation of the disk."""
        left = self.world.random.randrange(8)
        self.wal_disk.operations_left = self.folder_disk.operations_left = left
        with suppress(PowerCut, StorageError):
            job()

    def _lose_power(self) -> None:
        self.driver, self.lives = None, self.lives + 1
        for worker in self._workers:
            worker.is_dead = True
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
        self.folder_disk, self.wal_disk = self.folder_disk.crash(), self.wal_disk.crash()
        delay_ms = 50 if self.world.is_healed else self.world.random.uniform(*RESTART_MS)
        self.world.later(delay_ms, self.start)

    def fill_disk(self) -> None:
        """No new segment can be allocated for a while."""
        used = sum(self.wal_disk.size(name) for name in self.wal_disk.names())
        self.wal_disk.capacity_bytes = used
        self.world.say(self.name, "disk full")
        self.world.later(self.world.random.uniform(500, 8000), self.empty_disk)

    def empty_disk(self) -> None:
        self.wal_disk.capacity_bytes = None

    # Connections

    def accept(self, connection: Connection) -> bool:
        """Whether somebody listens."""
        if self.driver is None:
            return False
        number, life = next(self._numbers), self.lives
        self._connections[number] = connection

        def received(message: Message) -> None:
            if life == self.lives and self.driver is not None:
                self.driver.post(Received(number, message))

        def closed() -> None:
            if life == self.lives and self.driver is not None:
                self._connections.pop(number, None)
                self.driver.post(ConnectionLost(number))

        connection.server.on_message, connection.server.on_closed = received, closed
        return True

    # The driver's Surroundings

    def send(self, connection: int, message: Message) -> None:
        assert self.driver is not None
        if isinstance(message, AppendResponse):
            self._check_durable(message.flush_lsn)
        if isinstance(message, VoteResponse) and message.granted:
            self.promises.promised(self.name, message.ballot)
            self._check_durable(message.flush_lsn)
        if connection in self._connections:
            self._connections[connection].server.send(message)

    def _check_durable(self, flush_lsn: Lsn) -> None:
        """What is acknowledged is what a power cut now would leave, byte for byte."""
        assert self.driver is not None
        store = self.driver.store
        begin_lsn = max(store.first_lsn, store.segment_start(flush_lsn))
        if self.kept_bytes(begin_lsn, flush_lsn) != store.read(begin_lsn, flush_lsn):
            raise Violation(f"{self.name} acknowledged {flush_lsn}, a power cut would lose some")

    def kept_bytes(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        """What a power cut leaves for sure of a range; shorter if it is not all there."""
        kept, lsn = b"", begin_lsn
        while lsn < end_lsn:
            start = lsn.round_down(self.segment_bytes)
            file = self.wal_disk._durable_names.get(segment_name(1, lsn, self.segment_bytes))
            if file is None:
                break
            upto = min(start + self.segment_bytes, end_lsn)
            kept += bytes(file.durable[lsn - start : upto - start])
            lsn = upto
        return kept

    def commit_moved(self, commit_lsn: Lsn) -> None:
        """A reader sees every whole record up to here at once."""
        assert self.driver is not None
        store = self.driver.store
        end_lsn = store.record_end(commit_lsn).end_lsn
        if end_lsn > self._checked_lsn:
            self.committed.check(
                self.name, self._checked_lsn, store.read(self._checked_lsn, end_lsn)
            )
            self._checked_lsn = end_lsn

    def end_readers(self, above_lsn: Lsn) -> None:
        self.world.say(self.name, f"end readers above {above_lsn}")

    def note(self, text: str, facts: Sequence[tuple[str, object]]) -> None:
        shown = " ".join(f"{name}={value}" for name, value in facts)
        self.world.say(self.name, f"{text} {shown}")
