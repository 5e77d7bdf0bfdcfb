"""The oracle of logs that begin late (`--replace --late`, M5).

Holders    no election is possible without a member that holds what a late log lacks
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.proof.sim.oracle import Oracle
from tests.proof.sim.safekeeper_node import SafekeeperNode
from walkeeper_common.lsn import Lsn, parse_segment_name


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


def first_lsn_of(node: SafekeeperNode) -> Lsn:
    """Return where the log on a node's disk begins, whether its process runs or not.

    An archive of the node holds what it has without a gap before that (M5)."""
    size = node.configuration.segment_bytes
    names = [name for name in node.disks.wal.names() if len(name) == 24]
    begin_lsn = min((parse_segment_name(name, size)[1] for name in names), default=Lsn(0))
    while begin_lsn - size in node.archived.segments:
        begin_lsn = Lsn(begin_lsn - size)
    return begin_lsn
