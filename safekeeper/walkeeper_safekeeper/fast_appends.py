"""The fast path of a log's appends, from the core's template to the news for the core. Pure.

    begin(connection, …)      the core describes the next append; the tail's file is held
    take(memory, size)        the compiled path takes what is as described
    news()                    the end of the taken WAL, for the core
    end()                     any other event ends it: the file is given back

walkeeper_fastpath is the compiled part, behind the port `FastAppends`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from walkeeper_common.lsn import Lsn
from walkeeper_common.pace import Pace
from walkeeper_fastpath.ports import Answering, FastAppends, Feeding
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import AppendsTaken
from walkeeper_safekeeper.consensus.expected_append import ExpectedAppend, expected_append
from walkeeper_safekeeper.storage.open_tail import Tail
from walkeeper_safekeeper.storage.wal_store import WalStore

MakeFastAppends: TypeAlias = Callable[[ExpectedAppend, Tail, Answering], FastAppends]


class FastPath:
    """The fast path of one log. Without `make` it is off, and all appends take the slow path.

    `groups_written` counts its writes. `take` returns what FastAppends.take returns, and 0 for
    another connection. `taken` are the bytes of frames whose write has failed."""

    def __init__(
        self,
        acceptor: Acceptor,
        store: WalStore,
        make: MakeFastAppends | None,
        on_news: Callable[[], None],
    ) -> None:
        """Call `on_news` when the first `news` arrive."""
        self._acceptor, self._store, self._make = acceptor, store, make
        self._on_news = on_news
        self._appends: FastAppends | None = None
        self._answer: Feeding | None = None
        self._tail: Tail | None = None  # the file that it writes to
        self._connection = 0
        self._groups_ended = 0

    @property
    def is_there(self) -> bool:
        """Return True from `begin` to `end`."""
        return self._appends is not None

    @property
    def is_off(self) -> bool:
        return self._make is None

    @property
    def groups_written(self) -> int:
        return self._groups_ended + (self._appends.groups_written if self._appends else 0)

    @property
    def taken(self) -> int:
        return self._appends.taken if self._appends else 0

    @property
    def flush_lsn(self) -> Lsn:
        """Return the end of durable WAL; the core learns of it soon."""
        return Lsn(self._appends.end_lsn) if self._appends else self._acceptor.flush_lsn

    def begin(self, connection: int, answer: Feeding, pace: Pace) -> None:
        """Begin for this connection, if the core and the store have a next append for it."""
        assert self._appends is None, f"{self._connection=}"
        expected = expected_append(self._acceptor, connection)
        tail = None if expected is None else self._store.tail(self._acceptor.flush_lsn, pace)
        if self._make is None or expected is None or tail is None:
            return
        self._tail, self._connection = tail, connection
        self._appends, self._answer = self._make(expected, tail, answer), answer
        self._appends.on_news = self._on_news
        answer.receive_first(self._appends.take)

    def take(self, connection: int, memory: bytearray, size: int) -> int:
        appends = self._appends
        if appends is None or self._connection != connection:
            return 0
        return appends.take(memory, size)

    def news(self) -> AppendsTaken | None:
        """Return how far the log is now, if the core does not know it."""
        news = None if self._appends is None else self._appends.settled()
        return news and AppendsTaken(*map(Lsn, news))

    def end(self) -> None:
        """Give the file back; ask for the news before."""
        if self._appends is None or self._tail is None or self._answer is None:
            return
        self._answer.receive_first(None)
        self._groups_ended += self._appends.groups_written
        self._tail.close()
        self._appends = self._tail = self._answer = None
