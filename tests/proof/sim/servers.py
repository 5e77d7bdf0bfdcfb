"""The servers and safekeepers that go together, and the servers that may go on with the log.

The plots need two servers that will not be refused, and the end of a run needs one.
"""

from __future__ import annotations

from tests.proof.sim.primary import Primary
from tests.proof.sim.scene import Scene
from walkeeper_common.history import Ballot, cut
from walkeeper_common.lsn import Lsn
from walkeeper_common.timelines import Timelines
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.storage.wal_store import WalStore


def _best(scene: Scene) -> Driver | None:
    """Return the driver whose log an election among all running members would choose, or None."""

    def rank(driver: Driver) -> tuple[Ballot, Lsn]:
        last = cut(driver.acceptor.durable.history, driver.flush_lsn)[-1]
        return last.ballot, driver.flush_lsn

    drivers = [node.driver for node in scene.members() if node.driver is not None]
    return max(drivers, key=rank, default=None)


def best_log(scene: Scene) -> tuple[WalStore, Lsn] | None:
    """Return that log and its record end, or None if no member runs."""
    best = _best(scene)
    if best is None:
        return None
    return best.store, best.store.record_end(best.flush_lsn).end_lsn


def timelines_of(scene: Scene) -> Timelines:
    """Return the timelines that the best log has followed."""
    best = _best(scene)
    assert best is not None
    return Timelines(cut(best.acceptor.durable.history, best.flush_lsn))


def survivor_of(scene: Scene) -> Primary | None:
    """Return a server that has every acknowledged byte and agrees with the best log, or None."""
    log = best_log(scene)
    for primary in reversed(scene.primaries):
        if log is not None and primary.has_all_of(scene.oracles.acknowledged):
            store, end_lsn = log
            if end_lsn <= primary.flush_lsn and _agree(store, primary, end_lsn):
                return primary
    return None


def restored(scene: Scene) -> Primary | None:
    """Return a server rebuilt from the log, as `restore` does, or None if no server wrote it.

    It has all acknowledged WAL only after a settle.
    """
    log = best_log(scene)
    if log is None:
        return None
    store, end_lsn = log
    for primary in scene.primaries:
        if end_lsn <= primary.maker.end_lsn and _agree(store, primary, end_lsn):
            clone = primary.clone("pgR", end_lsn)
            clone.go_on_as(timelines_of(scene))
            scene.world.say("pgR", f"restored, ends at {clone.flush_lsn}")
            return clone
    return None


def _agree(store: WalStore, primary: Primary, end_lsn: Lsn) -> bool:
    return store.read(store.first_lsn, end_lsn) == primary.maker.read(store.first_lsn, end_lsn)
