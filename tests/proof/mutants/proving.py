"""Mutants of the index's proofs, of file:// URLs, and of what changes say that they lack."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

NO_TABLES = "the simulator has no tables"
INDEX = "tests/history/test_index_proof.py::test_"
URLS = "tests/history/test_archives.py::test_a_file_url_"
LOST = "tests/replay/test_lost_changes_postgres.py::test_"
UNDESCRIBED = "tests/replay/test_undescribed_postgres.py::test_"
VALUES = "tests/replay/test_undo_values_postgres.py::test_"

ONE = "tests/replay/test_one_history_postgres.py::test_"
MIXED = ONE + "a_segment_of_another_history_is_named"

PROVING = (
    Mutant(
        "segments-are-no-chain",
        "record_chain",
        "the first record of a segment follows the last one before it, or is a problem",
        (Edit("RecordChain.begins", "summary.prev_lsn == self.last_lsn", "True"),),
        turns_red=MIXED + "[all-find]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "pass-reads-any-history",
        "record_chain",
        "a pass over WAL checks that its segments are one chain before it gives a record",
        (Edit("RecordChain.checked", "is_first and not reading.problems", "False"),),
        turns_red=MIXED + "[all-table-at]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "segments-left-out-are-no-chain",
        "record_chain",
        "a segment that an index stands for is part of the chain",
        (Edit("wal_pass._passed", "chain.problems(left_out, files)", "()"),),
        turns_red=ONE + "a_segment_that_an_index_stands_for_is_part_of_the_chain",
        why_named=NO_TABLES,
    ),
    Mutant(
        "decoded-segments-are-no-chain",
        "record_chain",
        "segments that others decoded are one chain",
        (Edit("parallel_pass.pass_in_parallel", "chain.begins(part.summary, files)", "()"),),
        turns_red=ONE + "segments_that_others_decode_are_one_chain",
        why_named=NO_TABLES,
    ),
    Mutant(
        "stream-forgets-its-last-record",
        "record_chain",
        "a stream goes on only behind the last record that it took",
        (Edit("ChangeStream._window", "self.last_lsn", "0"),),
        turns_red=ONE + "a_stream_that_goes_on_in_another_history_ends",
        why_named=NO_TABLES,
    ),
    Mutant(
        "backup-of-any-history",
        "base",
        "WAL has the checkpoint with which a recovery of the backup begins",
        (Edit("OwnCheckpoint.add", "not begin <= wanted < end", "True"),),
        turns_red=ONE + "a_backup_of_another_history_is_refused[table-at]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "pager-takes-any-backup",
        "base",
        "a pager needs the checkpoint with which a recovery of its backup begins",
        (Edit("Pager._take", "self._checkpoint.add(batch)", "None"),),
        turns_red=ONE + "a_pager_refuses_a_backup_of_another_history",
        why_named=NO_TABLES,
    ),
    Mutant(
        "index-is-believed",
        "segment_index",
        "a row of an index counts only for the file that it was made of",
        (
            Edit(
                "ProvenIndex.row",
                "proof_of(self._files, segment.path, last) == self._proofs[row]",
                "True",
            ),
        ),
        turns_red=INDEX
        + "a_row_without_the_proof_of_its_file_does_not_count[of another file-None]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "proof-of-both-ends-alone",
        "segment_facts",
        "a proof has the page of the last record, in which histories differ that part before it",
        (Edit("segment_facts.place_of_last", "at - at % WAL_PAGE_BYTES", "0"),),
        turns_red="tests/history/test_proven_index_postgres.py"
        "::test_histories_that_part_within_a_segment_have_other_proofs",
        why_named=NO_TABLES,
    ),
    Mutant(
        "file-without-a-name-is-a-table",
        "described_tables",
        "a file without a row of pg_class is named as a file, which may be any table's",
        (Edit("DescribedTables.of_file", '"file"', '"table"'),),
        turns_red="tests/replay/test_described_tables.py"
        "::test_a_file_without_a_row_of_pg_class_is_no_table",
        why_named=NO_TABLES,
    ),
    Mutant(
        "stream-is-silent-of-its-start",
        "undescribed",
        "a stream names the range in which transactions may have begun before the WAL",
        (Edit("ChangeStream.advance_into", "reader.unsure(given)", "()"),),
        turns_red=UNDESCRIBED + "a_transaction_that_may_have_begun_before_is_named",
        why_named=NO_TABLES,
    ),
    Mutant(
        "stream-is-silent-of-recast-values",
        "lost_changes",
        "a stream says which values are not among its changes",
        (Edit("ChangeStream.advance_into", "reader.remarks()", "()"),),
        turns_red=LOST + "a_stream_says_what_its_changes_do_not_show[-append-True]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "mirror-lacks-recast-values",
        "lost_changes",
        "a mirror says nothing of values that it reads again",
        (
            Edit(
                "Streaming._tell_of_missing",
                "[each for each in remarks if not each.is_read_again]",
                "remarks",
            ),
        ),
        turns_red=LOST + "a_stream_says_what_its_changes_do_not_show[delta:-mirror-False]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "sql-under-the-databases-settings",
        "written_rows",
        "SQL sets what changes the value that a text means, and the text of a value",
        (Edit("written_rows", '"SET extra_float_digits = 1;"', '"SELECT 1;"'),),
        turns_red=VALUES + "a_float_of_other_last_digits_is_not_as_it_was_left[float8]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "xml-as-stored",
        "value_text",
        "xml is shown as the server shows it, and not as it is stored",
        (
            Edit(
                "Printer._text",
                "oid == _XML and not self.types.names.is_for_sql",
                "False",
            ),
        ),
        turns_red=VALUES + "xml_is_shown_as_select_does_and_comes_back_as_stored",
        why_named=NO_TABLES,
    ),
    Mutant(
        "xml-in-sql-as-shown",
        "value_text",
        "SQL has xml as it is stored",
        (Edit("Printer._text", "not self.types.names.is_for_sql", "True"),),
        turns_red=VALUES + "xml_is_shown_as_select_does_and_comes_back_as_stored",
        why_named=NO_TABLES,
    ),
    Mutant(
        "key-of-the-operators-type",
        "undo",
        "undo compares a key with a value of the key's own type",
        (
            Edit(
                "_has_key",
                "type_ < _FIRST_NOT_BUILT_IN and type_ not in NAMED",
                "True",
            ),
        ),
        turns_red=VALUES + "a_row_is_found_by_a_key_of_any_type[composite]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "undo-into-another-type",
        "later_names",
        "undo leaves out a row of which a column got another type since",
        (
            Edit(
                "_later",
                "[a.name for a in table.columns if _is_retyped(a, after[a.number])]",
                "[]",
            ),
        ),
        turns_red=VALUES + "a_value_of_an_earlier_type_of_its_column_does_not_come_back[number]",
        why_named=NO_TABLES,
    ),
    Mutant(
        "truncated-rows-into-another-type",
        "later_names",
        "undo leaves out truncated rows of which a column got another type since",
        (Edit("later_names.renamed", "_is_retyped(a, later.get(a.number, a))", "False"),),
        turns_red=VALUES + "rows_of_an_earlier_type_do_not_come_back_after_truncate",
        why_named=NO_TABLES,
    ),
    Mutant(
        "paths-of-urls-keep-their-escapes",
        "open_store",
        "a file:// URL means one folder to the archive and to what reads it",
        (Edit("open_store.local_path", "unquote(parts.path)", "parts.path"),),
        turns_red=URLS + "names_the_folder_in_which_the_archive_is",
        why_named=NO_TABLES,
    ),
    Mutant(
        "paths-of-urls-are-cut",
        "open_store",
        "a file:// URL that goes on after its path is refused",
        (Edit("open_store.local_path", "'?' in url or '#' in url", "False"),),
        turns_red=URLS + "that_goes_on_after_its_path_is_refused[#1]",
        why_named=NO_TABLES,
    ),
)
