"""The progress of a change of members, from which the --timeout of its command counts. Pure."""

from __future__ import annotations

from walkeeper_common.quorum import Configuration
from walkeeper_proposer.consensus.members.deciding import Batch, standing, way_back


class ChangeProgress:
    """Progress is a greater generation, a wait that is new in it, or fewer bytes to go than ever.

    Two waits that alternate are no progress: members that come and go would keep the command
    running for ever.
    """

    def __init__(self) -> None:
        self.current: Configuration | None = None
        self._known: set[str] = set()
        self._least_to_go: int | None = None

    def is_in(self, batch: Batch) -> bool:
        """Return True if this wait shows progress since the waits before it."""
        newest, known = batch.current, self.current
        if newest is not None and (known is None or newest.generation > known.generation):
            self.current, self._known, self._least_to_go = newest, {batch.text}, batch.to_go
            return True
        is_new = batch.text not in self._known
        self._known.add(batch.text)
        least = self._least_to_go
        if batch.to_go is None or (least is not None and batch.to_go >= least):
            return is_new
        self._least_to_go = batch.to_go
        return True

    def ways_on(self) -> str:
        """Return the members that decide now, and the commands that go on from there."""
        ways = "the same command goes on from here"
        if self.current is None:
            return ways
        if self.current.target is not None:
            lost = ", --instead gives up the newcomer" if self.current.is_replacing else ""
            ways += f"{lost}, {way_back(self.current)} keeps the old members"
        return f"{standing(self.current)}; {ways}"
