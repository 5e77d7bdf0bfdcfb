"""Mutants of the copy of a subscription's tables: the rows that a worker gets, and from where."""

from __future__ import annotations

from tests.proof.mutants.logical import logical_mutant
from tests.proof.mutants.mutant import NO_CONSUMERS

COPY_TEST = "tests/safekeeper/test_copy_session.py::"
STATEMENTS_TEST = "tests/safekeeper/test_table_copy.py::"
POSITIONS_TEST = "tests/safekeeper/test_consumer_positions.py::"
STREAM_TEST = "tests/safekeeper/test_logical_stream.py::"
IN_TIME_TEST = "tests/safekeeper/test_slots_in_time.py::test_"
QUERIES_TEST = "tests/safekeeper/test_subscription_queries.py::"
PUBLISHED_TEST = "tests/proposer/test_publication_tables.py::"

COPYING = (
    logical_mutant(
        "copy-ahead-of-the-log",
        "copy_session",
        "a worker gets a row of a copy when a quorum has the log up to its snapshot",
        "CopySession.snapshot",
        "await logical.wait_for_end(lsn)",
        "",
        COPY_TEST + "test_a_copy_begins_when_a_quorum_has_the_log_up_to_it",
        why=NO_CONSUMERS,
    ),
    logical_mutant(
        "copy-of-any-server",
        "copy_session",
        "the server that copies is on the timeline of the log",
        "CopySession.snapshot",
        "self._snapshot.timeline != logical.timeline",
        "False",
        COPY_TEST + "test_a_server_on_another_timeline_copies_nothing",
        why=NO_CONSUMERS,
    ),
    logical_mutant(
        "copy-leaves-its-encoding",
        "primary_snapshot",
        "answers behind a copy are UTF-8, whatever encoding the copy had",
        "PrimarySnapshot.copy",
        "await self._run(f\"SET client_encoding = '{UTF8.name}'\")",
        "",
        "tests/safekeeper/test_primary_snapshot_postgres.py::test_"
        "a_copy_in_another_encoding_leaves_later_answers_as_they_were",
        why=NO_CONSUMERS,
    ),
    logical_mutant(
        "copy-for-any-role",
        "permissions",
        "a client without the right to stream begins no copy on the primary",
        "permissions.may_perform",
        "COMMANDS.get(type(command), _NOBODY) & identity.roles",
        "COMMANDS.get(SqlCommand if isinstance(command, BeginCopy) else type(command), _NOBODY) "
        "& identity.roles",
        "tests/safekeeper/test_permissions.py"
        "::test_only_who_may_stream_begins_a_copy_on_the_primary[monitor]",
        why=NO_CONSUMERS,
    ),
    logical_mutant(
        "copy-of-any-table",
        "table_copy",
        "a worker's statements reach the primary for published tables alone",
        "TableCopy.check",
        "table not in self._settings.tables",
        "False",
        STATEMENTS_TEST + "test_nothing_else_gets_through",
        why=NO_CONSUMERS,
    ),
    logical_mutant(
        "copy-without-the-filter",
        "table_copy",
        "a COPY has the row filter that the publications have",
        "TableCopy._check_copy",
        '(found[5] or "") != " OR ".join(self._wanted_filters())',
        "False",
        STATEMENTS_TEST + "test_a_row_filter_and_a_column_list_hold",
        why=NO_CONSUMERS,
    ),
    logical_mutant(
        "copy-of-hidden-columns",
        "table_copy",
        "a worker that copies a whole table copies one that is published as a whole",
        "TableCopy._check_columns",
        "columns is None and not set(whole) <= allowed",
        "False",
        STATEMENTS_TEST + "test_a_worker_of_13_or_14_names_no_columns[18]",
        why=NO_CONSUMERS,
    ),
    logical_mutant(
        "drop-takes-a-later-slot",
        "consumer_positions",
        "a drop that waited for a proposer takes no slot that was made or moved since",
        "ConsumerPositions.on_replicated",
        "slots.get(name) == lsn",
        "name in slots",
        POSITIONS_TEST
        + "test_a_drop_that_waits_for_a_proposer_takes_the_slot_as_it_was_and_no_later_one",
        why=NO_CONSUMERS,
    ),
    logical_mutant(
        "drop-without-a-proposer-is-lost",
        "logical_log",
        "a drop that no quorum has yet reaches the next proposer",
        "LogicalLog._drop_everywhere",
        "self.positions.pending[name] = (self.positions.replicated or {}).get(name, lsn)",
        "",
        STREAM_TEST + "test_a_slot_that_no_quorum_gets_is_refused_in_time",
        why=NO_CONSUMERS,
    ),
    logical_mutant(
        "slot-comes-back-from-the-log",
        "logical_log",
        "what is read from the log brings no slot back whose drop is being written",
        "LogicalLog.drop_slot",
        "positions.unwanted.add(name)",
        "None",
        IN_TIME_TEST + "a_slot_that_is_being_dropped_does_not_come_back_from_the_log",
        why=NO_CONSUMERS,
    ),
    logical_mutant(
        "late-slot-is-left-behind",
        "logical_log",
        "a slot that comes after its client gave up is the next client's",
        "LogicalLog.make_slot",
        "positions.give_up(name)",
        "None",
        IN_TIME_TEST + "a_slot_that_comes_too_late_is_the_next_clients",
        why=NO_CONSUMERS,
    ),
    logical_mutant(
        "late-slot-of-another-client",
        "consumer_positions",
        "a late slot that a client has moved is no other client's",
        "ConsumerPositions.on_replicated",
        "lsn in (None, slots.get(name))",
        "True",
        IN_TIME_TEST + "a_late_slot_with_a_client_is_nobody_elses[moved]",
        why=NO_CONSUMERS,
    ),
    logical_mutant(
        "clash-is-subscribed",
        "subscription_queries",
        "no subscription begins whose publications list different columns of a table",
        "subscription_queries._tables",
        "if settings.clashing:\n    raise _clash(*settings.clashing[0])\n",
        "",
        QUERIES_TEST
        + "test_a_table_whose_column_lists_differ_is_refused_as_a_publisher_does[ask0]",
        why=NO_CONSUMERS,
    ),
    logical_mutant(
        "clash-of-another-time",
        "logical_log",
        "a subscription is refused for the publications as they are now, and not as they were",
        "LogicalLog._walk",
        "replace(found, clashing=())",
        "found",
        "tests/safekeeper/test_published_tables.py"
        "::test_the_question_for_the_published_tables_repeats_until_the_log_has_the_answer",
        why=NO_CONSUMERS,
    ),
    logical_mutant(
        "partition-beside-its-root",
        "publication_tables",
        "a partition is not copied beside its root, which has the same rows",
        "publication_tables.published_query",
        '"" if has_lists else SAME_PUBLICATION',
        "SAME_PUBLICATION",
        PUBLISHED_TEST
        + "test_a_partition_comes_with_its_root_alone_if_one_publication_has_the_root"
        + "[15-via, plain_leaf]",
        why=NO_CONSUMERS,
    ),
)
