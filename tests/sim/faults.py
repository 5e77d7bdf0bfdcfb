"""Random faults, each at its own rate, as the seed's options say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.proposer_node import ProposerNode
from walkeeper_common.lsn import Lsn
from walkeeper_proposer.consensus.campaign import Purpose

if TYPE_CHECKING:
    from random import Random

    from tests.sim.safekeeper_node import SafekeeperNode
    from tests.sim.story import Story


def schedule(story: Story) -> None:
    """Schedule all random faults; they end when the world heals."""
    world, options, nodes = story.world, story.world.options, story.safekeepers
    random = world.random
    world.every(options.breaks, lambda: _on_some_proposer(story, ProposerNode.break_one))
    world.every(options.partitions, lambda: _partition(story))
    world.every(options.clock_jumps, lambda: _jump_clock(story))
    world.every(options.safekeeper_crashes, lambda: _crash(random.choice(nodes), random))
    world.every(options.safekeeper_stops, lambda: random.choice(nodes).stop())
    world.every(options.power_failures, lambda: fail_power(story))
    world.every(options.failing_syncs, lambda: random.choice(nodes).fail_sync())
    world.every(options.stalls, lambda: random.choice(nodes).stall(random.uniform(500, 8000)))
    world.every(options.full_disks, lambda: random.choice(nodes).fill_disk())
    world.every(options.proposer_crashes, lambda: _on_some_proposer(story, story.ambushed))
    world.every(options.primary_crashes, lambda: story.primary.crash())
    world.every(options.clones, lambda: clone_primary(story))
    world.every(options.settles, lambda: settle(story))
    if options.starts_inside_record and random.random() < 0.5:
        for _ in range(2 * len(nodes)):  # the first bytes of such a log are a case of their own
            in_ms = random.uniform(0, 1000 + 30 * options.delay_ms + 5 * options.disk_ms)
            world.later(in_ms, lambda: random.choice(nodes).crash(is_power_cut=True))


def _crash(node: SafekeeperNode, random: Random) -> None:
    if random.random() < 0.4:
        node.crash()
    else:
        node.crash_at_work()


def _on_some_proposer(story: Story, what: Callable[[ProposerNode], object]) -> None:
    alive = story.alive()
    if alive:
        what(story.world.random.choice(alive))


def _partition(story: Story) -> None:
    """Cut one direction, or both, between a proposer and some safekeepers, for some seconds."""
    world, random, nodes = story.world, story.world.random, story.safekeepers

    def cut(proposer: ProposerNode) -> None:
        chosen = random.sample(nodes, random.randint(1, max(1, len(nodes) - 1)))
        ways = []
        for node in chosen:
            both = [(proposer.name, node.name), (node.name, proposer.name)]
            ways += random.sample(both, random.choice((1, 2)))
        story.network.cut(ways)
        world.trouble("partitions", proposer.name, f"partition {sorted(ways)}")
        world.later(random.uniform(500, 15_000), lambda: story.network.mend(ways))

    _on_some_proposer(story, cut)


def _jump_clock(story: Story) -> None:
    nodes: list[SafekeeperNode | ProposerNode] = [*story.safekeepers, *story.alive()]
    story.world.random.choice(nodes).jump_clock()


def fail_power(story: Story) -> None:
    """Cut the power of all safekeepers at once; the proposers run elsewhere."""
    story.world.trouble("power failures", "----", "the power fails under all safekeepers")
    for node in story.safekeepers:
        node.crash(is_power_cut=True)


def clone_primary(story: Story) -> None:
    """Start an older copy of the server; the old server may go on running."""
    random, primary = story.world.random, story.primary
    at_lsn = primary.flush_lsn
    if random.random() < 0.5:
        first_lsn = min(story.oracles.acknowledged.start_lsn, at_lsn)
        at_lsn = Lsn(random.randint(first_lsn, at_lsn))
    story.primary = story.add_clone(primary, at_lsn)


def settle(story: Story) -> None:
    """Start a proposer that settles the log, as an operator may at any time."""
    story.world.trouble("settles")
    story.start_proposer(take_over=True, purpose=Purpose.SETTLE)
