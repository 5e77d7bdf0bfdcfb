"""The constructors of the compiled classes; their contracts are the ports.

`read_cached(descriptor, size, offset)` is the contract `ReadCached`.
"""

from collections.abc import Callable, Sequence

from walkeeper_common.metrics import Times
from walkeeper_common.wire.messages import Feedback
from walkeeper_fastpath.ports import (
    Answering,
    Commits,
    Disk,
    Expected,
    ExpectedFrames,
    FastAppends,
    FastStream,
    Frames,
    Leading,
    Libpq,
    Receiving,
    StreamEnds,
    Streaming,
    TakeFrames,
)

def read_cached(descriptor: int, size: int, offset: int, /) -> bytes | None: ...

class Feed:
    take: TakeFrames | None

    def __init__(self, connection: Receiving, reader: Frames, /) -> None: ...
    def get_buffer(self, sizehint: int, /) -> memoryview: ...
    def buffer_updated(self, nbytes: int, /) -> None: ...

class AppendPath(FastAppends):
    taken: int
    end_lsn: int
    groups_written: int
    on_news: Callable[[], None] | None

    def __init__(self, expected: Expected, tail: Disk, answer: Answering, /) -> None: ...
    def take(self, memory: bytearray, size: int, /) -> int: ...
    def settled(self) -> tuple[int, int, int] | None: ...

class StreamPath(FastStream):
    end_lsn: int
    commit_lsn: int
    owed_lsn: int
    feedback: Sequence[Feedback]

    def __init__(self, expected: ExpectedFrames, connections: Sequence[Answering], /) -> None: ...
    def lead(self, leader: Leading, /) -> None: ...
    def owe(self) -> None: ...
    def puts_off(self) -> bool: ...
    def end(self) -> None: ...
    def bunch_for(self, link: int | None, /) -> None: ...
    def release(self) -> tuple[int, bool]: ...
    def behind_commits(self) -> tuple[int, Sequence[tuple[int, int]]]: ...
    def stream(self, begin_lsn: int, wal: memoryview, /) -> bool: ...
    def acknowledge(self, link: int, memory: bytearray, size: int, /) -> int: ...
    def send(self, begin_lsn: int, wal: memoryview, /) -> bool: ...
    def take(self, link: int, memory: bytearray, size: int, /) -> int | None: ...
    def settled(
        self,
    ) -> (
        tuple[int, int, Sequence[tuple[memoryview, int]], Sequence[tuple[int, int, int]]] | None
    ): ...

class CommitClock(Commits):
    @property
    def times(self) -> Times: ...
    def on_wal(self, end_lsn: int, /) -> int: ...
    def on_commit(self, commit_lsn: int, /) -> int: ...
    def forget(self) -> None: ...

class PrimaryPath(StreamEnds):
    received_lsn: int
    flush_lsn: int
    apply_lsn: int
    silent_statuses: int
    feedback: Sequence[Feedback] | None

    def __init__(
        self,
        owner: Streaming,
        status: bytes,
        /,
        *,
        gathered_bytes_max: int,
        silent_statuses_ask: int,
    ) -> None: ...
    @property
    def on_readable(self) -> Callable[[], object]: ...
    def open(self, connection: Libpq, commits: Commits, /) -> None: ...
    def close(self) -> None: ...
    def stream_first(self, stream: FastStream, /) -> None: ...
