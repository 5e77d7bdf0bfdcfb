"""The reads that one connection has asked for: one at work, the others wait in order. Pure.

A peer may send many requests at once, and each answer has up to 1 MiB. So a request begins only
when the answer before it is made, and the peer has read enough of the answers so far.
"""

from __future__ import annotations

from collections import deque

from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import Reject, RejectCode
from walkeeper_common.wire.requests import ReadRequest, ReadResponse

WAITING_MAX = 16  # the connection is not read while more requests wait

_ENDS = frozenset((RejectCode.NOT_READABLE, RejectCode.WAL_REMOVED))


class RequestedReads:
    """The reads of one connection, of which at most one is at work."""

    def __init__(self) -> None:
        self._waiting: deque[ReadRequest] = deque()
        self._is_reading = False

    @property
    def is_long(self) -> bool:
        """Return whether more requests wait than a peer needs."""
        return len(self._waiting) > WAITING_MAX

    def ask(self, request: ReadRequest) -> None:
        """Put a request after the others."""
        self._waiting.append(request)

    def on_sent(self, answer: Message) -> None:
        """Note that the read at work is over, if this answer ends one."""
        if isinstance(answer, ReadResponse) or (
            isinstance(answer, Reject) and answer.code in _ENDS
        ):
            self._is_reading = False

    def next(self, *, is_full: bool) -> ReadRequest | None:
        """Return the read to begin now, or None; `is_full` means that the peer reads too little."""
        if is_full or self._is_reading or not self._waiting:
            return None
        self._is_reading = True
        return self._waiting.popleft()
