"""R2 to R15 on the fast path of a safekeeper: the template, its void, and the compiled part."""

from __future__ import annotations

from tests.proof.mutants.mutant import (
    APPEND_PATH,
    BUSY,
    FAST_FRAMES,
    REAL_DESCRIPTORS,
    SEARCHED,
    SIM,
    WHOLE_FRAMES,
    Edit,
    FastEdit,
    Mutant,
)

FRAMES = "tests/safekeeper/test_fast_append.py"
FILES = "tests/safekeeper/test_fast_files.py"
TEMPLATE = "walkeeper_safekeeper.consensus.expected_append"
BOTH = f"{FRAMES}::test_both_paths_end_in_the_same_state_and_say_the_same"

FAST_APPENDS = (
    Mutant(
        "fast-gap",
        "R8",
        "the fast path of an append is for WAL at the write position only",
        (FastEdit("if begin != found.end_lsn:", "if False:", APPEND_PATH),),
        turns_red=f"{BOTH}[1]",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-of-another-term",
        "R8",
        "the fast path of an append is for the elected leader's own frames only",
        (
            FastEdit(
                "if memcmp(frame + TERM_AT, self.term, TERM_BYTES) != 0:", "if False:", APPEND_PATH
            ),
        ),
        turns_red=f"{BOTH}[1]",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-damaged",
        "R8",
        "WAL that was damaged on its way is not written on the fast path either",
        (
            FastEdit(
                "if crc_of(wal, <Py_ssize_t>wal_bytes) != be32(frame + CRC_AT):",
                "if False:",
                APPEND_PATH,
            ),
        ),
        turns_red=f"{BOTH}[4]",
        searched_by=(SIM, BUSY),
        why_named=WHOLE_FRAMES,
    ),
    Mutant(
        "fast-heartbeat-unanswered",
        "R10",
        "a heartbeat without news is answered, since silence means a lost peer",
        (
            FastEdit(
                "if at != APPEND_BYTES or self.leader_commit_lsn >= min(commit, found.end_lsn):",
                "if at == 0:",
                APPEND_PATH,
            ),
        ),
        turns_red=f"{FRAMES}::test_a_heartbeat_that_says_nothing_new_is_answered[1]",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-outlives-an-event",
        "R3",
        "the template is void with the next event, a deposing election for one",
        (Edit("walkeeper_safekeeper.safekeeper_driver.Driver.post", "self._end_fast()"),),
        turns_red=f"{FRAMES}::test_the_fast_path_ends_with_the_leaders_term",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-socket-outlives-an-event",
        "R3",
        "with the template, the socket loses the fast path: else a deposed leader's WAL is written",
        (
            Edit(
                "walkeeper_safekeeper.fast_appends.FastPath.end",
                "self._answer.receive_first(None)",
            ),
        ),
        turns_red=f"{FRAMES}::test_the_socket_loses_the_fast_path_with_its_template",
        searched_by=(SIM, BUSY),
        why_named=REAL_DESCRIPTORS,
    ),
    Mutant(
        "fast-tries-a-failed-disk-again",
        "R15",
        "a fast path whose write or sync failed takes nothing more",
        (FastEdit("self.failure = error", "pass", APPEND_PATH),),
        turns_red=f"{FILES}::test_a_failed_sync_is_no_ack",
        searched_by=(SIM, BUSY),
        why_named=REAL_DESCRIPTORS,
    ),
    Mutant(
        "fast-waits-for-a-slow-disk",
        "driver",
        "the loop waits for no disk that has become slow",
        (FastEdit(" or synced_s - started_s >= self.brief_s:", ":", APPEND_PATH),),
        turns_red=f"{FRAMES}::test_a_slow_write_is_counted_at_once",
        searched_by=(SIM, BUSY),
        why_named="the simulator's disks stay quick",
    ),
    Mutant(
        "fast-news-are-lost",
        "R2",
        "the core takes the appends of the fast path before any other event",
        (Edit("walkeeper_safekeeper.safekeeper_driver.Driver._end_fast", "self.settle()"),),
        turns_red=f"{FRAMES}::test_the_core_hears_of_a_bunch_before_the_next_event",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-unmarked",
        "R9",
        "the fast path of an append ends before a mark that must be durable first",
        (FastEdit("min(expected.limit_lsn, tail.end_lsn)", "tail.end_lsn", APPEND_PATH),),
        turns_red=f"{FRAMES}::test_a_mark_is_made_before_the_ack",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-over-the-segments-end",
        "R9",
        "the fast path of an append ends before it needs another file",
        (FastEdit("min(expected.limit_lsn, tail.end_lsn)", "expected.limit_lsn", APPEND_PATH),),
        turns_red=f"{FILES}::test_the_segments_end_belongs_to_the_slow_path",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-unsynced",
        "R9",
        "an acknowledgement on the fast path comes behind the fdatasync that covers it",
        (FastEdit("while fdatasync(self.descriptor) != 0:", "while False:", APPEND_PATH),),
        turns_red=f"{FILES}::test_a_failed_sync_is_no_ack",
        searched_by=(SIM, BUSY),
        why_named=REAL_DESCRIPTORS,
    ),
    Mutant(
        "fast-unsynced-by-method",
        "R9",
        "an acknowledgement follows its sync on a disk without a descriptor, too",
        (FastEdit("self.tail.sync()", "pass", APPEND_PATH),),
    ),
    Mutant(
        "fast-failed-write-counts",
        "R15",
        "a sync that failed is final, and nothing of it is acknowledged",
        (FastEdit("if sync_error:", "if False:", APPEND_PATH),),
        turns_red=f"{FILES}::test_a_failed_sync_is_no_ack",
        searched_by=(SIM, BUSY),
        why_named=REAL_DESCRIPTORS,
    ),
    Mutant(
        "fast-short-write-counts",
        "R15",
        "a write that wrote less is a failed one",
        (FastEdit("if <uint64_t>written != found.wal_bytes:", "if False:", APPEND_PATH),),
        turns_red=f"{FILES}::test_a_short_write_is_no_ack",
        searched_by=(SIM, BUSY),
        why_named=REAL_DESCRIPTORS,
    ),
    Mutant(
        "fast-over-an-unfinished-record",
        "R9",
        "WAL below a page that cuts off a record is durable before that page",
        (FastEdit("if wal[at + 2] & 0x08:", "if False:", FAST_FRAMES),),
        turns_red=f"{FRAMES}::test_a_page_that_cuts_off_a_record_is_no_small_append",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-while-the-core-waits",
        "R2",
        "while a request waits for the disk, the core sees each append",
        (Edit(f"{TEMPLATE}.expected_append", "acceptor.waiting", "False"),),
        turns_red=f"{FRAMES}::test_what_is_under_way_makes_no_template",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
)
