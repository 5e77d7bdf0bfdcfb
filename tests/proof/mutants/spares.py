"""Spares take the place of silent members (M6): when a repair begins, and when it may not."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

TEST = "tests/consensus/test_pure_spares.py::test_"
LIVES = "an auditor that errs loses no commit, so no oracle sees it"


def _auditor(name: str, what: str, edit: Edit, test: str) -> Mutant:
    return Mutant(name, "M6", what, (edit,), turns_red=TEST + test, why_named=LIVES)


SPARES = (
    _auditor(
        "repair-begins-at-once",
        "a member is replaced only after the grace time",
        Edit("Auditor._silent", "now_s - last_s >= self.grace_s", "now_s > last_s"),
        "a_member_that_is_silent_for_the_grace_time_is_replaced_by_the_first_spare",
    ),
    _auditor(
        "repair-without-an-ack-set",
        "a repair begins only while an ack set is well",
        Edit("Auditor._held", "not configuration.commits(well)", "False"),
        "without_an_ack_quorum_that_is_well_nothing_begins",
    ),
    _auditor(
        "repairs-without-a-budget",
        "members that flap use up a bounded number of spares",
        Edit("Auditor._held", "len(self._begun_s) == REPAIRS_MAX", "False"),
        "members_that_flap_use_up_a_bounded_number_of_spares",
    ),
    _auditor(
        "repairs-cannot-be-switched-off",
        "a grace time of zero switches repairs off",
        Edit("Auditor.audit", "self.grace_s <= 0", "self.grace_s < 0"),
        "a_grace_time_of_zero_switches_repairs_off",
    ),
    _auditor(
        "silence-counts-before-it-leads",
        "silence counts from when this proposer leads",
        Edit("Auditor.rest", "self._well_s.clear()", "None"),
        "silence_counts_from_when_this_proposer_leads",
    ),
    _auditor(
        "cancelled-repair-begins-again",
        "a repair that an operator has taken back never begins again",
        Edit(
            "member_change.cancelled",
            "replace(current, target=None, address=address, is_learning=False, spares=())",
            "replace(current, target=None, address=address, is_learning=False)",
        ),
        "a_cancel_leaves_no_spare_that_could_begin_the_repair_again",
    ),
    _auditor(
        "member-stays-a-spare",
        "a spare that has become a member is no spare",
        Edit(
            "member_change.final",
            "replace(following, generation=current.generation + 1, spares=spares)",
            "replace(following, generation=current.generation + 1)",
        ),
        "a_spare_that_has_become_a_member_is_no_spare",
    ),
    _auditor(
        "repair-takes-over-an-operators-change",
        "an operator's change is left to the operator",
        Edit("Auditor._under_way", "own is None or best is None", "best is None"),
        "an_operators_change_is_left_to_the_operator",
    ),
    _auditor(
        "dead-spare-holds-up-the-repair",
        "a spare that gets no further gives way to the next",
        Edit("Auditor.failed", "self._failures[repair.spare] += 1", "None"),
        "a_spare_that_gets_no_further_gives_way_to_the_next",
    ),
    _auditor(
        "spares-change-with-the-members",
        "the spares change while no change of members is under way",
        Edit(
            "is_successor",
            "others and following == with_spares(current, following.spares)",
            "others",
        ),
        "the_spares_change_alone_and_under_no_other_change",
    ),
    _auditor(
        "held-repair-gives-no-reason",
        "a repair that is held back says why, and until when",
        Edit("Auditor._held", "self._begun_s[0] + REPAIRS_S", "None"),
        "a_repair_that_is_held_back_says_why_and_until_when",
    ),
    _auditor(
        "repair-forgets-an-address",
        "the log keeps the addresses of all spares that became members",
        Edit("changing._begun", "current.spares", "()"),
        "two_repairs_leave_both_new_addresses_in_the_log",
    ),
)
