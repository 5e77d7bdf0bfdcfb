"""The claims of one simulated proposer, held against disks and servers by the oracles.

A node inherits them. It calls `_on_elected`, `_judge_leader`, `_judge_report` and `_judge_stop`
where it acts. A node of another kind of log overrides what differs (logical.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.proof.sim.oracle import Oracles
from tests.proof.sim.primary import Primary
from tests.proof.sim.safekeeper_node import SafekeeperNode
from tests.proof.sim.world import World
from walkeeper_common.history import History, cut
from walkeeper_common.lsn import LSN_MAX, Lsn
from walkeeper_common.timelines import Timelines
from walkeeper_proposer.consensus.admission import lost_wal
from walkeeper_proposer.consensus.campaign import Purpose
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.primary_check import PrimaryCheck
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import Settled, Stop

PROBE_BYTES = 200_000


class ProposerClaims:
    """The claims of a proposer when it is elected, streams, reports and stops."""

    name: str
    purpose: Purpose
    resumes: bool
    core: Proposer
    world: World
    primary: Primary
    safekeepers: Sequence[SafekeeperNode]
    oracles: Oracles

    def __init__(self) -> None:
        self.has_led = False
        self.reported_lsn = Lsn(0)
        self._check: PrimaryCheck | None = None  # the last one

    @property
    def leader(self) -> Leader:
        assert self.core.leader is not None
        return self.core.leader

    def _on_elected(self) -> None:
        """Check that the log from which the new leader goes on has every acknowledged byte."""
        leader, oracles, candidate = self.leader, self.oracles, self.core.candidate
        assert candidate is not None and candidate.donor_vote is not None
        vote = candidate.donor_vote
        self.has_led = True
        self.world.facts["elections"] += 1
        oracles.leaders.elected(leader.ballot, self.name)
        oracles.authorship.folds(self.name, vote.history, leader.history[0].folded_lsn)
        oracles.authorship.begins(leader.ballot, leader.start_lsn)
        oracles.acknowledged.elected(leader.ballot, leader.start_lsn)
        if self.purpose is Purpose.ATTACH:
            last = cut(vote.history, leader.start_lsn)[-1]
            self._judge_timeline(cut(vote.history, leader.start_lsn))
            is_promoted = self.primary.timeline > last.timeline
            oracles.admission.check_seal(self.name, last, resumes=self.resumes or is_promoted)
            oracles.closed.check_leader(self.name, leader.ballot)
        for node in self.safekeepers:
            if node.driver is None:
                continue
            acceptor = node.driver.acceptor
            is_voter = acceptor.durable.ballot == leader.ballot and not acceptor.elected
            if is_voter and node.rank == (vote.history[-1].ballot, vote.flush_lsn):
                begin_lsn = node.driver.store.first_lsn
                wal = node.driver.store.read(begin_lsn, leader.start_lsn)
                needed_lsn = oracles.acknowledged.end_below(leader.ballot)
                who = f"{self.name} elected with {node.name}"
                oracles.acknowledged.hold_against(who, wal, begin_lsn, needed_lsn)

    def _judge_stop(self, stop: Stop) -> None:
        if stop.settled is not None:
            self._judge_settled(stop.settled)
        self._judge_refusal(stop.text)

    def _judge_settled(self, settled: Settled) -> None:
        """Check that every commit that ever was lies below the LSN that `settle` prints."""
        acknowledged = self.oracles.acknowledged
        if acknowledged.end_below(settled.ballot) > settled.consensus_lsn:
            end_lsn = acknowledged.end_below(settled.ballot)
            acknowledged.fail(f"{self.name} settled at {settled}, acknowledged was {end_lsn}")
        if settled.closed:
            self.world.facts["closes"] += 1
            self.oracles.closed.report(self.name, settled.ballot, settled.consensus_lsn)
        for node in self.safekeepers:
            if node.driver is not None and node.rank >= (settled.ballot, settled.consensus_lsn):
                # From here on it is a promise like any other: a standby is promoted there.
                store = node.driver.store
                begin_lsn = Lsn(max(store.first_lsn, acknowledged.start_lsn))
                if begin_lsn > acknowledged.end_lsn:
                    continue  # retention has passed every acknowledgement so far
                wal = store.read(begin_lsn, settled.consensus_lsn)
                acknowledged.acknowledge(self.name, begin_lsn, wal, settled.ballot)
                return

    def _judge_refusal(self, text: str) -> None:
        """Check that a server which is refused for lost WAL lacks some of the log (R22).

        A server that was behind the beginning of an empty log may have passed it since.
        """
        check = self._check
        if check is None or text != lost_wal(check.primary, check.log):
            return
        history, end_lsn = check.log.history, check.log.record_lsn
        has_it = history[0].start_lsn < end_lsn <= self.primary.flush_lsn and (
            self.primary.maker.read(history[0].start_lsn, end_lsn)
            == self.oracles.authorship.log_of(history, end_lsn)
        )
        self.oracles.admission.check_lost(self.name, end_lsn, has_it=has_it)

    def _judge_leader(self, start_lsn: Lsn) -> None:
        """Check that its server has the bytes of the log that the leader goes on from."""
        maker, authorship = self.primary.maker, self.oracles.authorship
        first_lsn = self.oracles.acknowledged.start_lsn
        self._judge_timeline(cut(self.leader.history, start_lsn))
        if start_lsn <= maker.end_lsn:
            wal = maker.read(first_lsn, start_lsn)
            who = f"{self.primary.name}, whom {self.name} streams from,"
            authorship.check(who, self.leader.history, first_lsn, wal)

    def _judge_timeline(self, history: History) -> None:
        """Check that the server descends from the log's timelines and left none before its end."""
        forks = [*Timelines(history).ends(), (history[-1].timeline, self.leader.start_lsn)]
        known = {**dict(self.primary.timeline_ends), self.primary.timeline: LSN_MAX}
        self.oracles.admission.check_timelines(self.name, forks, known)

    def _judge_report(self, commit_lsn: Lsn) -> None:
        """Check that an ack quorum holds the reported WAL, and keeps it in any power cut now."""
        configuration, primary = self.core.configuration, self.primary
        assert configuration is not None
        end_lsn = primary.record_end(commit_lsn)
        self.oracles.closed.check_commit(self.name, end_lsn)
        start_lsn = self.oracles.acknowledged.start_lsn
        probed_lsn = Lsn(max(start_lsn, int(end_lsn) - PROBE_BYTES))
        begin_lsn = max(probed_lsn, primary.record_end(self.reported_lsn))
        if end_lsn > begin_lsn:
            wal = primary.maker.read(begin_lsn, end_lsn)
            holding = [n.member for n in self.safekeepers if n.disks.held(begin_lsn, wal)]
            for each in configuration.sets:
                has_it = [name for name in holding if name in each.members]
                self.oracles.durability.check_quorum(self.name, commit_lsn, has_it, each.commits)
