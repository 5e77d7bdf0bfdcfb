"""The last telling record of those that a quorum has (docs/protocol.md R22). Pure.

    on_nonce(end_lsn)           the shell has written a nonce that ends there
    move(committed_lsn)         the LSN has moved that an ack quorum durably knows as committed

The server and the safekeepers keep their WAL from `page_lsn` on. "Knows durably" counts, because a
check on the greetings ends at the greatest commit_lsn of a vote quorum, after restarts as well.
No state is kept on disk: a new proposer writes a nonce at once. Until that nonce is committed, the
server's slot and the safekeepers' restart_lsn stay where the last proposer has left them.
"""

from __future__ import annotations

from collections import deque

from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.postgres.nonce_message import nonce_page

AWAITED_MAX = 4096  # uncommitted nonces; if there are more, each new one replaces the newest


class Telling:
    """The telling records of one term. `end_lsn` and `page_lsn` are the last one's, or zero."""

    def __init__(self) -> None:
        self.end_lsn = self.page_lsn = ZERO_LSN
        self._awaited: deque[Lsn] = deque()

    @property
    def awaits(self) -> bool:
        """True while the commit of some nonce is not known yet."""
        return bool(self._awaited)

    def on_nonce(self, end_lsn: Lsn) -> None:
        """Remember a nonce, but none that a page's end may cut or that is older than the last."""
        newest_lsn = self._awaited[-1] if self._awaited else self.end_lsn
        if end_lsn <= newest_lsn or nonce_page(end_lsn) is None:
            return
        if len(self._awaited) == AWAITED_MAX:
            self._awaited.pop()
        self._awaited.append(end_lsn)

    def move(self, committed_lsn: Lsn) -> bool:
        """Go on to the last nonce at or below `committed_lsn`; return True if there is a newer."""
        moves = False
        while self._awaited and self._awaited[0] <= committed_lsn:
            self.end_lsn, moves = self._awaited.popleft(), True
        if moves:
            page_lsn = nonce_page(self.end_lsn)
            assert page_lsn is not None, f"{self.end_lsn=}"
            self.page_lsn = page_lsn
        return moves
