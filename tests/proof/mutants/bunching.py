"""R8 where one safekeeper gets WAL in bunches."""

from __future__ import annotations

from tests.proof.mutants.mutant import BUSY, SEARCHED, SIM, STREAM_PATH, Edit, FastEdit, Mutant

BUNCHES_TEST = "tests/proposer/test_bunches.py::test_"
COSTS_TIME = "it costs time alone"

BUNCHING = (
    Mutant(
        "bunch-after-the-core-heard",
        "R8",
        "a bunch leaves before the core learns that its WAL was sent",
        (
            FastEdit(
                "        self.send_bunch()\n        if not self.has_news:",
                "        if not self.has_news:",
                STREAM_PATH,
            ),
        ),
        turns_red=BUNCHES_TEST + "a_bunch_leaves_before_all_that_the_core_does",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "bunch-for-one-that-is-needed",
        "R8",
        "only a safekeeper without which the others commit gets bunches",
        (
            Edit(
                "walkeeper_proposer.consensus.expected_stream._may_wait",
                "m.attached and m is not member",
                "m.attached",
            ),
        ),
        turns_red=BUNCHES_TEST + "who_may_wait_is_as_the_ack_rule_says[2-zones2-may_wait2]",
        why_named=COSTS_TIME,
    ),
    Mutant(
        "bunches-although-a-commit-waited",
        "R8",
        "bunches end once a commit has waited for one",
        (
            FastEdit(
                "if by == self.bunched and before_lsn < self.late_lsn:", "if False:", STREAM_PATH
            ),
        ),
        turns_red=BUNCHES_TEST + "a_commit_that_waits_for_a_bunch_ends_the_bunches",
        why_named=COSTS_TIME,
    ),
    Mutant(
        "bunches-end-by-any-ack",
        "R8",
        "an ack ends the bunches only if WAL waited for it since the last bunch",
        (
            FastEdit(
                "if by == self.bunched and before_lsn < self.late_lsn:",
                "if by == self.bunched:",
                STREAM_PATH,
            ),
        ),
        turns_red=BUNCHES_TEST + "an_ack_for_which_no_commit_had_to_wait_ends_nothing",
        why_named=COSTS_TIME,
    ),
    Mutant(
        "bunch-of-a-waiting-client-counts-as-little-wal",
        "R8",
        "a client that waits for a bunch makes bunches rarer",
        (
            FastEdit(
                "self.was_needed or (appends == 1 and self.late_lsn != 0)",
                "self.was_needed",
                STREAM_PATH,
            ),
        ),
        turns_red=BUNCHES_TEST + "a_client_that_waits_for_a_bunch_ends_the_bunches",
        why_named=COSTS_TIME,
    ),
    Mutant(
        "bunch-without-bound",
        "R8",
        "a bunch is one append, so it has an append's bound",
        (
            FastEdit(
                "if is_long or <uint64_t>(self.bunch_bytes + size) > self.wal_bytes_max:",
                "if is_long:",
                STREAM_PATH,
            ),
        ),
        turns_red=BUNCHES_TEST + "a_bunch_has_a_bound_and_long_appends_go_to_all_at_once",
        why_named=COSTS_TIME,
    ),
    Mutant(
        "bunch-of-long-appends",
        "R8",
        "a long append goes to all at once, so that WAL that comes fast is not kept back",
        (FastEdit("size > self.bunched_bytes_max", "False", STREAM_PATH),),
        turns_red=BUNCHES_TEST + "a_bunch_has_a_bound_and_long_appends_go_to_all_at_once",
        why_named=COSTS_TIME,
    ),
    Mutant(
        "long-append-before-the-bunch",
        "R8",
        "a bunch leaves before a later append that goes to all at once",
        (FastEdit("if is_long or <uint64_t>", "if <uint64_t>", STREAM_PATH),),
        turns_red=BUNCHES_TEST + "a_bunch_has_a_bound_and_long_appends_go_to_all_at_once",
        why_named=COSTS_TIME,
    ),
    Mutant(
        "bunches-as-often-as-ever",
        "R8",
        "each time that a commit waited for a bunch, bunches become rarer",
        (Edit("walkeeper_proposer.bunches.Bunches.judge", "2 * self._patience", "self._patience"),),
        turns_red=BUNCHES_TEST
        + "bunches_that_commits_wait_for_become_rare_and_calm_makes_them_usual_again",
        why_named=COSTS_TIME,
    ),
)
