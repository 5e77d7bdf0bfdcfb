"""Our own, in the safekeeper's driver and storage."""

from __future__ import annotations

from tests.proof.mutants.mutant import (
    BUSY,
    REAL_FILES,
    REPLACE,
    SEARCHED,
    SEED_MOVES,
    SIM,
    SWITCH,
    Edit,
    Mutant,
)

FILL_TEST = "tests/safekeeper/test_zero_fill.py::test_"
POWER_TEST = "tests/safekeeper/test_real_disk_power_cuts.py::test_"

STORING = (
    Mutant(
        "append-is-not-synced",
        "wal_store",
        "an append is synced",
        (Edit("WalStore._append_piece", "self.disk.sync_data(self._written_name)"),),
    ),
    Mutant(
        "segment-name-is-not-synced",
        "wal_store",
        "a new segment's name is durable before anything in it is",
        (Edit("WalStore._ensure_file", "self.disk.sync_directory()"),),
    ),
    Mutant(
        "prepared-behind-a-cut",
        "wal_store",
        "no segment is prepared after one that a truncation removed",
        (
            Edit("WalStore.prepare_ahead", "before in self._files", "True"),
            Edit(
                "WalStore._ensure_file",
                "file in self._files or before not in (None, *self._files)",
                "file in self._files",
            ),
        ),
    ),
    Mutant(
        "orphan-kept-too-late",
        "driver",
        "truncated WAL is in orphans/ before the truncation is announced",
        (Edit("Driver._persist", "text = None", "text = None\nself._save(state)\n"),),
    ),
    Mutant(
        "names-do-not-follow",
        "wal_store",
        "the files are named after the timelines of the history that was adopted",
        (
            Edit(
                "Driver._persist", "self.store.follow(Timelines(state.history))", "assert Timelines"
            ),
        ),
    ),
    Mutant(
        "head-is-not-marked",
        "wal_store",
        "the first bytes of a log that starts inside a record are marked as durable",
        (
            Edit(
                "WalStore._mark_head",
                "self.disk.replace(HEAD_MARK, seal(HEAD_MAGIC, 1, body))",
                "assert body and seal and HEAD_MAGIC",
            ),
        ),
    ),
    Mutant(
        "head-is-trusted",
        "wal_recovery",
        "the first bytes of a log that starts inside a record are not trusted without the mark",
        (
            Edit(
                "_last_record", "head_end > commit_lsn and marked != (first_lsn, head_end)", "False"
            ),
        ),
    ),
    Mutant(
        "padding-is-not-looked-at",
        "walformat",
        "the padding of a record is zeros, or recovery would keep bytes that no primary wrote",
        (
            Edit(
                "_Walk._records_inside_page",
                "if end & 7 and any(view[end : (end + 7) & ~7]):\n    break\n",
            ),
            Edit("_Walk._finish_record", "self._check_alignment(start, padding)"),
        ),
        turns_red="tests/common/test_wal_format.py"
        "::test_any_flipped_bit_below_the_end_is_corruption_or_seen_by_a_scan",
        searched_by=(BUSY, SWITCH),
        why_named=SEARCHED,
    ),
    Mutant(
        "foreign-pages-are-taken",
        "wal_store",
        "a page that recovery keeps is of this system and of the timeline that its place has",
        (Edit("WalStore.scan", "foreign=self._foreign"),),
        turns_red="tests/safekeeper/test_wal_store.py"
        "::test_a_page_that_is_not_this_logs_ends_a_scan",
        why_named=SEARCHED,
    ),
    Mutant(
        "recovery-leaves-old-bytes",
        "wal_recovery",
        "recovery zeroes the segment past the end",
        (Edit("_settle_disk", "store.zero_from(end_lsn)"),),
        turns_red="tests/safekeeper/test_wal_power_cuts.py"
        "::test_no_power_cut_loses_an_acknowledged_record",
        why_named=SEED_MOVES,
    ),
    Mutant(
        "recovery-ends-with-the-bytes",
        "wal_recovery",
        "recovery falls back to a record's end",
        (
            Edit(
                "_last_record",
                "RecordEnd(end.start_lsn, end.end_lsn, end.switched_to)",
                "RecordEnd(end.start_lsn, max(end.end_lsn, commit_lsn))",
            ),
        ),
        turns_red="tests/safekeeper/test_wal_store.py"
        "::test_commit_lsn_may_lie_inside_one_incomplete_record_only",
        why_named=SEED_MOVES,
    ),
    Mutant(
        "marks-are-not-lowered",
        "log_folder",
        "after a fall back commit_lsn and reached_lsn are not above the end",
        (
            Edit("LogFolder.open_wal", "commit_lsn=min(durable.commit_lsn, found.flush_lsn)"),
            Edit(
                "LogFolder.open_wal",
                "reached_lsn=min(durable.reached_lsn, facts.clamped(found.flush_lsn))",
            ),
        ),
        turns_red="tests/safekeeper/test_lowered_marks.py"
        "::test_a_start_that_falls_back_lowers_the_durable_commit_lsn",
        why_named=SEED_MOVES,
    ),
    Mutant(
        "marks-are-not-taken-down",
        "log_folder",
        "the marks of an interrupted cut and of a failure are taken down at the start",
        (
            Edit("LogFolder.open_wal", "truncating_to=None"),
            Edit("LogFolder.open_wal", "suspect_from=None"),
        ),
    ),
    Mutant(
        "persist-is-not-waited-for",
        "driver",
        "no effect follows a Persist or a TruncateWal until it is done",
        (Edit("Driver._hold", "self._is_held = True"),),
    ),
    Mutant(
        "failed-persist-is-told",
        "driver",
        "no answer follows a Persist that failed",
        (Edit("Driver._release", "self._effects.clear()"),),
        turns_red="tests/safekeeper/test_safekeeper_driver.py"
        "::test_an_answer_after_a_persist_that_failed_is_never_sent",
        why_named=SEED_MOVES,
    ),
    Mutant(
        "group-too-long",
        "driver",
        "a group that was cut off is acknowledged only as far as it went",
        (
            Edit(
                "Driver._append_group",
                "while self._queued and size < GROUP_BYTES_MAX:\n"
                "    buffers.append(self._queued.popleft().payload)\n"
                "    size += len(buffers[-1])\n",
                "size = sum(len(w.payload) for w in self._queued)\n"
                "while self._queued and len(buffers) < 2:\n"
                "    buffers.append(self._queued.popleft().payload)\n",
            ),
        ),
    ),
    Mutant(
        "unlinks-of-a-cut-are-not-synced",
        "wal_store",
        "a cut's unlinks are durable one by one, highest first",
        (Edit("WalStore.unlink_files", "self.disk.sync_directory()"),),
        searched_by=(REPLACE, SIM),
        turns_red="tests/safekeeper/test_wal_power_cuts.py"
        "::test_no_power_cut_loses_an_acknowledged_record",
        why_named=SEED_MOVES,
    ),
    Mutant(
        "control-file-is-not-synced",
        "real_disk",
        "a file that replaces another one is durable before it gets its name",
        (Edit("RealDisk._write_new", "os.fsync(descriptor)"),),
        turns_red=POWER_TEST + "a_control_file_that_was_replaced_is_the_new_one[forgetful]",
        why_named=REAL_FILES,
    ),
    Mutant(
        "reserve-is-given-up-at-once",
        "R16",
        "a full disk's reserve gives what one control file needs, and keeps the rest",
        (
            Edit(
                "RealDisk._shrink_reserve",
                "max(0, present - size // _BLOCK * _BLOCK - 2 * _BLOCK)",
                "0",
            ),
        ),
        turns_red="tests/safekeeper/test_real_disk.py::"
        "test_another_process_may_win_what_the_reserve_gives",
        why_named=REAL_FILES,
    ),
    Mutant(
        "control-files-name-is-not-synced",
        "real_disk",
        "a promise is durable when its control file's new name is",
        (
            Edit(
                "RealDisk._replace",
                "self._files.opening_at_any_rate(lambda: sync_path(self.path))",
            ),
        ),
        turns_red=POWER_TEST + "a_control_file_that_was_replaced_is_the_new_one[forgetful]",
        why_named=REAL_FILES,
    ),
    Mutant(
        "names-are-not-synced",
        "real_disk",
        "names that were made and removed are durable when the directory is synced",
        (
            Edit(
                "RealDisk.sync_directory",
                "self._files.opening_at_any_rate(lambda: sync_path(self.path))",
            ),
        ),
        turns_red=POWER_TEST
        + "names_that_were_synced_are_there_and_those_removed_are_not[forgetful]",
        why_named=REAL_FILES,
    ),
    Mutant(
        "new-directorys-name-is-not-synced",
        "real_disk",
        "a new directory is durable in the one above",
        (Edit("real_disk.make_directory", "sync_path(parent)"),),
        turns_red=POWER_TEST + "a_log_of_a_new_directory_is_there[forgetful]",
        why_named=REAL_FILES,
    ),
    Mutant(
        "fresh-segment-is-not-synced",
        "real_disk",
        "a fresh segment's zeros are durable, or an fdatasync inside it could be short of its size",
        (Edit("zero_fill.write_zeros", "os.fsync(descriptor)"),),
        turns_red=POWER_TEST + "a_fresh_segment_is_whole_and_has_its_name[forgetful]",
        why_named=REAL_FILES,
    ),
    Mutant(
        "new-segment-is-synced-as-a-whole",
        "zero_fill",
        "a new segment of a quiet log is synced in steps, between which commits are",
        (Edit("zero_fill.write_zeros", "os.fdatasync(descriptor)"),),
        turns_red=FILL_TEST + "no_sync_of_a_quiet_logs_segment_is_long",
        why_named=REAL_FILES,
    ),
    Mutant(
        "steps-take-as-long-as-a-segment-lasts",
        "zero_fill",
        "the steps of a new segment end long before the log needs it",
        (Edit("StepTime.begin", "lasted_s / self.PART", "lasted_s"),),
        turns_red=FILL_TEST + "steps_take_a_part_of_the_time_that_a_segment_lasts",
        why_named=REAL_FILES,
    ),
    Mutant(
        "bulk-load-waits-for-steps",
        "zero_fill",
        "a bulk load gets its segments at once",
        (Edit("StepTime.begin", "lasted_s < self.BULK_S", "False"),),
        turns_red=FILL_TEST + "a_bulk_load_gets_its_segments_at_once",
        why_named=REAL_FILES,
    ),
    Mutant(
        "steps-take-any-time-on-a-slow-disk",
        "zero_fill",
        "a slow disk gets the rest of a new segment at once",
        (
            Edit(
                "StepTime.begin",
                "min(self.SECONDS_MAX, lasted_s / self.PART)",
                "lasted_s / self.PART",
            ),
        ),
        turns_red=FILL_TEST + "a_slow_disk_gets_the_rest_at_once",
        why_named=REAL_FILES,
    ),
    Mutant(
        "wal-is-not-synced",
        "real_disk",
        "WAL is durable when its file is synced",
        (Edit("RealDisk.sync_data", "os.fdatasync(file.descriptor)"),),
        turns_red=POWER_TEST + "wal_that_was_synced_is_there[forgetful]",
        why_named=REAL_FILES,
    ),
    Mutant(
        "quick-writer-does-not-sync",
        "real_disk",
        "small WAL is durable when its writer has synced",
        (
            Edit(
                "real_disk._Writer.__init__",
                "partial(os.fdatasync, file.descriptor)",
                "partial(bool, file.descriptor)",
            ),
        ),
        turns_red=POWER_TEST + "small_wal_that_its_writer_synced_is_there[forgetful]",
        why_named=REAL_FILES,
    ),
)
