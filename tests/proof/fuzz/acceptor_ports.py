"""The ports of the acceptor's shipping driver in fuzzing: a worker, a store of lengths."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Self, cast

from tests.proof.fuzz.contract import require
from tests.support.scenario_words import CREATION_LSN
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import CorruptWal, StorageError
from walkeeper_common.lsn import Lsn
from walkeeper_common.pace import Pace
from walkeeper_common.postgres.walformat import RecordEnd
from walkeeper_common.timelines import Timelines
from walkeeper_safekeeper.storage.open_tail import Tail

RECORD_BYTES = 40  # every record of this log is as long


def record_end(lsn: Lsn) -> Lsn:
    return CREATION_LSN + (lsn - CREATION_LSN) // RECORD_BYTES * RECORD_BYTES


class Jobs:
    """A Worker whose jobs are done when the story says so."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Callable[[], object], Callable[[object], None]]] = deque()

    def submit(
        self, job: Callable[[], object], done: Callable[[object], None], *, brief: bool = False
    ) -> None:
        self._jobs.append((job, done))

    def at_once(self) -> Pace | None:
        return None if self._jobs else Pace(lambda: 0.0)

    def finish_one(self) -> None:
        if self._jobs:
            job, done = self._jobs.popleft()
            try:
                result = job()
            except StorageError as error:
                result = error
            done(result)


class Store:
    """The part of a WalStore that the driver and the core see; its WAL is as good as its length."""

    segment_bytes = 1 << 20

    def __init__(self, end_lsn: Lsn) -> None:
        self.first_lsn, self.end_lsn = CREATION_LSN, end_lsn
        self.committed_lsn = CREATION_LSN  # the most that a reader may have been sent
        self.fails: StorageError | None = None
        self.has_tail = False

    def _fail(self) -> None:
        if self.fails is not None:
            failure, self.fails = self.fails, None
            raise failure

    def append(self, begin_lsn: Lsn, buffers: Sequence[bytes]) -> None:
        require(not self.has_tail, "an append at {} beside the tail's", begin_lsn)
        self._append(begin_lsn, buffers)

    def _append(self, begin_lsn: Lsn, buffers: Sequence[bytes]) -> None:
        require(begin_lsn == self.end_lsn, "a write at {}, WAL ends at {}", begin_lsn, self.end_lsn)
        self._fail()
        self.end_lsn = begin_lsn + sum(map(len, buffers))

    def tail(self, lsn: Lsn, pace: Pace) -> Tail:
        """Return a tail, which stands for any."""
        require(not self.has_tail, "a second tail at {}", lsn)
        self.has_tail = True

        def write(data: Buffer, offset: int) -> int:
            self._append(Lsn(lsn + offset), [bytes(data)])
            return len(data)

        ports = {
            "write": write,
            "sync": lambda: None,
            "close": self._close_tail,
            "failed": lambda error, lsn: error,
            "is_quick": lsn % 3 != 0,  # else it stands for a disk that has become slow
        }
        facts = {"begin_lsn": lsn, "end_lsn": lsn + 5, "descriptor": -1, "pace": pace}
        return cast(Tail, SimpleNamespace(**facts, **ports))

    def _close_tail(self) -> None:
        require(self.has_tail, "a tail that is closed twice")
        self.has_tail = False

    def truncate(self, to_lsn: Lsn) -> None:
        require(not self.has_tail, "a cut at {} beside an open tail", to_lsn)
        require(to_lsn <= self.end_lsn, "a cut at {}, WAL ends at {}", to_lsn, self.end_lsn)
        whole = record_end(self.committed_lsn)
        require(to_lsn >= whole, "a cut at {}, committed records end at {}", to_lsn, whole)
        self._fail()
        self.end_lsn = to_lsn
        self.committed_lsn = min(self.committed_lsn, to_lsn)

    def record_end(self, lsn: Lsn) -> RecordEnd:
        if isinstance(self.fails, CorruptWal):
            self._fail()
        require(lsn <= self.end_lsn, "the record end below {}, WAL ends at {}", lsn, self.end_lsn)
        return RecordEnd(None, record_end(lsn))

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        if isinstance(self.fails, CorruptWal):
            self._fail()
        return bytes(end_lsn - begin_lsn)

    @property
    def disk(self) -> Self:
        return self

    def read_cached(self, name: str, offset: int, size: int) -> bytes | None:
        """Return bytes at every other offset, as a page cache that has half of the WAL."""
        return bytes(size) if offset % 2 and self.fails is None else None

    def name_of(self, lsn: Lsn) -> str:
        return str(self.segment_start(lsn))

    def segment_start(self, lsn: Lsn) -> Lsn:
        return lsn.round_down(self.segment_bytes)

    def file_end(self, lsn: Lsn) -> Lsn:
        return self.segment_start(lsn) + self.segment_bytes

    def prepare_ahead(self, segment: Lsn, wanted_lsn: Lsn | None = None) -> None:
        pass

    def follow(self, timelines: Timelines) -> None:
        pass

    def remove_below(self, lsn: Lsn) -> None:
        pass
