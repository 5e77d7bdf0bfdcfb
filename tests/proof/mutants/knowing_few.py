"""Mutants of the ends of transactions in little memory: what is kept, and who is sent it."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

FEW = "tests/replay/test_few_ends.py::test_"
FILES = "tests/replay/test_few_heap_files.py::test_"
SHARES = "tests/replay/test_shared_ends.py::test_"
UPDATERS = "tests/replay/test_updaters.py::test_"
ONCE = "tests/replay/test_read_once.py::test_"
NO_TABLES = "the simulator reads no WAL as tables"

KNOWING_FEW = (
    Mutant(
        "some-commit-for-a-commit",
        "few_ends",
        "a commit whose place is not known is never taken for an earlier or a later one",
        (Edit("FewEnds.commit_lsns", "self._require(xids, found == WITHIN)", "pass"),),
        turns_red=FEW + "the_place_is_known_of_a_transaction_that_records_name",
        why_named=NO_TABLES,
    ),
    Mutant(
        "a-commit-that-is-not-kept-is-none",
        "few_ends",
        "a change is not left out because its commit was not kept",
        (
            Edit(
                "FewEnds.commit_rows",
                "self._require(xids, (rows < 0) & (codes == outcomes.COMMITTED))",
                "pass",
            ),
        ),
        turns_red=FEW + "the_place_is_known_of_a_transaction_that_records_name",
        why_named=NO_TABLES,
    ),
    Mutant(
        "kept-without-their-families",
        "few_ends",
        "the ends of a family are kept together",
        (Edit("FewEnds.take", "np.isin(ended.tops, ended.tops[kept])", "False"),),
        turns_red=FEW + "families_are_kept_whole",
        why_named=NO_TABLES,
    ),
    Mutant(
        "the-start-is-forgotten",
        "few_ends",
        "the ends of transactions that may have begun before the WAL are kept",
        (Edit("FewEnds.take", "self._may_be_of_start(ended.xids)", "False"),),
        turns_red=FEW + "transactions_of_the_start_are_kept",
        why_named=NO_TABLES,
    ),
    Mutant(
        "a-number-that-comes-again-is-forgotten",
        "few_ends",
        "the last end of an xid counts",
        (
            Edit(
                "FewEnds._found",
                "codes == outcomes.ELSEWHERE",
                "rows >= 0",
            ),
        ),
        turns_red=FEW + "each_lookup_by_now_has_the_answer_of_all_ends",
        why_named=NO_TABLES,
    ),
    Mutant(
        "one-transaction-of-a-file-for-all",
        "few_heap_files",
        "a file that two transactions changed is not known as that of one",
        (
            Edit(
                "FewHeapFiles._keep",
                "every.chosen(np.array([last, *others[:1]]))",
                "every.chosen(np.array([last]))",
            ),
        ),
        turns_red=FILES + "two_transactions_of_a_file_answer_for_all[0]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "the-first-change-of-a-file-for-the-last",
        "few_heap_files",
        "the last commit that changed a file is known",
        (Edit("FewHeapFiles._keep", "every.end_lsns.argmax()", "every.end_lsns.argmin()"),),
        turns_red=FILES + "two_transactions_of_a_file_answer_for_all[0]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "a-task-knows-its-own-changes-alone",
        "shared_ends",
        "a share gets the commit of a transaction that changed it before the task's segments",
        (
            Edit(
                "SharedEnds.of",
                "older | np.isin(has_committed.xids, changed)",
                "np.isin(has_committed.xids, changed)",
            ),
        ),
        turns_red=SHARES + "each_share_gets_the_commits_of_its_transactions[0-1-700]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "damage-hides-what-was-before",
        "shared_ends",
        "behind damage a task takes no xid for newer than all before",
        (Edit("WalBefore.followed_by", "self.has_gaps or has_gaps", "False"),),
        turns_red=SHARES + "after_damage_each_share_gets_all_commits",
        why_named=NO_TABLES,
    ),
    Mutant(
        "tasks-know-nothing-of-the-wal-before",
        "read_once",
        "a transaction that outlasts a task's segments has all its changes",
        (Edit("_Decode.__init__", "before[min(first, len(before) - 1)]", "WalBefore()"),),
        turns_red=ONCE + "transactions_that_outlast_a_task_have_their_changes[1-]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "an-updater-of-every-multixact",
        "updaters",
        "the base backup is asked for a multixact that the WAL does not name",
        (Edit("Updaters.of", "chunk[at] == _NO_NOTE", "False"),),
        turns_red=UPDATERS + "each_multixact_has_the_updater_that_was_noted_last",
        why_named=NO_TABLES,
    ),
    Mutant(
        "more-bytes-for-an-updater",
        "updaters",
        "an updater takes four bytes",
        (Edit("Updaters.note", "np.uint32", "np.int64"),),
        turns_red=UPDATERS + "four_bytes_a_multixact",
        why_named=NO_TABLES,
    ),
    Mutant(
        "changed-files-without-their-commits",
        "read_once",
        "the driver knows when a file that nobody describes was changed",
        (Edit("read_once.changes", "history.xids.commits.take(ended)", "pass"),),
        turns_red=ONCE + "changes_that_the_wal_does_not_describe_are_refused",
        why_named=NO_TABLES,
    ),
)
