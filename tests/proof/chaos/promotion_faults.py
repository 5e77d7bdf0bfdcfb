"""Copies of the standby that are promoted by mistake while the primary lives (R23)."""

from __future__ import annotations

from typing import ClassVar

from tests.proof.chaos.fault import Fault
from tests.proof.chaos.faulted_cluster import COPIES, STANDBY_SETTINGS
from tests.proof.chaos.namespace_servers import NamespacedServer
from tests.proof.chaos.process_faults import DEPOSED_S
from tests.proof.chaos.verdicts import Violation
from tests.support.cluster import Daemon, lsn_of
from tests.support.waiting import NotInTime

AHEAD_BYTES = 1 << 20
OWN_ROW = "CREATE TABLE only_in_a_copy AS SELECT {number} AS number"


class CollidingPromotions(Fault):
    """Two copies of the standby become servers of one timeline number; no proposer takes either."""

    name = "colliding_promotions"
    hold: ClassVar[tuple[float, float]] = (0.0, 0.5)

    def inject(self) -> str:
        cluster = self.cluster
        self.copies = []
        cluster.standby.stop("fast")
        for name in COPIES:
            copy = NamespacedServer(cluster.directory / name, cluster.node(name), STANDBY_SETTINGS)
            self.copies.append(copy)
            copy.adopt(cluster.standby.data)
            copy.configure({"primary_conninfo": ""})
        cluster.standby.start()
        for number, copy in enumerate(self.copies):
            copy.start()
            copy.promote()
            copy.sql(OWN_ROW.format(number=number), "CHECKPOINT")
        timelines = {copy.sql("SELECT timeline_id FROM pg_control_checkpoint()")
                     for copy in self.copies}  # fmt: skip
        assert len(timelines) == 1, f"the copies are on timelines {timelines}"
        self._wait_until_the_primary_is_ahead()
        refused = [self._refused(copy) for copy in self.copies]
        return f"timeline {timelines.pop()} twice: {' | '.join(refused)}"

    def _wait_until_the_primary_is_ahead(self) -> None:
        """Wait until the log ends behind both forks, so that no copy continues it."""
        forks = max(lsn_of(copy.sql("SELECT pg_current_wal_lsn()")) for copy in self.copies)

        def is_ahead() -> bool:
            end = self.cluster.primary.sql("SELECT pg_current_wal_flush_lsn()")
            return lsn_of(end) > forks + AHEAD_BYTES

        self.cluster.wait(is_ahead, DEPOSED_S)

    def _refused(self, copy: NamespacedServer) -> str:
        """Return the last line of a proposer on this copy, which must end and never stream."""
        seat = self.cluster.other_seat()
        dsn = copy.dsn(connect_timeout=2)
        where = ("--safekeepers", self.cluster.addresses, "--dsn", dsn, "--take-over")
        log = self.cluster.directory / f"{copy.directory.name}.proposer.log"
        prefix = self.cluster.node(seat.name).prefix
        proposer = Daemon(copy.directory.name, ["proposer", *where], log, prefix=prefix)
        proposer.start(wait=False)
        try:
            self.cluster.wait(lambda: not proposer.is_running, DEPOSED_S)
        except NotInTime as error:
            raise Violation(f"a proposer stays on a copy: {proposer.output()}") from error
        finally:
            proposer.kill()
        said = proposer.output().strip()
        if "ready: " in said:
            raise Violation(f"a copy was taken for the primary: {said}")
        return said.splitlines()[-1][:80] if said else "(silence)"

    def heal(self) -> None:
        for copy in self.copies:
            copy.delete()
