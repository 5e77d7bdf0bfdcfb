"""An event loop whose clock runs as on a machine that has nothing else to do.

A peer must answer within half a second, and both sides of the connection are on this loop. On a
busy machine the process itself is put aside for that long, and the peer seems silent. Here only
two things take time: the work of the loop's thread, and a wait with nothing ready.

    asyncio.Runner(loop_factory=QuietClockLoop)
    run_quietly(story())                            what asyncio.run does, on such a loop

A wait for another process or thread counts as it is. Use the loop on the thread that made it.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


T = TypeVar("T")


def run_quietly(story: Coroutine[object, object, T]) -> T:
    with asyncio.Runner(loop_factory=QuietClockLoop) as runner:
        return runner.run(story)


class QuietClockLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._waiting = _Waiting()
        super().__init__(self._waiting)

    def time(self) -> float:
        return self._waiting.idle_s + time.thread_time()


class _Waiting(selectors.BaseSelector):
    """The usual selector; `idle_s` is how long it has waited."""

    def __init__(self) -> None:
        self._usual = selectors.DefaultSelector()
        self.idle_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        began_s = time.monotonic()
        found = self._usual.select(timeout)
        waited_s = time.monotonic() - began_s
        if timeout is None:
            self.idle_s += waited_s
        elif timeout > 0:
            # A process that is put aside wakes up late: the timeout is all that it waited for.
            self.idle_s += min(waited_s, timeout) if found else timeout
        return found

    def register(
        self, fileobj: FileDescriptorLike, events: int, data: object = None
    ) -> selectors.SelectorKey:
        return self._usual.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._usual.unregister(fileobj)

    def modify(
        self, fileobj: FileDescriptorLike, events: int, data: object = None
    ) -> selectors.SelectorKey:
        return self._usual.modify(fileobj, events, data)

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return self._usual.get_map()

    def close(self) -> None:
        self._usual.close()
