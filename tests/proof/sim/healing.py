"""The end of every run: nothing fails any more, and everything must move on.

The run goes on with a server that has all acknowledged WAL. If none is left, or the log took
another branch, it goes on with one that is restored from the settled log. Then one thing breaks at
a time.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.proof.sim.oracle import NoProgress
from tests.proof.sim.primary import Primary
from tests.proof.sim.proposer_node import ProposerNode
from tests.proof.sim.replacing import is_finished
from tests.proof.sim.scene import Scene
from tests.proof.sim.servers import best_log, restored, survivor_of
from walkeeper_proposer.consensus.campaign import Purpose
from walkeeper_proposer.consensus.proposer_events import Outcome
from walkeeper_safekeeper.archiving.back_fill import lacks_bytes

HEAL_S = 60
REST_MS = 5000
# The process or its supervisor starts over: a member with a greater ballot may greet late.
GOES_ON = (Outcome.NEW_ELECTION, Outcome.DEPOSED)


def heal(scene: Scene) -> None:
    """Mend the network and the disks, kill every proposer, and wait for all to come back."""
    world = scene.world
    world.say("----", f"heal; acknowledged up to {scene.oracles.acknowledged.end_lsn}")
    world.is_healed, world.is_calm = True, False
    scene.network.mend_all()
    scene.kill_all()
    for node in scene.safekeepers:
        node.heal()
    world.run_until(world.now_ms + REST_MS)


def demand_progress(scene: Scene) -> None:
    """Go on with a server that seems to have all WAL, else with one restored from a settled log.

    Raise NoProgress if the restored server is refused.
    """
    survivor = survivor_of(scene)
    if survivor is not None and _goes_on_with(scene, survivor):
        return
    _settle_for_good(scene)
    server = restored(scene)
    if server is None:
        scene.oracles.authorship.fail("no server ever wrote what the settled log holds")
    acked = scene.oracles.acknowledged
    if server.flush_lsn < acked.start_lsn:
        # The log was made inside a record of which it has no byte: that server needs another one.
        acked.hold_against("pgR", b"", acked.start_lsn)
        return
    acked.hold_against("pgR", server.maker.read(acked.start_lsn, server.flush_lsn), acked.start_lsn)
    if not _goes_on_with(scene, server):
        raise NoProgress("the restored server was refused")


def _goes_on_with(scene: Scene, primary: Primary) -> bool:
    """Return True if the run goes on with this server, or False if the server is refused.

    Fewer members may elect another branch. Raise NoProgress if nothing moves.
    """
    scene.adopt(primary)
    scene.primary, scene.writing = primary, [primary]
    primary.restart()
    proposer = scene.start_proposer(take_over=True, primary=primary, resumes=True)
    try:
        proposer = _wait_for_more(scene, proposer)
    except NoProgress:
        if proposer.stop is not None and proposer.stop.outcome is Outcome.REFUSED:
            if scene.world.options.is_bulk and is_inconclusive(proposer.stop.text):
                raise
            return False
        raise
    _shake(scene, proposer, primary)
    return True


def is_inconclusive(text: str) -> bool:
    """Return True if a server was refused for lack of WAL that shows its branch (R22)."""
    return "58P01" in text or "nothing shows that" in text


def _shake(scene: Scene, proposer: ProposerNode, primary: Primary) -> None:
    """Break one thing at a time; each time wait for new records, with the same leader if it can."""
    shocks: list[Callable[[], None]] = [
        primary.crash,
        scene.world.random.choice(scene.members()).crash,
        proposer.break_one,
        primary.crash,
    ]
    for shock in shocks:
        shock()
        proposer = _wait_for_more(scene, proposer)
    _rest(scene, proposer)


def _rest(scene: Scene, proposer: ProposerNode) -> None:
    """Stop writing; the rest of the WAL is committed everywhere all the same (R10)."""
    scene.writing = []
    primary, acked = proposer.primary, scene.oracles.acknowledged
    end_lsn = primary.record_end(primary.flush_lsn)
    stop_ms = scene.world.now_ms + HEAL_S * 1000
    scene.world.run_until(stop_ms, stop=lambda: acked.end_lsn >= end_lsn and _are_equal(scene))
    if acked.end_lsn < end_lsn or not _are_equal(scene):
        raise NoProgress(f"{HEAL_S} s after the last record, not all of it is committed everywhere")


def _wait_for_more(scene: Scene, proposer: ProposerNode) -> ProposerNode:
    """Wait until new records are acknowledged and on every member; return the proposer that leads.

    Raise NoProgress if that takes too long.
    """
    world, acked = scene.world, scene.oracles.acknowledged
    wanted_lsn = max(acked.end_lsn, proposer.primary.flush_lsn) + 1

    def is_done() -> bool:
        return acked.end_lsn >= wanted_lsn and is_finished(scene) and _are_equal(scene)

    stop_ms = world.now_ms + HEAL_S * 1000
    while world.now_ms < stop_ms:
        world.run_until(stop_ms, stop=lambda: is_done() or not scene.alive())
        if proposer.stop is None or not _goes_on(scene, proposer.stop.outcome):
            break
        proposer = scene.start_proposer(take_over=True, primary=proposer.primary, resumes=True)
    if not is_done():
        where = [(n.name, n.driver and n.driver.acceptor.flush_lsn) for n in scene.safekeepers]
        raise NoProgress(
            f"{HEAL_S} s after healing: acknowledged {acked.end_lsn}, wanted "
            f"{wanted_lsn}; {where}; {proposer.stop}"
        )
    return proposer


def _goes_on(scene: Scene, outcome: Outcome) -> bool:
    """Return True if a supervisor, or an operator, starts the proposer again after `outcome`.

    Where one vote elects, the first answer decides which unacknowledged end the log has. A primary
    with another end is refused then, and not the next time.
    """
    votes = {node.configuration.present.voters_min for node in scene.members()}
    return outcome in GOES_ON or (outcome is Outcome.REFUSED and votes == {1})


def _settle_for_good(scene: Scene) -> None:
    """Settle the log, the first step of every failover; raise NoProgress if that fails."""
    stop_ms = scene.world.now_ms + HEAL_S * 1000
    while True:
        proposer = scene.start_proposer(take_over=True, purpose=Purpose.SETTLE)
        scene.world.run_until(stop_ms, stop=proposer.is_gone)
        if proposer.stop is None or proposer.stop.outcome is not Outcome.DEPOSED:
            break  # as the shell does: a member that greets late may have promised a greater ballot
    if proposer.stop is None or proposer.stop.settled is None:
        raise NoProgress(f"settle ended with {proposer.stop}")
    log = best_log(scene)
    end_lsn = log[1] if log is not None else None
    if proposer.stop.settled.consensus_lsn != end_lsn:
        text = f"settled at {proposer.stop.settled}, the log ends at {end_lsn}"
        scene.oracles.acknowledged.fail(text)


def _are_equal(scene: Scene) -> bool:
    """Return True if every member has all committed and all acknowledged WAL, the same bytes."""
    acked = scene.oracles.acknowledged
    drivers = [(node.name, node.driver) for node in scene.members()]
    if any(d is None or d.acceptor.commit_lsn < acked.end_lsn for _, d in drivers):
        return False
    if any(d is not None and lacks_bytes(d) for _, d in drivers):
        return False
    for name, driver in drivers:
        assert driver is not None
        first_lsn = max(driver.store.first_lsn, acked.start_lsn)
        wal = driver.store.read(first_lsn, acked.end_lsn)
        acked.hold_against(name, wal, first_lsn)
        scene.oracles.committed.check(name, first_lsn, wal)
    return True
