"""The choice of a safekeeper that gets new WAL in bunches, as the others commit without it. Pure.

    WAL goes to all at once  --- `patience` commits ----------------------> one gets bunches
                             <-- a commit waited for a bunch, or little WAL

The one that was behind most of these commits gets bunches. Each time that a commit had to wait for
a bunch, `patience` is doubled (docs/adr/0057-send-wal-to-a-spare-safekeeper-in-bunches.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

PATIENCE_MIN = 64  # commits between two times with bunches
PATIENCE_MAX = 1024
CALM_BUNCHES = 100  # after so many that no commit waited for, patience is halved


class Bunches:
    """`link` is the link that gets bunches, or None."""

    def __init__(self, patience_min: int = PATIENCE_MIN) -> None:
        self.link: int | None = None
        self._patience_min = self._patience = patience_min
        self._commits = self._calm = 0
        self._behind = Counter[int]()

    def learn(
        self, commits: int, behind: Iterable[tuple[int, int]], may_wait: Collection[int]
    ) -> None:
        """Count commits, and how often each link was behind one; choose one of `may_wait`."""
        if self.link is not None:
            return
        self._commits += commits
        for link, times in behind:
            self._behind[link] += times
        if self._commits >= self._patience and may_wait:
            self.link = max(may_wait, key=lambda link: self._behind[link])

    def judge(self, appends: int, *, was_needed: bool) -> None:
        """Go on after a bunch of so many appends, unless a commit had to wait for one."""
        if self.link is None:
            return
        if was_needed:
            self._patience = min(2 * self._patience, max(PATIENCE_MAX, self._patience_min))
        elif appends > 1:
            self._calm += 1
            if self._calm % CALM_BUNCHES == 0:
                self._patience = max(self._patience // 2, self._patience_min)
            return
        self.link, self._commits, self._calm = None, 0, 0
        self._behind.clear()
