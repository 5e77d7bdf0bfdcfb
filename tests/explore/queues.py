"""Messages under way on a connection, oldest first; queues and messages by number."""

from __future__ import annotations

from dataclasses import replace

from tests.explore.bounds import Bounds
from tests.explore.interned import Interned
from tests.explore.tiny_wal import CREATION_LSN
from walkeeper_common.history import Ballot
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import AppendRequest, ProposerElected

EMPTY = 0


class Queues:
    """A queue never changes: another queue has one message less at the head or more at the end."""

    def __init__(self, bounds: Bounds) -> None:
        self._shows_commits = bounds.shows_commits
        self.messages: Interned[Message] = Interned()
        self._queues: Interned[tuple[int, ...]] = Interned()
        assert self._queues.number(()) == EMPTY
        self._longer: dict[tuple[int, int], int] = {}
        self._shorter: list[int] = []

    def first(self, queue: int) -> int:
        return self._queues.values[queue][0]

    def rest(self, queue: int) -> int:
        while len(self._shorter) <= queue:
            self._shorter.append(self._queues.number(self._queues.values[len(self._shorter)][1:]))
        return self._shorter[queue]

    def behind(self, queue: int, message: int) -> int:
        """Return `queue` with `message` at its end, without messages that bring no news.

        An append under way carries the commit_lsn that it would carry if it were sent now. The
        append before a heartbeat absorbs the heartbeat. Their earlier contents arrive in the
        stories where the messages arrive earlier.
        """
        key = (queue, message)
        found = self._longer.get(key)
        if found is None:
            value = self.messages.values[message]
            before = self._queues.values[queue]
            if isinstance(value, AppendRequest):
                found = self._queues.number(self._with_append(before, value))
            else:
                found = self._queues.number((*before, message))
            self._longer[key] = found
        return found

    def _with_append(self, queue: tuple[int, ...], append: AppendRequest) -> tuple[int, ...]:
        commit_lsn = append.commit_lsn if self._shows_commits else CREATION_LSN
        messages = [*(self.messages.values[m] for m in queue), append]
        messages = [
            replace(m, commit_lsn=commit_lsn)
            if isinstance(m, AppendRequest) and m.ballot == append.ballot
            else m
            for m in messages
        ]
        last = messages[-2] if len(messages) > 1 else None
        if isinstance(last, AppendRequest) and last.ballot == append.ballot:
            if not append.payload:
                del messages[-1]
            elif not last.payload:
                del messages[-2]
        return tuple(self.messages.number(m) for m in messages)

    def is_election(self, message: int) -> bool:
        return isinstance(self.messages.values[message], ProposerElected)

    def ballots(self, queue: int) -> set[Ballot]:
        """Return all ballots that the messages under way name."""
        return ballots_in(*(self.messages.values[m] for m in self._queues.values[queue]))


def ballots_in(*messages: Message) -> set[Ballot]:
    found: set[Ballot] = {m.ballot for m in messages if hasattr(m, "ballot")}
    histories = [m.history for m in messages if isinstance(m, ProposerElected)]
    return found | {entry.ballot for history in histories for entry in history}
