"""Newcomers' logs that begin late, and are filled from other members (`--replace --late`, M5).

Each change of members lets its newcomers' logs begin at a term's start, whatever the backlog. Once
in a while such a log gets one segment more from a member that holds it. The shipping rules say when
it may, and the shipping store puts the segment in front.

    Holders    no election is possible without a member that holds what a late log lacks
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.proof.sim.oracle import Oracle
from tests.proof.sim.safekeeper_node import SafekeeperNode
from walkeeper_common.lsn import Lsn, parse_segment_name
from walkeeper_safekeeper.archiving.back_fill import may_fill

if TYPE_CHECKING:
    from tests.proof.sim.story import Story

FILL_MS = 700
HEALED_MS = 40  # a long log is to be whole before the patience with a healed world ends


class Holders(Oracle):
    """Each vote set has a member with the WAL that others keep for a log that begins late.

    WAL below the greatest restart_lsn ever was on all members, and none of them needs it."""

    def __init__(self) -> None:
        self._kept_lsn = Lsn(0)

    def check(self, nodes: Sequence[SafekeeperNode]) -> None:
        """Judge that no set of members without old WAL could elect, with any configuration."""
        told = [n.driver.acceptor.restart_lsn for n in nodes if n.driver is not None]
        self._kept_lsn = max([self._kept_lsn, *told])
        lacking = [node for node in nodes if first_lsn_of(node) > self._kept_lsn]
        known = {n.configuration.generation: n.configuration for n in nodes if lacking}
        for generation, configuration in known.items():
            able = [n.member for n in lacking if n.configuration.generation <= generation]
            if configuration.elects(able):
                self.fail(
                    f"{sorted(able)} could elect in generation {generation}, and none of them "
                    f"holds the WAL at {self._kept_lsn}"
                )


def goal_facts(story: Story) -> dict[str, Any]:
    """Return what a goal has in a world with late logs."""
    if not story.world.options.late:
        return {}
    addresses = tuple(f"n{place}:1" for place in range(len(story.safekeepers)))
    return {"addresses": addresses, "fed_bytes_max": -1}


def unseen(story: Story) -> int:
    """Return how many newcomers may not have joined yet: each needs an id of its own."""
    return len(story.operators) if story.world.options.late else 0


def is_contested(story: Story) -> bool:
    """Return True while another operator is at work. Two that each put a newcomer in the place of
    the other's go on for ever, as a late log waits for a leader. So do two disks with one id."""
    return story.world.options.late and any(not each.is_over for each in story.operators)


def schedule(story: Story) -> None:
    """Fill one log after the other, also when the world is healed."""

    def fill() -> None:
        for node in story.safekeepers:
            _fill_one(story, node)
        story.world.later(HEALED_MS if story.world.is_healed else FILL_MS, fill)

    story.world.later(FILL_MS, fill)


def _fill_one(story: Story, node: SafekeeperNode) -> None:
    driver = node.driver
    if driver is None or node.loss is not None or not may_fill(driver):
        return
    end_lsn = driver.store.first_lsn
    begin_lsn = Lsn(end_lsn - driver.store.segment_bytes)
    for other in story.safekeepers:
        donor = other.driver
        if donor is None or other.loss is not None or donor.store.first_lsn > begin_lsn:
            continue
        if donor.acceptor.commit_lsn >= end_lsn:
            story.world.facts["segments filled"] += 1
            driver.fill(begin_lsn, donor.store.read(begin_lsn, end_lsn), lambda result: None)
            return


def first_lsn_of(node: SafekeeperNode) -> Lsn:
    """Return where the log on a node's disk begins, whether its process runs or not.

    An archive of the node holds what it has without a gap before that (M5)."""
    size = node.configuration.segment_bytes
    names = [name for name in node.disks.wal.names() if len(name) == 24]
    begin_lsn = min((parse_segment_name(name, size)[1] for name in names), default=Lsn(0))
    while begin_lsn - size in node.archived.segments:
        begin_lsn = Lsn(begin_lsn - size)
    return begin_lsn
