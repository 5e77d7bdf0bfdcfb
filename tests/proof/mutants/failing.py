"""R15 to R18: failed disks, full disks, lost promises, and where a record ends."""

from __future__ import annotations

from tests.proof.mutants.mutant import (
    APPEND_PATH,
    REAL_FILES,
    SEARCHED,
    SEED_MOVES,
    Edit,
    FastEdit,
    Mutant,
)

OPEN_FILES_TEST = "tests/safekeeper/test_open_files.py::"
STORE_TEST = "tests/safekeeper/test_wal_store.py::test_"
SCENARIO = "tests/consensus/test_scenarios.py::test_scenario"

NOT_A_MEMBER = Edit(
    "refusal_of",
    "configuration is None or acceptor.member not in configuration.everyone",
    "configuration is None",
)
ANY_INCARNATION = Edit("unwelcome", "name not in greeting.configuration.everyone", "False")
ANY_NAME = (
    Edit(
        "MemberSet.elects",
        "not self.commits([m for m in self.members if m not in names])",
        "len([name for name in names if name]) >= self.vote_quorum",
    ),
    Edit(
        "MemberSet.commits",
        "sum(m in names for m in self.members)",
        "len([name for name in names if name])",
    ),
)
COUNTS_ANYBODY = Edit(
    "Leader.counted",
    "[by_name.get(name, NOBODY) for name in each.members]",
    "[m if m.attached else NOBODY for m in self.members]",
)

PREFETCHING = "tests/cli/test_prefetching.py::test_"
NO_RESTORE = "the simulator runs no `restore`"

FAILING = (
    Mutant(
        "failed-fsync-is-forgotten",
        "R15",
        "WAL whose fsync failed never counts as durable",
        (
            Edit("WalStore.append", "raise self._fail(error, lsn) from error", "assert error"),
            FastEdit(
                "raise self.tail.failed(reason, self.end_lsn) from reason",
                "assert reason",
                APPEND_PATH,
            ),
        ),
    ),
    Mutant(
        "failed-log-goes-on",
        "R15",
        "a log whose disk failed acknowledges and votes no more",
        (
            Edit("Acceptor.on_storage_failed", "self.failure is not None", "text"),
            Edit(
                "WalStore.append",
                "if self._failed is not None:\n"
                '    raise StorageError(f"no more appends after a failure: {self._failed}")\n',
            ),
        ),
    ),
    Mutant(
        "no-suspect-mark",
        "R15",
        "a failure leaves the mark from where the WAL is suspect",
        (
            Edit(
                "Acceptor.on_storage_failed",
                "self.durable = replace(self.durable, suspect_from=self.flush_lsn)",
            ),
        ),
        turns_red=f"{SCENARIO}[failed_fsync_is_not_retried]",
        why_named=SEED_MOVES,
    ),
    Mutant(
        "suspect-mark-is-ignored",
        "R15",
        "a restart truncates to the suspect mark",
        (Edit("recover", "(facts.truncating_to, facts.suspect_from)", "(facts.truncating_to,)"),),
        turns_red=STORE_TEST
        + "after_a_failed_fsync_nothing_is_appended_and_recovery_makes_the_tail_durable",
        why_named=SEED_MOVES,
    ),
    Mutant(
        "tail-is-not-rewritten",
        "R15, R9",
        "a start after an unclean stop rewrites the tail and syncs it",
        (Edit("_settle_disk", "not facts.clean_stop", "facts.clean_stop"),),
        turns_red=STORE_TEST
        + "after_a_failed_fsync_nothing_is_appended_and_recovery_makes_the_tail_durable",
        why_named=SEARCHED,
    ),
    Mutant(
        "no-space-is-final",
        "R16",
        "no space for a segment is no failure",
        (Edit("_failed_write", "isinstance(error, SegmentNotAllocated)", "False"),),
    ),
    Mutant(
        "refused-write-counts",
        "R16, R8",
        "a write that was refused leaves the write position where it was",
        (
            Edit(
                "Acceptor.on_write_refused",
                "self.flush_lsn = self.write_lsn = flush_lsn",
                "self.flush_lsn = self.write_lsn",
            ),
        ),
    ),
    Mutant(
        "no-descriptor-is-final",
        "R16",
        "a file that cannot be opened for writing is no failure",
        (
            Edit(
                "RealDisk._hold_to_write",
                "NoSpace(str(failure)) if is_no_descriptor(error) else failure",
                "failure",
            ),
        ),
        turns_red=OPEN_FILES_TEST
        + "test_a_log_without_descriptors_refuses_appends_and_goes_on_later",
        why_named=REAL_FILES,
    ),
    Mutant(
        "descriptor-in-use-is-closed",
        "open_files",
        "a descriptor in use is not closed: its number would be another file's",
        (
            Edit(
                "OpenFiles._take_idle",
                "file.users == 0 and not file.is_unsynced",
                "not file.is_unsynced",
            ),
        ),
        turns_red=OPEN_FILES_TEST + "test_a_descriptor_in_use_is_never_closed",
        why_named=REAL_FILES,
    ),
    Mutant(
        "closed-before-its-sync",
        "open_files",
        "a written file stays open until its sync, so that the sync reports its errors",
        (
            Edit(
                "OpenFiles._take_idle",
                "file.users == 0 and not file.is_unsynced",
                "file.users == 0",
            ),
        ),
        turns_red=OPEN_FILES_TEST + "test_a_file_stays_open_between_its_write_and_its_sync",
        why_named=REAL_FILES,
    ),
    Mutant(
        "reborn-member-votes",
        "R17",
        "a member that comes back with another incarnation may not vote",
        (NOT_A_MEMBER, ANY_INCARNATION, *ANY_NAME),
    ),
    Mutant(
        "reborn-member-acknowledges",
        "R17",
        "a member that comes back with another incarnation is not counted",
        (NOT_A_MEMBER, ANY_INCARNATION, *ANY_NAME, COUNTS_ANYBODY),
    ),
    Mutant(
        "record-ends-with-the-wal",
        "R18",
        "record_lsn is the end of the last complete record, not of the bytes",
        (
            Edit(
                "Driver._find_record_end",
                "self.store.record_end(asked.flush_lsn).end_lsn",
                "asked.flush_lsn",
            ),
        ),
    ),
    Mutant(
        "prefetched-segment-is-named-before-its-sync",
        "prefetching",
        "a segment that was fetched ahead has its name only when it is on disk",
        (Edit("_sync_and_name", "sync_path(path + PART)", "pass"),),
        turns_red=PREFETCHING + "a_segment_that_cannot_be_synced_gets_no_name",
        why_named=NO_RESTORE,
    ),
    Mutant(
        "prefetcher-waits-for-each-sync",
        "prefetching",
        "the next segment is fetched while one is synced",
        (
            Edit(
                "_fetch_ahead",
                "placed = disk.submit(_sync_and_name, done, wanted.system_id)",
                "placed = disk.submit(_sync_and_name, done, wanted.system_id)\nplaced.result()",
            ),
        ),
        turns_red=PREFETCHING + "the_next_segment_is_fetched_while_one_is_synced",
        why_named=NO_RESTORE,
    ),
)
