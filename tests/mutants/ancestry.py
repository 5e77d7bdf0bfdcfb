"""R23: a server proves its ancestry by bytes, not by the number of its timeline."""

from __future__ import annotations

from tests.mutants.mutant import COMMON, PROPOSER, Edit, Mutant

ANCESTRY_FILE = COMMON + "ancestry.py"
PRIMARY_CHECK = PROPOSER + "consensus/primary_check.py"
TESTS = "tests/common/test_pure_ancestry.py::"

ANCESTRY = (
    Mutant(
        "the-number-is-believed",
        "R23",
        "a server's WAL is compared with the log's, byte for byte",
        (
            Edit(
                ANCESTRY_FILE,
                "    if ours == theirs:\n        return None\n    at = next(",
                "    return None\n    at = next(",
            ),
        ),
        turns_red=TESTS + "test_two_promotions_with_one_number_are_told_apart[3-3]",
    ),
    Mutant(
        "a-checkpoint-tells",
        "R23",
        "a checkpoint, whose time is in seconds, does not end the comparison",
        (Edit(ANCESTRY_FILE, "told.add(_Told.WEAK)", "told.add(_Told.STRONG)"),),
        turns_red=TESTS + "test_equal_checkpoints_behind_two_promotions_do_not_tell",
    ),
    Mutant(
        "pg-control-is-not-compared",
        "R23",
        "pg_control's checkpoint is the log's record at that LSN",
        (
            Edit(
                ANCESTRY_FILE,
                "    if is_one and is_same_checkpoint(checkpoint.copy, wal[head_bytes:]):",
                "    if True:",
            ),
        ),
        turns_red=TESTS + "test_pg_controls_checkpoint_is_compared_with_the_logs_record",
    ),
    Mutant(
        "min-recovery-point-is-not-compared",
        "R23",
        "the page at minRecoveryPoint is compared",
        (
            Edit(
                ANCESTRY_FILE,
                "    if not server.min_recovery_lsn or server.end_lsn is None:",
                "    if True:",
            ),
        ),
        turns_red=TESTS + "test_the_page_at_min_recovery_point_is_compared",
    ),
    Mutant(
        "equal-numbers-may-be-rewound",
        "R23",
        "pg_rewind is named only if the timelines that share a number are the same ones",
        (
            Edit(
                ANCESTRY_FILE,
                "        if isinstance(verdict, AnotherBranch):\n            return verdict\n"
                "        return replace(refusal, lsn=part_lsn, can_rewind="
                "isinstance(verdict, SameBranch))",
                "        return replace(refusal, lsn=part_lsn, can_rewind=True)",
            ),
        ),
        turns_red=TESTS + "test_pg_rewind_is_not_named_for_two_branches_below_a_fork",
    ),
    Mutant(
        "wal-behind-a-fork-is-fit",
        "R23",
        "WAL of a timeline behind the place where the log left it is another branch",
        (
            Edit(
                ANCESTRY_FILE,
                "        if end_lsn is not None and lsn > end_lsn:",
                "        if False:",
            ),
        ),
        turns_red=TESTS + "test_a_deposed_primary_with_wal_of_its_own_may_be_rewound",
    ),
    Mutant(
        "a-promotion-may-leave-out-wal",
        "R23",
        "a promotion that left out WAL of the log is another branch",
        (Edit(ANCESTRY_FILE, "    if ends[line.last] < log.record_lsn:", "    if False:"),),
        turns_red=TESTS + "test_a_promotion_that_left_out_wal_is_another_branch",
    ),
    Mutant(
        "a-number-without-a-byte-is-enough",
        "R23",
        "a timeline of which the log has no committed byte proves nothing",
        (
            Edit(
                ANCESTRY_FILE,
                "    if timeline == line.last and begin_lsn is not None and "
                "log.end_lsn <= begin_lsn:",
                "    if False:",
            ),
        ),
        turns_red=TESTS + "test_a_promotion_that_the_log_does_not_have_yet_cannot_be_known",
    ),
    Mutant(
        "position-before-bytes",
        "23, section 5",
        "with equal timelines bytes are compared before positions",
        (
            Edit(
                PRIMARY_CHECK,
                "        ask = gate.refusal if self._lost is None else gate.refusal_at_sight",
                "        ask = gate.refusal",
            ),
        ),
        turns_red="tests/proposer/test_pure_primary_check.py::"
        "test_a_shorter_primary_is_compared_before_its_position_is_judged",
    ),
)
