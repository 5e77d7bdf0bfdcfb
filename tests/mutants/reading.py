"""Rules 13 and 14: readers and retention."""

from __future__ import annotations

from tests.mutants.mutant import SAFEKEEPER, Edit, Mutant

ACCEPTOR = SAFEKEEPER + "consensus/acceptor.py"
DRIVER = SAFEKEEPER + "driver.py"
READABLE = SAFEKEEPER + "consensus/readable.py"
WHOLE = SAFEKEEPER + "storage/whole_records.py"
STREAM = SAFEKEEPER + "replication/wal_stream.py"
LIMIT = "limit_lsn = min(horizon_lsn, durable.commit_lsn, members_lsn, kept_lsn)"
RECORD = "record = self.store.record_end(min(durable.commit_lsn, members_lsn))"

READING = (
    Mutant(
        "readers-see-the-uncommitted",
        "13",
        "a reader without a ballot sees committed WAL only",
        (Edit(READABLE, "        return log.commit_lsn", "        return log.flush_lsn"),),
    ),
    Mutant(
        "readers-get-half-a-record",
        "13",
        "a client is sent whole records only, so that nothing is taken back from it",
        (
            Edit(
                WHOLE,
                "    end_lsn = store.record_end(commit_lsn, known.end_lsn).next_lsn\n",
                "    end_lsn = commit_lsn\n",
            ),
        ),
    ),
    Mutant(
        "whole-records-of-truncated-wal",
        "13",
        "where whole records end is forgotten if the log was truncated meanwhile",
        (Edit(DRIVER, "if at[1] == self.acceptor.truncations:", "if True:"),),
        turns_red="tests/safekeeper/test_safekeeper_driver.py::"
        "test_where_whole_records_end_is_not_learned_from_wal_that_came_after_a_truncation",
    ),
    Mutant(
        "messages-end-within-a-page",
        "21",
        "a message to a PostgreSQL client ends at a record's end or at a page boundary",
        (
            Edit(
                STREAM,
                "    return min(longest_end.round_down(WAL_PAGE_BYTES), segment_end)\n",
                "    return min(longest_end, segment_end)\n",
            ),
        ),
        turns_red="tests/safekeeper/test_wal_stream.py::"
        "test_what_is_sent_from_within_a_page_is_rounded_down_to_a_page",
    ),
    Mutant(
        "any-ballot-reads",
        "13",
        "a pinned reader reads only while its ballot is the acceptor's",
        (Edit(READABLE, "    if ballot != log.durable.ballot:\n        return None\n"),),
    ),
    Mutant(
        "read-before-the-election",
        "13",
        "a pinned reader sees flush_lsn only when ProposerElected was processed",
        (
            Edit(
                READABLE,
                "    return log.flush_lsn if log.elected else log.voted_lsn",
                "    return log.flush_lsn",
            ),
        ),
    ),
    Mutant(
        "read-is-not-checked-again",
        "13",
        "a pinned read is checked again when the bytes are there",
        (
            Edit(
                READABLE,
                "    if limit is None or limit < begin_lsn + len(read.payload):",
                "    if False:",
            ),
            Edit(READABLE, "    if read.truncations != log.truncations:", "    if False:"),
        ),
    ),
    Mutant(
        "retention-forgets-restart-lsn",
        "14",
        "no segment goes that a member lacks",
        (
            Edit(DRIVER, LIMIT, "limit_lsn = min(horizon_lsn, durable.commit_lsn, kept_lsn)"),
            Edit(DRIVER, RECORD, "record = self.store.record_end(durable.commit_lsn)"),
        ),
    ),
    Mutant(
        "retention-of-the-volatile",
        "14",
        "retention goes by the durable commit_lsn and restart_lsn",
        (
            Edit(
                DRIVER,
                "        durable = self.acceptor.durable\n        if durable.commit_lsn <=",
                "        durable = replace(self.acceptor.durable, "
                "commit_lsn=self.acceptor.commit_lsn,\n"
                "                          restart_lsn=self.acceptor.restart_lsn)\n"
                "        if durable.commit_lsn <=",
            ),
        ),
    ),
    Mutant(
        "no-segment-before-is-kept",
        "14",
        "the segment before that record is kept, for a primary to be compared with",
        (Edit(DRIVER, "min(limit_lsn, earlier_lsn)", "min(limit_lsn, record.start_lsn)"),),
        turns_red="tests/test_scenarios.py::test_scenario[retention_waits_for_a_member]",
    ),
    Mutant(
        "no-record-start-is-kept",
        "14",
        "the start of the record at the durable commit_lsn is kept",
        (
            Edit(
                DRIVER,
                "self.store.remove_below(min(limit_lsn, earlier_lsn))",
                "self.store.remove_below(limit_lsn)",
            ),
        ),
        turns_red="tests/test_scenarios.py::test_scenario[retention_waits_for_a_member]",
    ),
)
