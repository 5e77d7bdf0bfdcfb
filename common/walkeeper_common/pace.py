"""The time that small writes take on a disk, which decides if the loop may wait for one. Pure."""

from __future__ import annotations

from collections.abc import Callable

BRIEF_S = 0.005
AVERAGED_JOBS = 8


class Pace:
    """The pace of one disk.

    A caller that writes on the loop first checks `is_brief`, and afterwards calls `took`. It may
    call `took` later for times below `brief_s`: while there are no others, `is_brief` does not end.
    """

    __slots__ = ("now_s", "usual_s")
    brief_s = BRIEF_S

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Keep `now_s`, a clock that is never set back."""
        self.now_s, self.usual_s = now_s, 0.0

    @property
    def is_brief(self) -> bool:
        """Return True if the loop may wait for a small write."""
        return self.usual_s < BRIEF_S

    def took(self, seconds: float) -> None:
        """Move `usual_s` by an AVERAGED_JOBS-th of the difference to the time of this write."""
        self.usual_s += (seconds - self.usual_s) / AVERAGED_JOBS
