"""How far the stream of a primary has come, and what was reported: the slow path's own. Pure.

The compiled fast path keeps the same facts, and reads and reports by itself (PrimaryPath).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from walkeeper_common.lsn import ZERO_LSN
from walkeeper_common.wire.messages import Feedback
from walkeeper_fastpath.ports import Commits, FastStream, Libpq


class SlowEnds:
    """The `StreamEnds` of a shell that reads and reports all by itself."""

    def __init__(self, on_readable: Callable[[], object]) -> None:
        self.on_readable = on_readable
        self.received_lsn: int = ZERO_LSN
        self.flush_lsn: int = ZERO_LSN
        self.apply_lsn: int = ZERO_LSN
        self.silent_statuses = 0
        self.feedback: Sequence[Feedback] | None = None

    def open(self, connection: Libpq, commits: Commits) -> None:
        """Take nothing of it."""

    def close(self) -> None:
        """Do nothing."""

    def stream_first(self, stream: FastStream) -> None:
        """Give nothing to it."""
