"""A logical log's own: what is put into it, what is found in it, and what its consumers get.

The simulator's logs are of WAL, so each of these is seen by a test (docs/logical.md).
"""

from __future__ import annotations

from tests.mutants.mutant import COMMON, PROPOSER, SAFEKEEPER, Edit, Mutant

CHANGE_STREAM = PROPOSER + "logical/change_stream.py"
OPEN_TRANSACTIONS = PROPOSER + "logical/open_transactions.py"
ENTRIES = COMMON + "entries.py"
OVERLAP = PROPOSER + "logical/overlap.py"
LOGICAL_CHECK = PROPOSER + "logical/logical_check.py"
LOGICAL_PRIMARY = PROPOSER + "postgres/logical_primary.py"
LOGICAL_LOG = SAFEKEEPER + "replication/logical_log.py"
LOGICAL_STREAM = SAFEKEEPER + "replication/logical_stream.py"

STREAM_TEST = "tests/proposer/test_change_stream.py::"
STREAMED_TEST = "tests/proposer/test_streamed_transactions.py::test_"
ENTRIES_TEST = "tests/common/test_entries.py::"
CHECK_TEST = "tests/proposer/test_logical_check.py::"
OVERLAP_TEST = "tests/proposer/test_overlap.py::test_"
CONSUMER_TEST = "tests/safekeeper/test_logical_stream.py::"
POSITIONS_TEST = "tests/safekeeper/test_consumer_positions.py::"


def _mutant(name: str, removed: str, file: str, old: str, new: str, test: str) -> Mutant:
    """Of one edit; its rule is its module's."""
    rule = file.rsplit("/", 1)[1].removesuffix(".py")
    return Mutant(name, rule, removed, (Edit(file, old, new),), turns_red=test)


LOGICAL = (
    _mutant(
        "confirmed-before-the-quorum",
        "PostgreSQL is told an entry's end when a quorum has it, and not before",
        CHANGE_STREAM,
        "while self._ends and self._ends[0][0] <= position:",
        "while self._ends:",
        STREAM_TEST + "test_postgresql_is_told_the_end_of_the_last_whole_entry_that_is_committed",
    ),
    _mutant(
        "keepalives-are-dropped",
        "a keepalive's position becomes an entry, so that commits that publish nothing return",
        CHANGE_STREAM,
        "        if not self._is_inside and self._progress_position is None:\n",
        "        if self._is_inside and self._progress_position is None:\n",
        STREAM_TEST + "test_keepalives_make_one_progress_entry_at_a_time",
    ),
    _mutant(
        "what-the-log-has-comes-again",
        "a transaction that the log has is dropped when PostgreSQL sends it again",
        CHANGE_STREAM,
        "self._is_dropping = final_lsn < self.end_lsn",
        "self._is_dropping = final_lsn < ZERO_LSN",
        STREAM_TEST + "test_what_the_log_has_is_dropped_but_its_relations_are_remembered",
    ),
    _mutant(
        "segment-without-descriptions",
        "each segment describes the relations that it uses",
        CHANGE_STREAM,
        "            self._descriptions.forget_valid()\n            self._write_settings",
        "            self._write_settings",
        STREAM_TEST + "test_every_segment_begins_with_settings_and_describes_what_it_uses",
    ),
    _mutant(
        "slots-in-a-transaction",
        "slots are written between transactions",
        CHANGE_STREAM,
        "self._is_inside or not self._is_connected:\n            return  # but",
        "not self._is_connected:\n            return  # but",
        STREAM_TEST + "test_slots_wait_for_the_end_of_a_transaction",
    ),
    _mutant(
        "slots-between-connections",
        "nothing is made for a logical log between two connections to its primary",
        CHANGE_STREAM,
        "self._is_inside or not self._is_connected:\n            return  # but",
        "self._is_inside:\n            return  # but",
        STREAM_TEST + "test_nothing_is_made_between_two_connections",
    ),
    _mutant(
        "cut-off-is-whole",
        "a transaction whose connection was lost in the middle is marked as void",
        PROPOSER + "logical/entry_writer.py",
        "        self._kind = EntryKind.ABANDONED\n",
        "",
        STREAM_TEST + "test_a_transaction_that_was_cut_off_comes_again_and_counts_once",
    ),
    _mutant(
        "cut-inside-an-entry",
        "a log ends with a whole entry: what follows it is no part of it",
        ENTRIES,
        "        limit = segment if walk.entry_start is None else walk.entry_start\n"
        "    return RecordEnd(None, first_lsn)",
        "        return RecordEnd(None, limit)\n    return RecordEnd(None, first_lsn)",
        ENTRIES_TEST + "test_the_last_whole_entry_is_found_below_every_byte[1]",
    ),
    _mutant(
        "frame-without-its-crc",
        "a frame whose CRC is wrong is none",
        ENTRIES,
        "if crc32c(payload, crc32c(head[Frame.CHECKED :], size)) != crc:",
        "if not crc32c(payload, crc):",
        ENTRIES_TEST + "test_a_scan_ends_before_the_first_damaged_byte[0]",
    ),
    _mutant(
        "frame-of-another-place",
        "a frame counts in its own place alone",
        ENTRIES,
        "if position != at or size > FRAME_BYTES_MAX",
        "if size > FRAME_BYTES_MAX",
        ENTRIES_TEST + "test_a_frame_in_another_place_is_no_frame",
    ),
    _mutant(
        "moved-slot-is-accepted",
        "a slot beyond the log's end was moved, and what lies between is in no log",
        LOGICAL_CHECK,
        "    if confirmed_lsn > end.end_lsn:\n",
        "    if confirmed_lsn > end.end_lsn + (1 << 40):\n",
        CHECK_TEST + "test_it_is_refused_with_what_to_do[begins at 0/141, the log ends at 0/140]",
    ),
    _mutant(
        "set-back-is-accepted",
        "what the slot decodes below the log's end is in the log",
        OVERLAP,
        "        elif has_rows:\n",
        "        elif has_rows and commit.commit_lsn > self._end_lsn:\n",
        OVERLAP_TEST + "where_the_log_has_no_transaction_there_must_be_none",
    ),
    _mutant(
        "last-one-is-missing",
        "the log's last transaction is in the primary's WAL",
        OVERLAP,
        "        if self.expected is not None:\n",
        "        if self.expected is not None and lsn < self._end_lsn:\n",
        OVERLAP_TEST + "another_past_is_found_before_anything_is_confirmed_or_taken",
    ),
    _mutant(
        "confirmed-before-it-is-compared",
        "nothing is confirmed to a primary before its past is known to be the log's",
        CHANGE_STREAM,
        "            return self._overlap.confirmed_lsn\n",
        "            return self.end_lsn\n",
        OVERLAP_TEST + "another_past_is_found_before_anything_is_confirmed_or_taken",
    ),
    _mutant(
        "compared-from-too-late-on",
        "the log's last transaction is looked for as far back as the slot may not have confirmed",
        LOGICAL_CHECK,
        "        is_enough = tail.is_enough(self.primary.confirmed_lsn)\n",
        "        is_enough = tail is not None\n",
        CHECK_TEST + "test_the_last_transaction_is_looked_for_as_far_back_as_the_slot_needs",
    ),
    _mutant(
        "other-publications",
        "a log keeps the same publications from its beginning on",
        LOGICAL_CHECK,
        "    if not kept or set(kept) == set(primary.publications):\n",
        "    if primary.publications:\n",
        CHECK_TEST
        + "test_it_is_refused_with_what_to_do[keeps publication p, and not publications p, q]",
    ),
    _mutant(
        "parts-are-sent-at-once",
        "of a large transaction nothing is sent before it is known to be whole",
        LOGICAL_STREAM,
        "self._is_wanted = await self._is_whole_and_new(frame)",
        "self._is_wanted = True",
        CONSUMER_TEST
        + "test_a_consumer_gets_every_transaction_behind_its_position_and_can_read_each[0]",
    ),
    _mutant(
        "sent-twice",
        "a consumer is not sent what lies below its position",
        LOGICAL_STREAM,
        "        is_new = frame.end_lsn > reader.sent_lsn\n",
        "        is_new = True\n",
        CONSUMER_TEST
        + "test_a_consumer_gets_every_transaction_behind_its_position_and_can_read_each[1]",
    ),
    _mutant(
        "lone-message-twice",
        "a message outside of transactions is there once, however often PostgreSQL sends it",
        CHANGE_STREAM,
        "        if emitted.end_lsn <= self.end_lsn:\n",
        "        if False:\n",
        STREAM_TEST + "test_a_message_outside_of_transactions_is_an_entry_of_its_own_and_kept_once",
    ),
    _mutant(
        "foreign-to-a-local-consumer",
        "with origin = none nothing comes that has an origin",
        LOGICAL_STREAM,
        "        return not (self._wishes.local_only and is_change and has_origin(",
        "        return not (False and is_change and has_origin(",
        CONSUMER_TEST + "test_a_consumer_of_what_is_local_gets_nothing_that_came_from_elsewhere[1]",
    ),
    _mutant(
        "starts-inside-of-what-is-needed",
        "a log that starts inside a transaction is not for who has not got that one",
        LOGICAL_LOG,
        "        return low if ZERO_LSN < end_lsn <= lsn else None\n",
        "        return low\n",
        CONSUMER_TEST + "test_a_log_that_starts_inside_a_transaction_serves_whoever_has_that_one",
    ),
    _mutant(
        "slot-ahead-of-feedback",
        "a slot moves with what its consumer has flushed, and no further than what was sent",
        LOGICAL_STREAM,
        "self._log.slots.slots.confirm(reader.slot, reader.confirmed_lsn, pid=reader.pid)",
        "self._log.slots.slots.confirm(reader.slot, reader.sent_lsn, pid=reader.pid)",
        CONSUMER_TEST + "test_a_slot_moves_with_its_consumers_word_and_never_past_what_was_sent",
    ),
    _mutant(
        "slot-without-a-quorum",
        "a slot's creation is answered when a quorum has it",
        LOGICAL_LOG,
        "            await self._until(lambda: name not in self.positions.wanted)\n",
        "            assert self._until\n",
        CONSUMER_TEST + "test_a_slot_that_no_quorum_gets_is_refused_in_time",
    ),
    _mutant(
        "no-limit-for-consumers",
        "consumers hold back a limited part of the log",
        LOGICAL_LOG,
        "        return max(self.needed_lsn, Lsn(max(0, log.commit_lsn - Lsn(keep_bytes_max))))\n",
        "        return self.needed_lsn\n",
        CONSUMER_TEST
        + "test_a_position_that_is_no_longer_kept_is_not_found_and_slots_hold_back_a_limit",
    ),
    _mutant(
        "late-news-go-back",
        "positions in the log only go forward",
        COMMON + "wire/consumer_slots.py",
        "found[one.name] = max(one.lsn, found.get(one.name, end_lsn))",
        "found[one.name] = one.lsn",
        POSITIONS_TEST + "test_positions_only_go_forward",
    ),
    _mutant(
        "slot-behind-the-log",
        "a new slot begins where the log ends, whatever its safekeeper knows",
        CHANGE_STREAM,
        "after(known, news, end_lsn=self.end_lsn)",
        "after(known, news)",
        STREAM_TEST + "test_a_new_slot_begins_where_the_log_ends_however_often_it_is_told",
    ),
    _mutant(
        "late-news-revive-a-slot",
        "a dropped slot is not made again by what its consumer said before",
        COMMON + "wire/consumer_slots.py",
        "        elif one.name in found or one.is_new:\n",
        "        else:\n",
        POSITIONS_TEST + "test_a_dropped_slot_is_gone_everywhere_and_no_late_news_revive_it",
    ),
    _mutant(
        "rolled-back-rows-stay",
        "what a subtransaction did is cut off when it is rolled back",
        OPEN_TRANSACTIONS,
        "            self._spool.truncate(at)\n",
        "            self._spool.seek(self._written_bytes)\n",
        STREAMED_TEST
        + "what_a_subtransaction_did_and_those_inside_it_is_cut_off_when_it_is_rolled_back",
    ),
    _mutant(
        "streams-outlive-their-connection",
        "what was streamed on a connection that is lost comes again on the next",
        OPEN_TRANSACTIONS,
        "        self._by_xid.clear()\n",
        "",
        STREAMED_TEST + "a_connection_that_is_lost_leaves_nothing_and_the_next_sends_it_again",
    ),
    _mutant(
        "streamed-again-is-logged-again",
        "a streamed transaction that the log has is dropped when PostgreSQL sends it again",
        CHANGE_STREAM,
        "        if commit.commit_lsn < self.end_lsn:  # the log has it\n",
        "        if commit.commit_lsn < ZERO_LSN:  # the log has it\n",
        STREAMED_TEST + "one_that_the_log_has_is_dropped_and_its_relations_are_remembered",
    ),
    _mutant(
        "begins-with-the-last-lsn",
        "a streamed transaction's Begin has an LSN that lets nobody confirm the whole of it",
        CHANGE_STREAM,
        "pack_copy_data(one.header + ended.begin.pack())",
        "pack_copy_data(bytes(payload[:XLOG_DATA_BYTES]) + ended.begin.pack())",
        STREAMED_TEST
        + "its_begin_has_the_lsn_of_its_first_change_so_that_nobody_reports_the_whole_of_it",
    ),
    _mutant(
        "older-description-wins",
        "of two descriptions of a relation the one that PostgreSQL sent last counts",
        COMMON + "postgres/pgoutput.py",
        "max(found, self._by_relation.get(oid, found))",
        "found",
        STREAMED_TEST + "who_comes_later_has_the_descriptions_that_it_left_and_the_newest_of_two",
    ),
    _mutant(
        "spool-without-a-bound",
        "what is kept of open transactions is bounded",
        OPEN_TRANSACTIONS,
        "        if self._others_bytes + current.held_bytes > self._bytes_max:\n",
        "        if current.held_bytes > self._bytes_max:\n",
        STREAMED_TEST + "what_is_kept_is_bounded",
    ),
    _mutant(
        "streams-messages",
        "nothing is streamed of which a stream does not say all: messages, origins",
        LOGICAL_PRIMARY,
        "        return has_spools and not self._messages and not self._identity.has_origins\n",
        "        return has_spools\n",
        "tests/proposer/test_logical_primary.py"
        "::test_what_streams_do_not_say_is_asked_for_without_them",
    ),
    _mutant(
        "streams-beside-an-origin",
        "the first origin that is seen ends streaming",
        CHANGE_STREAM,
        "        if kind == ORIGIN and self._streams:\n",
        "        if kind == ORIGIN and not self._is_inside:\n",
        STREAMED_TEST + "where_origins_are_in_use_nothing_can_be_streamed",
    ),
)
