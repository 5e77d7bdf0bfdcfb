"""Rules 15 to 18: failed disks, full disks, lost promises, and where a record ends."""

from __future__ import annotations

from tests.mutants.mutant import COMMON, PROPOSER, SAFEKEEPER, Edit, Mutant

ACCEPTOR = SAFEKEEPER + "consensus/acceptor.py"
ANSWERS = SAFEKEEPER + "consensus/answers.py"
DRIVER = SAFEKEEPER + "driver.py"
GREETINGS = PROPOSER + "consensus/greetings.py"
LEADERSHIP = PROPOSER + "consensus/leadership.py"
QUORUM = COMMON + "quorum.py"
WAL_RECOVERY = SAFEKEEPER + "storage/wal_recovery.py"
WAL_STORE = SAFEKEEPER + "storage/wal_store.py"
TAIL = SAFEKEEPER + "storage/tail.py"
REAL_DISK, OPEN_FILES = SAFEKEEPER + "disk/real_disk.py", SAFEKEEPER + "disk/open_files.py"
OPEN_FILES_TEST = "tests/safekeeper/test_open_files.py::"

NOT_A_MEMBER = Edit(
    ANSWERS,
    "    if configuration is None or acceptor.member not in configuration.everyone:",
    "    if configuration is None:",
)
ANY_INCARNATION = Edit(
    GREETINGS, "    if name not in greeting.configuration.everyone:", "    if False:"
)
ANY_NAME = Edit(
    QUORUM,
    "all(sum(m in names for m in members) >= quorum for members in self.member_sets)",
    "len([name for name in names if name]) >= quorum",
)
COUNTS_ANYBODY = Edit(
    LEADERSHIP,
    "[by_name.get(name, NOBODY) for name in names]",
    "[m if m.attached else NOBODY for m in self.members]",
)

FAILING = (
    Mutant(
        "failed-fsync-is-forgotten",
        "15",
        "WAL whose fsync failed is never called durable",
        (
            Edit(
                WAL_STORE,
                "                raise self._fail(error, lsn) from error",
                "                assert error",
            ),
            Edit(
                TAIL,
                "            raise self._fail(error, lsn) from error",
                "            assert error",
            ),
        ),
    ),
    Mutant(
        "failed-log-goes-on",
        "15",
        "a log whose disk failed acknowledges and votes no more",
        (
            Edit(
                ACCEPTOR,
                "        if self.failure is not None:\n            return []\n"
                "        self.failure = text",
                "        if text:\n            return []\n        self.failure = text",
            ),
            Edit(
                WAL_STORE,
                "        if self._failed is not None:\n"
                '            raise StorageError(f"no more appends after a failure: '
                '{self._failed}")\n',
            ),
        ),
    ),
    Mutant(
        "no-suspect-mark",
        "15",
        "a failure leaves the mark from where the WAL is suspect",
        (
            Edit(
                ACCEPTOR,
                "        self.durable = replace(self.durable, suspect_from=self.flush_lsn)\n",
            ),
        ),
    ),
    Mutant(
        "suspect-mark-is-ignored",
        "15",
        "a restart truncates to the suspect mark",
        (
            Edit(
                WAL_RECOVERY,
                "    for bound in (facts.truncating_to, facts.suspect_from):",
                "    for bound in (facts.truncating_to,):",
            ),
        ),
    ),
    Mutant(
        "tail-is-not-rewritten",
        "15, 9",
        "a start after an unclean stop rewrites the tail and syncs it",
        (Edit(WAL_RECOVERY, "    if not facts.clean_stop:\n", "    if facts.clean_stop:\n"),),
        turns_red="tests/safekeeper/test_wal_store.py::"
        "test_after_a_failed_fsync_nothing_is_appended_and_recovery_makes_the_tail_durable",
    ),
    Mutant(
        "no-space-is-final",
        "16",
        "no space for a segment is no failure",
        (Edit(DRIVER, "    if isinstance(error, SegmentNotAllocated):", "    if False:"),),
    ),
    Mutant(
        "refused-write-counts",
        "16, 8",
        "a write that was refused leaves the write position where it was",
        (
            Edit(
                ACCEPTOR,
                "        self.flush_lsn = self.write_lsn = flush_lsn\n"
                "        effects: list[Effect] = self.move_commit()",
                "        self.flush_lsn = self.write_lsn\n"
                "        effects: list[Effect] = self.move_commit()",
            ),
        ),
    ),
    Mutant(
        "no-descriptor-is-final",
        "16",
        "a file that cannot be opened for writing is no failure",
        (
            Edit(
                REAL_DISK,
                "NoSpace(str(failure)) if is_no_descriptor(error) else failure",
                "failure",
            ),
        ),
        turns_red=OPEN_FILES_TEST
        + "test_a_log_without_descriptors_refuses_appends_and_goes_on_later",
    ),
    Mutant(
        "descriptor-in-use-is-closed",
        "open_files",
        "a descriptor in use is not closed: its number would be another file's",
        (
            Edit(
                OPEN_FILES,
                "if file.users == 0 and not file.is_unsynced:",
                "if not file.is_unsynced:",
            ),
        ),
        turns_red=OPEN_FILES_TEST + "test_a_descriptor_in_use_is_never_closed",
    ),
    Mutant(
        "closed-before-its-sync",
        "open_files",
        "what was written stays open until it is synced, to be told what the disk has to say",
        (Edit(OPEN_FILES, "if file.users == 0 and not file.is_unsynced:", "if file.users == 0:"),),
        turns_red=OPEN_FILES_TEST + "test_a_file_stays_open_between_its_write_and_its_sync",
    ),
    Mutant(
        "reborn-member-votes",
        "17",
        "a member that comes back with another incarnation may not vote",
        (NOT_A_MEMBER, ANY_INCARNATION, ANY_NAME),
    ),
    Mutant(
        "reborn-member-acknowledges",
        "17",
        "a member that comes back with another incarnation is not counted",
        (NOT_A_MEMBER, ANY_INCARNATION, ANY_NAME, COUNTS_ANYBODY),
    ),
    Mutant(
        "record-ends-with-the-wal",
        "18",
        "record_lsn is the end of the last complete record, not of the bytes",
        (
            Edit(
                DRIVER,
                "            return self.store.record_end(asked.flush_lsn).end_lsn\n",
                "            return asked.flush_lsn\n",
            ),
        ),
    ),
)
