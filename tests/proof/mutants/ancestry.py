"""R23: a server proves its ancestry by bytes, not by the number of its timeline."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

TESTS = "tests/common/test_pure_ancestry.py::"
RESERVING = "tests/cli/test_reserving.py::test_"
ONE_NUMBER = "no two simulated servers promote themselves with one timeline number"

ANCESTRY = (
    Mutant(
        "the-number-is-believed",
        "R23",
        "a server's WAL is compared with the log's, byte for byte",
        (
            Edit(
                "branch_comparison._difference",
                "if ours == theirs:\n    return None\n",
                "return None",
            ),
        ),
        turns_red=TESTS + "test_two_promotions_with_one_number_are_two_branches[3-3]",
        why_named=ONE_NUMBER,
    ),
    Mutant(
        "a-checkpoint-tells",
        "R23",
        "a checkpoint, whose time is in seconds, does not end the comparison",
        (Edit("_telling_in", "_Telling.WEAK", "_Telling.STRONG"),),
        turns_red=TESTS + "test_equal_checkpoints_after_two_promotions_do_not_tell",
        why_named=ONE_NUMBER,
    ),
    Mutant(
        "pg-control-is-not-compared",
        "R23",
        "pg_control's checkpoint is the log's record at that LSN",
        (
            Edit(
                "_checkpoint",
                "is_one and is_same_checkpoint(checkpoint.copy, wal[head_bytes:])",
                "True",
            ),
        ),
        turns_red=TESTS + "test_pg_controls_checkpoint_is_compared_with_the_logs_record",
        why_named=ONE_NUMBER,
    ),
    Mutant(
        "min-recovery-point-is-not-compared",
        "R23",
        "the page at minRecoveryPoint is compared",
        (Edit("_min_recovery", "not server.min_recovery_lsn or server.end_lsn is None", "True"),),
        turns_red=TESTS + "test_the_page_at_min_recovery_point_is_compared",
        why_named=ONE_NUMBER,
    ),
    Mutant(
        "equal-numbers-may-be-rewound",
        "R23",
        "pg_rewind is named only if the timelines that share a number are the same ones",
        (
            Edit(
                "branch_comparison.compare",
                "if isinstance(verdict, AnotherBranch):\n"
                "    return verdict\n"
                "return replace(refusal, lsn=part_lsn, can_rewind=isinstance(verdict, "
                "SameBranch))\n",
                "return replace(refusal, lsn=part_lsn, can_rewind=True)",
            ),
        ),
        turns_red=TESTS + "test_pg_rewind_is_not_named_for_two_branches_below_a_fork",
        why_named=ONE_NUMBER,
    ),
    Mutant(
        "wal-behind-a-fork-is-fit",
        "R23",
        "WAL of a timeline past the LSN at which the log left it is another branch",
        (Edit("_past_a_fork", "end_lsn is not None and lsn > end_lsn", "False"),),
        turns_red=TESTS + "test_a_deposed_primary_with_wal_of_its_own_may_be_rewound",
        why_named=ONE_NUMBER,
    ),
    Mutant(
        "a-promotion-may-leave-out-wal",
        "R23",
        "a promotion that left out WAL of the log is another branch",
        (Edit("another_history", "ends[line.last] < log.record_lsn", "False"),),
        turns_red=TESTS + "test_a_promotion_that_left_out_wal_is_another_branch",
        why_named=ONE_NUMBER,
    ),
    Mutant(
        "a-number-without-a-byte-is-enough",
        "R23",
        "a timeline of which the log has no committed byte proves nothing",
        (
            Edit(
                "compared_until",
                "timeline == line.last and begin_lsn is not None and log.end_lsn <= begin_lsn",
                "False",
            ),
        ),
        turns_red=TESTS + "test_a_promotion_that_the_log_does_not_have_yet_cannot_be_known",
        why_named=ONE_NUMBER,
    ),
    Mutant(
        "position-before-bytes",
        "R23, check of the primary",
        "with equal timelines bytes are compared before positions",
        (
            Edit(
                "PrimaryCheck.start",
                "admission.refusal if self._lost is None else admission.refusal_at_sight",
                "admission.refusal",
            ),
        ),
        turns_red="tests/proposer/test_pure_primary_check.py::"
        "test_a_shorter_primary_is_compared_before_its_position_is_judged",
        why_named=ONE_NUMBER,
    ),
    Mutant(
        "an-ack-quorum-reserves",
        "R23",
        "a number is an owner's when an ack quorum and a vote quorum have granted it",
        (
            Edit(
                "timeline_reservation.is_quorum",
                "configuration.commits(members) and configuration.elects(members)",
                "configuration.commits(members)",
            ),
        ),
        turns_red=RESERVING + "no_two_owners_have_one_number_with_any_members_down[5-2]",
        why_named=ONE_NUMBER,
    ),
    Mutant(
        "a-number-is-granted-anew",
        "R23",
        "a safekeeper grants a timeline number once",
        (Edit("Reserved.grant", "if timeline in self.owners:\n    return self\n", ""),),
        turns_red=RESERVING + "each_owner_gets_a_number_of_its_own_again_and_again",
        why_named=ONE_NUMBER,
    ),
    Mutant(
        "a-number-passed-over-has-no-file",
        "R23",
        "a number that a promotion passed over has a file without an ancestor",
        (
            Edit(
                "served_file", "found is None and first < timeline < max(files, default=0)", "False"
            ),
        ),
        turns_red="tests/proposer/test_pure_promotion.py::"
        "test_a_number_that_a_promotion_passed_over_has_a_file_without_an_ancestor",
        why_named=ONE_NUMBER,
    ),
)
