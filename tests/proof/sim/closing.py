"""An operator closes the log while things go wrong (--close), and closes it again at the end (M7).

Some commands are killed half way. Proposers go on trying to lead all the time. The oracle *Closed*
knows the first close that was reported.
"""

from __future__ import annotations

from tests.proof.sim.healing import HEAL_S
from tests.proof.sim.oracle import NoProgress
from tests.proof.sim.scene import Scene
from walkeeper_proposer.consensus.campaign import Purpose
from walkeeper_proposer.consensus.proposer_events import Outcome


def schedule(scene: Scene) -> None:
    """Close the log at some time, again and again, and settle it sometimes."""
    world, random = scene.world, scene.world.random

    def close() -> None:
        if world.is_healed:
            return
        purpose = random.choice((Purpose.CLOSE, Purpose.CLOSE, Purpose.SETTLE))
        command = scene.start_proposer(take_over=random.random() < 0.7, purpose=purpose)
        world.trouble("commands that close or settle")
        if random.random() < 0.3:
            world.later(random.uniform(1, 500), command.kill)
        world.later(random.uniform(500, 15_000), close)

    world.later(random.uniform(0.2, 0.9) * world.options.safety_s * 1000, close)


def demand_close(scene: Scene) -> None:
    """Close the log in a healed world; raise NoProgress if that fails, or if a member lacks it."""
    _close(scene)
    server = scene.keeper_of_all()
    server.restart()
    proposer = scene.start_proposer(take_over=True, primary=server, resumes=True)
    scene.world.run_until(scene.world.now_ms + HEAL_S * 1000, stop=proposer.is_gone)
    if proposer.has_led or proposer.stop is None or proposer.stop.outcome is not Outcome.CLOSED:
        raise NoProgress(f"a proposer of the closed log ended with {proposer.stop}")
    scene.world.random.choice(scene.members()).crash()
    _close(scene)


def _close(scene: Scene) -> None:
    stop_ms = scene.world.now_ms + HEAL_S * 1000
    while True:
        command = scene.start_proposer(take_over=True, purpose=Purpose.CLOSE)
        scene.world.run_until(stop_ms, stop=command.is_gone)
        stop = command.stop
        if stop is None or stop.outcome not in (Outcome.DEPOSED, Outcome.NEW_ELECTION):
            break  # as the shell does
    if stop is None or stop.settled is None or not stop.settled.closed:
        raise NoProgress(f"a close ended with {stop}")
