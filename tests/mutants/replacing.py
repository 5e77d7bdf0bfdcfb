"""Members change: two sets of quorums, generations, the register that decides, and the newcomer.

Worlds with a replacement are asked for and not drawn, so the killers are fixed seeds of them, and
tests of what two guards or more keep from happening there.
"""

from __future__ import annotations

from tests.mutants.mutant import COMMON, PROPOSER, SAFEKEEPER, Edit, Mutant

ACCEPTOR = SAFEKEEPER + "consensus/acceptor.py"
ANSWERS = SAFEKEEPER + "consensus/answers.py"
CONSENSUS = PROPOSER + "consensus/proposer.py"
LEADERSHIP = PROPOSER + "consensus/leadership.py"
PRIMARY_CHECK = PROPOSER + "consensus/primary_check.py"
QUORUM = COMMON + "quorum.py"
REGISTER = SAFEKEEPER + "consensus/member_register.py"
REPLACING = PROPOSER + "consensus/replacing.py"

SETS = "        self._member_sets = configuration.member_sets\n"
HAS = "all(sum(m in names for m in members) >= quorum for members in self.member_sets)"
ONE_HAS = "all(sum(m in names for m in members) >= quorum for members in self.member_sets[{}])"
RESTART = "            restart_lsn = min(restart_lsn, flushed[0])\n"

REPLACE = "tests/test_pure_replacing.py::test_"
GENERATIONS = "tests/test_pure_generations.py::test_"
RIVALS = REPLACE + "two_commands_at_once_never_make_two_configurations_of_one_generation"

FORGOT = "tests/test_scenarios.py::test_scenario[newcomer_knows_of_commits_that_the_old_forgot]"


def _seed(seed: int) -> str:
    test = "test_nothing_is_lost_when_members_are_replaced"
    return f"tests/test_simulator.py::{test}[{seed}]"


REPLACEMENTS = (
    Mutant(
        "old-members-commit-alone",
        "members change",
        "with joint members a commit needs an ack quorum of the new ones, too",
        (Edit(LEADERSHIP, SETS, SETS.replace("member_sets\n", "member_sets[:1]\n")),),
        turns_red=_seed(0),
    ),
    Mutant(
        "new-members-commit-alone",
        "members change",
        "with joint members a commit needs an ack quorum of the old ones, too",
        (Edit(LEADERSHIP, SETS, SETS.replace("member_sets\n", "member_sets[-1:]\n")),),
        turns_red=_seed(0),
    ),
    Mutant(
        "old-members-elect-alone",
        "members change",
        "with joint members an election needs a vote quorum of the new ones, too",
        (Edit(QUORUM, HAS, ONE_HAS.format(":1")),),
        turns_red=REPLACE + "with_joint_members_both_sets_decide",
    ),
    Mutant(
        "new-members-elect-alone",
        "members change",
        "with joint members an election needs a vote quorum of the old ones, too",
        (Edit(QUORUM, HAS, ONE_HAS.format("-1:")),),
        turns_red=_seed(6),
    ),
    Mutant(
        "any-generation-is-served",
        "members change",
        "a safekeeper serves proposers of its own generation only",
        (
            Edit(ANSWERS, "    if generation != configuration.generation:", "    if False:"),
            Edit(
                CONSENSUS,
                "(vote.ballot, vote.generation) == (self.ballot, self.configuration.generation)",
                "vote.ballot == self.ballot",
            ),
        ),
        turns_red=GENERATIONS + "who_has_left_a_generation_does_nothing_that_is_asked_in_it",
    ),
    Mutant(
        "generation-is-not-left",
        "members change",
        "what an older generation's leader has committed is no proof for the newer one",
        (
            Edit(
                ACCEPTOR,
                "        self.elected, self.heard_commit_lsn = False, ZERO_LSN\n",
            ),
        ),
        turns_red=GENERATIONS + "what_an_older_leader_committed_is_no_proof_for_newer_members",
    ),
    Mutant(
        "final-before-the-joint-commit",
        "members change",
        "the final members are proposed when a leader with the joint ones has committed",
        (
            Edit(
                REPLACING,
                "filled = newcomer.has_committed and known_lsn > ZERO_LSN and "
                "newcomer.commit_lsn >= known_lsn",
                "filled = True",
            ),
        ),
        turns_red=_seed(6),
    ),
    Mutant(
        "what-was-accepted-is-passed-over",
        "members change",
        "a later round takes over what an earlier one may have decided",
        (Edit(REPLACING, "    following = last.accepted or wanted\n", "    following = wanted\n"),),
        turns_red=RIVALS,
    ),
    Mutant(
        "older-rounds-are-accepted",
        "members change",
        "who promised a greater round accepts nothing of a smaller one",
        (
            Edit(
                REGISTER,
                "    if ask.round < durable.change_round:\n        return None  # a greater",
                "    if False:\n        return None  # a greater",
            ),
        ),
        turns_red=RIVALS,
    ),
    Mutant(
        "decided-by-one",
        "members change",
        "only what a quorum has accepted is installed",
        (
            Edit(
                REPLACING,
                "    return following if old.commits([state.member for state in accepted]) "
                "else None\n",
                "    return following\n",
            ),
        ),
        turns_red=RIVALS,
    ),
    Mutant(
        "older-members-are-installed",
        "members change",
        "a safekeeper's generation never decreases",
        (
            Edit(
                REGISTER,
                "    if configuration.generation <= ours.generation:\n"
                "        return durable if configuration == ours else None\n",
            ),
        ),
        turns_red=REPLACE + "a_generation_never_decreases",
    ),
    Mutant(
        "newcomer-is-not-waited-for",
        "members change",
        "restart_lsn stands still until the newcomer has been filled",
        (
            Edit(
                LEADERSHIP,
                RESTART,
                "            restart_lsn = min(restart_lsn, flushed[0]) if members is "
                "counted[0] else restart_lsn\n",
            ),
        ),
        turns_red=GENERATIONS + "neither_commits_nor_restart_lsn_move_with_one_of_the_two_sets",
    ),
    Mutant(
        "newcomer-claims-who-writes-next",
        "members change",
        "a newcomer's history ends where its log begins",
        (
            Edit(
                REPLACING,
                "    history = _below(donor.history, base_lsn)\n",
                "    history = donor.history\n",
            ),
            Edit(REGISTER, "any(e.start_lsn >= base_lsn for e in history[1:])", "False"),
        ),
        turns_red=_seed(0),
    ),
    Mutant(
        "newcomer-has-nothing-to-compare",
        "members change",
        "a newcomer's log begins a segment before the last that all have",
        (
            Edit(
                REPLACING,
                "    return min(latest_lsn, max(Lsn(record - segment_bytes), "
                "creation_lsn, first_lsn))\n",
                "    return latest_lsn\n",
            ),
        ),
        turns_red=REPLACE + "the_newcomers_log_begins_a_segment_before_the_last_that_all_have",
    ),
    Mutant(
        "newcomer-begins-below-what-anybody-has",
        "members change",
        "a newcomer's log begins with WAL that all old members have",
        (
            Edit(
                REPLACING,
                "max(Lsn(record - segment_bytes), creation_lsn, first_lsn))",
                "max(Lsn(record - segment_bytes), creation_lsn))",
            ),
        ),
        turns_red=REPLACE + "the_newcomers_log_begins_a_segment_before_the_last_that_all_have",
    ),
    Mutant(
        "newcomer-begins-inside-a-record",
        "M3",
        "a newcomer's log begins before a record that is not finished",
        (
            Edit(
                REPLACING,
                "known_lsn = whole_lsn or restart_lsn",
                "known_lsn = whole_lsn = restart_lsn",
            ),
        ),
        turns_red=REPLACE + "the_newcomers_log_begins_before_a_record_that_is_being_written",
    ),
    Mutant(
        "where-records-end-is-not-told",
        "M3",
        "a member tells where the last whole record ends that all have",
        (
            Edit(
                ACCEPTOR,
                "replace(state, whole_lsn=record_lsn)",
                "state",
            ),
        ),
        turns_red="tests/test_scenarios.py::"
        "test_scenario[newcomer_begins_before_an_unfinished_record]",
    ),
    Mutant(
        "nobody-is-asked-for-older-wal",
        "members change",
        "what the donor does not keep of the log is compared all the same",
        (Edit(PRIMARY_CHECK, "    if not able:\n        return scope\n", "    return scope\n"),),
        turns_red="tests/test_scenarios.py::test_scenario[newcomer_alone_shows_no_primary]",
    ),
    Mutant(
        "newcomer-is-all-that-is-compared",
        "members change",
        "what a newcomer knows of commits keeps nobody from an election",
        (
            Edit(
                PRIMARY_CHECK,
                "if scope.is_empty and best.first_lsn < scope.first_lsn:",
                "if False:",
            ),
        ),
        turns_red=FORGOT,
    ),
    Mutant(
        "forgotten-commits-are-not-compared",
        "section 5",
        "before an election a primary is compared as far as the old members know",
        (Edit(PRIMARY_CHECK, "_committed(best, holding) if holding else nothing", "nothing"),),
        turns_red=FORGOT,
    ),
)
