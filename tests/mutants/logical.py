"""A logical log's own: what is put into it, what is found in it, and what its consumers get.

The simulator's logs are of WAL, so each of these is seen by a test (docs/logical.md).
"""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

STREAM_TEST = "tests/proposer/test_change_stream.py::"
STREAMED_TEST = "tests/proposer/test_streamed_transactions.py::test_"
ENTRIES_TEST = "tests/common/test_entries.py::"
CHECK_TEST = "tests/proposer/test_logical_check.py::"
OVERLAP_TEST = "tests/proposer/test_overlap.py::test_"
CONSUMER_TEST = "tests/safekeeper/test_logical_stream.py::"
POSITIONS_TEST = "tests/safekeeper/test_consumer_positions.py::"


def _mutant(
    name: str, rule: str, removed: str, where: str, old: str, new: str, test: str
) -> Mutant:
    """Return a mutant of one edit."""
    return Mutant(name, rule, removed, (Edit(where, old, new),), turns_red=test)


LOGICAL = (
    _mutant(
        "confirmed-before-the-quorum",
        "change_stream",
        "PostgreSQL is told an entry's end when a quorum has it, and not before",
        "ChangeStream.on_committed",
        "self._ends and self._ends[0][0] <= position",
        "self._ends",
        STREAM_TEST + "test_postgresql_is_told_the_end_of_the_last_whole_entry_that_is_committed",
    ),
    _mutant(
        "keepalives-are-dropped",
        "change_stream",
        "a keepalive's position becomes an entry, so that commits that publish nothing return",
        "ChangeStream._on_keepalive",
        "not self._is_inside",
        "self._is_inside",
        STREAM_TEST + "test_keepalives_make_one_progress_entry_at_a_time",
    ),
    _mutant(
        "what-the-log-has-comes-again",
        "change_stream",
        "a transaction that the log has is dropped when PostgreSQL sends it again",
        "ChangeStream._on_begin",
        "self.end_lsn",
        "ZERO_LSN",
        STREAM_TEST + "test_what_the_log_has_is_dropped_but_its_relations_are_remembered",
    ),
    _mutant(
        "segment-without-descriptions",
        "change_stream",
        "each segment describes the relations that it uses",
        "ChangeStream._settle_segment",
        "self._descriptions.forget_valid()",
        "",
        STREAM_TEST + "test_every_segment_begins_with_settings_and_describes_what_it_uses",
    ),
    _mutant(
        "slots-in-a-transaction",
        "change_stream",
        "slots are written between transactions",
        "ChangeStream._write_slots",
        "self._is_inside or not self._is_connected",
        "not self._is_connected",
        STREAM_TEST + "test_slots_wait_for_the_end_of_a_transaction",
    ),
    _mutant(
        "slots-between-connections",
        "change_stream",
        "nothing is made for a logical log between two connections to its primary",
        "ChangeStream._write_slots",
        "self._is_inside or not self._is_connected",
        "self._is_inside",
        STREAM_TEST + "test_nothing_is_made_between_two_connections",
    ),
    _mutant(
        "cut-off-is-whole",
        "entry_writer",
        "a transaction whose connection was lost in the middle is marked as void",
        "EntryWriter.abandon",
        "self._kind = EntryKind.ABANDONED",
        "",
        STREAM_TEST + "test_a_transaction_that_was_cut_off_comes_again_and_counts_once",
    ),
    _mutant(
        "cut-inside-an-entry",
        "entries",
        "a log ends with a whole entry: what follows it is no part of it",
        "entries.record_end_before",
        "limit = segment if walk.entry_start is None else walk.entry_start",
        "return RecordEnd(None, limit)",
        ENTRIES_TEST + "test_the_last_whole_entry_is_found_below_every_byte[1]",
    ),
    _mutant(
        "frame-without-its-crc",
        "entries",
        "a frame whose CRC is wrong is none",
        "EntryWalk._read_frame",
        "crc32c(payload, crc32c(head[Frame.CHECKED :], size)) != crc",
        "not crc32c(payload, crc)",
        ENTRIES_TEST + "test_a_scan_ends_before_the_first_damaged_byte[0]",
    ),
    _mutant(
        "frame-of-another-place",
        "entries",
        "a frame counts in its own place alone",
        "EntryWalk._read_frame",
        "position != at",
        "False",
        ENTRIES_TEST + "test_a_frame_in_another_place_is_no_frame",
    ),
    _mutant(
        "moved-slot-is-accepted",
        "logical_check",
        "a slot beyond the log's end was moved, and what lies between is in no log",
        "_unfit_slot",
        "confirmed_lsn > end.end_lsn",
        "confirmed_lsn > end.end_lsn + (1 << 40)",
        CHECK_TEST + "test_it_is_refused_with_what_to_do[begins at 0/141, the log ends at 0/140]",
    ),
    _mutant(
        "set-back-is-accepted",
        "overlap",
        "what the slot decodes below the log's end is in the log",
        "Overlap.on_transaction",
        "has_rows",
        "has_rows and commit.commit_lsn > self._end_lsn",
        OVERLAP_TEST + "where_the_log_has_no_transaction_there_must_be_none",
    ),
    _mutant(
        "last-one-is-missing",
        "overlap",
        "the log's last transaction is in the primary's WAL",
        "Overlap.on_reached",
        "self.expected is not None",
        "self.expected is not None and lsn < self._end_lsn",
        OVERLAP_TEST + "another_past_is_found_before_anything_is_confirmed_or_taken",
    ),
    _mutant(
        "confirmed-before-it-is-compared",
        "change_stream",
        "nothing is confirmed to a primary before its past is known to be the log's",
        "ChangeStream.received_lsn",
        "self._overlap.confirmed_lsn",
        "self.end_lsn",
        OVERLAP_TEST + "another_past_is_found_before_anything_is_confirmed_or_taken",
    ),
    _mutant(
        "compared-from-too-late-on",
        "logical_check",
        "the log's last transaction is looked for as far back as the slot may not have confirmed",
        "LogicalCheck._walked",
        "tail.is_enough(self.primary.confirmed_lsn)",
        "tail is not None",
        CHECK_TEST + "test_the_last_transaction_is_looked_for_as_far_back_as_the_slot_needs",
    ),
    _mutant(
        "other-publications",
        "logical_check",
        "a log keeps the same publications from its beginning on",
        "_other_publications",
        "not kept or set(kept) == set(primary.publications)",
        "primary.publications",
        CHECK_TEST
        + "test_it_is_refused_with_what_to_do[keeps publication p, and not publications p, q]",
    ),
    _mutant(
        "parts-are-sent-at-once",
        "logical_stream",
        "of a large transaction nothing is sent before it is known to be whole",
        "LogicalStream._on_part",
        "await self._is_whole_and_new(frame)",
        "True",
        CONSUMER_TEST
        + "test_a_consumer_gets_every_transaction_behind_its_position_and_can_read_each[0]",
    ),
    _mutant(
        "sent-twice",
        "logical_stream",
        "a consumer is not sent what lies below its position",
        "LogicalStream._on_last",
        "frame.end_lsn > reader.sent_lsn",
        "True",
        CONSUMER_TEST
        + "test_a_consumer_gets_every_transaction_behind_its_position_and_can_read_each[1]",
    ),
    _mutant(
        "lone-message-twice",
        "change_stream",
        "a message outside of transactions is there once, however often PostgreSQL sends it",
        "ChangeStream._on_lone_message",
        "emitted.end_lsn <= self.end_lsn",
        "False",
        STREAM_TEST + "test_a_message_outside_of_transactions_is_an_entry_of_its_own_and_kept_once",
    ),
    _mutant(
        "foreign-to-a-local-consumer",
        "logical_stream",
        "with origin = none nothing comes that has an origin",
        "LogicalStream._is_asked_for",
        "self._wishes.local_only",
        "False",
        CONSUMER_TEST + "test_a_consumer_of_what_is_local_gets_nothing_that_came_from_elsewhere[1]",
    ),
    _mutant(
        "starts-inside-of-what-is-needed",
        "logical_log",
        "a log that starts inside a transaction is not for who has not got that one",
        "LogicalLog.segment_of",
        "low if ZERO_LSN < end_lsn <= lsn else None",
        "low",
        CONSUMER_TEST + "test_a_log_that_starts_inside_a_transaction_serves_whoever_has_that_one",
    ),
    _mutant(
        "slot-ahead-of-feedback",
        "logical_stream",
        "a slot moves with what its consumer has flushed, and no further than what was sent",
        "LogicalStream._on_feedback",
        "self._log.slots.slots.confirm(reader.slot, reader.confirmed_lsn, pid=reader.pid)",
        "self._log.slots.slots.confirm(reader.slot, reader.sent_lsn, pid=reader.pid)",
        CONSUMER_TEST + "test_a_slot_moves_with_its_consumers_word_and_never_past_what_was_sent",
    ),
    _mutant(
        "slot-without-a-quorum",
        "logical_log",
        "a slot's creation is answered when a quorum has it",
        "LogicalLog.make_slot",
        "await self._until(lambda: name not in self.positions.wanted)",
        "assert self._until",
        CONSUMER_TEST + "test_a_slot_that_no_quorum_gets_is_refused_in_time",
    ),
    _mutant(
        "no-limit-for-consumers",
        "logical_log",
        "consumers hold back a limited part of the log",
        "LogicalLog.horizon",
        "max(self.needed_lsn, Lsn(max(0, log.commit_lsn - Lsn(keep_bytes_max))))",
        "self.needed_lsn",
        CONSUMER_TEST
        + "test_a_position_that_is_no_longer_kept_is_not_found_and_slots_hold_back_a_limit",
    ),
    _mutant(
        "late-news-go-back",
        "consumer_slots",
        "positions in the log only go forward",
        "consumer_slots.after",
        "max(one.lsn, found.get(one.name, end_lsn))",
        "one.lsn",
        POSITIONS_TEST + "test_positions_only_go_forward",
    ),
    _mutant(
        "slot-behind-the-log",
        "change_stream",
        "a new slot begins where the log ends, whatever its safekeeper knows",
        "ChangeStream.on_consumer_slots",
        "end_lsn=self.end_lsn",
        "",
        STREAM_TEST + "test_a_new_slot_begins_where_the_log_ends_however_often_it_is_told",
    ),
    _mutant(
        "late-news-revive-a-slot",
        "consumer_slots",
        "a dropped slot is not made again by what its consumer said before",
        "consumer_slots.after",
        "if one.name in found or one.is_new:\n"
        "    found[one.name] = max(one.lsn, found.get(one.name, end_lsn))\n",
        "found[one.name] = max(one.lsn, found.get(one.name, end_lsn))",
        POSITIONS_TEST + "test_a_dropped_slot_is_gone_everywhere_and_no_late_news_revive_it",
    ),
    _mutant(
        "rolled-back-rows-stay",
        "open_transactions",
        "what a subtransaction did is cut off when it is rolled back",
        "OpenTransaction.roll_back",
        "self._spool.truncate(at)",
        "self._spool.seek(self._written_bytes)",
        STREAMED_TEST
        + "what_a_subtransaction_did_and_those_inside_it_is_cut_off_when_it_is_rolled_back",
    ),
    _mutant(
        "streams-outlive-their-connection",
        "open_transactions",
        "what was streamed on a connection that is lost comes again on the next",
        "OpenTransactions.clear",
        "self._by_xid.clear()",
        "",
        STREAMED_TEST + "a_connection_that_is_lost_leaves_nothing_and_the_next_sends_it_again",
    ),
    _mutant(
        "streamed-again-is-logged-again",
        "change_stream",
        "a streamed transaction that the log has is dropped when PostgreSQL sends it again",
        "ChangeStream._on_stream_commit",
        "self.end_lsn",
        "ZERO_LSN",
        STREAMED_TEST + "one_that_the_log_has_is_dropped_and_its_relations_are_remembered",
    ),
    _mutant(
        "begins-with-the-last-lsn",
        "change_stream",
        "a streamed transaction's Begin has an LSN that lets nobody confirm the whole of it",
        "ChangeStream._on_stream_commit",
        "one.header",
        "bytes(payload[:XLOG_DATA_BYTES])",
        STREAMED_TEST
        + "its_begin_has_the_lsn_of_its_first_change_so_that_nobody_reports_the_whole_of_it",
    ),
    _mutant(
        "older-description-wins",
        "pgoutput",
        "of two descriptions of a relation the one that PostgreSQL sent last counts",
        "Descriptions.take_in",
        "max(found, self._by_relation.get(oid, found))",
        "found",
        STREAMED_TEST + "who_comes_later_has_the_descriptions_that_it_left_and_the_newest_of_two",
    ),
    _mutant(
        "spool-without-a-bound",
        "open_transactions",
        "what is kept of open transactions is bounded",
        "OpenTransactions._check_size",
        "self._others_bytes + current.held_bytes",
        "current.held_bytes",
        STREAMED_TEST + "what_is_kept_is_bounded",
    ),
    _mutant(
        "streams-messages",
        "logical_primary",
        "nothing is streamed of which a stream does not say all: messages, origins",
        "LogicalPrimary._can_stream",
        "has_spools and not self._messages and not self._identity.has_origins",
        "has_spools",
        "tests/proposer/test_logical_primary.py"
        "::test_what_streams_do_not_say_is_asked_for_without_them",
    ),
    _mutant(
        "streams-beside-an-origin",
        "change_stream",
        "the first origin that is seen ends streaming",
        "ChangeStream._on_message",
        "self._streams",
        "not self._is_inside",
        STREAMED_TEST + "where_origins_are_in_use_nothing_can_be_streamed",
    ),
)
