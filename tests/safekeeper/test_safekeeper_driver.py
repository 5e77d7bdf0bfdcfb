"""The safekeeper's driver at the points where disk and network meet in an unlucky order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.faulty_disk import FaultyDisk
from tests.support.faulty_shelf import FaultyShelf
from tests.support.frames import give
from tests.support.wal_maker import SYSTEM_ID, WalMaker
from walkeeper_common.errors import StorageError, WalkeeperError
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.lsn import Lsn
from walkeeper_common.pace import Pace
from walkeeper_common.postgres.walpages import page_flaw
from walkeeper_common.quorum import Configuration, LogKind, member_name
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import (
    AppendRequest,
    AppendResponse,
    ProposerElected,
    Reject,
    RejectCode,
)
from walkeeper_common.wire.requests import ReadRequest, ReadResponse
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_fastpath.switch import append_path
from walkeeper_safekeeper import safekeeper_driver
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import Tick
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.consensus.persisted_marks import PERSIST_COMMIT_TICKS
from walkeeper_safekeeper.hosting.readable_log import ReadableLog
from walkeeper_safekeeper.replication.durable_slots import DurableSlots
from walkeeper_safekeeper.replication.primary_snapshot import TableCopies
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.storage import wal_store
from walkeeper_safekeeper.storage.log_folder import LogFolder

SEGMENT_BYTES = 65536
START = Lsn(SEGMENT_BYTES)
BALLOT = Ballot(1, b"p" * 16)


class HandWorker:
    """A Worker whose jobs are run by the test, one at a time."""

    def __init__(self) -> None:
        self.is_quick, self._looks_at_the_clock = False, 0
        self.jobs: list[tuple[Callable[[], object], Callable[[object], None]]] = []

    def submit(
        self, job: Callable[[], object], done: Callable[[object], None], *, brief: bool = False
    ) -> None:
        self.jobs.append((job, done))

    def at_once(self) -> Pace | None:
        """Return a pace whose clock each job that succeeds reads three times."""
        return Pace(self._now_s) if self.is_quick and not self.jobs else None

    def _now_s(self) -> float:
        self._looks_at_the_clock += 1
        return 0.0

    @property
    def ran_at_once(self) -> int:
        return self._looks_at_the_clock // 3

    def run_one(self) -> None:
        job, done = self.jobs.pop(0)
        result: object
        try:
            result = job()
        except WalkeeperError as error:
            result = error
        done(result)

    def run_all(self) -> None:
        while self.jobs:
            self.run_one()


class Heard:
    """The driver's Surroundings."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.notes: list[str] = []

    def send(self, connection: int, message: Message) -> None:
        self.messages.append(message)

    def commit_moved(self, commit_lsn: Lsn) -> None: ...

    def settle_later(self, settle: Callable[[], None]) -> None:
        settle()

    def end_readers(self, above_lsn: Lsn) -> None: ...

    def note(self, text: str, facts: Sequence[tuple[str, object]], *_: object) -> None:
        self.notes.append(text)


class Bench:
    """One configured log whose leader is connected as connection 1."""

    def __init__(self, *, is_fast: bool = True) -> None:
        self.disk, self.writer, self.heard = FaultyDisk(Random(1)), HandWorker(), Heard()
        incarnation = b"i" * 16
        members = (member_name(1, incarnation),)
        configuration = Configuration(
            1, b"u" * 16, SYSTEM_ID, SEGMENT_BYTES, "15.18", LogKind.PHYSICAL, START, 1, members, 1
        )
        creation = Fragment(NO_BALLOT, START, 1, False, members, 1)
        durable = Durable(
            1, incarnation, b"u" * 16, configuration, history=(creation,), commit_lsn=START
        )
        self.folder_disk = FaultyDisk(Random(2))
        self.shelf = FaultyShelf(FaultyDisk(Random(3)))
        folder = LogFolder("log", self.folder_disk, self.disk, self.shelf)
        folder.create_wal(durable)
        folder.save_control(durable)
        opened = folder.open_wal()
        ends = {"oldest_lsn": START, "flush_lsn": START, "record_lsn": START}
        acceptor = Acceptor(opened.durable, **ends, flaw_of_wal=page_flaw)
        self.others = HandWorker()
        self.driver = Driver(
            acceptor,
            opened.store,
            folder.save_control,
            writer=self.writer,
            reader=self.others,
            allocator=self.others,
            around=self.heard,
            fast=append_path() if is_fast else None,
        )
        entry = Fragment(BALLOT, START, 1, False, members, 1)
        self.receive(ProposerElected(1, BALLOT, START, (creation, entry)))
        self.writer.run_all()
        self.heard.messages.clear()

    def load_from(self, folder: FaultyDisk) -> Durable:
        """Return the content of the control file on this disk."""
        found = LogFolder("log", folder, self.disk, FaultyShelf(FaultyDisk(Random(3))))
        durable = found.load_control()
        assert durable is not None
        return durable

    def receive(self, *messages: Message, connection: int = 1) -> None:
        give(self.driver, connection, self.heard.send, *messages)

    def persist_commit(self, commit: Lsn) -> None:
        """Let the leader announce a commit, and the lazily written mark follow."""
        at = self.driver.acceptor.write_lsn
        self.receive(AppendRequest(1, BALLOT, 1, at, at, commit, START, 0, b""))
        for _ in range(PERSIST_COMMIT_TICKS):
            self.driver.post(Tick())
        self.writer.run_all()
        assert self.driver.acceptor.durable.commit_lsn == commit

    def append(self, begin: Lsn, wal: bytes) -> Lsn:
        end = begin + len(wal)
        told = self.driver.acceptor.leader_commit_lsn
        self.receive(AppendRequest(1, BALLOT, 1, begin, end, told, START, crc_of(wal), wal))
        return end


def made_wal(size: int) -> WalMaker:
    maker = WalMaker(Random(3), segment_bytes=SEGMENT_BYTES, start_lsn=START)
    while maker.end_lsn < START + size:
        maker.record(500)
    return maker


def test_one_write_and_one_sync_for_all_that_arrived_meanwhile() -> None:
    bench, maker = Bench(), made_wal(8000)
    wal = maker.read(START, START + 4000)
    middle = START
    for at in range(0, 4000, 1000):
        middle = bench.append(START + at, wal[at : at + 1000])
    before = bench.disk.operations
    assert len(bench.writer.jobs) == 1, "one group at a time"
    bench.writer.run_one()
    assert bench.disk.operations - before == 2, "all that is there: one write, one fdatasync"
    end = bench.append(middle, maker.read(middle, START + 5000))
    bench.writer.run_one()
    assert bench.disk.operations - before == 4, "what came later is the next group"
    acks = [m for m in bench.heard.messages if isinstance(m, AppendResponse)]
    assert [ack.flush_lsn for ack in acks] == [middle, end]


def test_no_wal_is_written_after_wal_that_had_no_space() -> None:
    """Found by the simulator: an append that was under way when the disk turned out full.

    It began after the refused one; written, it would have left a hole below an acknowledged LSN.
    """
    bench, maker = Bench(), made_wal(3 * SEGMENT_BYTES)
    end = bench.append(START, maker.read(START, START + SEGMENT_BYTES))
    bench.writer.run_all()
    bench.disk.capacity_bytes = 0
    end = bench.append(end, maker.read(end, end + 1000))
    # The control file is being saved, so events wait; one more append comes, then the write fails.
    bench.driver._hold(lambda: None)
    bench.append(end, maker.read(end, end + 1000))
    write, save = bench.writer.jobs
    bench.writer.jobs = [write]
    bench.writer.run_all()
    bench.disk.capacity_bytes = None
    bench.writer.jobs = [save]
    bench.writer.run_all()
    assert bench.driver.acceptor.flush_lsn == START + SEGMENT_BYTES
    assert bench.driver.acceptor.write_lsn == START + SEGMENT_BYTES
    codes = [m.code for m in bench.heard.messages if isinstance(m, Reject)]
    assert RejectCode.NO_SPACE in codes
    acks = [m.flush_lsn for m in bench.heard.messages if isinstance(m, AppendResponse)]
    assert max(acks) == START + SEGMENT_BYTES


def test_an_answer_after_a_persist_that_failed_is_never_sent() -> None:
    """An election is adopted and acknowledged in one breath; the control file says no."""
    bench, ballot = Bench(), Ballot(2, b"q" * 16)
    acceptor, save = bench.driver.acceptor, bench.driver._save
    creation = acceptor.durable.history[0]

    def save_but_not_this(durable: Durable) -> None:
        if durable.history[-1].ballot == ballot:
            raise StorageError("the control file cannot be written")
        save(durable)

    bench.driver._save = save_but_not_this
    entry = Fragment(ballot, START, 1, False, creation.members, 1)
    bench.receive(ProposerElected(1, ballot, START, (creation, entry)))
    bench.writer.run_all()
    told = [type(message) for message in bench.heard.messages]
    assert AppendResponse not in told and acceptor.failure is not None, told


def tip_bench(monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, Lsn]:
    """Return a log with few new committed records, which a page cache has, and their end."""
    bench, maker = Bench(), made_wal(4000)
    known, end = maker.records[1].end_lsn, maker.records[3].end_lsn
    bench.append(START, maker.read(START, end))
    bench.writer.run_all()
    bench.persist_commit(known)
    bench.others.run_all()
    assert bench.driver.find_whole(lambda _: None)
    bench.others.run_all()
    assert bench.driver.whole_lsn == known
    bench.persist_commit(end)
    monkeypatch.setattr(bench.disk, "read_cached", bench.disk.read_at)
    return bench, end


def readable(bench: Bench) -> ReadableLog:
    """Return the bench's log as its readers see it. It is on its first timeline."""
    nothing = SimpleNamespace(timeline_files=())
    folder, slots = cast(LogFolder, nothing), cast(DurableSlots, nothing)
    return ReadableLog("main", bench.driver, folder, slots, cast(TableCopies, nothing))


def test_a_reader_at_the_tip_waits_for_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, end = tip_bench(monkeypatch)
    learned: list[WalkeeperError | None] = []
    assert bench.driver.find_whole(learned.append)
    assert learned == [None] and bench.driver.whole_lsn == end
    read: list[object] = []
    bench.driver.read_committed(START, end, read.append)
    assert read == [bench.driver.store.read(START, end)] and not bench.others.jobs


def test_cached_wal_is_given_at_once_if_it_is_committed_whole_and_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, end = tip_bench(monkeypatch)
    log = readable(bench)
    assert log.read_cached(START, end) == bench.driver.store.read(START, end)
    assert log.read_cached(START, Lsn(end + 1)) is None, "this is not committed"
    bench.driver.damaged = (Lsn(end - 1), end)
    assert log.read_cached(START, end) is None
    assert log.read_cached(START, Lsn(end - 1)) == bench.driver.store.read(START, Lsn(end - 1))
    bench.driver.damaged = None
    monkeypatch.setattr(ReadableLog, "oldest_lsn", Lsn(START + 8))
    assert log.read_cached(START, end) is None, "this counts as removed"
    monkeypatch.setattr(bench.disk, "read_cached", lambda *_: None)
    assert log.read_cached(Lsn(START + 8), end) is None
    assert not bench.others.jobs


def test_a_read_request_for_cached_wal_waits_for_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, end = tip_bench(monkeypatch)
    bench.heard.messages.clear()
    bench.receive(ReadRequest(NO_BALLOT, START, end - START), connection=2)
    wal = bench.driver.store.read(START, end)
    assert bench.heard.messages == [ReadResponse(NO_BALLOT, START, crc_of(wal), wal)]
    assert not bench.others.jobs


def test_damaged_wal_is_not_read_from_the_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, end = tip_bench(monkeypatch)
    bench.driver.damaged = (START, end)
    bench.heard.messages.clear()
    bench.receive(ReadRequest(NO_BALLOT, START, end - START), connection=2)
    (answer,) = bench.heard.messages
    assert isinstance(answer, Reject) and "is damaged on this disk" in answer.text


def test_wal_that_the_page_cache_lacks_is_read_on_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, end = tip_bench(monkeypatch)
    monkeypatch.setattr(bench.disk, "read_cached", lambda *_: None)
    learned: list[WalkeeperError | None] = []
    read: list[object] = []
    assert bench.driver.find_whole(learned.append)
    bench.driver.read_committed(START, end, read.append)
    assert not learned and not read and len(bench.others.jobs) == 2
    bench.others.run_all()
    assert learned == [None] and read == [bench.driver.store.read(START, end)]


def test_old_wal_leaves_the_page_cache_again_when_a_reader_has_passed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, maker = Bench(), made_wal(4 * SEGMENT_BYTES)
    end = maker.records[-1].end_lsn
    bench.append(START, maker.read(START, end))
    bench.writer.run_all()
    bench.persist_commit(end)
    bench.others.run_all()
    store, passed = bench.driver.store, Lsn(START + SEGMENT_BYTES)
    monkeypatch.setattr(wal_store, "CACHED_BYTES", 2 * SEGMENT_BYTES)
    store.prepare_ahead(Lsn(START + 3 * SEGMENT_BYTES))
    dropped: list[str] = []
    monkeypatch.setattr(bench.disk, "drop_cached", dropped.append)
    for read_cached in (bench.disk.read_at, lambda *_: None):
        monkeypatch.setattr(bench.disk, "read_cached", read_cached)
        for begin, until in (
            (START, Lsn(passed - 8192)),
            (Lsn(passed - 8192), passed),
            (passed, Lsn(passed + SEGMENT_BYTES)),
        ):
            bench.driver.read_committed(begin, until, lambda _: None)
            readable(bench).read_cached(begin, until)
            bench.others.run_all()
    assert dropped == [store.name_of(START)] * 3, "by two reads of the cache and one of the disk"


def test_many_new_records_are_walked_on_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = tip_bench(monkeypatch)
    monkeypatch.setattr(safekeeper_driver, "FIND_BYTES_MAX", 100)
    learned: list[WalkeeperError | None] = []
    assert bench.driver.find_whole(learned.append)
    assert not learned and len(bench.others.jobs) == 1


def test_a_look_on_the_loop_does_not_overtake_one_on_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The older one ends last, and would take the end of whole records back."""
    bench, _ = tip_bench(monkeypatch)
    learned: list[WalkeeperError | None] = []
    with monkeypatch.context() as lacking:
        lacking.setattr(bench.disk, "read_cached", lambda *_: None)
        assert bench.driver.find_whole(learned.append)
    assert bench.driver.find_whole(learned.append)
    assert not learned and len(bench.others.jobs) == 2
    bench.others.run_all()
    assert learned == [None, None]


def test_the_end_of_whole_records_is_not_learned_from_wal_after_a_truncation() -> None:
    """A look that began with half a committed record ends with other, uncommitted records."""
    bench, maker = Bench(), made_wal(4000)
    whole, half = maker.records[3].end_lsn, maker.records[3].end_lsn + 400
    bench.append(START, maker.read(START, half))
    bench.writer.run_all()
    bench.persist_commit(half)
    learned: list[WalkeeperError | None] = []
    bench.others.run_all()
    assert bench.driver.find_whole(learned.append)
    (look,) = bench.others.jobs

    creation, first = bench.driver.acceptor.durable.history
    deposing = Ballot(2, b"q" * 16)
    second = replace(first, ballot=deposing, start_lsn=whole)
    bench.receive(ProposerElected(1, deposing, whole, (creation, first, second)), connection=2)
    bench.writer.run_all()
    maker.forget_after(whole)
    for _ in range(20):
        maker.record(30)
    wal = maker.read(whole, maker.end_lsn)
    append = AppendRequest(
        1, deposing, 1, whole, maker.end_lsn, whole, START, crc_of(wal), wal
    )  # fmt: skip
    bench.receive(append, connection=2)
    bench.writer.run_all()
    assert bench.driver.acceptor.commit_lsn == whole
    assert any(whole < made.end_lsn <= half for made in maker.records)

    bench.others.jobs.remove(look)
    bench.others.jobs.insert(0, look)
    bench.others.run_one()
    assert learned == [None]
    end = maker.end_lsn
    bench.receive(AppendRequest(1, deposing, 1, end, end, end, START, 0, b""), connection=2)
    assert bench.driver.acceptor.commit_lsn == end and bench.driver.whole_lsn <= whole
    assert bench.driver.find_whole(learned.append), "it is looked again"
    bench.others.run_all()
    assert learned == [None, None] and bench.driver.whole_lsn == end
    assert not bench.driver.find_whole(learned.append), "and not a third time"
