"""Random faults, each at its own rate, as the seed's options say."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.proof.sim.proposer_node import ProposerNode
from tests.proof.sim.safekeeper_node import SafekeeperNode
from tests.proof.sim.scene import Scene
from walkeeper_common.lsn import Lsn
from walkeeper_proposer.consensus.campaign import Purpose


def schedule(scene: Scene) -> None:
    """Schedule all random faults; they end when the world heals."""
    world, options, nodes = scene.world, scene.world.options, scene.safekeepers
    random = world.random
    world.every(options.breaks, lambda: _on_some_proposer(scene, ProposerNode.break_one))
    world.every(options.partitions, lambda: _partition(scene))
    world.every(options.clock_jumps, lambda: _jump_clock(scene))
    world.every(options.safekeeper_crashes, lambda: _crash(random.choice(nodes), random))
    world.every(options.safekeeper_stops, lambda: random.choice(nodes).stop())
    world.every(options.power_failures, lambda: fail_power(scene))
    world.every(options.failing_syncs, lambda: random.choice(nodes).fail_sync())
    world.every(options.stalls, lambda: random.choice(nodes).stall(random.uniform(500, 8000)))
    world.every(options.full_disks, lambda: random.choice(nodes).fill_disk())
    world.every(options.proposer_crashes, lambda: _on_some_proposer(scene, scene.ambushed))
    world.every(options.primary_crashes, lambda: scene.primary.crash())
    world.every(options.clones, lambda: clone_primary(scene))
    world.every(options.settles, lambda: settle(scene))
    if options.starts_inside_record and random.random() < 0.5:
        for _ in range(2 * len(nodes)):  # the first bytes of such a log are a case of their own
            in_ms = random.uniform(0, 1000 + 30 * options.delay_ms + 5 * options.disk_ms)
            world.later(in_ms, lambda: random.choice(nodes).crash(is_power_cut=True))


def _crash(node: SafekeeperNode, random: Random) -> None:
    if random.random() < 0.4:
        node.crash()
    else:
        node.crash_at_work()


def _on_some_proposer(scene: Scene, what: Callable[[ProposerNode], object]) -> None:
    alive = scene.alive()
    if alive:
        what(scene.world.random.choice(alive))


def _partition(scene: Scene) -> None:
    """Cut one direction, or both, between a proposer and some safekeepers, for some seconds."""
    world, random, nodes = scene.world, scene.world.random, scene.safekeepers

    def cut(proposer: ProposerNode) -> None:
        chosen = random.sample(nodes, random.randint(1, max(1, len(nodes) - 1)))
        ways = []
        for node in chosen:
            both = [(proposer.name, node.name), (node.name, proposer.name)]
            ways += random.sample(both, random.choice((1, 2)))
        scene.network.cut(ways)
        world.trouble("partitions", proposer.name, f"partition {sorted(ways)}")
        world.later(random.uniform(500, 15_000), lambda: scene.network.mend(ways))

    _on_some_proposer(scene, cut)


def _jump_clock(scene: Scene) -> None:
    nodes: list[SafekeeperNode | ProposerNode] = [*scene.safekeepers, *scene.alive()]
    scene.world.random.choice(nodes).jump_clock()


def fail_power(scene: Scene) -> None:
    """Cut the power of all safekeepers at once; the proposers run elsewhere."""
    scene.world.trouble("power failures", "----", "the power fails under all safekeepers")
    for node in scene.safekeepers:
        node.crash(is_power_cut=True)


def clone_primary(scene: Scene) -> None:
    """Start an older copy of the server; the old server may go on running."""
    random, primary = scene.world.random, scene.primary
    at_lsn = primary.flush_lsn
    if random.random() < 0.5:
        first_lsn = min(scene.oracles.acknowledged.start_lsn, at_lsn)
        at_lsn = Lsn(random.randint(first_lsn, at_lsn))
    scene.primary = scene.add_clone(primary, at_lsn)


def settle(scene: Scene) -> None:
    """Start a proposer that settles the log, as an operator may at any time."""
    scene.world.trouble("settles")
    scene.start_proposer(take_over=True, purpose=Purpose.SETTLE)
