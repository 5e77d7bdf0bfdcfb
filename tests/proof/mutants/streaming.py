"""Mutants of the streams of changes: ranges that come again, and what a mirror folds."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

SPARK = "tests/replay/test_spark_changes_stream.py::test_"
PARTS = "tests/replay/test_spooled_parts.py::test_"
KEPT = "tests/replay/test_table_maintenance.py::test_"
TYPES = "tests/replay/test_column_types.py::test_"
MIRRORS = "tests/replay/test_lake_mirrors_postgres.py::test_"
DELTA = "tests/replay/test_delta_mirrors.py::test_"
STREAMED = "tests/replay/test_stream_maintenance.py::test_"
LARGE = "tests/replay/test_large_mirrors_postgres.py::test_"
NO_TABLES = "the simulator reads no WAL as tables"

STREAMING = (
    Mutant(
        "state-ahead-of-the-checkpoint",
        "change_ranges",
        "a state that has read more than a query asks for is refused",
        (Edit("ChangeRanges._windows", "self._refuse_already_read(begin)"),),
        turns_red=SPARK + "the_state_follows_what_is_committed_and_the_spool_is_emptied",
        why_named=NO_TABLES,
    ),
    Mutant(
        "range-repeats-what-came-before",
        "change_ranges",
        "a state that lags gives nothing of the ranges before",
        (
            Edit(
                "ChangeRanges.write",
                "SpooledChanges(self._state, begin)",
                "SpooledChanges(self._state)",
            ),
        ),
        turns_red=SPARK + "a_death_at_any_step_repeats_a_batch_as_it_was[written]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "finished-ranges-stay-in-the-spool",
        "change_ranges",
        "the files of a range go when Spark has committed it",
        (Edit("ChangeRanges.finish", "self._spool.remove(name)", "pass"),),
        turns_red=SPARK + "the_state_follows_what_is_committed_and_the_spool_is_emptied",
        why_named=NO_TABLES,
    ),
    Mutant(
        "parts-of-a-window-stay-in-memory",
        "lake_mirrors",
        "parts of a window beyond a bound go to a file",
        (Edit("SpooledParts.take", "self.bytes_in_memory > self.bytes_max", "False"),),
        turns_red=PARTS + "sets_have_whole_commits_and_a_large_one_is_alone",
        why_named=NO_TABLES,
    ),
    Mutant(
        "set-ends-with-its-window",
        "lake_mirrors",
        "a set of a window ends with its own last commit, so that a death loses no later one",
        (
            Edit(
                "SpooledParts.sets",
                "end if number == len(groups) else group[-1].last_lsn",
                "end",
            ),
        ),
        turns_red=PARTS + "sets_have_whole_commits_and_a_large_one_is_alone",
        why_named=NO_TABLES,
    ),
    Mutant(
        "large-commit-is-folded-whole",
        "lake_mirrors",
        "a large transaction is folded by shares of its keys",
        (Edit("ChangeSet.is_large", "len(self.entries) > 1", "False"),),
        turns_red=PARTS + "sets_have_whole_commits_and_a_large_one_is_alone",
        why_named=NO_TABLES,
    ),
    Mutant(
        "share-forgets-the-truncate",
        "lake_mirrors",
        "a share of a large transaction has no step from before its TRUNCATE",
        (Edit("LargeFold._fold", "self._cut is not None", "False"),),
        turns_red=LARGE + "a_large_transaction_is_mirrored_in_shares_and_once[Delta-mirror]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "maintenance-merges-a-few-files",
        "table_maintenance",
        "files are merged when they are many",
        (Edit("merge_target", "count >= FILES_MIN", "True"),),
        turns_red=KEPT + "files_are_merged_when_they_are_many_and_each_row_few_times",
        why_named=NO_TABLES,
    ),
    Mutant(
        "maintenance-merges-a-large-file-with-small-ones",
        "table_maintenance",
        "a large file waits for as much in small ones, so that a row is written anew a few times",
        (Edit("merge_target", "size <= total", "True"),),
        turns_red=KEPT + "a_row_is_written_anew_a_few_times_while_a_table_grows",
        why_named=NO_TABLES,
    ),
    Mutant(
        "vacuum-lite-of-a-delta-table",
        "delta_maintenance",
        "a checkpoint forgets what VACUUM LITE would remove",
        (Edit("_vacuumed", "table.vacuum(dry_run=True, full=True)", "table.vacuum(dry_run=True)"),),
        turns_red=KEPT + "a_file_that_a_checkpoint_forgot_is_removed",
        why_named=NO_TABLES,
    ),
    Mutant(
        "vacuum-among-files-of-others",
        "delta_maintenance",
        "no file of others below a table's URL is removed",
        (Edit("_vacuumed", "full=not others", "full=True"),),
        turns_red=KEPT + "files_of_others_below_a_delta_table_stay",
        why_named=NO_TABLES,
    ),
    Mutant(
        "default-retention-over-the-tables-own",
        "delta_maintenance",
        "a default retention gives way to the table's own",
        (Edit("_unset", "not retention.is_asked", "False"),),
        turns_red=KEPT + "a_default_retention_gives_way_to_the_tables_own",
        why_named=NO_TABLES,
    ),
    Mutant(
        "facts-of-changes-are-in-the-log-alone",
        "lake_tables",
        "a table of changes knows its log after its entries were removed",
        (Edit("DeltaChanges._commit", "self._keep_facts()", "pass"),),
        turns_red=KEPT + "delta_changes_know_their_log_when_its_entries_are_gone",
        why_named=NO_TABLES,
    ),
    Mutant(
        "snapshot-expires-by-its-own-age",
        "iceberg_maintenance",
        "a snapshot stays for the retention after another one took its place",
        (Edit("expired_snapshots", "later.timestamp_ms", "each.timestamp_ms"),),
        turns_red=KEPT + "a_reader_of_an_older_snapshot_within_the_retention_reads_on",
        why_named=NO_TABLES,
    ),
    Mutant(
        "files-of-a-tag-are-removed",
        "iceberg_maintenance",
        "a snapshot off the current line keeps its files",
        (Edit("_kept_manifests", "[*line[-1:], *others]", "line[-1:]"),),
        turns_red=KEPT + "a_snapshot_with_a_tag_keeps_its_files",
        why_named=NO_TABLES,
    ),
    Mutant(
        "files-of-merged-manifests-are-removed",
        "iceberg_maintenance",
        "a file stays if another manifest has it",
        (
            Edit(
                "_remove_files",
                "files.difference(*(_data_files(each, io) for each in kept.values()))",
                "files",
            ),
        ),
        turns_red=KEPT + "iceberg_changes_expire_and_know_their_position",
        why_named=NO_TABLES,
    ),
    Mutant(
        "expired-lists-are-not-noted",
        "iceberg_maintenance",
        "a death while files are removed leaves the names of the others",
        (Edit("_expire", "change.set_properties({EXPIRED: names})", "names"),),
        turns_red=KEPT + "a_death_while_files_are_removed_leaves_none_for_ever",
        why_named=NO_TABLES,
    ),
    Mutant(
        "maintenance-without-rest",
        "stream_maintenance",
        "maintenance takes a tenth of the time at most",
        (Edit("StreamMaintenance.advance", "not is_resting", "True"),),
        turns_red=STREAMED + "a_table_is_maintained_each_ten_minutes_in_a_tenth_of_the_time",
        why_named=NO_TABLES,
    ),
    Mutant(
        "maintenance-forgets-its-times",
        "stream_maintenance",
        "a run with --once knows when the last one maintained a table",
        (Edit("StreamMaintenance._maintain", "_write(self._path, self._last)", "pass"),),
        turns_red=STREAMED + "the_times_of_maintenance_survive_a_restart",
        why_named=NO_TABLES,
    ),
    Mutant(
        "maintenance-ends-the-stream",
        "stream_maintenance",
        "a failure of maintenance is told, and the stream goes on",
        (Edit("StreamMaintenance._maintain", "Exception", "ZeroDivisionError"),),
        turns_red=STREAMED + "a_failure_of_maintenance_is_told_and_ends_nothing",
        why_named=NO_TABLES,
    ),
    Mutant(
        "mirror-writes-statistics-of-far-dates",
        "far_dates",
        "a date that delta-rs cannot write into statistics is left out of them",
        (Edit("DeltaMirrors._prepared", "not far", "True"),),
        turns_red=DELTA + "infinite_dates_are_written_and_stay_through_later_commits",
        why_named=NO_TABLES,
    ),
    Mutant(
        "large-commit-writes-statistics-of-far-dates",
        "far_dates",
        "a large transaction may have such dates, too",
        (Edit("LargeFold.take", "far_dates(rows)", "set()"),),
        turns_red=DELTA + "a_large_transaction_may_have_infinite_dates",
        why_named=NO_TABLES,
    ),
    Mutant(
        "minus-zero-is-another-key",
        "change_folds",
        "0 and -0 are one key",
        (Edit("codes_of", "without_minus_zero(rows[name])", "rows[name]"),),
        turns_red=DELTA + "zero_and_minus_zero_are_one_key[type_0]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "minus-zero-is-in-another-share",
        "large_folds",
        "0 and -0 are in one share of a large transaction",
        (Edit("_sums", "pa.types.is_floating(type_)", "False"),),
        turns_red=DELTA + "zero_and_minus_zero_are_one_key[type_0]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "merge-reads-a-backtick-as-the-end",
        "delta_mirrors",
        "a column's name may have a backtick",
        (Edit("in_backticks", 'name.replace("`", "``")', "name"),),
        turns_red=DELTA + "infinite_dates_are_written_and_stay_through_later_commits",
        why_named=NO_TABLES,
    ),
    Mutant(
        "mirror-takes-another-types-texts",
        "column_types",
        "rows of one file have the texts of one type",
        (Edit("ColumnTypes.refuse_others", 'before["file"] == table.file.relfilenode', "False"),),
        turns_red=TYPES
        + "a_type_with_other_texts_in_the_same_file_is_refused_by_each_later_stream",
        why_named=NO_TABLES,
    ),
    Mutant(
        "new-file-needs-the-old-types",
        "column_types",
        "a file that was written anew may have other types",
        (Edit("ColumnTypes.refuse_others", 'before["file"] == table.file.relfilenode', "True"),),
        turns_red=TYPES + "a_file_that_was_written_anew_may_have_other_types",
        why_named=NO_TABLES,
    ),
    Mutant(
        "changes-of-types-are-not-compared",
        "column_types",
        "a mirror compares the types of each change",
        (Edit("Mirrors._refuse_schemas", "self._types.refuse_others(piece.table)", "pass"),),
        turns_red=MIRRORS + "a_table_that_a_mirror_cannot_follow_is_refused_by_name[recast]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "first-rows-have-no-types",
        "column_types",
        "a mirror notes the types of the rows with which it begins",
        (Edit("Mirrors.load", "self._types.refuse_others(table)", "pass"),),
        turns_red=TYPES + "the_first_rows_of_a_mirror_have_types",
        why_named=NO_TABLES,
    ),
    Mutant(
        "retention-of-no-time",
        "stream_maintenance",
        "a retention under which queries fail is refused",
        (Edit("KeptFor.convert", "seconds < _RETENTION_MIN_S", "False"),),
        turns_red=STREAMED + "a_retention_under_which_queries_fail_is_refused[none]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "stream-maintains-no-table",
        "stream_maintenance",
        "a stream with a retention maintains its tables, with --once at its end",
        (
            Edit("Streaming.run", "self._maintenance.finish()", "pass"),
            Edit("Streaming._maintain", "self._maintenance.advance()", "pass"),
        ),
        turns_red=MIRRORS + "a_mirror_is_the_servers_table_through_deaths[Delta-mirror]",
        why_named=NO_TABLES,
    ),
)
