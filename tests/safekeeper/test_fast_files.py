"""The compiled fast path on real files and sockets: what fails there is never acknowledged."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from tests.safekeeper.test_safekeeper_driver import BALLOT, SEGMENT_BYTES, START, Bench, made_wal
from tests.safekeeper.test_wal_store import SEGMENT, make_store, plain_wal
from tests.support.fast import NEEDS_FAST_PATH, made_path
from tests.support.frames import frames_of
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import StorageError
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.pace import Pace
from walkeeper_common.wire.framing import MEMORY_BYTES_MAX, encode
from walkeeper_common.wire.messages import AppendRequest, AppendResponse
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_fastpath.ports import FastAppends
from walkeeper_safekeeper.consensus.acceptor_answers import ack_of
from walkeeper_safekeeper.consensus.expected_append import ExpectedAppend, expected_append
from walkeeper_safekeeper.disk.real_disk import RealDisk
from walkeeper_safekeeper.storage.open_tail import Tail

pytestmark = NEEDS_FAST_PATH
WAL = made_wal(2 * SEGMENT_BYTES)


class Socket:
    """A connection's socket pair; `written` is what did not go to the socket at once."""

    made: ClassVar[list[Socket]] = []

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.made.append(self)
        self.near.setblocking(False)
        self.unsent_bytes, self.is_closing = 0, False
        self.written = list[bytes]()

    def write(self, buffers: Sequence[Buffer], size: int) -> None:
        self.written.append(b"".join(buffers))
        assert len(self.written[-1]) == size

    def direct(self) -> tuple[int, Callable[[], int], Callable[[], bool]]:
        return self.near.fileno(), lambda: self.unsent_bytes, lambda: self.is_closing

    def sealed(self) -> None:
        """Say that there is no TLS."""

    def fill(self) -> int:
        """Let the socket take no more; return how many bytes it holds."""
        sent = 0
        while True:
            try:
                sent += self.near.send(bytes(4096))
            except BlockingIOError:
                return sent


@pytest.fixture(autouse=True)
def no_sockets_left() -> Iterator[None]:
    yield
    while Socket.made:
        one = Socket.made.pop()
        one.near.close()
        one.far.close()


class Writer:
    """A descriptor of the test's; its errors are those of the real writer."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.observed = descriptor, 0

    def write(self, data: Buffer, offset: int) -> int:
        raise AssertionError("the descriptor is written to")

    def sync(self) -> object:
        raise AssertionError("the descriptor is synced")

    def observe(self, write_s: float, sync_s: float) -> None:
        self.observed += 1

    def failure(self, error: OSError) -> StorageError:
        return StorageError(f"writing: {error.strerror}")

    def cut_short(self, offset: int, written: int, size: int) -> StorageError:
        return StorageError(f"writing: {written} of {size} bytes at {offset}")

    def close(self) -> None: ...


class Stage:
    """A fast path on a descriptor and a socket. `failures` are those that the store got."""

    def __init__(self, descriptor: int, *, limit: int = SEGMENT_BYTES) -> None:
        self.bench = Bench(is_fast=False)
        acceptor = self.bench.driver.acceptor
        self.begin = self.bench.append(START, WAL.read(START, START + 1000))
        self.bench.writer.run_all()
        self.bench.persist_commit(self.begin)
        expected = expected_append(acceptor, 1)
        assert expected is not None
        self.acceptor, self.expected = acceptor, expected
        self.socket, self.failures = Socket(), list[tuple[str, int]]()
        self.writer = Writer(descriptor)
        tail = Tail(START, START + limit, self.writer, Pace(lambda: 0.0), self._fail)
        self.path: FastAppends = made_path(self.expected, tail, self.socket)

    def _fail(self, error: StorageError, lsn: int) -> StorageError:
        self.failures.append((str(error), lsn))
        return error

    def ack(self, flush_lsn: Lsn) -> bytes:
        """Return the frame that the slow path sends."""
        ack = ack_of(self.acceptor)
        said = AppendResponse(ack.generation, BALLOT, flush_lsn, self.begin, ack.feedback)
        return b"".join(encode(said))

    def append(self, *sizes: int, begin: Lsn | None = None) -> bytearray:
        at, appends = begin or self.begin, list[AppendRequest]()
        for size in sizes:
            wal = WAL.read(at, at + size)
            told = self.acceptor.leader_commit_lsn
            appends.append(
                AppendRequest(1, BALLOT, 1, at, at + size, told, START, crc_of(wal), wal)
            )
            at = at + size
        return frames_of(*appends)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    path.write_bytes(bytes(SEGMENT_BYTES))
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_wal_is_in_the_file_and_the_ack_is_the_slow_paths(tmp_path: Path) -> None:
    with opened(tmp_path / "segment") as descriptor:
        on = Stage(descriptor)
        frames = on.append(100, 0, 9000, 1)
        assert on.path.take(frames, len(frames)) == len(frames)
        end = on.begin + 9101
        assert on.socket.far.recv(1000) == on.ack(end) and not on.socket.written
        assert on.path.settled() == (end, on.begin, START) and on.path.settled() is None
        written = (tmp_path / "segment").read_bytes()
        assert written[on.begin - START : end - START] == WAL.read(on.begin, end)
        assert not any(written[: on.begin - START]) and not any(written[end - START :])


def assert_fails(on: Stage, text: str) -> None:
    frames = on.append(100, 50)
    for _ in range(2):  # the owner of the socket meets the error as well
        with pytest.raises(StorageError, match=text):
            on.path.take(frames, len(frames))
    on.socket.near.close()
    assert on.socket.far.recv(1000) == b"" and not on.socket.written, "no ack of it"
    assert on.path.settled() is None and on.path.taken == len(frames)
    assert on.path.end_lsn == on.begin
    ((_, lsn),) = on.failures
    assert lsn == on.begin, "the store accepts nothing any more"


def test_a_full_disk_is_no_ack() -> None:
    descriptor = os.open("/dev/full", os.O_RDWR)
    assert_fails(Stage(descriptor), "No space left on device")
    os.close(descriptor)


def test_a_failed_sync_is_no_ack() -> None:
    descriptor = os.open("/dev/null", os.O_RDWR)  # takes all bytes, and cannot be synced
    assert_fails(Stage(descriptor), "Invalid argument")
    os.close(descriptor)


def test_a_closed_file_is_no_ack() -> None:
    descriptor = os.open("/dev/null", os.O_RDONLY)
    assert_fails(Stage(descriptor), "Bad file descriptor")
    os.close(descriptor)


def test_a_short_write_is_no_ack(tmp_path: Path) -> None:
    """The file may not grow past the middle of the second piece."""
    with opened(tmp_path / "segment") as descriptor:
        on = Stage(descriptor)
        before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.SIG_IGN
        was = signal.signal(signal.SIGXFSZ, handler)
        os.truncate(descriptor, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (on.begin - START + 120, before[1]))
        try:
            assert_fails(on, "120 of 150 bytes at 1000")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, was)


def test_the_segments_end_belongs_to_the_slow_path(tmp_path: Path) -> None:
    """Another file has to be there, and the log's marks, before more is acknowledged."""
    with opened(tmp_path / "segment") as descriptor:
        on = Stage(descriptor, limit=1300)
        for sizes in ((300,), (301,), (100, 200), (299, 1)):
            frames = on.append(*sizes)
            assert on.path.take(frames, len(frames)) == 0, f"{sizes=}"
        assert not any((tmp_path / "segment").read_bytes()) and on.path.settled() is None
        frames = on.append(299)
        assert on.path.take(frames, len(frames)) == len(frames)


def test_an_ack_waits_behind_what_the_socket_has_not_taken(tmp_path: Path) -> None:
    with opened(tmp_path / "segment") as descriptor:
        on = Stage(descriptor)
        begin = on.begin
        for unsent_bytes, is_closing in ((1, False), (0, True)):
            on.socket.unsent_bytes, on.socket.is_closing = unsent_bytes, is_closing
            frames = on.append(10, begin=begin)
            assert on.path.take(frames, len(frames)) == len(frames)
            begin = begin + 10
            assert on.socket.written.pop() == on.ack(begin)
        on.socket.unsent_bytes, on.socket.is_closing = 0, False
        held = on.socket.fill()
        frames = on.append(10, begin=begin)
        assert on.path.take(frames, len(frames)) == len(frames)
        received = bytearray()
        while len(received) < held:
            received += on.socket.far.recv(1 << 20)
        got = bytes(received[held:]) + b"".join(on.socket.written)
        assert got == on.ack(begin + 10), "whole, wherever it went"


def test_the_longest_append_and_many_short_ones(tmp_path: Path) -> None:
    """A memory full of frames is taken in bunches of bounded size."""
    with opened(tmp_path / "segment") as descriptor:
        on = Stage(descriptor)
        frames, at, taken = on.append(*([2] * 1000)), on.begin, 0
        assert len(frames) < MEMORY_BYTES_MAX
        while taken < len(frames):
            rest = frames[taken:]
            size = on.path.take(rest, len(rest))
            assert size, f"{taken=}"
            taken += size
        on_disk = (tmp_path / "segment").read_bytes()[at - START : at - START + 2000]
        assert on_disk == WAL.read(at, at + 2000)


def test_memory_is_not_read_beyond_what_was_received(tmp_path: Path) -> None:
    with opened(tmp_path / "segment") as descriptor:
        on = Stage(descriptor)
        frames = on.append(100)
        for size in range(len(frames)):
            assert on.path.take(frames, size) == 0
        for size in (len(frames) + 1, -1):
            with pytest.raises(ValueError, match="size"):
                on.path.take(frames, size)
        with pytest.raises(TypeError):
            on.path.take(bytes(frames), len(frames))  # type: ignore[arg-type]
        assert on.path.take(frames, len(frames)) == len(frames)


def test_the_template_has_the_frames_sizes() -> None:
    on = Stage(-1)
    expected = on.expected
    tail = Tail(START, START + 1, Writer(-1), Pace(lambda: 0.0), lambda error, _: error)
    for append, ack in ((expected.append + b"x", expected.ack), (expected.append, b"")):
        wrong = ExpectedAppend(append, ack, expected.limit_lsn, expected.knows_pages)
        with pytest.raises(ValueError, match="len"):
            made_path(wrong, tail, on.socket)


def test_the_real_disks_tail_is_written_and_synced(tmp_path: Path) -> None:
    """As WalStore hands it over."""
    wal = plain_wal(22, 20)
    disk = RealDisk(str(tmp_path))
    store = make_store(disk)
    store.create(wal.start_lsn)
    half = wal.start_lsn + 5000
    store.append(wal.start_lsn, [wal.read(wal.start_lsn, half)])
    tail = store.tail(half, Pace(lambda: 0.0))
    assert tail is not None and tail.descriptor >= 0 and tail.end_lsn == wal.start_lsn + SEGMENT
    at = AppendRequest(1, BALLOT, 1, half, half, half, half, 0, b"")
    ack = AppendResponse(1, BALLOT, half, half, Bench().driver.acceptor.feedback)
    frames = [b"".join(encode(one)) for one in (at, ack)]
    expected = ExpectedAppend(frames[0], frames[1], wal.end_lsn + WAL_PAGE_BYTES, True)
    path = made_path(expected, tail, Socket())
    payload = wal.read(half, half + 700)
    lsns = (half, half + 700, half, half)
    memory = frames_of(AppendRequest(1, BALLOT, 1, *lsns, crc_of(payload), payload))
    assert path.take(memory, len(memory)) == len(memory)
    tail.close()
    assert tail.descriptor >= 0, "the path keeps its own number; the driver ends it first"
    assert store.read(wal.start_lsn, half + 700) == wal.read(wal.start_lsn, half + 700)


@pytest.mark.parametrize("said", ["off", "OFF", "0", "on"])
def test_the_variable_turns_it_off(said: str) -> None:
    code = "import walkeeper_fastpath.switch as f; print(f.state(), f.append_path() is None)"
    env = {**os.environ, "WALKEEPER_FAST_PATH": said}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    off = "off (WALKEEPER_FAST_PATH says so) True"
    assert done.stdout.strip() == ("on False" if said == "on" else off), done.stderr


def test_each_write_is_timed_for_the_metrics(tmp_path: Path) -> None:
    with opened(tmp_path / "segment") as descriptor:
        on = Stage(descriptor)
        for number in range(3):
            frames = on.append(100, begin=on.begin + 100 * number)
            assert on.path.take(frames, len(frames)) == len(frames)
        assert on.path.settled() is not None and on.writer.observed == 3


def test_the_times_that_wait_are_bounded(tmp_path: Path) -> None:
    with opened(tmp_path / "segment") as descriptor:
        on = Stage(descriptor)
        for number in range(100):
            frames = on.append(10, begin=on.begin + 10 * number)
            assert on.path.take(frames, len(frames)) == len(frames)
        assert on.writer.observed == 64
