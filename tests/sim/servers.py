"""Which servers and safekeepers go together: who may go on with the log as it is.

For the plots, which need two servers that will not be refused, and for the end of a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.primary import Primary
from tests.sim.replacing import newest
from tests.sim.safekeeper_node import SafekeeperNode
from walkeeper_common.history import Ballot, cut
from walkeeper_common.lsn import Lsn
from walkeeper_common.timelines import Timelines
from walkeeper_safekeeper.driver import Driver
from walkeeper_safekeeper.storage.wal_store import WalStore

if TYPE_CHECKING:
    from tests.sim.story import Story


def members(story: Story) -> list[SafekeeperNode]:
    """Those that have not lost their disks, and were not replaced."""
    well = [node for node in story.safekeepers if node.loss is None]
    if not story.world.options.replaces:
        return well
    return [node for node in well if node.member in newest(story).everyone]


def _best(story: Story) -> Driver | None:
    """Whose log an election among all that are up would choose."""

    def rank(driver: Driver) -> tuple[Ballot, Lsn]:
        acceptor = driver.acceptor
        last = cut(acceptor.durable.history, acceptor.flush_lsn)[-1]
        return last.ballot, acceptor.flush_lsn

    drivers = [node.driver for node in members(story) if node.driver is not None]
    return max(drivers, key=rank, default=None)


def best_log(story: Story) -> tuple[WalStore, Lsn] | None:
    """That log, and its record end."""
    best = _best(story)
    if best is None:
        return None
    return best.store, best.store.record_end(best.acceptor.flush_lsn).end_lsn


def timelines_of(story: Story) -> Timelines:
    """Which that log has followed."""
    best = _best(story)
    assert best is not None
    return Timelines(cut(best.acceptor.durable.history, best.acceptor.flush_lsn))


def survivor_of(story: Story) -> Primary | None:
    """A server that has every acknowledged byte and does not contradict the best log."""
    log = best_log(story)
    for primary in reversed(story.primaries):
        if log is not None and primary.has_all_of(story.oracles.acknowledged):
            store, end_lsn = log
            if end_lsn <= primary.flush_lsn and _agree(store, primary, end_lsn):
                return primary
    return None


def restored(story: Story) -> Primary | None:
    """What `restore` will do: a server rebuilt from the log. None if nobody wrote that log.

    Only behind a settle it has all that was acknowledged.
    """
    log = best_log(story)
    if log is None:
        return None
    store, end_lsn = log
    for primary in story.primaries:
        if end_lsn <= primary.maker.end_lsn and _agree(store, primary, end_lsn):
            clone = primary.clone("pgR", end_lsn)
            clone.go_on_as(timelines_of(story))
            story.world.say("pgR", f"restored, ends at {clone.flush_lsn}")
            return clone
    return None


def _agree(store: WalStore, primary: Primary, end_lsn: Lsn) -> bool:
    return store.read(store.first_lsn, end_lsn) == primary.maker.read(store.first_lsn, end_lsn)
