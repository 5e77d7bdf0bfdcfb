"""Mutants of the data source of Spark: its options, its rows, and the offsets of its streams."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

OPTIONS = "tests/replay/test_spark_options.py::test_"
SHARES = "tests/replay/test_logged_shares.py::test_"
OFFSETS = "tests/history/test_stream_offsets.py::test_"
PROBLEMS = "tests/replay/test_spark_problems_stream.py::test_"
NO_SPARK = "the simulator reads no WAL as tables"

SPARKS = (
    Mutant(
        "errors-in-capitals-are-skipped",
        "replayed_tables",
        "damage fails a query unless onError says skip or report, in any case",
        (
            Edit(
                "PastOptions.on_problem",
                "one_of(self.values, 'onError', *_ON_ERROR)",
                "self.values.get('onError', 'fail')",
            ),
        ),
        turns_red=OPTIONS + "damage_fails_a_query_in_any_case[given2]",
        why_named=NO_SPARK,
    ),
    Mutant(
        "wrong-values-wait-for-their-use",
        "replayed_tables",
        "a value that an option does not take is an error before a query begins",
        (Edit("PastOptions.parse", "made.refuse_wrong_values()"),),
        turns_red=OPTIONS + "a_wrong_value_is_an_error_also_where_it_is_not_used"
        "[given0-option onError: 'fial' is none of fail, skip, report]",
        why_named=NO_SPARK,
    ),
    Mutant(
        "empty-options-count-as-none",
        "pgwal_options",
        "an option without a value is an error",
        (Edit("pgwal_options.known_options", "not value.strip()", "False"),),
        turns_red=OPTIONS + "an_option_without_a_value_is_named[PgWalOptions]",
        why_named=NO_SPARK,
    ),
    Mutant(
        "payload-is-silent-beside-columns",
        "pgwal_options",
        "payload beside columns is an error",
        (Edit("pgwal_options._columns", "payload and 'columns' in values", "False"),),
        turns_red=OPTIONS + "payload_beside_columns_is_refused",
        why_named=NO_SPARK,
    ),
    Mutant(
        "streams-take-options-without-effect",
        "stream_reader",
        "a stream refuses an option that has no effect on it",
        (Edit("PgWalStreamReader.__init__", "options.refuse_for_streams()"),),
        turns_red=OPTIONS + "a_stream_refuses_an_option_that_would_have_no_effect[given1-index]",
        why_named=NO_SPARK,
    ),
    Mutant(
        "executors-believe-their-own-copy",
        "logical_tables",
        "an executor that sees less of a logical log than the driver fails its task",
        (Edit("logical_tables.rows", "_refuse_shorter(log.files, partition.end)"),),
        turns_red=SHARES + "an_executor_that_sees_less_than_the_driver_fails_its_task",
        why_named=NO_SPARK,
    ),
    Mutant(
        "row-history-passes-over-unknown-values",
        "replayed_tables",
        "row_history names a change that may be of its rows",
        (Edit("PastOptions.own_changes", "not self.allows_missing", "False"),),
        turns_red="tests/replay/test_incomplete_changes_postgres.py::test_"
        "row_history_does_not_pass_over_a_value_that_it_does_not_know",
        why_named=NO_SPARK,
    ),
    Mutant(
        "row-history-believes-oids",
        "change_rows",
        "row_history names a change in which an OID stands for the name",
        (Edit("change_rows.may_be_of_row", "column in change.as_oids", "False"),),
        turns_red="tests/replay/test_incomplete_changes_postgres.py::test_"
        "row_history_does_not_pass_over_a_name_that_stands_as_oid",
        why_named=NO_SPARK,
    ),
    Mutant(
        "row-history-passes-over-old-values",
        "logical_tables",
        "row_history of a log names a change whose old value was not sent",
        (Edit("change_rows.may_be_of_row", "column not in side", "False"),),
        turns_red=SHARES + "row_history_of_a_log_names_a_change_without_the_old_value",
        why_named=NO_SPARK,
    ),
    Mutant(
        "live-streams-cut-a-record-off",
        "stream_reader",
        "a stream of a live log goes on behind a segment when its last record is whole",
        (
            Edit(
                "PgWalStreamReader._committed_end",
                "is_followed(self._files, plan.reachable, len(plan.segments) - 1)",
                "bool(plan.behind)",
            ),
        ),
        turns_red=OFFSETS + "a_live_stream_waits_for_the_rest_of_a_record_that_crosses_over",
        why_named=NO_SPARK,
    ),
    Mutant(
        "batches-come-again-from-any-timeline",
        "stream_reader",
        "a micro-batch that comes again is refused if a newer timeline begins within it",
        (Edit("PgWalStreamReader.partitions", "refuse_rewritten(plan, end)"),),
        turns_red=OFFSETS + "a_batch_that_comes_again_from_a_newer_timeline_is_refused",
        why_named=NO_SPARK,
    ),
    Mutant(
        "offsets-of-any-timeline-go-on",
        "stream_reader",
        "an offset of a timeline that the log was never on is refused",
        (Edit("stream_reader.refuse_rewritten", "not is_guess", "False"),),
        turns_red=OFFSETS + "an_offset_of_a_timeline_that_the_log_was_never_on_is_refused",
        why_named=NO_SPARK,
    ),
    Mutant(
        "streams-are-silent-of-what-they-lack",
        "changes_stream",
        "a stream of changes names in the driver's log what they lack or do not show",
        (Edit("ChangesStreamReader._tell", "(*missing, *remarks)", "()"),),
        turns_red=PROBLEMS + "a_stream_of_changes_tells_it_in_the_drivers_log[True]",
        why_named=NO_SPARK,
    ),
    Mutant(
        "streams-of-problems-lack-the-remarks",
        "change_ranges",
        "a stream of problems has a row for each place that changes may lack",
        (Edit("ChangeRanges.problems", "stream.remarks", "()"),),
        turns_red=PROBLEMS + "a_stream_of_problems_tells_what_the_batch_tells_and_again_the_same",
        why_named=NO_SPARK,
    ),
    Mutant(
        "windows-lie-over-the-range-before",
        "change_ranges",
        "no window has commits of two ranges, so that one that comes again tells the same",
        (Edit("ChangeRanges._windows", "(begin, end)", "(end,)"),),
        turns_red=PROBLEMS + "a_stream_of_problems_tells_what_the_batch_tells_and_again_the_same",
        why_named=NO_SPARK,
    ),
    Mutant(
        "tasks-end-where-they-see-the-end",
        "replayed_tables",
        "all tasks of a query of changes end where the driver saw the log end",
        (
            Edit("ChangesReader.read", "self._end", "self._commits.end"),
            Edit("ChangesReader.read", "self._plan", "options.plan()"),
        ),
        turns_red="tests/replay/test_pyspark_past.py::test_"
        "tasks_of_one_query_end_where_the_driver_saw_the_log_end",
        why_named=NO_SPARK,
    ),
    Mutant(
        "tables-are-redone-over-damage",
        "read_once",
        "table_at of read_once ends at damage, whatever onError says",
        (
            Edit(
                "read_once.table_at",
                "CatalogHistory.read(open_files(options.path), plan, base=options.base, until=lsn, "
                "keeps_commits=False, on_problem=raise_fatal, "
                "decode=_Controls(session, options.path, plan, lsn).decode)",
                "CatalogHistory.read(open_files(options.path), plan, base=options.base, until=lsn, "
                "keeps_commits=False, on_problem=options.on_problem, "
                "decode=_Controls(session, options.path, plan, lsn).decode)",
            ),
        ),
        turns_red="tests/replay/test_read_once.py::test_a_table_is_never_redone_over_damage",
        why_named=NO_SPARK,
    ),
    Mutant(
        "damaged-records-are-whole-changes",
        "change_reader",
        "changes after damage that the first pass met are not complete",
        (Edit("ChangeReader.__post_init__", "self.lost_from", "None"),),
        turns_red="tests/replay/test_undescribed_postgres.py::test_"
        "changes_of_a_damaged_record_are_not_complete",
        why_named=NO_SPARK,
    ),
    Mutant(
        "states-share-names-in-the-spool",
        "change_ranges",
        "files of the spool have the name of their state",
        (Edit("ChangeRanges.__init__", "name_of(state)", "'range'"),),
        turns_red="tests/replay/test_spark_changes_stream.py::test_"
        "two_queries_with_one_spool_keep_apart",
        why_named=NO_SPARK,
    ),
    Mutant(
        "spools-move-with-their-process",
        "changes_stream",
        "driver and executors take a relative spool for one folder",
        (Edit("changes_stream._whole_path", "str(Path(spool).resolve())", "spool"),),
        turns_red="tests/replay/test_spark_changes_stream.py::test_"
        "tasks_in_another_folder_find_a_relative_spool",
        why_named=NO_SPARK,
    ),
    Mutant(
        "holes-are-the-end-of-an-archive",
        "stream_reader",
        "a query of what is there fails at a segment that is missing",
        (
            Edit(
                "PgWalStreamReader._refuse_hole",
                "LATER_MAX if self._last_plan is None else 0",
                "LATER_MAX",
            ),
        ),
        turns_red=OFFSETS + "a_hole_in_the_archive_is_no_end_of_it[False]",
        why_named=NO_SPARK,
    ),
    Mutant(
        "damaged-segments-are-waited-for",
        "stream_reader",
        "a segment that is no WAL of its place is a hole if later ones are there",
        (Edit("spill.is_torn", "_is_good(_first_page(files, segment))", "True"),),
        turns_red=OFFSETS + "a_hole_in_the_archive_is_no_end_of_it[True]",
        why_named=NO_SPARK,
    ),
    Mutant(
        "available-now-goes-on-for-ever",
        "stream_reader",
        "a query of what is there takes nothing that came later",
        (
            Edit(
                "PgWalStreamReader.latestOffset", "self._last_plan or self._plan()", "self._plan()"
            ),
        ),
        turns_red=OFFSETS + "a_query_of_what_is_there_takes_nothing_that_came_later",
        why_named=NO_SPARK,
    ),
    Mutant(
        "older-holes-end-a-log",
        "stream_reader",
        "a hole before an offset is no end of what comes after it",
        (
            Edit(
                "PgWalStreamReader.reportLatestOffset",
                "self._read_to or plan.segments[0].first_lsn",
                "plan.segments[0].first_lsn",
            ),
        ),
        turns_red=OFFSETS + "a_query_of_what_is_there_goes_on_behind_an_older_hole",
        why_named=NO_SPARK,
    ),
)
