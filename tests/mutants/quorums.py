"""R19, R20 and the check of the primary: quorums, leaders that were deposed, primaries "
"that are refused."""

from __future__ import annotations

from tests.mutants.mutant import COMMON, PROPOSER, Edit, Mutant

CONSENSUS = PROPOSER + "consensus/proposer.py"
GATE = PROPOSER + "consensus/gate.py"
LEADERSHIP = PROPOSER + "consensus/leadership.py"
QUORUM = COMMON + "quorum.py"
VOTES = "return len(self.members) - self.ack_quorum + 1"

QUORUMS = (
    Mutant(
        "quorums-need-not-meet",
        "R19",
        "v = n - a + 1",
        (Edit(QUORUM, VOTES, "return max(1, len(self.members) - self.ack_quorum)"),),
        ("two-proposers",),
    ),
    Mutant(
        "majority-elects",
        "R19",
        "v follows from a, it is not a majority",
        (Edit(QUORUM, VOTES, "return len(self.members) // 2 + 1"),),
    ),
    Mutant(
        "one-ack-too-few",
        "R19, R10",
        "commit_lsn is element n - a of the ascending flush_lsns",
        (
            Edit(
                QUORUM,
                "return ascending[len(ascending) - ack_quorum]",
                "return ascending[min(len(ascending) - ack_quorum + 1, len(ascending) - 1)]",
            ),
        ),
        ("two-proposers",),
    ),
    Mutant(
        "deposed-leader-bumps",
        "R20",
        "a leader that sees a greater ballot stops for good and never bumps its own",
        (
            Edit(
                CONSENSUS,
                "    def _deposed(self, ballot: Ballot) -> list[Effect]:\n",
                "    def _deposed(self, ballot: Ballot) -> list[Effect]:\n"
                "        self.phase, self.leader = Phase.GREETING, None\n"
                "        return self.become_backing_off()\n\n"
                "    def _stopped_for_good(self, ballot: Ballot) -> list[Effect]:\n",
            ),
        ),
    ),
    Mutant(
        "another-logs-ballot-deposes",
        "R20",
        "who is no member of this log says nothing of its ballots",
        (Edit(CONSENSUS, "        if reject.code in OF_NO_MEMBER:", "        if False:"),),
        turns_red="tests/test_scenarios.py::test_scenario[another_logs_ballot_deposes_nobody]",
    ),
    Mutant(
        "another-logs-late-greeting-deposes",
        "R20",
        "nor does a greeting of another log that comes late",
        (
            Edit(
                CONSENSUS,
                "        if member.stage is not Stage.GREETING:\n            return []\n"
                "        theirs, ours",
                "        if greeting.ballot > self.ballot and self.phase is Phase.LEADING:\n"
                "            return self._deposed(greeting.ballot)\n"
                "        theirs, ours",
            ),
        ),
        turns_red="tests/test_scenarios.py::test_scenario[another_logs_ballot_deposes_nobody]",
    ),
    Mutant(
        "first-to-answer-says-which-log",
        "R17",
        "as long as it is open which log is meant, nobody is asked for one",
        (
            Edit(
                CONSENSUS,
                "known = None if self.phase is Phase.GREETING else self.configuration",
                "known = self.configuration",
            ),
        ),
        turns_red="tests/test_scenarios.py::test_scenario[settle_goes_with_the_log_of_more]",
    ),
    Mutant(
        "leader-from-an-image-goes-on",
        "R20, R12",
        "a leader that is older than what it has written starts anew",
        (Edit(LEADERSHIP, " and member.vote.flush_lsn > sent_lsn:", " and False:"),),
        turns_red="tests/test_scenarios.py::test_scenario[leader_from_a_memory_image_starts_anew]",
    ),
    Mutant(
        "bytes-are-not-compared",
        "check of the primary",
        "the primary's bytes are compared with the log's",
        (
            Edit(
                CONSENSUS,
                "        self.check = self.campaign.examine(",
                "        return self._check_passed()\n        self.check = self.campaign.examine(",
            ),
        ),
    ),
    Mutant(
        "promotion-leaves-out-wal",
        "check of the primary",
        "a promoted server that lacks WAL of the log is refused",
        (
            Edit(GATE, "    if fork_lsn >= log.record_lsn:", "    if True:"),
            Edit(
                CONSENSUS,
                "        self.check = self.campaign.examine(",
                "        return self._check_passed()\n        self.check = self.campaign.examine(",
            ),
        ),
    ),
    Mutant(
        "seal-is-ignored",
        "check of the primary",
        "a sealed log is written on with --resume only",
        (
            Edit(
                GATE,
                "    if is_same and log.borne_out[-1].sealed and not waivers.resume:",
                "    if False:",
            ),
        ),
    ),
    Mutant(
        "votes-are-not-checked",
        "check of the primary",
        "the primary is compared again on the votes",
        (
            Edit(
                CONSENSUS,
                "        return self._start_check(*scope_of_votes(self.configuration, best, votes, "
                "self.ballot))",
                "        return self.become_leader()",
            ),
        ),
    ),
)
