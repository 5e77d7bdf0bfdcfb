"""R19, R20 and the check of the primary: quorums, leaders that were deposed, primaries "
"that are refused."""

from __future__ import annotations

from tests.proof.mutants.mutant import SEARCHED, Edit, Mutant

SCENARIO = "tests/consensus/test_scenarios.py::test_scenario"
VOTES = "not self.commits([m for m in self.members if m not in names])"

QUORUMS = (
    Mutant(
        "quorums-need-not-meet",
        "R19",
        "every vote quorum meets every ack quorum: v = n - a + 1",
        (
            Edit(
                "MemberSet.elects",
                VOTES,
                "sum(m in names for m in self.members) >= max(1, self.vote_quorum - 1)",
            ),
        ),
        ("two-proposers",),
    ),
    Mutant(
        "majority-elects",
        "R19",
        "v follows from a, and is no majority",
        (
            Edit(
                "MemberSet.elects",
                VOTES,
                "sum(m in names for m in self.members) >= len(self.members) // 2 + 1",
            ),
        ),
    ),
    Mutant(
        "one-ack-too-few",
        "R19, R10",
        "commit_lsn is element n - a of the ascending flush_lsns",
        (
            Edit(
                "acknowledged_lsn",
                "len(ascending) - ack_quorum",
                "min(len(ascending) - ack_quorum + 1, len(ascending) - 1)",
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
                "Proposer._deposed",
                "return self._stop(Outcome.DEPOSED, text)",
                "assert text\n"
                "self.phase, self.leader = Phase.GREETING, None\n"
                "return self.become_backing_off()\n",
            ),
        ),
    ),
    Mutant(
        "another-logs-ballot-deposes",
        "R20",
        "a ballot of a safekeeper that is no member of this log does not count",
        (Edit("Proposer.on_reject", "reject.code in OF_NO_MEMBER", "False"),),
        turns_red=f"{SCENARIO}[another_logs_ballot_deposes_nobody]",
        why_named=SEARCHED,
    ),
    Mutant(
        "another-logs-late-greeting-deposes",
        "R20",
        "a late greeting of another log does not depose a leader either",
        (
            Edit(
                "Proposer.on_greeting",
                "if member.stage is not Stage.GREETING:\n    return []\n",
                "if greeting.ballot > self.ballot and self.phase is Phase.LEADING:\n"
                "    return self._deposed(greeting.ballot)\n",
            ),
        ),
        turns_red=f"{SCENARIO}[another_logs_ballot_deposes_nobody]",
        why_named=SEARCHED,
    ),
    Mutant(
        "first-to-answer-says-which-log",
        "R17",
        "the proposer names no log before it knows which one the members hold",
        (
            Edit(
                "Proposer._greet",
                "None if self.phase is Phase.GREETING else self.configuration",
                "self.configuration",
            ),
        ),
        turns_red=f"{SCENARIO}[settle_goes_with_the_log_of_more]",
        why_named=SEARCHED,
    ),
    Mutant(
        "leader-from-an-image-goes-on",
        "R20, R12",
        "a leader that is older than what it has written starts anew",
        (Edit("Leader.elect", "member.vote.flush_lsn > sent_lsn", "False"),),
        turns_red=f"{SCENARIO}[leader_from_a_memory_image_starts_anew]",
        why_named=SEARCHED,
    ),
    Mutant(
        "all-that-was-sent-looks-forgotten",
        "R20",
        "a leader keeps a member that has all WAL that was sent, on any connection",
        (
            Edit(
                "Leader.elect",
                "member.vote.flush_lsn > sent_lsn",
                "member.vote.flush_lsn >= sent_lsn",
            ),
        ),
        worlds=("late-connections",),
    ),
    Mutant(
        "bytes-are-not-compared",
        "check of the primary",
        "the primary's bytes are compared with the log's",
        (
            Edit(
                "Proposer._start_check",
                "held = self.leader.held_wal if self.leader is not None else None",
                "held = self.leader.held_wal if self.leader is not None else None\n"
                "return self._check_passed()\n",
            ),
        ),
    ),
    Mutant(
        "promotion-leaves-out-wal",
        "check of the primary",
        "a promoted server that lacks WAL of the log is refused",
        (
            Edit("_left_out", "fork_lsn >= log.record_lsn", "True"),
            Edit(
                "Proposer._start_check",
                "held = self.leader.held_wal if self.leader is not None else None",
                "held = self.leader.held_wal if self.leader is not None else None\n"
                "return self._check_passed()\n",
            ),
        ),
    ),
    Mutant(
        "seal-is-ignored",
        "check of the primary",
        "a sealed log is written on with --resume only",
        (Edit("_sealed", "is_same and log.borne_out[-1].sealed and not waivers.resume", "False"),),
    ),
    Mutant(
        "votes-are-not-checked",
        "check of the primary",
        "the primary is compared again on the votes",
        (
            Edit(
                "Proposer._check_votes",
                "self._start_check(*self.candidate.scope_from(donor))",
                "self.become_leader()",
            ),
        ),
    ),
    Mutant(
        "later-greetings-count",
        "R22",
        "a greeting after the question to the primary does not make its WAL look lost",
        (
            Edit(
                "Proposer._check_greetings",
                "m.greeting is self._counted.get(m.link)",
                "m.greeting is not None",
            ),
        ),
    ),
    Mutant(
        "later-votes-count",
        "R22",
        "a vote after the question to the primary does not make its WAL look lost",
        (Edit("Candidate._counted_voters", "m.vote is self._counted.get(m.link)", "True"),),
    ),
)
