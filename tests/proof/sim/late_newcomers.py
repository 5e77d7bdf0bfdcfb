"""Newcomers' logs that begin late, and are filled from other members (`--replace --late`, M5).

Each change of members lets its newcomers' logs begin at a term's start, whatever the backlog. Once
in a while such a log gets one segment more from a member that holds it. The shipping rules say when
it may, and the shipping store puts the segment in front.
"""

from __future__ import annotations

from typing import Any

from tests.proof.sim.safekeeper_node import SafekeeperNode
from tests.proof.sim.scene import Scene
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.archiving.back_fill import may_fill

FILL_MS = 700
HEALED_MS = 40  # a long log is to be whole before the patience with a healed world ends


def goal_facts(scene: Scene) -> dict[str, Any]:
    """Return what a goal has in a world with late logs."""
    if not scene.world.options.late:
        return {}
    addresses = tuple(f"n{place}:1" for place in range(len(scene.safekeepers)))
    return {"addresses": addresses, "fed_bytes_max": -1}


def unseen(scene: Scene) -> int:
    """Return how many newcomers may not have joined yet: each needs an id of its own."""
    return len(scene.operators) if scene.world.options.late else 0


def is_contested(scene: Scene) -> bool:
    """Return True while another operator is at work. Two that each put a newcomer in the place of
    the other's go on for ever, as a late log waits for a leader. So do two disks with one id."""
    return scene.world.options.late and any(not each.is_over for each in scene.operators)


def schedule(scene: Scene) -> None:
    """Fill one log after the other, also when the world is healed."""

    def fill() -> None:
        for node in scene.safekeepers:
            _fill_one(scene, node)
        scene.world.later(HEALED_MS if scene.world.is_healed else FILL_MS, fill)

    scene.world.later(FILL_MS, fill)


def _fill_one(scene: Scene, node: SafekeeperNode) -> None:
    driver = node.driver
    if driver is None or node.loss is not None or not may_fill(driver):
        return
    end_lsn = driver.store.first_lsn
    begin_lsn = Lsn(end_lsn - driver.store.segment_bytes)
    for other in scene.safekeepers:
        donor = other.driver
        if donor is None or other.loss is not None or donor.store.first_lsn > begin_lsn:
            continue
        if donor.acceptor.commit_lsn >= end_lsn:
            scene.world.facts["segments filled"] += 1
            driver.fill(begin_lsn, donor.store.read(begin_lsn, end_lsn), lambda result: None)
            return
