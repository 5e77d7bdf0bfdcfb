"""A safekeeper on a simulated machine: the shipping core, driver, store and control file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress

from tests.faulty_disk import FaultyDisk, PowerCut
from tests.sim.oracle import Committed, Promises, Violation, whole_end
from tests.sim.reader import Reader
from tests.sim.world import Connection, Worker, World
from walkeeper_common.errors import CorruptWal, StorageError
from walkeeper_common.framing import Message
from walkeeper_common.lsn import Lsn, parse_segment_name, segment_name
from walkeeper_common.messages import AppendResponse, Feedback, VoteResponse
from walkeeper_safekeeper.acceptor import Acceptor
from walkeeper_safekeeper.acceptor_events import (
    ConnectionLost,
    Received,
    StandbysReported,
    Tick,
)
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
        self._reader: Reader | None = None
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
        except CorruptWal as error:  # nothing of what happens to these disks may damage a log
            raise Violation(str(error)) from error
        except (PowerCut, StorageError) as error:
            self._end(is_power_cut=isinstance(error, PowerCut))
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
        self._reader = None
        self._tick(self.lives)

    def _tick(self, life: int) -> None:
        if life != self.lives or self.driver is None:
            return
        driver, random, options = self.driver, self.world.random, self.world.options
        driver.post(Tick())
        if driver.acceptor.failure is not None:
            if "Input/output error" not in driver.acceptor.failure:
                raise Violation(f"{self.name} takes itself for damaged: {driver.acceptor.failure}")
            if random.random() < 0.3:
                self.crash()  # its operator starts it again
        else:
            if options.retention_bytes is not None and random.random() < 0.3:
                driver.remove_below(self._retention_lsn(), keep_bytes=options.retention_bytes)
            if random.random() < 0.2:
                applied = driver.acceptor.commit_lsn.round_down(random.choice((1, 1 << 16)))
                driver.post(StandbysReported(Feedback(applied, random.randrange(3), 0)))
            if self._reader is None or self._reader.is_over:
                self._reader = Reader(self.world, self.name, driver, self.committed)
        self.world.later(random.uniform(900, 1100), lambda: self._tick(life))

    def _retention_lsn(self) -> Lsn:
        assert self.driver is not None
        commit_lsn, reader = self.driver.acceptor.commit_lsn, self._reader
        if reader is None or reader.is_over:
            return commit_lsn
        return min(commit_lsn, reader.promised_lsn)

    def crash(self) -> None:
        """A power cut: what was not synced is lost in any subset. Or only the process dies: the
        page cache survives, with what was never synced in it."""
        if self.driver is None:
            return
        is_power_cut = self.world.random.random() < 0.7
        what = "CRASH" if is_power_cut else "KILL"
        self.world.say(self.name, f"{what} flush={self.driver.acceptor.flush_lsn}")
        job = self._workers[0].current_job()
        if job is not None and self.world.random.random() < 0.7:
            self._half_do(job)
        self._end(is_power_cut=is_power_cut)

    def stop(self) -> None:
        """A clean stop: SIGTERM. The power may be cut right behind it."""
        if self.driver is None:
            return
        life = self.lives
        self.world.say(self.name, "STOP asked for")

        def stopped(result: object) -> None:
            if life == self.lives:
                self.world.say(self.name, f"STOP {result or 'clean'}")
                self._end(is_power_cut=self.world.random.random() < 0.5)

        self.driver.close(stopped)

    def fail_sync(self) -> None:
        """The next fdatasync of the segment that is written, or of the control file, fails."""
        if self.driver is None:
            return
        if self.world.random.random() < 0.7:
            flush_lsn = self.driver.acceptor.flush_lsn
            name = segment_name(1, flush_lsn, self.segment_bytes)
            self.wal_disk.failing_syncs.add(name)
        else:
            self.folder_disk.failing_syncs.add("control.tmp")
        self.world.say(self.name, "the next sync fails")

    def _half_do(self, job: Callable[[], object]) -> None:
        """The job that is under way gets as far as some operation of the disk."""
        left = self.world.random.randrange(8)
        self.wal_disk.operations_left = self.folder_disk.operations_left = left
        with suppress(PowerCut, StorageError):
            job()
        self.wal_disk.operations_left = self.folder_disk.operations_left = None

    def _end(self, *, is_power_cut: bool) -> None:
        """Memory is gone; the process is started again after a while."""
        self.driver, self.lives = None, self.lives + 1
        if self._reader is not None:
            self._reader.is_over = True
        for worker in self._workers:
            worker.is_dead = True
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
        if is_power_cut:
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

    def heal(self) -> None:
        """Nothing fails from here on; who is not well is started again."""
        self.empty_disk()
        for disk in (self.wal_disk, self.folder_disk):
            disk.failing_syncs.clear()
        if self.driver is not None and self.driver.acceptor.failure is not None:
            self.crash()

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

    def holds(self, begin_lsn: Lsn, wal: bytes) -> bool:
        """Whether a power cut leaves this range here, but for what retention has removed."""
        names = [n for n in self.wal_disk._durable_names if len(n) == 24]
        first_lsn = min((parse_segment_name(n, self.segment_bytes)[1] for n in names), default=None)
        if first_lsn is None:
            return False
        skipped = max(0, first_lsn - begin_lsn)
        kept = self.kept_bytes(begin_lsn + skipped, begin_lsn + len(wal))
        return kept == wal[skipped:]

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
        end_lsn = whole_end(self.name, store, commit_lsn)
        self._checked_lsn = max(self._checked_lsn, store.first_lsn)
        if end_lsn > self._checked_lsn:
            self.committed.check(
                self.name, self._checked_lsn, store.read(self._checked_lsn, end_lsn)
            )
            self._checked_lsn = end_lsn

    def end_readers(self, above_lsn: Lsn) -> None:
        if self._reader is not None and self._reader.end_if_beyond(above_lsn):
            self.world.say(self.name, f"end readers above {above_lsn}")

    def note(self, text: str, facts: Sequence[tuple[str, object]]) -> None:
        shown = " ".join(f"{name}={value}" for name, value in facts)
        self.world.say(self.name, f"{text} {shown}")
        if self.world.chance(self.world.options.ambushes):
            life = self.lives
            delay_ms = self.world.random.choice((0, 5, 50, 500)) * self.world.random.random()
            self.world.later(delay_ms, lambda: self.crash() if life == self.lives else None)
