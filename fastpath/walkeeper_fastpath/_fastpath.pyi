"""The constructors of the compiled classes; their contracts are the ports."""

from collections.abc import Callable, Sequence

from walkeeper_common.wire.messages import Feedback
from walkeeper_fastpath.ports import (
    Answering,
    Disk,
    Expected,
    ExpectedFrames,
    FastAppends,
    FastStream,
    Frames,
    Receiving,
    TakeFrames,
)

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
    feedback: Sequence[Feedback]

    def __init__(self, expected: ExpectedFrames, connections: Sequence[Answering], /) -> None: ...
    def send(self, begin_lsn: int, wal: memoryview, /) -> bool: ...
    def take(self, link: int, memory: bytearray, size: int, /) -> int | None: ...
    def settled(
        self,
    ) -> (
        tuple[int, int, Sequence[tuple[memoryview, int]], Sequence[tuple[int, int, int]]] | None
    ): ...
