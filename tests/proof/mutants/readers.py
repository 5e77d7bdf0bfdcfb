"""R13 and R14: readers and retention."""

from __future__ import annotations

from tests.proof.mutants.mutant import (
    ARCHIVE,
    FAST_FILES,
    REPLACE,
    SEARCHED,
    SEED_MOVES,
    SIM,
    Edit,
    FastEdit,
    Mutant,
)

SCENARIO = "tests/consensus/test_scenarios.py::test_scenario"

FEEDING = "tests/proposer/test_feeding.py"
SHARED = "tests/safekeeper/test_shared_slots.py::test_"
NO_SLOTS = "the simulated safekeepers have no slots of clients"
MEMBER_WAL = "tests/safekeeper/test_member_wal.py::test_"
SLOTS_IN_TIME = "tests/safekeeper/test_slots_in_time.py::test_"
REAL_DISK = "tests/safekeeper/test_real_disk.py::test_"
CACHED_AT_ONCE = (
    "tests/safekeeper/test_safekeeper_driver.py::"
    "test_cached_wal_is_given_at_once_if_it_is_committed_whole_and_here"
)
NO_PAGE_CACHE = "the simulated disks have no page cache"
ONE_MEMBER = "the simulated readers ask the store, not the replication stream"

READING = (
    Mutant(
        "readers-see-the-uncommitted",
        "R13",
        "a reader without a ballot sees committed WAL only",
        (Edit("readable_end", "log.commit_lsn", "log.flush_lsn"),),
    ),
    Mutant(
        "old-wal-is-at-its-holders-only",
        "M8",
        "a client gets WAL that another member holds from this one, too",
        (
            Edit(
                "check_start",
                "start_lsn < log.oldest_lsn and not is_elsewhere",
                "start_lsn < log.oldest_lsn",
            ),
        ),
        turns_red="tests/safekeeper/test_wal_stream.py::"
        "test_wal_that_another_member_holds_is_streamed",
        why_named=ONE_MEMBER,
    ),
    Mutant(
        "another-logs-wal-is-served",
        "M8",
        "WAL of other members is that of the same log",
        (Edit("another_member", "greeting.log_uuid == own.log_uuid", "True"),),
        turns_red=MEMBER_WAL + "a_log_of_the_same_name_is_not_read",
        why_named=ONE_MEMBER,
    ),
    Mutant(
        "silent-member-holds-nothing",
        "M8",
        "WAL counts as removed only if all members have said that they lack it",
        (Edit("MemberWal._holder", "silent.append(str(error))", "None"),),
        turns_red=MEMBER_WAL + "wal_is_not_called_removed_while_a_member_is_silent",
        why_named=ONE_MEMBER,
    ),
    Mutant(
        "readers-get-half-a-record",
        "R13",
        "a client is sent whole records only, so that nothing is taken back from it",
        (
            Edit(
                "whole_records.whole_records",
                "store.record_end(commit_lsn, known.end_lsn).next_lsn",
                "commit_lsn",
            ),
        ),
    ),
    Mutant(
        "whole-records-of-truncated-wal",
        "R13",
        "a truncation voids the end of whole records that was found before it",
        (Edit("find_whole.found", "at[1] == self.acceptor.truncations", "True"),),
        turns_red="tests/safekeeper/test_safekeeper_driver.py::"
        "test_the_end_of_whole_records_is_not_learned_from_wal_after_a_truncation",
        why_named=SEARCHED,
    ),
    Mutant(
        "bytes-read-ahead-outlive-a-truncation",
        "R13",
        "WAL that was read for a client and is not sent yet is promised to it as well",
        (
            Edit(
                "WalStream._reading",
                "self._reader.promised_lsn = end",
                "self._reader.promised_lsn = begin",
            ),
        ),
        turns_red="tests/safekeeper/test_wal_stream.py::"
        "test_bytes_read_ahead_are_not_sent_after_a_truncation[True]",
        why_named=ONE_MEMBER,
    ),
    Mutant(
        "slots-are-not-saved",
        "R14",
        "the positions of slots are saved before WAL is removed",
        (Edit("HostedLog.run", "await self._saved_slots(self.readable.slots.save())", "pass"),),
        turns_red=SLOTS_IN_TIME + "slots_are_saved_before_wal_is_removed",
        why_named=NO_SLOTS,
    ),
    Mutant(
        "half-cached-wal-is-whole",
        "R13",
        "bytes of which the page cache has a part only are read from the disk",
        (Edit("real_disk._read_cached", "data if done == size else None", "data"),),
        turns_red=REAL_DISK + "cached_bytes_are_those_of_the_file_or_none",
        why_named=NO_PAGE_CACHE,
    ),
    Mutant(
        "half-cached-wal-is-whole-in-c",
        "R13",
        "bytes of which the page cache has a part only are read from the disk",
        (FastEdit("return data if done == size else None", "return data", FAST_FILES),),
        turns_red=REAL_DISK + "the_compiled_read_of_cached_bytes_gives_all_of_them_or_none",
        why_named=NO_PAGE_CACHE,
    ),
    Mutant(
        "damaged-wal-from-the-page-cache",
        "R13",
        "no client gets WAL that a scrub found damaged, also if the page cache has it",
        (
            Edit(
                "Driver._read_wal",
                "damaged is not None and self.is_damaged(begin_lsn, end_lsn)",
                "False",
            ),
        ),
        turns_red="tests/safekeeper/test_fast_append.py::test_nothing_of_a_damaged_segment_is_read",
        why_named=NO_PAGE_CACHE,
    ),
    Mutant(
        "damaged-wal-from-the-page-cache-at-once",
        "R13",
        "no stream gets WAL that a scrub found damaged, also if the page cache has it",
        (Edit("ReadableLog.read_cached", "driver.is_damaged(begin, end)", "False"),),
        turns_red=CACHED_AT_ONCE,
        why_named=NO_PAGE_CACHE,
    ),
    Mutant(
        "uncommitted-wal-from-the-page-cache",
        "R13",
        "a stream gets committed WAL only, also if the page cache has more",
        (Edit("ReadableLog.read_cached", "end > self.readable_lsn", "False"),),
        turns_red=CACHED_AT_ONCE,
        why_named=NO_PAGE_CACHE,
    ),
    Mutant(
        "removed-wal-from-the-page-cache",
        "R13",
        "a stream gets no WAL that counts as removed, also if the page cache has it",
        (Edit("ReadableLog.read_cached", "begin < self.oldest_lsn", "False"),),
        turns_red=CACHED_AT_ONCE,
        why_named=NO_PAGE_CACHE,
    ),
    Mutant(
        "older-look-at-records-ends-last",
        "R13",
        "the loop looks for whole records only while no look is on the thread",
        (Edit("Driver.find_whole", "self._finds == 1", "True"),),
        turns_red="tests/safekeeper/test_safekeeper_driver.py::"
        "test_a_look_on_the_loop_does_not_overtake_one_on_the_thread",
        why_named=NO_PAGE_CACHE,
    ),
    Mutant(
        "messages-end-within-a-page",
        "R21",
        "a message to a PostgreSQL client ends at a record's end or at a page boundary",
        (Edit("message_end", "longest_end - longest_end % WAL_PAGE_BYTES", "longest_end"),),
        turns_red="tests/safekeeper/test_wal_stream.py::"
        "test_a_message_ends_where_a_record_or_a_page_does[0]",
        why_named="the simulated readers ask the store, not the replication stream",
    ),
    Mutant(
        "repair-by-any-copy",
        "R13",
        "a damaged segment takes a copy only if all its records are sound",
        (Edit("SegmentRepair._fits", "patched.bears_out(at_lsn, whole_lsn)", "True"),),
        turns_red="tests/safekeeper/test_segment_repair.py::"
        "test_a_copy_with_a_record_that_is_not_sound_is_not_taken",
        why_named="no simulated disk loses committed WAL",
    ),
    Mutant(
        "repair-by-one-of-two-copies",
        "R13",
        "a damaged segment takes no copy if two members have different ones",
        (Edit("agreed_copy", "len(copies) > 1", "False"),),
        turns_red="tests/safekeeper/test_segment_repair.py::test_members_that_differ_give_no_copy",
        why_named="no simulated disk loses committed WAL",
    ),
    Mutant(
        "any-ballot-reads",
        "R13",
        "a pinned reader reads only while its ballot is the acceptor's",
        (Edit("readable_end", "if ballot != log.durable.ballot:\n    return None\n"),),
    ),
    Mutant(
        "read-before-the-election",
        "R13",
        "a pinned reader sees flush_lsn only when ProposerElected was processed",
        (Edit("readable_end", "log.flush_lsn if log.elected else log.voted_lsn", "log.flush_lsn"),),
    ),
    Mutant(
        "read-is-not-checked-again",
        "R13",
        "a pinned read is checked again after the bytes were read",
        (
            Edit(
                "answer_wal_read", "limit is None or limit < begin_lsn + len(read.payload)", "False"
            ),
            Edit("answer_wal_read", "read.truncations != log.truncations", "False"),
        ),
    ),
    Mutant(
        "donors-vote-is-the-last-word",
        "R13",
        "a donor that has no older WAL by its vote is tried in a while",
        (Edit("donor_for", "able or untried", "able"),),
        turns_red=f"{FEEDING}::test_a_donor_may_have_learned_of_its_archive_after_its_vote",
        why_named="the simulated archive answers at once",
    ),
    Mutant(
        "tried-donor-donates-nothing",
        "R13",
        "a donor that lacks older WAL still donates what it has",
        (
            Edit(
                "Member.refuse_reads", "if self.is_tried:\n    self.is_tried = False\n    return\n"
            ),
        ),
        turns_red=f"{FEEDING}::test_a_donor_that_lacks_older_wal_still_donates_what_it_has",
        why_named="the simulated archive answers at once",
    ),
    Mutant(
        "retention-forgets-restart-lsn",
        "R14",
        "no segment goes that a member lacks",
        (
            Edit(
                "remove_unwanted",
                "min(horizon_lsn, durable.commit_lsn, members_lsn, kept_lsn)",
                "min(horizon_lsn, durable.commit_lsn, kept_lsn)",
            ),
            Edit(
                "remove_unwanted.remove_from",
                "min(durable.commit_lsn, members_lsn)",
                "durable.commit_lsn",
            ),
        ),
    ),
    Mutant(
        "retention-of-the-volatile",
        "R14",
        "retention goes by the durable commit_lsn and restart_lsn",
        (
            Edit(
                "remove_unwanted",
                "driver.acceptor.durable",
                "__import__('copy').copy(driver.acceptor)",
            ),
        ),
        turns_red=f"{SCENARIO}[retention_goes_by_the_durable_commit]",
        why_named=SEED_MOVES,
    ),
    Mutant(
        "no-segment-before-is-kept",
        "R14",
        "the segment before that record is kept, for a primary to be compared with",
        (Edit("remove_unwanted.remove_from", "earlier_lsn", "record.start_lsn"),),
        turns_red=f"{SCENARIO}[retention_waits_for_a_member]",
        searched_by=(SIM, REPLACE, ARCHIVE),
        why_named=SEARCHED,
    ),
    Mutant(
        "no-record-start-is-kept",
        "R14",
        "the start of the record at the durable commit_lsn is kept",
        (Edit("remove_unwanted.remove_from", "min(limit_lsn, earlier_lsn)", "limit_lsn"),),
        turns_red=f"{SCENARIO}[retention_waits_for_a_member]",
        searched_by=(SIM, REPLACE, ARCHIVE),
        why_named=SEARCHED,
    ),
    Mutant(
        "slots-stay-on-one-safekeeper",
        "R14",
        "a slot of one member is a slot of all, so that each keeps its WAL",
        (Edit("Slots._follow_one", "len(self._slots) < SLOTS_MAX", "False"),),
        turns_red=SHARED + "a_slot_of_one_member_is_a_slot_of_all",
        why_named=NO_SLOTS,
    ),
    Mutant(
        "shared-slot-moves-under-its-reader",
        "R14",
        "the reader of a slot has the last word on its position, not a copy that is ahead",
        (
            Edit(
                "shared_slots._one",
                "min(active) if active else max(idle, default=None)",
                "max(idle, default=None)",
            ),
        ),
        turns_red=SHARED + "of_two_readers_with_one_name_the_slower_one_counts",
        why_named=NO_SLOTS,
    ),
    Mutant(
        "dropped-slot-comes-back",
        "R14",
        "a member that was away learns of a drop, and does not revive the slot",
        (
            Edit("merged", "slot.slot_id not in dropped", "True"),
            Edit("Slots.follow_shared", "slot.slot_id in self._dropped", "False"),
        ),
        turns_red=SHARED + "a_drop_lasts_although_a_member_was_away",
        why_named=NO_SLOTS,
    ),
    Mutant(
        "drop-takes-a-used-slot",
        "R14",
        "a slot that a reader uses outlives its drop at another member",
        (Edit("Slots.follow_shared", "slot.active_pid is None", "True"),),
        turns_red=SHARED + "a_slot_that_a_reader_uses_outlives_its_drop_elsewhere",
        why_named=NO_SLOTS,
    ),
    Mutant(
        "dropped-slots-are-forgotten",
        "R14",
        "the ids of dropped slots are saved with the slots",
        (Edit("Slots._load", "self._dropped = dropped"),),
        turns_red=SHARED + "a_drop_is_saved",
        why_named=NO_SLOTS,
    ),
    Mutant(
        "copies-hold-archived-wal",
        "R14",
        "with an archive, a copy of a slot keeps no WAL on the disk",
        (Edit("Slots.holding", "has_archive and slot.is_copy", "False"),),
        turns_red=SHARED + "a_copy_keeps_no_wal_on_the_disk_if_the_archive_has_it",
        why_named=NO_SLOTS,
    ),
)
