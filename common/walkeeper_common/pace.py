"""How long small writes take on a disk: whether the loop may wait for one. Pure."""

from __future__ import annotations

from collections.abc import Callable

BRIEF_S = 0.005
AVERAGED_JOBS = 8


class Pace:
    """Of one disk. Whoever writes at once looks at `usual_s` before, which is to be below BRIEF_S,
    and moves it behind: by an AVERAGED_JOBS-th of what it differed by."""

    __slots__ = ("now_s", "usual_s")

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s`: a clock that is never set back."""
        self.now_s, self.usual_s = now_s, 0.0
