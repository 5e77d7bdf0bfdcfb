"""Newcomers learn first (M2): what enters a set, when, and the WAL that is kept for it."""

from __future__ import annotations

from tests.proof.mutants.mutant import ONLY_MEMORY, REPLACE, SEARCHED, Edit, Mutant

TEST = "tests/consensus/test_pure_learning.py::test_"
LIVES = "it holds up commits and loses none, so no oracle sees it"

LEARNERS = (
    Mutant(
        "newcomer-enters-at-once",
        "M2",
        "a newcomer is in no set before it has WAL",
        (Edit("changing._begun", "learning_late if is_late else learning_with", "joint_with"),),
        turns_red=TEST + "a_dead_newcomer_is_in_no_set",
        why_named=LIVES,
    ),
    Mutant(
        "learners-count",
        "M2",
        "learners neither elect nor commit",
        (
            Edit(
                "Configuration.sets",
                "self.target is None or self.is_learning",
                "self.target is None",
            ),
        ),
        turns_red=TEST + "a_dead_newcomer_is_in_no_set",
        why_named=LIVES,
    ),
    Mutant(
        "newcomer-enters-with-any-lag",
        "M2",
        "a newcomer enters a set when it lacks less than a window",
        (
            Edit(
                "newcomers.learning",
                "to_go is not None and to_go < WINDOW_BYTES_MAX",
                "to_go is not None",
            ),
        ),
        turns_red=TEST + "a_newcomer_that_lacks_a_window_enters_no_set",
        why_named=LIVES,
    ),
    Mutant(
        "newcomer-enters-unled",
        "M2",
        "a newcomer enters a set when it follows the leader",
        (Edit("newcomers.learning", "all(state.has_committed for state in newcomers)", "True"),),
        turns_red=TEST + "a_newcomer_that_follows_no_leader_of_its_generation_enters_no_set",
        why_named=LIVES,
    ),
    Mutant(
        "learners-become-final",
        "M4",
        "learners become a final set by way of a joint one alone",
        (
            Edit(
                "is_successor",
                "not current.is_learning and following == final(current)",
                "following == final(current)",
            ),
            Edit(
                "member_change.final",
                "current.target is not None and not current.is_learning",
                "current.target is not None",
            ),
            Edit(
                "member_change.final",
                "replace(current.having(current.target), target=None)",
                "cancelled(current).having(current.target)",
            ),
            Edit("_next_step", "current.is_learning", "False"),
        ),
        turns_red=TEST + "learners_become_no_final_set_without_a_joint_one",
        searched_by=(REPLACE,),
        why_named=SEARCHED,
    ),
    Mutant(
        "learners-are-not-waited-for",
        "M2",
        "WAL is kept for learners",
        (
            Edit(
                "Leader.advance_commit",
                "min(restart_lsn, kept_for(self._learners, self.members, commit_lsn))",
                "restart_lsn",
            ),
        ),
        turns_red=TEST + "a_learner_acknowledges_no_commit_and_wal_is_kept_for_it_within_a_bound",
        why_named=LIVES,
    ),
    Mutant(
        "learners-are-waited-for-without-end",
        "M2",
        "WAL is kept for learners within a bound",
        (
            Edit(
                "kept_for",
                "max(slowest, Lsn(max(0, int(commit_lsn) - LEARNER_BYTES_MAX)))",
                "slowest",
            ),
        ),
        turns_red=TEST + "a_learner_acknowledges_no_commit_and_wal_is_kept_for_it_within_a_bound",
        why_named=ONLY_MEMORY,
    ),
    Mutant(
        "given-up-newcomer-stays-linked",
        "M1",
        "a proposer that has linked a newcomer drops the link when that is given up",
        (
            Edit(
                "Campaign.needs_other_links",
                "not self.linked <= set(configuration.everyone)",
                "False",
            ),
        ),
        turns_red=(
            "tests/proposer/test_pure_linked_addresses.py::"
            "test_a_newcomer_that_was_given_up_between_two_elections_loses_its_link"
        ),
        why_named="the simulated proposers know all addresses",
    ),
    Mutant(
        "older-members-change-the-links",
        "M1",
        "an older configuration, of a member that lags, changes no link of a proposer",
        (
            Edit(
                "Campaign.needs_other_links",
                "configuration.generation <= self.linked_generation",
                "False",
            ),
        ),
        turns_red=(
            "tests/proposer/test_pure_linked_addresses.py::"
            "test_whoever_greets_first_the_links_come_to_rest"
        ),
        why_named="the simulated proposers know all addresses",
    ),
    Mutant(
        "second-replacement-forgets-an-address",
        "M1",
        "the log keeps the address of the newcomer of a replacement that has ended",
        (
            Edit("changing._begun", "with_ids(current, histories)", "current.address"),
            Edit(
                "changing._begun",
                '(*plain, *staying.split(","), *added)',
                '(*staying.split(","), *added)',
            ),
        ),
        turns_red="tests/consensus/test_pure_resizing.py::test_"
        "a_second_replacement_keeps_the_address_of_the_first_newcomer",
        why_named="the simulated proposers know all addresses",
    ),
)
